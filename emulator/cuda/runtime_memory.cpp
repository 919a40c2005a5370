// Memory: device, pinned, managed, pools, copies, fills, symbols, inter-process handles.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

#include "core/memory.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "core/transfer.h"
#include "cuda/runtime_error.h"
#include "cuda/runtime_symbols.h"
#include "cuda/runtime_types.h"
#include "nccl/user_buffers.h"

using namespace maya;
using namespace maya::cudart;

namespace {

// Whose kernels are recorded by what they exchange (nccl/user_buffers.h).
bool in_transformer_engine(const void* code) {
  return library_of(code).find("transformer_engine") != std::string_view::npos;
}

int allocate_into(void** pointer, std::size_t bytes, MemoryKind kind) {
  *pointer = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (kind != MemoryKind::kPinned)
    if (const int unsafe = check_capture_unsafe_call()) return result(unsafe);
  *pointer = allocate(bytes, kind, current_device());
  return *pointer ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

int copy_on(void* destination, const void* source, std::size_t bytes, void* handle, bool synchronous) {
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  return result(copy(destination, source, bytes, stream, synchronous));
}

int copy_rows_on(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
                 std::size_t bytes, std::size_t rows, void* handle, bool synchronous) {
  if (bytes > destination_pitch || bytes > source_pitch) return result(cudaErrorInvalidPitchValue);
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  return result(copy_rows(destination, destination_pitch, source, source_pitch, bytes, rows, stream, synchronous));
}

int fill_on(void* destination, int value, std::size_t bytes, void* handle, bool synchronous) {
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  return result(fill(destination, static_cast<unsigned>(value), 1, bytes, stream, synchronous));
}

// cudaMemPool_t. Freed memory goes straight back to the device, which is what a release threshold of
// zero, the default, allows at the next synchronisation.
struct Pool {
  int device = 0;
  std::uint64_t attributes[4] = {1, 1, 1, 0};  // reuse policies, release threshold (cudaMemPoolAttr 1..4)
  std::uint64_t used = 0, high = 0;
};

struct Pools {
  std::mutex mutex;              // guards: everything below
  std::map<int, Pool> defaults;  // by device
  std::map<Pool*, std::unique_ptr<Pool>> created;
  std::map<int, Pool*> current;                           // cudaDeviceSetMemPool
  std::map<void*, std::pair<Pool*, std::size_t>> owners;  // by allocation
};

Pools& pools() {
  static Pools* const instance = new Pools;
  return *instance;
}

Pool* default_pool(int device) {
  Pool& pool = pools().defaults[device];
  pool.device = device;
  return &pool;
}

int allocate_from(Pool* pool, void** pointer, std::size_t bytes) {
  *pointer = allocate(bytes, MemoryKind::kDevice, pool->device);
  if (!*pointer) return result(cudaErrorMemoryAllocation);
  std::lock_guard lock(pools().mutex);
  pools().owners[*pointer] = {pool, bytes};
  pool->used += bytes;
  pool->high = std::max(pool->high, pool->used);
  return cudaSuccess;
}

void leave_pool(void* pointer) {
  std::lock_guard lock(pools().mutex);
  const auto found = pools().owners.find(pointer);
  if (found == pools().owners.end()) return;
  found->second.first->used -= found->second.second;
  pools().owners.erase(found);
}

// cudaIpcMemHandle_t as this emulator fills it.
struct IpcMemory {
  pid_t process;
  int device;
  std::uint64_t base, bytes;
};

}  // namespace

extern "C" {

int cudaMalloc(void** pointer, std::size_t bytes) {
  const Call call;
  return allocate_into(pointer, bytes, MemoryKind::kDevice);
}

int cudaMallocManaged(void** pointer, std::size_t bytes, unsigned) {
  const Call call;
  return allocate_into(pointer, bytes, MemoryKind::kManaged);
}

int cudaMallocPitch(void** pointer, std::size_t* pitch, std::size_t width, std::size_t height) {
  const Call call;
  *pitch = (width + 511) / 512 * 512;
  return allocate_into(pointer, *pitch * height, MemoryKind::kDevice);
}

int cudaFree(void* pointer) {
  const Call call;
  if (!pointer) return cudaSuccess;
  if (const int unsafe = check_capture_unsafe_call()) return result(unsafe);
  leave_pool(pointer);
  return release(pointer) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaHostAlloc(void** pointer, std::size_t bytes, unsigned) {
  const Call call;
  return allocate_into(pointer, bytes, MemoryKind::kPinned);
}

int cudaMallocHost(void** pointer, std::size_t bytes) { return cudaHostAlloc(pointer, bytes, 0); }

int cudaFreeHost(void* pointer) {
  const Call call;
  return !pointer || release(pointer) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaHostRegister(void* pointer, std::size_t bytes, unsigned) {
  const Call call;
  if (find_allocation(pointer)) return result(cudaErrorHostMemoryAlreadyRegistered);
  add_range(pointer, bytes, MemoryKind::kRegistered, current_device());
  return cudaSuccess;
}

int cudaHostUnregister(void* pointer) {
  const Call call;
  const auto allocation = find_allocation(pointer);
  const bool registered = allocation && allocation->kind == MemoryKind::kRegistered;
  return registered && remove_range(pointer) ? cudaSuccess : result(cudaErrorHostMemoryNotRegistered);
}

int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  const Call call;
  if (!find_allocation(host)) return result(cudaErrorInvalidValue);
  *device = host;  // unified addressing
  return cudaSuccess;
}

int cudaHostGetFlags(unsigned* flags, void* host) {
  if (!find_allocation(host)) return result(cudaErrorInvalidValue);
  *flags = 2;  // cudaHostAllocMapped
  return cudaSuccess;
}

int cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  const Call call;
  const MemoryInfo info = memory_info(current_device());
  *free = info.free_bytes;
  *total = info.total_bytes;
  return cudaSuccess;
}

int cudaPointerGetAttributes(PointerAttributes* attributes, const void* pointer) {
  const Call call;
  const auto allocation = find_allocation(pointer);
  *attributes = {0, -1, nullptr, const_cast<void*>(pointer)};
  if (!allocation) {
    attributes->hostPointer = nullptr;
    return cudaSuccess;
  }
  attributes->device = allocation->device;
  attributes->devicePointer = const_cast<void*>(pointer);
  constexpr int kTypes[] = {2, 1, 1, 3};  // by MemoryKind: cudaMemoryType{Device,Host,Host,Managed}
  attributes->type = kTypes[static_cast<int>(allocation->kind)];
  if (allocation->kind == MemoryKind::kDevice) attributes->hostPointer = nullptr;
  return cudaSuccess;
}

int cudaMemcpy(void* destination, const void* source, std::size_t bytes, int) {
  const Call call;
  return copy_on(destination, source, bytes, nullptr, true);
}

int cudaMemcpyAsync(void* destination, const void* source, std::size_t bytes, int, void* stream) {
  const Call call;
  return copy_on(destination, source, bytes, stream, false);
}

int cudaMemcpyPeer(void* destination, int, const void* source, int, std::size_t bytes) {
  const Call call;
  return copy_on(destination, source, bytes, nullptr, true);
}

int cudaMemcpyPeerAsync(void* destination, int, const void* source, int, std::size_t bytes, void* stream) {
  const Call call;
  return copy_on(destination, source, bytes, stream, false);
}

int cudaMemcpy2D(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
                 std::size_t width, std::size_t height, int) {
  const Call call;
  return copy_rows_on(destination, destination_pitch, source, source_pitch, width, height, nullptr, true);
}

int cudaMemcpy2DAsync(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
                      std::size_t width, std::size_t height, int, void* stream) {
  const Call call;
  return copy_rows_on(destination, destination_pitch, source, source_pitch, width, height, stream, false);
}

int cudaMemset(void* destination, int value, std::size_t bytes) {
  const Call call;
  return fill_on(destination, value, bytes, nullptr, true);
}

int cudaMemsetAsync(void* destination, int value, std::size_t bytes, void* stream) {
  const Call call;
  return fill_on(destination, value, bytes, stream, false);
}

int cudaMemset2DAsync(void* destination, std::size_t pitch, int value, std::size_t width, std::size_t height,
                      void* stream) {
  const Call call;
  if (width != pitch && height > 1) {
    for (std::size_t row = 0; row + 1 < height; ++row)
      if (const int error = fill_on(static_cast<char*>(destination) + row * pitch, value, width, stream, false))
        return error;
    return fill_on(static_cast<char*>(destination) + (height - 1) * pitch, value, width, stream, false);
  }
  return fill_on(destination, value, width * height, stream, false);
}

int cudaMemset2D(void* destination, std::size_t pitch, int value, std::size_t width, std::size_t height) {
  return cudaMemset2DAsync(destination, pitch, value, width, height, nullptr);
}

int cudaGetSymbolAddress(void** address, const void* symbol) {
  const Call call;
  const DeviceVariable variable = device_variable(symbol);
  if (!variable.address) return result(cudaErrorInvalidSymbol);
  *address = variable.address;
  return cudaSuccess;
}

int cudaGetSymbolSize(std::size_t* bytes, const void* symbol) {
  const Call call;
  const DeviceVariable variable = device_variable(symbol);
  if (!variable.address) return result(cudaErrorInvalidSymbol);
  *bytes = variable.bytes;
  return cudaSuccess;
}

int cudaMemcpyToSymbolAsync(const void* symbol, const void* source, std::size_t bytes, std::size_t offset, int,
                            void* stream) {
  const Call call;
  const DeviceVariable variable = device_variable(symbol);
  if (!variable.address) return result(cudaErrorInvalidSymbol);
  return copy_on(static_cast<char*>(variable.address) + offset, source, bytes, stream, false);
}

int cudaMemcpyToSymbol(const void* symbol, const void* source, std::size_t bytes, std::size_t offset, int) {
  const Call call;
  const DeviceVariable variable = device_variable(symbol);
  if (!variable.address) return result(cudaErrorInvalidSymbol);
  return copy_on(static_cast<char*>(variable.address) + offset, source, bytes, nullptr, true);
}

int cudaMemcpyFromSymbol(void* destination, const void* symbol, std::size_t bytes, std::size_t offset, int) {
  const Call call;
  const DeviceVariable variable = device_variable(symbol);
  if (!variable.address) return result(cudaErrorInvalidSymbol);
  return copy_on(destination, static_cast<char*>(variable.address) + offset, bytes, nullptr, true);
}

int cudaDeviceGetDefaultMemPool(void** pool, int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  std::lock_guard lock(pools().mutex);
  *pool = default_pool(device);
  return cudaSuccess;
}

int cudaDeviceGetMemPool(void** pool, int device) {
  if (device < 0 || device >= device_count()) return result(cudaErrorInvalidDevice);
  std::lock_guard lock(pools().mutex);
  const auto found = pools().current.find(device);
  *pool = found == pools().current.end() ? default_pool(device) : found->second;
  return cudaSuccess;
}

int cudaDeviceSetMemPool(int device, void* pool) {
  std::lock_guard lock(pools().mutex);
  pools().current[device] = static_cast<Pool*>(pool);
  return cudaSuccess;
}

int cudaMemPoolCreate(void** pool, const void*) {
  std::lock_guard lock(pools().mutex);
  auto created = std::make_unique<Pool>();
  created->device = current_device();
  *pool = created.get();
  pools().created[created.get()] = std::move(created);
  return cudaSuccess;
}

int cudaMemPoolDestroy(void* pool) {
  std::lock_guard lock(pools().mutex);
  return pools().created.erase(static_cast<Pool*>(pool)) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaMemPoolSetAttribute(void* pool, int attribute, void* value) {
  constexpr int kReleaseThreshold = 4;
  std::lock_guard lock(pools().mutex);
  Pool& self = *static_cast<Pool*>(pool);
  if (attribute < 1 || attribute > 8) return result(cudaErrorInvalidValue);
  if (attribute < kReleaseThreshold)
    self.attributes[attribute - 1] = static_cast<std::uint64_t>(*static_cast<int*>(value));
  else if (attribute == kReleaseThreshold) self.attributes[3] = *static_cast<std::uint64_t*>(value);
  else self.high = self.used;  // only the high-water marks can be reset, to the present
  return cudaSuccess;
}

int cudaMemPoolGetAttribute(void* pool, int attribute, void* value) {
  std::lock_guard lock(pools().mutex);
  const Pool& self = *static_cast<Pool*>(pool);
  switch (attribute) {
    case 1:
    case 2:
    case 3: *static_cast<int*>(value) = static_cast<int>(self.attributes[attribute - 1]); break;
    case 4: *static_cast<std::uint64_t*>(value) = self.attributes[3]; break;
    case 5:
    case 7: *static_cast<std::uint64_t*>(value) = self.used; break;
    case 6:
    case 8: *static_cast<std::uint64_t*>(value) = self.high; break;
    default: return result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

int cudaMemPoolTrimTo(void*, std::size_t) { return cudaSuccess; }
int cudaMemPoolSetAccess(void*, const void*, std::size_t) { return cudaSuccess; }

int cudaMallocFromPoolAsync(void** pointer, std::size_t bytes, void* pool, void* stream) {
  const Call call;
  if (!find_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  return allocate_from(static_cast<Pool*>(pool), pointer, bytes);
}

int cudaMallocAsync(void** pointer, std::size_t bytes, void* stream) {
  const Call call;
  void* pool = nullptr;
  cudaDeviceGetMemPool(&pool, current_device());
  return cudaMallocFromPoolAsync(pointer, bytes, pool, stream);
}

int cudaFreeAsync(void* pointer, void* stream) {
  const Call call;
  if (!find_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  leave_pool(pointer);
  return !pointer || release(pointer) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaDeviceGetGraphMemAttribute(int, int, void* value) {
  *static_cast<std::uint64_t*>(value) = 0;  // graphs own no memory nodes here
  return cudaSuccess;
}
int cudaDeviceSetGraphMemAttribute(int, int, void*) { return cudaSuccess; }
int cudaDeviceGraphMemTrim(int) { return cudaSuccess; }

int cudaIpcGetMemHandle(IpcHandle* handle, void* pointer) {
  const Call call;
  const auto allocation = find_allocation(pointer);
  if (!allocation) return result(cudaErrorInvalidValue);
  const IpcMemory memory{getpid(), allocation->device, allocation->base, allocation->bytes};
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle, &memory, sizeof memory);
  nccl::offered_memory();
  return cudaSuccess;
}

// Another rank's memory: an address range of the same size that counts for its owner only.
int cudaIpcOpenMemHandle(void** pointer, IpcHandle handle, unsigned) {
  const Call call;
  IpcMemory memory;
  std::memcpy(&memory, &handle, sizeof memory);
  *pointer = reserve_address(memory.bytes);
  if (!*pointer) return result(cudaErrorMemoryAllocation);
  add_range(*pointer, memory.bytes, MemoryKind::kDevice, memory.device);
  nccl::opened_memory(*pointer);
  if (!in_transformer_engine(__builtin_return_address(0)))
    annotate("{\"uncovered\": \"cudaIpcOpenMemHandle: values written to memory shared between ranks do not arrive\"}");
  return cudaSuccess;
}

int cudaIpcCloseMemHandle(void* pointer) {
  const Call call;
  const auto allocation = find_allocation(pointer);
  if (!allocation || !remove_range(pointer)) return result(cudaErrorInvalidValue);
  release_address(pointer, allocation->bytes);
  return cudaSuccess;
}

}  // extern "C"
