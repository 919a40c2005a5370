#include "values/known.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace maya::values {
namespace {

// PyTorch's caching allocator hands out blocks that begin at multiples of 512 bytes
// (kMinBlockSize, c10/cuda/CUDACachingAllocator.cpp): ranges never merge across one, so that what is known
// of one tensor does not become part of its neighbour's.
constexpr std::uintptr_t kBlockAlignment = 512;

void zero(std::uintptr_t begin, std::uintptr_t end) {
  std::memset(reinterpret_cast<void*>(begin), 0, end - begin);
}

bool readable(Content written, Content wanted) {
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

// Removes [begin, end) from the ranges without touching memory.
void KnownBytes::cut(std::uintptr_t begin, std::uintptr_t end) {
  auto range = ranges_.lower_bound(begin);
  if (range != ranges_.begin()) {
    const auto before = std::prev(range);
    const auto [old_end, content] = before->second;
    if (old_end > begin) {
      before->second.end = begin;
      if (old_end > end) ranges_.emplace(end, Range{old_end, content});
    }
  }
  while (range != ranges_.end() && range->first < end) {
    const auto [old_end, content] = range->second;
    range = ranges_.erase(range);
    if (old_end > end) ranges_.emplace(end, Range{old_end, content});
  }
}

void KnownBytes::wrote(std::uintptr_t begin, std::size_t bytes, Content content) {
  if (bytes == 0) return;
  std::uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  const auto same = ranges_.find(begin);  // a tensor written again, the common case
  if (same != ranges_.end() && same->second.end == end) {
    same->second.content = content;
    return;
  }
  cut(begin, end);
  const auto after = ranges_.find(end);
  if (end % kBlockAlignment != 0 && after != ranges_.end() && after->second.content == content) {
    end = after->second.end;
    ranges_.erase(after);
  }
  const auto before = begin % kBlockAlignment != 0 ? holding(begin - 1) : ranges_.cend();
  if (before != ranges_.cend() && before->second.content == content) begin = before->first;
  ranges_[begin] = Range{end, content};
}

void KnownBytes::forget(std::uintptr_t begin, std::size_t bytes) {
  const std::uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  auto range = ranges_.lower_bound(begin);
  if (range != ranges_.begin() && std::prev(range)->second.end > begin) --range;
  if (range == ranges_.end() || range->first >= end) return;
  for (; range != ranges_.end() && range->first < end; ++range) {
    zero(std::max(range->first, begin), std::min(range->second.end, end));
  }
  cut(begin, end);
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

bool KnownBytes::known(std::uintptr_t begin, std::size_t bytes, Content content) const {
  const std::uintptr_t end = begin + bytes;
  const std::lock_guard lock(mutex_);
  auto range = holding(begin);
  while (begin < end) {
    if (range == ranges_.end() || range->first > begin || !readable(range->second.content, content)) return false;
    begin = range->second.end;
    ++range;
  }
  return true;
}

Content KnownBytes::content(std::uintptr_t begin) const {
  const std::lock_guard lock(mutex_);
  const auto range = holding(begin);
  return range == ranges_.end() ? Content::kBytes : range->second.content;
}

}  // namespace maya::values
