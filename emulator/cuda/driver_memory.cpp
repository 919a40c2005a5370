// The driver API's copies, fills and pointer queries. Prototypes: cuda.h of CUDA 12 and 13. Allocation has
// the runtime's parameters and is aliased to it in abi/cuda.tsv.
#include "core/memory.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "core/transfer.h"
#include "cuda/driver.h"

namespace maya::cuda {
namespace {

void* pointer(DevicePointer address) { return reinterpret_cast<void*>(address); }

Result copy(void* destination, const void* source, std::size_t bytes, void* stream, bool synchronous) {
  const Call call;
  Stream* on = find_stream(stream);
  return on == nullptr ? Result::kInvalidHandle : result(maya::copy(destination, source, bytes, on, synchronous));
}

Result fill(DevicePointer destination, unsigned value, std::size_t element_bytes, std::size_t count, void* stream,
            bool synchronous) {
  const Call call;
  Stream* on = find_stream(stream);
  if (on == nullptr) return Result::kInvalidHandle;
  return result(maya::fill(pointer(destination), value, element_bytes, count, on, synchronous));
}

// CUDA_MEMCPY2D_v2.
struct Side2D {
  std::size_t x_bytes, y;
  std::int32_t memory_type;  // CUmemorytype
  void* host;
  DevicePointer device;
  void* array;
  std::size_t pitch;
  std::byte* base() const {
    constexpr int kHost = 1;
    auto* data = static_cast<std::byte*>(memory_type == kHost ? host : pointer(device));
    return data + y * pitch + x_bytes;
  }
};

struct Copy2D {
  Side2D source, destination;
  std::size_t width_bytes, height;
};
static_assert(sizeof(Copy2D) == 128);

Result copy_2d(const Copy2D* parameters, void* stream) {
  const Call call;
  Stream* on = find_stream(stream);
  if (parameters == nullptr) return Result::kInvalidValue;
  if (on == nullptr) return Result::kInvalidHandle;
  const Side2D &from = parameters->source, &to = parameters->destination;
  if (from.array != nullptr || to.array != nullptr) return Result::kNotSupported;
  return result(
      copy_rows(to.base(), to.pitch, from.base(), from.pitch, parameters->width_bytes, parameters->height, on, false));
}

// CUpointer_attribute.
enum Attribute : int {
  kContext = 1,
  kMemoryType = 2,
  kDevicePointer = 3,
  kHostPointer = 4,
  kSyncMemoryOperations = 6,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kIsLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeBytes = 12,
  kMapped = 13,
  kAllowedHandleTypes = 14,
  kIsGpuDirectRdmaCapable = 15,
  kAccessFlags = 16,
  kMemoryPool = 17,
  kMappingBytes = 18,
  kMappingBase = 19,
  kMemoryBlockId = 20,
};

template <class T>
Result write(void* out, T value) {
  *static_cast<T*>(out) = value;
  return Result::kSuccess;
}

Result pointer_attribute(void* out, int attribute, const Allocation& allocation, DevicePointer address) {
  constexpr std::uint32_t kHostMemory = 1, kDeviceMemory = 2, kReadWrite = 3;
  const bool device = allocation.kind == MemoryKind::kDevice, managed = allocation.kind == MemoryKind::kManaged;
  switch (attribute) {
    case kContext: return write(out, primary_context(allocation.device));
    case kMemoryType: return write(out, device || managed ? kDeviceMemory : kHostMemory);
    case kDevicePointer: return write(out, address);
    case kHostPointer:
      if (device) return Result::kInvalidValue;  // not reachable from the host
      return write(out, pointer(address));
    case kBufferId:
    case kMemoryBlockId: return write(out, allocation.id);
    case kIsManaged: return write(out, std::uint32_t{managed});
    case kDeviceOrdinal: return write(out, allocation.device);
    case kRangeStart:
    case kMappingBase: return write(out, allocation.base);
    case kRangeBytes:
    case kMappingBytes: return write(out, allocation.bytes);
    case kMapped: return write(out, std::uint8_t{1});
    case kAccessFlags: return write(out, kReadWrite);
    case kMemoryPool: return write(out, static_cast<void*>(nullptr));
    case kSyncMemoryOperations:
    case kIsLegacyIpcCapable:
    case kIsGpuDirectRdmaCapable: return write(out, std::uint8_t{0});
    case kAllowedHandleTypes: return write(out, std::uint64_t{0});
    default: return Result::kInvalidValue;
  }
}

Result pointer_attribute(void* out, int attribute, DevicePointer address) {
  if (out == nullptr) return Result::kInvalidValue;
  const auto allocation = find_allocation(pointer(address));
  if (!allocation) return Result::kInvalidValue;  // ordinary host memory
  return pointer_attribute(out, attribute, *allocation, address);
}

}  // namespace
}  // namespace maya::cuda

using maya::cuda::Copy2D;
using maya::cuda::DevicePointer;
using maya::cuda::Result;
namespace cuda = maya::cuda;

extern "C" {

// ---- copies ----

Result cuMemcpy(DevicePointer destination, DevicePointer source, std::size_t bytes) {
  return cuda::copy(cuda::pointer(destination), cuda::pointer(source), bytes, nullptr, true);
}

Result cuMemcpyAsync(DevicePointer destination, DevicePointer source, std::size_t bytes, void* stream) {
  return cuda::copy(cuda::pointer(destination), cuda::pointer(source), bytes, stream, false);
}

Result cuMemcpyHtoD_v2(DevicePointer destination, const void* source, std::size_t bytes) {
  return cuda::copy(cuda::pointer(destination), source, bytes, nullptr, true);
}

Result cuMemcpyHtoDAsync_v2(DevicePointer destination, const void* source, std::size_t bytes, void* stream) {
  return cuda::copy(cuda::pointer(destination), source, bytes, stream, false);
}

Result cuMemcpyDtoH_v2(void* destination, DevicePointer source, std::size_t bytes) {
  return cuda::copy(destination, cuda::pointer(source), bytes, nullptr, true);
}

Result cuMemcpyDtoHAsync_v2(void* destination, DevicePointer source, std::size_t bytes, void* stream) {
  return cuda::copy(destination, cuda::pointer(source), bytes, stream, false);
}

Result cuMemcpyDtoD_v2(DevicePointer destination, DevicePointer source, std::size_t bytes) {
  return cuda::copy(cuda::pointer(destination), cuda::pointer(source), bytes, nullptr, true);
}

Result cuMemcpyDtoDAsync_v2(DevicePointer destination, DevicePointer source, std::size_t bytes, void* stream) {
  return cuda::copy(cuda::pointer(destination), cuda::pointer(source), bytes, stream, false);
}

Result cuMemcpy2DAsync_v2(const Copy2D* parameters, void* stream) { return cuda::copy_2d(parameters, stream); }

// ---- fills; the byte-wide ones are the runtime's ----

Result cuMemsetD16_v2(DevicePointer destination, std::uint16_t value, std::size_t count) {
  return cuda::fill(destination, value, 2, count, nullptr, true);
}

Result cuMemsetD32_v2(DevicePointer destination, std::uint32_t value, std::size_t count) {
  return cuda::fill(destination, value, 4, count, nullptr, true);
}

Result cuMemsetD16Async(DevicePointer destination, std::uint16_t value, std::size_t count, void* stream) {
  return cuda::fill(destination, value, 2, count, stream, false);
}

Result cuMemsetD32Async(DevicePointer destination, std::uint32_t value, std::size_t count, void* stream) {
  return cuda::fill(destination, value, 4, count, stream, false);
}

// ---- what a pointer is ----

Result cuPointerGetAttribute(void* value, int attribute, DevicePointer address) {
  return cuda::pointer_attribute(value, attribute, address);
}

// Attributes that do not apply read zero; the call succeeds for any address (cuPointerGetAttributes).
Result cuPointerGetAttributes(unsigned count, const int* attributes, void** values, DevicePointer address) {
  if (attributes == nullptr || values == nullptr) return Result::kInvalidValue;
  for (unsigned i = 0; i < count; ++i) {
    const Result status = cuda::pointer_attribute(values[i], attributes[i], address);
    if (status == Result::kSuccess) continue;
    constexpr int kUnknownOrdinal = -2;  // CU_DEVICE_INVALID
    const bool ordinal = attributes[i] == cuda::kDeviceOrdinal;
    if (values[i] != nullptr && ordinal) *static_cast<int*>(values[i]) = kUnknownOrdinal;
    if (values[i] != nullptr && !ordinal) *static_cast<std::uint8_t*>(values[i]) = 0;
  }
  return Result::kSuccess;
}

Result cuPointerSetAttribute(const void*, int attribute, DevicePointer address) {
  if (attribute != cuda::kSyncMemoryOperations) return Result::kInvalidValue;
  return maya::find_allocation(cuda::pointer(address)) ? Result::kSuccess : Result::kInvalidValue;
}

Result cuMemGetAddressRange_v2(DevicePointer* base, std::size_t* bytes, DevicePointer address) {
  const auto allocation = maya::find_allocation(cuda::pointer(address));
  if (!allocation) return Result::kNotFound;
  if (base != nullptr) *base = allocation->base;
  if (bytes != nullptr) *bytes = allocation->bytes;
  return Result::kSuccess;
}

}  // extern "C"
