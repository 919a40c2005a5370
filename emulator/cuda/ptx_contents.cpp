#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "core/hash.h"
#include "cuda/ptx.h"
#include "values/values.h"

namespace maya::cuda {
namespace {

std::uint64_t base_of(const PtxRead& read, void** arguments) {
  return read.argument < 0 ? 0 : address_argument(arguments, read.argument);
}

// Of a read whose address is from where its argument points.
const std::byte* place_of(const PtxRead& read, void** arguments) {
  return reinterpret_cast<const std::byte*>(base_of(read, arguments) + read.address);
}

// Takes `next` into `read`, where it begins in it or right behind; false: it does not.
bool join(PtxRead& read, const PtxRead& next) {
  const std::uint64_t end = read.address + read.bytes;
  if (next.argument != read.argument || next.address < read.address || next.address > end) return false;
  read.bytes = std::max(end, next.address + next.bytes) - read.address;
  return true;
}

}  // namespace

void PtxReads::add_new(const PtxRead& read) {
  if (!reads_.empty() && join(reads_.back(), read)) return;
  reads_.push_back(read);
  if (reads_.size() >= merge_at_) merge();
}

void PtxReads::add(const PtxReads& others) {
  for (const PtxRead& read : others.reads_) add(read);
}

std::vector<PtxRead> PtxReads::apart() {
  merge();
  return reads_;
}

void PtxReads::merge() {
  std::ranges::sort(reads_, {}, [](const PtxRead& it) { return std::tuple(it.argument, it.address, it.bytes); });
  std::size_t kept = 0;
  for (const PtxRead& read : reads_) {
    if (kept == 0 || !join(reads_[kept - 1], read)) reads_[kept++] = read;
  }
  reads_.resize(kept);
  merge_at_ = std::max(merge_at_, 2 * kept);
}

PtxContents::PtxContents(std::vector<PtxRead> read, std::vector<PtxRead> missed, void** arguments)
    : read_(std::move(read)), missed_(std::move(missed)) {
  for (auto* const reads : {&read_, &missed_}) {
    for (PtxRead& it : *reads) it.address -= base_of(it, arguments);
  }
  hash_ = hash(arguments);
}

std::optional<std::uint64_t> PtxContents::hash(void** arguments) const {
  std::uint64_t hash = 0;
  for (const PtxRead& it : read_) {
    const std::byte* const data = place_of(it, arguments);
    const std::size_t bytes = static_cast<std::size_t>(it.bytes);
    if (!values::known(data, bytes)) return std::nullopt;
    hash = combine(hash, hash_bytes(std::span(data, bytes)));
  }
  return hash;
}

bool PtxContents::hold(void** arguments) const {
  const auto unknown = [&](const PtxRead& it) {
    return values::unknown(place_of(it, arguments), static_cast<std::size_t>(it.bytes));
  };
  return std::ranges::all_of(missed_, unknown) && (read_.empty() || (hash_ && hash(arguments) == hash_));
}

}  // namespace maya::cuda
