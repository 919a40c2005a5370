#include "values/known.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/memory.h"
#include "values/values.h"

namespace maya::values {
namespace {

// PyTorch's caching allocator hands out blocks that begin at multiples of 512 bytes
// (kMinBlockSize, c10/cuda/CUDACachingAllocator.cpp): ranges never merge across one, so that what is known
// of one tensor does not become part of its neighbour's.
constexpr std::uintptr_t kBlockAlignment = 512;

// Much of what is large was zeros that nobody wrote (an optimizer's new state): to write them now would bring them into
// memory.
void zero(std::uintptr_t begin, std::uintptr_t end) {
  void* const data = reinterpret_cast<void*>(begin);
  if (end - begin > kSmallBytes) clear(data, end - begin);
  else std::memset(data, 0, end - begin);
}

bool stored(Content content) { return content < Content::kUncomputed; }

bool readable(Content written, Content wanted) {
  if (!stored(written)) return false;
  if (written == Content::kCountable && wanted != Content::kFloat) return true;
  return written == wanted || written == Content::kBytes || wanted == Content::kBytes;
}

}  // namespace

KnownBytes& known_bytes() {
  static KnownBytes instance;
  return instance;
}

KnownBytes::Ranges::const_iterator KnownBytes::holding(std::uintptr_t address) const {
  auto after = ranges_.upper_bound(address);
  if (after == ranges_.begin()) return ranges_.end();
  const auto range = std::prev(after);
  return range->second.end > address ? range : ranges_.end();
}

KnownBytes::Ranges::const_iterator KnownBytes::first_behind(std::uintptr_t address) const {
  const auto range = holding(address);
  return range == ranges_.end() ? ranges_.lower_bound(address) : range;
}

// Removes [begin, end) from the ranges without touching memory.
void KnownBytes::cut(std::uintptr_t begin, std::uintptr_t end) {
  const auto keep_behind = [&](Range old) {
    if (old.end > end) ranges_.emplace(end, old);
  };
  auto range = ranges_.lower_bound(begin);
  if (range != ranges_.begin()) {
    const auto before = std::prev(range);
    const Range old = before->second;
    if (old.end > begin) {
      before->second.end = begin;
      keep_behind(old);
    }
  }
  while (range != ranges_.end() && range->first < end) {
    const Range old = range->second;
    range = ranges_.erase(range);
    keep_behind(old);
  }
}

void KnownBytes::wrote(std::uintptr_t begin, std::size_t bytes, Content content, Assumption assumed) {
  if (bytes == 0) return;
  const std::lock_guard lock(mutex_);
  Range written{begin + bytes, content, assumed, nullptr, 0};
  const auto alike = [&](Ranges::const_iterator other) {
    return other != ranges_.end() && other->second.content == content && other->second.assumed == assumed;
  };
  const auto around = holding(begin);  // a tensor written again, or a part of it: the common cases
  if (alike(around) && around->second.end >= written.end) return;
  cut(begin, written.end);
  const auto after = ranges_.find(written.end);
  if (written.end % kBlockAlignment != 0 && alike(after)) {
    written.end = after->second.end;
    ranges_.erase(after);
  }
  const auto before = begin % kBlockAlignment != 0 ? holding(begin - 1) : ranges_.cend();
  if (alike(before)) begin = before->first;
  ranges_[begin] = written;
}

void KnownBytes::forget(std::uintptr_t begin, std::size_t bytes) {
  const std::uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  auto range = first_behind(begin);
  if (range == ranges_.end() || range->first >= end) return;
  for (; range != ranges_.end() && range->first < end; ++range) {
    zero(std::max(range->first, begin), std::min(range->second.end, end));
  }
  cut(begin, end);
}

void KnownBytes::follows(std::uintptr_t begin, std::size_t bytes, const FormulaPart& part, Assumption assumed) {
  const std::lock_guard lock(mutex_);
  cut(begin, begin + bytes);
  const std::uintptr_t first_element = begin - static_cast<std::uintptr_t>(part.first);
  ranges_[begin] = {begin + bytes, Content::kFormula, assumed, part.formula, first_element};
}

FormulaPart KnownBytes::formula(std::uintptr_t begin, std::size_t bytes, Assumption& assumed) const {
  const std::lock_guard lock(mutex_);
  const auto range = holding(begin);
  if (range == ranges_.end() || range->second.end < begin + bytes || !range->second.formula) return {};
  assumed = std::max(assumed, range->second.assumed);
  return {range->second.formula, static_cast<std::int64_t>(begin - range->second.first_element)};
}

void KnownBytes::clobber(std::uintptr_t begin) {
  std::uintptr_t end = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto range = holding(begin);
    if (range == ranges_.end()) return;
    end = range->second.end;
  }
  forget(begin, end - begin);
}

bool KnownBytes::known(std::uintptr_t begin, std::size_t bytes, Content content, Assumption& assumed) const {
  const std::uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  auto range = holding(begin);
  Assumption found = assumed;
  while (begin < end) {
    if (range == ranges_.end() || range->first > begin || !readable(range->second.content, content)) return false;
    begin = range->second.end;
    found = std::max(found, range->second.assumed);
    ++range;
  }
  assumed = found;
  return true;
}

bool KnownBytes::unknown(std::uintptr_t begin, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  for (auto range = first_behind(begin); range != ranges_.end() && range->first < begin + bytes; ++range) {
    if (stored(range->second.content)) return false;
  }
  return true;
}

std::vector<Part> KnownBytes::parts(std::uintptr_t begin, std::size_t bytes, Content content,
                                    Assumption& assumed) const {
  const std::uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  std::vector<Part> found;
  for (auto range = first_behind(begin); range != ranges_.end() && range->first < end; ++range) {
    if (!readable(range->second.content, content)) continue;
    const auto first = static_cast<std::uint32_t>(std::max(range->first, begin) - begin);
    const auto last = static_cast<std::uint32_t>(std::min(range->second.end, end) - begin);
    if (!found.empty() && found.back().end == first) found.back().end = last;
    else found.push_back({first, last});
    assumed = std::max(assumed, range->second.assumed);
  }
  return found;
}

Content KnownBytes::content(std::uintptr_t begin) const {
  const std::lock_guard lock(mutex_);
  const auto range = holding(begin);
  const bool none = range == ranges_.end() || !stored(range->second.content);
  return none ? Content::kBytes : range->second.content;
}

Content KnownBytes::throughout(std::uintptr_t begin, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  const auto range = holding(begin);
  return range == ranges_.end() || range->second.end < begin + bytes ? Content::kBytes : range->second.content;
}

bool KnownBytes::uncomputed(std::uintptr_t begin) const {
  const std::lock_guard lock(mutex_);
  const auto range = holding(begin);
  return range != ranges_.end() && range->second.content == Content::kUncomputed;
}

std::pair<std::uintptr_t, KnownBytes::Range> KnownBytes::range(std::uintptr_t address) const {
  const std::lock_guard lock(mutex_);
  const auto found = holding(address);
  if (found == ranges_.end() || !stored(found->second.content)) {
    return {address, {address, Content::kBytes, Assumption::kNone, nullptr, 0}};
  }
  return *found;
}

}  // namespace maya::values
