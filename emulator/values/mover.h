// Moving elements by position, with what is known of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "values/executor.h"
#include "values/known.h"

namespace maya::values {

// Of an element that is only moved: a scalar type, or OpaqueType<8>, OpaqueType<8u>. 0: neither.
std::size_t moved_bytes(std::string_view type);

// Whether so many elements are moved from around `source`: all that are small, and countable ones. Of `source_bytes`,
// where so many are known to be there, all must be known before anyone is told that they were not moved.
bool small(std::int64_t elements, std::size_t bytes);
bool moves(std::int64_t elements, std::size_t bytes, const std::byte* source, std::size_t source_bytes = 1);

// What is moved by positions that are not known is lost only where it is known itself, and no floating-point number.
void settle_positions(const std::byte* moved, std::size_t bytes);

Content content_at(const std::byte* data);

// Moves elements of a size. `into`: a tensor of which only some elements are written.
class Mover {
 public:
  explicit Mover(std::size_t bytes, const std::byte* into = nullptr);
  ~Mover() { flush(); }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void move(std::byte* to, const std::byte* from);

 private:
  bool holds(const std::byte* from) const;
  void look_up(const std::byte* from);
  void extend(std::byte* to);
  void flush();

  std::size_t bytes_;
  bool countable_;
  std::uintptr_t source_ = 0;  // the known range last read from, [source_, range_.end)
  KnownBytes::Range range_{};
  std::byte *begin_ = nullptr, *end_ = nullptr;  // written, and not yet said so
};

}  // namespace maya::values
