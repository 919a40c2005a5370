// Device, pinned and managed memory: host address space, reserved sparsely and counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace maya {

// Copies, memsets and reads of up to this many bytes carry real values.
inline constexpr std::size_t kValueBytes = 64 * 1024;

inline constexpr int kPeerDevice = -1;  // the ordinal of memory that another rank exported

enum class MemoryKind : std::uint8_t {
  kDevice,      // cudaMalloc, cuMemAlloc, pools, a mapped cuMemCreate handle
  kPinned,      // cudaHostAlloc
  kRegistered,  // cudaHostRegister
  kManaged,     // cudaMallocManaged; counts as device memory as far as there is room
};

struct Allocation {
  std::uintptr_t base = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  std::uint64_t id = 0;  // unique in the process, from 1 (CU_POINTER_ATTRIBUTE_BUFFER_ID)
};

// Zero-filled memory of `kind` at `alignment` (a power of two). Device memory counts against the device's
// capacity less its context: nullptr over it, noted in the trace header's oom_*. Managed memory takes what
// is left. Records kAllocate for what it counts.
void* allocate(std::size_t bytes, MemoryKind kind, int device, std::size_t alignment = 512);

// Gives back what allocate() returned; false: `pointer` is not the base of an allocation.
bool release(void* pointer);

// The pieces of allocate(), for memory whose address and bytes come apart (cuMemCreate, cuMemMap).
bool charge(std::size_t bytes, int device);  // false: over capacity, noted
void refund(std::size_t bytes, int device);
void* reserve_address(std::size_t bytes, std::size_t alignment = 2 * 1024 * 1024);  // nullptr: none left
void release_address(void* base, std::size_t bytes);
void clear(void* base, std::size_t bytes);  // device memory reads as zeros again; its whole pages are given back
// Zeros in host memory. Pages that nobody has touched read so, and stay untouched: a copy of all weights on the host
// takes none of it.
void zero(void* destination, std::size_t bytes);
void add_range(const void* base, std::size_t bytes, MemoryKind kind, int device);
bool remove_range(const void* base);

// The allocation that holds `pointer`. Managed and registered host memory is found too.
std::optional<Allocation> find_allocation(const void* pointer);
bool is_device_pointer(const void* pointer);  // device or managed

struct MemoryInfo {
  std::size_t free_bytes, total_bytes;  // as cudaMemGetInfo: total less context, less what is taken
};
MemoryInfo memory_info(int device);

}  // namespace maya
