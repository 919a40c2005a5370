#include "values/mover.h"

#include <cstring>
#include <string>

namespace maya::values {

std::size_t moved_bytes(std::string_view type) {
  if (const auto scalar = scalar_type(type)) return size_of(*scalar);
  const FunctorType opaque = parse_functor(type);
  if (opaque.name != "OpaqueType" || opaque.templates.size() != 1) return 0;
  return static_cast<std::size_t>(decimal(opaque.templates[0]));
}

namespace {

bool is_countable(Content content) { return content == Content::kCountableFloat || content == Content::kCountable; }

}  // namespace

bool small(std::int64_t elements, std::size_t bytes) {
  return elements * static_cast<std::int64_t>(bytes) <= static_cast<std::int64_t>(kSmallBytes);
}

bool moves(std::int64_t elements, std::size_t bytes, const std::byte* source, std::size_t source_bytes) {
  if (small(elements, bytes)) return true;
  const Content content = content_at(source);
  if (!on_device(source, bytes) || !known(source, bytes) || content == Content::kFloat) return false;
  if (elements * static_cast<std::int64_t>(bytes) <= static_cast<std::int64_t>(kCountableBytes)) return true;
  // Floating-point numbers so large tell no sizes, as elsewhere (an expert's bias, for each token), and what is known
  // of their first alone is of a tensor that had its memory before.
  if (!Derivation::picked() || is_countable(content)) return false;
  if (on_device(source, source_bytes) && known(source, source_bytes))
    lose(std::to_string(elements) + " indexed elements");
  return false;
}

void settle_positions(const std::byte* moved, std::size_t bytes) {
  const Content content = content_at(moved);
  const bool number = content == Content::kFloat || content == Content::kCountableFloat;
  if (Derivation::settle() && !number && on_device(moved, bytes) && known(moved, bytes)) Derivation::miss();
}

Content content_at(const std::byte* data) { return known_bytes().content(reinterpret_cast<std::uintptr_t>(data)); }

Mover::Mover(std::size_t bytes, const std::byte* into)
    : bytes_(bytes), countable_(into != nullptr && is_countable(content_at(into))) {}

void Mover::move(std::byte* to, const std::byte* from) {
  if (!holds(from)) look_up(from);
  if (holds(from)) {
    std::memcpy(to, from, bytes_);
    extend(to);
    return;
  }
  flush();
  if (on_device(from, bytes_) && known(from, bytes_)) copy(to, from, bytes_);  // of several ranges
  else forget(to, bytes_);
}

bool Mover::holds(const std::byte* from) const {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  return address >= source_ && address + bytes_ <= range_.end;
}

void Mover::look_up(const std::byte* from) {
  flush();
  std::tie(source_, range_) = known_bytes().range(reinterpret_cast<std::uintptr_t>(from));
  if (holds(from)) Derivation::follow(range_.assumed);
}

void Mover::extend(std::byte* to) {
  if (to != end_) flush();
  if (begin_ == nullptr) begin_ = to;
  end_ = to + bytes_;
}

void Mover::flush() {
  const bool countable = countable_ && range_.content == Content::kFloat;
  if (begin_ != nullptr) {
    wrote(begin_, static_cast<std::size_t>(end_ - begin_), countable ? Content::kCountableFloat : range_.content);
  }
  begin_ = end_ = nullptr;
}

}  // namespace maya::values
