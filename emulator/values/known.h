// Which bytes of device memory hold real values. Behind values.h.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "values/values.h"

namespace maya::values {

// Disjoint ranges of known bytes. Every byte outside them reads zero: forgetting a range zeroes it.
class KnownBytes {
 public:
  void wrote(std::uintptr_t begin, std::size_t bytes, Content content);
  void forget(std::uintptr_t begin, std::size_t bytes);
  void clobber(std::uintptr_t begin);
  bool known(std::uintptr_t begin, std::size_t bytes, Content content) const;
  // What the known range that holds `begin` was written as.
  Content content(std::uintptr_t begin) const;

 private:
  struct Range {
    std::uintptr_t end;
    Content content;
  };
  using Ranges = std::map<std::uintptr_t, Range>;

  Ranges::const_iterator holding(std::uintptr_t address) const;
  void cut(std::uintptr_t begin, std::uintptr_t end);

  mutable std::mutex mutex_;  // protects ranges_ and the zeroing of what they lose
  Ranges ranges_;             // by first byte
};

KnownBytes& known_bytes();

}  // namespace maya::values
