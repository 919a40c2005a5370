// Which bytes of device memory hold real values. Behind values.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "values/values.h"

namespace maya::values {

// Disjoint ranges of known bytes. Every byte outside them reads zero: forgetting a range zeroes it.
class KnownBytes {
 public:
  void wrote(std::uintptr_t begin, std::size_t bytes, Content content, Assumption assumed);
  void forget(std::uintptr_t begin, std::size_t bytes);
  // Of what is forgotten: it can be computed.
  void follows(std::uintptr_t begin, std::size_t bytes, const FormulaPart& part, Assumption assumed);
  void clobber(std::uintptr_t begin);
  // Raises `assumed` to what it follows from where it is known.
  bool known(std::uintptr_t begin, std::size_t bytes, Content content, Assumption& assumed) const;
  // Whether no byte of the range is.
  bool unknown(std::uintptr_t begin, std::size_t bytes) const;
  // The parts that are known so, and what they follow from.
  std::vector<Part> parts(std::uintptr_t begin, std::size_t bytes, Content content, Assumption& assumed) const;
  // What the known range that holds `begin` was written as.
  Content content(std::uintptr_t begin) const;
  // What the range holds throughout, be it known or not; kBytes: nothing, or several.
  Content throughout(std::uintptr_t begin, std::size_t bytes) const;
  // What the range is the elements of, all of it; raises `assumed` likewise.
  FormulaPart formula(std::uintptr_t begin, std::size_t bytes, Assumption& assumed) const;
  // Whether `begin` holds an integer that nobody computed.
  bool uncomputed(std::uintptr_t begin) const;

  struct Range {
    std::uintptr_t end;
    Content content;
    Assumption assumed;
    std::shared_ptr<const Formula> formula = nullptr;
    std::uintptr_t first_element = 0;  // where the formula's would lie
    bool operator==(const Range&) const = default;
  };
  // The known range that holds `address`, from its first byte; empty: none does.
  std::pair<std::uintptr_t, Range> range(std::uintptr_t address) const;

 private:
  using Ranges = std::map<std::uintptr_t, Range>;

  Ranges::const_iterator holding(std::uintptr_t address) const;
  Ranges::const_iterator first_behind(std::uintptr_t address) const;  // or the one that holds it
  void cut(std::uintptr_t begin, std::uintptr_t end);

  mutable std::mutex mutex_;  // protects ranges_ and the zeroing of what they lose
  Ranges ranges_;             // by first byte
};

KnownBytes& known_bytes();

}  // namespace maya::values
