// Virtual memory management: cuMemCreate, cuMemMap and their kin, which PyTorch's expandable segments use, and its
// symmetric memory, which maps other ranks' memory. Prototypes: cuda.h of CUDA 12 and 13.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>

#include "core/handle_pool.h"
#include "core/memory.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/driver.h"
#include "values/values.h"

namespace maya::cuda {
namespace {

constexpr std::size_t kGranularity = 2 * 1024 * 1024;  // of every data centre GPU since Volta
constexpr int kFileDescriptor = 1;                     // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

// CUmemAllocationProp.
struct Properties {
  std::int32_t type, handle_types, location_type, location;
  void* win32_metadata;
  std::uint8_t compression, gpu_direct_rdma;
  std::uint16_t usage;
  std::uint8_t reserved[4];
};
static_assert(sizeof(Properties) == 32);

// CUmemAccessDesc.
struct Access {
  std::int32_t location_type, location, flags;
};

// A CUmemGenericAllocationHandle: counted memory without an address. It lives until it is released and
// mapped nowhere (cuMemRelease). What another rank exported is counted there.
struct PhysicalMemory {
  Properties properties{};
  std::size_t bytes = 0;
  int handles = 1, mappings = 0;
  bool imported = false;
};

// What the file of an exported handle holds. Ranks do not share contents.
struct Exported {
  std::uint64_t magic = 0x6d617961'6d656d31;  // "mayamem1"
  std::uint64_t bytes = 0;
  Properties properties{};
};

struct Mapping {
  std::size_t bytes = 0;
  PhysicalMemory* memory = nullptr;
};

struct VirtualMemory {
  std::mutex mutex;  // guards: everything below
  HandlePool<PhysicalMemory, 1 << 20> physical;
  std::map<DevicePointer, std::size_t> reservations;
  std::map<DevicePointer, Mapping> mappings;

  // The handle is a number; it is the object's address.
  PhysicalMemory* find(unsigned long long handle) { return physical.find(reinterpret_cast<void*>(handle)); }

  void drop_if_unused(PhysicalMemory* memory) {
    if (memory->handles > 0 || memory->mappings > 0) return;
    if (!memory->imported) refund(memory->bytes, memory->properties.location);
    physical.destroy(memory);
  }

  bool reserved(DevicePointer begin, std::size_t bytes) const {
    const auto after = reservations.upper_bound(begin);
    if (after == reservations.begin()) return false;
    const auto& [base, size] = *std::prev(after);
    return begin + bytes <= base + size;
  }

  bool overlaps(DevicePointer begin, std::size_t bytes) const {
    const auto next = mappings.lower_bound(begin + bytes);
    if (next == mappings.begin()) return false;
    const auto& [base, mapping] = *std::prev(next);
    return base + mapping.bytes > begin;
  }
};

VirtualMemory& memory() {
  static auto* const instance = new VirtualMemory;  // outlives every caller's destructor
  return *instance;
}

bool device_local(const Properties* properties) {
  constexpr int kPinned = 1, kDevice = 1;  // CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE
  return properties != nullptr && properties->type == kPinned && properties->location_type == kDevice &&
         properties->location >= 0 && properties->location < device_count();
}

void unmap(VirtualMemory& all, DevicePointer base, const Mapping& mapping) {
  void* data = reinterpret_cast<void*>(base);
  values::forget(data, mapping.bytes);
  remove_range(data);
  clear(data, mapping.bytes);
  --mapping.memory->mappings;
  all.drop_if_unused(mapping.memory);
}

}  // namespace
}  // namespace maya::cuda

using maya::Call;
using maya::cuda::Access;
using maya::cuda::DevicePointer;
using maya::cuda::PhysicalMemory;
using maya::cuda::Properties;
using maya::cuda::Result;
namespace cuda = maya::cuda;
using Handle = unsigned long long;  // CUmemGenericAllocationHandle

extern "C" {

Result cuMemGetAllocationGranularity(std::size_t* granularity, const Properties* properties, int) {
  if (granularity == nullptr || !cuda::device_local(properties)) return Result::kInvalidValue;
  *granularity = cuda::kGranularity;
  return Result::kSuccess;
}

// ---- addresses ----

Result cuMemAddressReserve(DevicePointer* address, std::size_t bytes, std::size_t alignment, DevicePointer,
                           unsigned long long flags) {
  const Call call;
  if (address == nullptr || bytes == 0 || bytes % cuda::kGranularity != 0 || flags != 0) {
    return Result::kInvalidValue;
  }
  void* base = maya::reserve_address(bytes, std::max(alignment, cuda::kGranularity));
  if (base == nullptr) return Result::kOutOfMemory;
  *address = reinterpret_cast<DevicePointer>(base);
  const std::lock_guard lock(cuda::memory().mutex);
  cuda::memory().reservations[*address] = bytes;
  return Result::kSuccess;
}

Result cuMemAddressFree(DevicePointer address, std::size_t bytes) {
  const Call call;
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  const auto at = all.reservations.find(address);
  if (at == all.reservations.end() || at->second != bytes || all.overlaps(address, bytes)) {
    return Result::kInvalidValue;
  }
  all.reservations.erase(at);
  maya::release_address(reinterpret_cast<void*>(address), bytes);
  return Result::kSuccess;
}

// ---- memory ----

Result cuMemCreate(Handle* handle, std::size_t bytes, const Properties* properties, unsigned long long flags) {
  const Call call;
  if (handle == nullptr || bytes == 0 || bytes % cuda::kGranularity != 0 || flags != 0) {
    return Result::kInvalidValue;
  }
  if (!cuda::device_local(properties)) return Result::kInvalidValue;
  if (!maya::charge(bytes, properties->location)) return Result::kOutOfMemory;
  const PhysicalMemory value{.properties = *properties, .bytes = bytes};
  *handle = reinterpret_cast<Handle>(cuda::memory().physical.create(value));
  return Result::kSuccess;
}

Result cuMemRelease(Handle handle) {
  const Call call;
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  PhysicalMemory* memory = all.find(handle);
  if (memory == nullptr || memory->handles == 0) return Result::kInvalidValue;
  --memory->handles;
  all.drop_if_unused(memory);
  return Result::kSuccess;
}

Result cuMemGetAllocationPropertiesFromHandle(Properties* properties, Handle handle) {
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  const PhysicalMemory* memory = all.find(handle);
  if (properties == nullptr || memory == nullptr) return Result::kInvalidValue;
  *properties = memory->properties;
  return Result::kSuccess;
}

Result cuMemRetainAllocationHandle(Handle* handle, void* address) {
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  const auto after = all.mappings.upper_bound(reinterpret_cast<DevicePointer>(address));
  if (handle == nullptr || after == all.mappings.begin()) return Result::kInvalidValue;
  const auto& [base, mapping] = *std::prev(after);
  if (reinterpret_cast<DevicePointer>(address) >= base + mapping.bytes) return Result::kInvalidValue;
  ++mapping.memory->handles;
  *handle = reinterpret_cast<Handle>(mapping.memory);
  return Result::kSuccess;
}

// ---- between processes ----

Result cuMemExportToShareableHandle(void* shareable, Handle handle, int type, unsigned long long flags) {
  const Call call;
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  const PhysicalMemory* memory = all.find(handle);
  if (shareable == nullptr || memory == nullptr || flags != 0) return Result::kInvalidValue;
  if (type != cuda::kFileDescriptor) return Result::kNotSupported;
  if ((memory->properties.handle_types & type) == 0) return Result::kInvalidValue;
  const int file = memfd_create("maya-exported-memory", MFD_CLOEXEC);
  const cuda::Exported exported{.bytes = memory->bytes, .properties = memory->properties};
  if (file < 0) return Result::kOutOfMemory;
  if (pwrite(file, &exported, sizeof exported, 0) != sizeof exported) {
    close(file);
    return Result::kOutOfMemory;
  }
  *static_cast<int*>(shareable) = file;
  return Result::kSuccess;
}

Result cuMemImportFromShareableHandle(Handle* handle, void* shareable, int type) {
  const Call call;
  if (handle == nullptr) return Result::kInvalidValue;
  if (type != cuda::kFileDescriptor) return Result::kNotSupported;
  const auto file = static_cast<int>(reinterpret_cast<std::intptr_t>(shareable));
  cuda::Exported exported;
  if (pread(file, &exported, sizeof exported, 0) != sizeof exported || exported.magic != cuda::Exported{}.magic) {
    return Result::kInvalidValue;
  }
  const PhysicalMemory value{.properties = exported.properties, .bytes = exported.bytes, .imported = true};
  *handle = reinterpret_cast<Handle>(cuda::memory().physical.create(value));
  return Result::kSuccess;
}

// ---- mappings ----

Result cuMemMap(DevicePointer address, std::size_t bytes, std::size_t offset, Handle handle, unsigned long long flags) {
  const Call call;
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  PhysicalMemory* memory = all.find(handle);
  if (memory == nullptr || bytes == 0 || offset + bytes > memory->bytes || flags != 0) {
    return Result::kInvalidValue;
  }
  if (!all.reserved(address, bytes) || all.overlaps(address, bytes)) return Result::kInvalidValue;
  all.mappings[address] = {.bytes = bytes, .memory = memory};
  ++memory->mappings;
  // Imported memory is another device's, also where this rank's own stands in for that of one that does not run.
  maya::add_range(reinterpret_cast<void*>(address), bytes, maya::MemoryKind::kDevice,
                  memory->imported ? maya::kPeerDevice : memory->properties.location);
  return Result::kSuccess;
}

Result cuMemUnmap(DevicePointer address, std::size_t bytes) {
  const Call call;
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  const auto first = all.mappings.find(address), last = all.mappings.lower_bound(address + bytes);
  if (first == all.mappings.end() || first == last) return Result::kInvalidValue;
  const auto& [base, mapping] = *std::prev(last);
  if (base + mapping.bytes != address + bytes) return Result::kInvalidValue;
  for (auto at = first; at != last; ++at) cuda::unmap(all, at->first, at->second);
  all.mappings.erase(first, last);
  return Result::kSuccess;
}

Result cuMemSetAccess(DevicePointer address, std::size_t bytes, const Access* accesses, std::size_t count) {
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  if (accesses == nullptr || count == 0) return Result::kInvalidValue;
  return all.overlaps(address, bytes) ? Result::kSuccess : Result::kInvalidValue;
}

Result cuMemGetAccess(unsigned long long* flags, const Access* location, DevicePointer address) {
  constexpr unsigned long long kReadWrite = 3;
  auto& all = cuda::memory();
  const std::lock_guard lock(all.mutex);
  if (flags == nullptr || location == nullptr || !all.overlaps(address, 1)) return Result::kInvalidValue;
  *flags = kReadWrite;
  return Result::kSuccess;
}

}  // extern "C"
