// What computes one kernel function, chosen at its first launch from its demangled name.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "values/scalar.h"
#include "values/signature.h"
#include "values/values.h"

namespace maya::values {

struct Launch {
  const std::uint32_t* grid;
  const std::uint32_t* block;
  void** args;

  template <class T>
  T argument(int index) const {
    T value;
    std::memcpy(&value, args[index], sizeof value);
    return value;
  }
  const std::byte* bytes(int index) const { return static_cast<const std::byte*>(args[index]); }
};

class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;
  // Computes the kernel, or forgets what it writes. False: the arguments do not look as expected, nothing
  // was done.
  virtual bool run(const Launch& launch) const = 0;
};

// By family of kernels; nullptr: not one of them.
std::unique_ptr<Executor> make_elementwise(const Signature& kernel);
std::unique_ptr<Executor> make_reduction(const Signature& kernel);
std::unique_ptr<Executor> make_rearranging(const Signature& kernel);
std::unique_ptr<Executor> make_indexing(const Signature& kernel);
std::unique_ptr<Executor> make_scan(const Signature& kernel);
std::unique_ptr<Executor> make_compaction(const Signature& kernel);
std::unique_ptr<Executor> make_ranking(const Signature& kernel);
std::unique_ptr<Executor> make_foreach(const Signature& kernel);
// Any other kernel of which at least the pointers it writes through are known from its parameters.
std::unique_ptr<Executor> make_opaque(const Signature& kernel);

// Reads a T from the argument bytes of a kernel.
template <class T>
T read_at(const std::byte* bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes + offset, sizeof value);
  return value;
}

constexpr std::size_t align_up(std::size_t offset, std::size_t alignment) {
  return (offset + alignment - 1) / alignment * alignment;
}

// Whether [pointer, pointer + bytes) lies in one allocation of device memory.
bool on_device(const void* pointer, std::size_t bytes);

// Whether a tensor is small enough to be computed. Floating-point ones beyond kSmallBytes are only where `countable`.
inline bool computes(std::int64_t elements, ScalarType type, bool countable) {
  if (elements * static_cast<std::int64_t>(size_of(type)) <= static_cast<std::int64_t>(kSmallBytes)) return true;
  return elements <= kCountableElements && (countable || !is_float(type));
}

// What a tensor of this size is known as.
inline Content content_of(ScalarType type, std::int64_t elements) {
  const bool large = elements * static_cast<std::int64_t>(size_of(type)) > static_cast<std::int64_t>(kSmallBytes);
  return is_float(type) && large ? Content::kCountableFloat : content_of(type);
}

// Marks what is written, element by element, with one call per contiguous run.
class Output {
 public:
  explicit Output(ScalarType type) : Output(type, content_of(type)) {}
  Output(ScalarType type, Content content) : type_(type), bytes_(size_of(type)), content_(content) {}
  Output(std::size_t element_bytes, Content content)
      : type_(ScalarType::kUInt8), bytes_(element_bytes), content_(content) {}
  ~Output() { flush(); }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void put(std::byte* to, Lane value) {
    store(type_, value, to);
    extend(to);
  }
  void put(std::byte* to, const std::byte* from) {
    std::memcpy(to, from, bytes_);
    extend(to);
  }

 private:
  void extend(std::byte* to) {
    if (to != end_) {
      flush();
      begin_ = to;
    }
    end_ = to + bytes_;
  }
  void flush() {
    if (begin_ != nullptr) wrote(begin_, static_cast<std::size_t>(end_ - begin_), content_);
  }

  ScalarType type_;
  std::size_t bytes_;
  Content content_;
  std::byte* begin_ = nullptr;
  std::byte* end_ = nullptr;
};

}  // namespace maya::values
