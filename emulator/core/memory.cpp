#include "core/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <mutex>

#include "core/process_state.h"
#include "core/recorder.h"
#include "values/values.h"

namespace maya {
namespace {

constexpr int kMaxDevices = 64;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kLargePage = 2 * 1024 * 1024;
constexpr std::size_t kManyPages = 256;  // from which looking pays
// Of an entry of /proc/self/pagemap: the page is in memory, or swapped out (proc_pid_pagemap(5)).
constexpr std::uint64_t kTouched = std::uint64_t{3} << 62;

struct Owned {
  Allocation allocation;
  std::size_t mapped = 0;  // bytes to unmap at release(); 0: the range is someone else's
};

struct Taken {
  std::size_t fixed = 0;
  std::size_t managed = 0;  // moves to the host, page by page, where it leaves no room for what is fixed
};

struct Memory {
  std::mutex mutex;                        // guards: everything below
  std::map<std::uintptr_t, Owned> ranges;  // by base
  std::array<Taken, kMaxDevices> taken{};
  std::uint64_t next_id = 1;
};

Memory& memory() {
  static Memory* const instance = new Memory;
  return *instance;
}

std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool counts(MemoryKind kind) { return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged; }

std::size_t capacity() {
  const RankConfig& config = rank_config();
  return config.memory_bytes - std::min(config.memory_bytes, config.context_bytes);
}

std::size_t resident(const Taken& taken) { return std::min(capacity(), taken.fixed + taken.managed); }

std::size_t& part(Taken& taken, MemoryKind kind) { return kind == MemoryKind::kManaged ? taken.managed : taken.fixed; }

// CUDA gives memory to a process in 2 MiB pages; smaller requests share one.
std::size_t footprint(std::size_t bytes) {
  return bytes < kLargePage ? round_up(bytes, 512) : round_up(bytes, kLargePage);
}

auto find_range(const void* pointer) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  auto& ranges = memory().ranges;
  auto at = ranges.upper_bound(address);
  if (at == ranges.begin()) return ranges.end();
  --at;
  return address < at->first + std::max<std::size_t>(at->second.allocation.bytes, 1) ? at : ranges.end();
}

void note_taken(std::size_t total) {
  if (!recording()) return;
  TraceHeader& header = process().trace.header();
  header.reserved_bytes = total;
  std::uint64_t peak = header.peak_reserved_bytes;
  while (total > peak && !header.peak_reserved_bytes.compare_exchange_weak(peak, total)) {}
}

void insert(const void* base, std::size_t bytes, MemoryKind kind, int device, std::size_t mapped) {
  Memory& self = memory();
  std::lock_guard lock(self.mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(base);
  self.ranges[address] = Owned{{address, bytes, kind, device, self.next_id++}, mapped};
}

void note_refused(std::size_t bytes, std::size_t free) {
  if (!recording()) return;
  TraceHeader& header = process().trace.header();
  header.oom_requested_bytes = bytes;
  header.oom_free_bytes = free;
  ++header.oom_count;
}

// Managed memory is never refused: what the device has no room for stays on the host (CUDA Programming Guide, "Unified
// Memory", on oversubscription).
bool take(std::size_t bytes, MemoryKind kind, int device) {
  Memory& self = memory();
  std::size_t grown = 0;
  bool paged = false;
  {
    std::lock_guard lock(self.mutex);
    Taken& taken = self.taken.at(static_cast<std::size_t>(device));
    if (kind != MemoryKind::kManaged && taken.fixed + bytes > capacity()) {
      note_refused(bytes, capacity() - taken.fixed);
      return false;
    }
    const std::size_t before = resident(taken);
    part(taken, kind) += bytes;
    grown = resident(taken) - before;
    paged = taken.fixed + taken.managed > capacity();
    note_taken(resident(taken));
  }
  if (paged)
    annotate_once(
        "{\"uncovered\": \"cudaMallocManaged: more than the device has room for, and no time for what moves between "
        "it and the host\"}");
  record(RecordKind::kAllocate, nullptr, 0, {.size = grown});
  return true;
}

void give_back(std::size_t bytes, MemoryKind kind, int device) {
  Memory& self = memory();
  std::size_t shrunk = 0;
  {
    std::lock_guard lock(self.mutex);
    Taken& taken = self.taken.at(static_cast<std::size_t>(device));
    const std::size_t before = resident(taken);
    part(taken, kind) -= std::min(part(taken, kind), bytes);
    shrunk = before - resident(taken);
    note_taken(resident(taken));
  }
  record(RecordKind::kFree, nullptr, 0, {.size = shrunk});
}

}  // namespace

bool charge(std::size_t bytes, int device) { return take(bytes, MemoryKind::kDevice, device); }

void refund(std::size_t bytes, int device) { give_back(bytes, MemoryKind::kDevice, device); }

void* reserve_address(std::size_t bytes, std::size_t alignment) {
  bytes = round_up(bytes, kPage);
  alignment = std::max(alignment, kPage);
  const std::size_t wanted = alignment > kPage ? bytes + alignment : bytes;
  void* base = mmap(nullptr, wanted, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<std::uintptr_t>(base);
  const std::uintptr_t aligned = round_up(start, alignment);
  if (aligned > start) munmap(base, aligned - start);
  if (start + wanted > aligned + bytes)
    munmap(reinterpret_cast<void*>(aligned + bytes), start + wanted - aligned - bytes);
  void* const range = reinterpret_cast<void*>(aligned);
  madvise(range, bytes, MADV_NOHUGEPAGE);  // one touched scalar must not cost 2 MiB
  return range;
}

void release_address(void* base, std::size_t bytes) { munmap(base, round_up(bytes, kPage)); }

void clear(void* base, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(base), end = begin + bytes;
  const std::uintptr_t first = std::min(round_up(begin, kPage), end), last = std::max(end / kPage * kPage, first);
  std::memset(base, 0, first - begin);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED);
  std::memset(reinterpret_cast<void*>(last), 0, end - last);
}

void zero(void* destination, std::size_t bytes) {
  const auto begin = reinterpret_cast<std::uintptr_t>(destination), end = begin + bytes;
  std::uintptr_t at = begin;
  const int map = bytes < kManyPages * kPage ? -1 : open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  std::array<std::uint64_t, 4096> entries;
  while (map >= 0 && at < end) {
    const std::size_t wanted = std::min(entries.size(), (round_up(end, kPage) - at / kPage * kPage) / kPage);
    const ssize_t got =
        pread(map, entries.data(), wanted * sizeof entries[0], static_cast<off_t>(at / kPage * sizeof entries[0]));
    if (got < static_cast<ssize_t>(sizeof entries[0])) break;
    for (std::size_t page = 0; page < static_cast<std::size_t>(got) / sizeof entries[0]; ++page) {
      const std::uintptr_t next = std::min((at / kPage + 1) * kPage, end);
      if (entries[page] & kTouched) std::memset(reinterpret_cast<void*>(at), 0, next - at);
      at = next;
    }
  }
  if (map >= 0) close(map);
  std::memset(reinterpret_cast<void*>(at), 0, end - at);
}

void add_range(const void* base, std::size_t bytes, MemoryKind kind, int device) {
  insert(base, bytes, kind, device, 0);
}

bool remove_range(const void* base) {
  Memory& self = memory();
  std::lock_guard lock(self.mutex);
  return self.ranges.erase(reinterpret_cast<std::uintptr_t>(base)) > 0;
}

void* allocate(std::size_t bytes, MemoryKind kind, int device, std::size_t alignment) {
  const std::size_t counted = counts(kind) ? footprint(bytes) : 0;
  if (counted && !take(counted, kind, device)) return nullptr;
  void* base = reserve_address(std::max<std::size_t>(bytes, 1), alignment);
  if (!base) {
    if (counted) give_back(counted, kind, device);
    return nullptr;
  }
  insert(base, bytes, kind, device, round_up(std::max<std::size_t>(bytes, 1), kPage));
  return base;
}

bool release(void* pointer) {
  Memory& self = memory();
  Owned owned;
  {
    std::lock_guard lock(self.mutex);
    const auto found = self.ranges.find(reinterpret_cast<std::uintptr_t>(pointer));
    if (found == self.ranges.end() || found->second.mapped == 0) return false;
    owned = found->second;
    self.ranges.erase(found);
  }
  const Allocation& allocation = owned.allocation;
  if (counts(allocation.kind)) values::forget(pointer, allocation.bytes);
  release_address(pointer, owned.mapped);
  if (counts(allocation.kind)) give_back(footprint(allocation.bytes), allocation.kind, allocation.device);
  return true;
}

std::optional<Allocation> find_allocation(const void* pointer) {
  std::lock_guard lock(memory().mutex);
  const auto found = find_range(pointer);
  if (found == memory().ranges.end()) return std::nullopt;
  return found->second.allocation;
}

bool is_device_pointer(const void* pointer) {
  const auto allocation = find_allocation(pointer);
  return allocation && counts(allocation->kind);
}

MemoryInfo memory_info(int device) {
  std::lock_guard lock(memory().mutex);
  return {capacity() - resident(memory().taken.at(static_cast<std::size_t>(device))), rank_config().memory_bytes};
}

}  // namespace maya
