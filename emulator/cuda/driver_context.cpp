// The driver API's devices, contexts and errors. Prototypes: cuda.h of CUDA 12 and 13.
#include <algorithm>
#include <array>
#include <cstdio>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/handle_pool.h"
#include "core/memory.h"
#include "core/process.h"
#include "core/stream.h"
#include "cuda/driver.h"

namespace maya::cuda {
namespace {

constexpr int kMaxDevices = 64;

HandlePool<Context, 4096>& contexts() { return handle_pool<Context, 4096>(); }

struct PrimaryContext {
  Context* context = nullptr;
  int retained = 0;
  std::uint32_t flags = 0;
};

struct PrimaryContexts {
  std::mutex mutex;  // guards: by_device
  std::array<PrimaryContext, kMaxDevices> by_device;
};

PrimaryContexts& primaries() {
  static auto* const instance = new PrimaryContexts;
  return *instance;
}

thread_local std::vector<Context*> context_stack;

bool valid_device(int device) { return device >= 0 && device < std::min(device_count(), kMaxDevices); }

Result make_current(Context* context) {
  if (context_stack.empty()) {
    context_stack.push_back(context);
  } else {
    context_stack.back() = context;
  }
  if (context != nullptr) set_current_device(context->device);
  return Result::kSuccess;
}

struct ErrorName {
  int code;
  const char* name;
};

// cudaError_enum of cuda.h.
constexpr ErrorName kErrorNames[] = {
    {0, "CUDA_SUCCESS"},
    {1, "CUDA_ERROR_INVALID_VALUE"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
    {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {4, "CUDA_ERROR_DEINITIALIZED"},
    {34, "CUDA_ERROR_STUB_LIBRARY"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
    {100, "CUDA_ERROR_NO_DEVICE"},
    {101, "CUDA_ERROR_INVALID_DEVICE"},
    {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"},
    {205, "CUDA_ERROR_MAP_FAILED"},
    {206, "CUDA_ERROR_UNMAP_FAILED"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
    {218, "CUDA_ERROR_INVALID_PTX"},
    {300, "CUDA_ERROR_INVALID_SOURCE"},
    {301, "CUDA_ERROR_FILE_NOT_FOUND"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM"},
    {400, "CUDA_ERROR_INVALID_HANDLE"},
    {401, "CUDA_ERROR_ILLEGAL_STATE"},
    {500, "CUDA_ERROR_NOT_FOUND"},
    {600, "CUDA_ERROR_NOT_READY"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED"},
    {705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
    {719, "CUDA_ERROR_LAUNCH_FAILED"},
    {800, "CUDA_ERROR_NOT_PERMITTED"},
    {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
    {907, "CUDA_ERROR_CAPTURED_EVENT"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
    {999, "CUDA_ERROR_UNKNOWN"},
};

const ErrorName* find_error(int code) {
  const auto* at = std::ranges::find(kErrorNames, code, &ErrorName::code);
  return at == std::end(kErrorNames) ? nullptr : at;
}

}  // namespace

bool device_in_use(int device) {
  const MemoryInfo memory = memory_info(device);
  return memory.total_bytes - memory.free_bytes > rank_config().context_bytes;
}

Context* find_context(const void* handle) { return contexts().find(handle); }

Context* primary_context(int device) {
  PrimaryContexts& all = primaries();
  const std::lock_guard lock(all.mutex);
  PrimaryContext& primary = all.by_device[device];
  if (primary.context == nullptr) {
    primary.context = contexts().create(Context{.device = device, .primary = true, .flags = primary.flags});
  }
  return primary.context;
}

Context* current_context_of_thread() {
  Context* top = context_stack.empty() ? nullptr : context_stack.back();
  const int device = current_device();
  if (top != nullptr && top->device == device) return top;
  // cudaSetDevice since: the runtime made that device's primary context current.
  return device_in_use(device) || top != nullptr ? primary_context(device) : nullptr;
}

}  // namespace maya::cuda

using maya::cuda::Context;
using maya::cuda::Result;
using maya::cuda::result;
namespace cuda = maya::cuda;

namespace {

Result with_current(auto&& act) {
  Context* context = cuda::current_context_of_thread();
  return context == nullptr ? Result::kInvalidContext : act(*context);
}

template <class T>
Result write(T* out, T value) {
  if (out == nullptr) return Result::kInvalidValue;
  *out = value;
  return Result::kSuccess;
}

}  // namespace

extern "C" {

Result cuCtxPushCurrent_v2(Context* context);

// ---- driver and devices ----

Result cuInit(unsigned flags) { return flags == 0 ? Result::kSuccess : Result::kInvalidValue; }

Result cuDriverGetVersion(int* version) { return write(version, maya::rank_config().driver_version); }

Result cuDeviceGet(int* device, int ordinal) {
  return cuda::valid_device(ordinal) ? write(device, ordinal) : Result::kInvalidDevice;
}

Result cuDeviceGetCount(int* count) { return write(count, maya::device_count()); }

Result cuDeviceGetName(char* name, int bytes, int device) {
  if (name == nullptr || bytes <= 0) return Result::kInvalidValue;
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(bytes), "%s", maya::rank_config().device_name.c_str());
  return Result::kSuccess;
}

Result cuDeviceGetUuid(unsigned char (*uuid)[16], int device) {
  if (uuid == nullptr) return Result::kInvalidValue;
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  maya::device_uuid(device, *uuid);
  return Result::kSuccess;
}

Result cuDeviceGetUuid_v2(unsigned char (*uuid)[16], int device) { return cuDeviceGetUuid(uuid, device); }

Result cuDeviceTotalMem_v2(std::size_t* bytes, int device) {
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  return write(bytes, maya::memory_info(device).total_bytes);
}

Result cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  const std::optional<int> known = maya::device_attribute(attribute, device);
  return known ? write(value, *known) : Result::kInvalidValue;
}

Result cuDeviceComputeCapability(int* major, int* minor, int device) {
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  const Result status = write(major, maya::rank_config().major);
  return status == Result::kSuccess ? write(minor, maya::rank_config().minor) : status;
}

Result cuGetErrorName(int code, const char** name) {
  const cuda::ErrorName* error = cuda::find_error(code);
  const Result status = write(name, error == nullptr ? static_cast<const char*>(nullptr) : error->name);
  return error == nullptr ? Result::kInvalidValue : status;
}

Result cuGetErrorString(int code, const char** text) {
  const bool known = cuda::find_error(code) != nullptr;
  const Result status = write(text, known ? cudaGetErrorString(code) : static_cast<const char*>(nullptr));
  return known ? status : Result::kInvalidValue;
}

// ---- primary contexts ----

Result cuDevicePrimaryCtxRetain(Context** context, int device) {
  if (context == nullptr) return Result::kInvalidValue;
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  *context = cuda::primary_context(device);
  auto& all = cuda::primaries();
  const std::lock_guard lock(all.mutex);
  ++all.by_device[device].retained;
  return Result::kSuccess;
}

Result cuDevicePrimaryCtxRelease_v2(int device) {
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  auto& all = cuda::primaries();
  const std::lock_guard lock(all.mutex);
  if (all.by_device[device].retained == 0) return Result::kInvalidContext;
  --all.by_device[device].retained;
  return Result::kSuccess;
}

Result cuDevicePrimaryCtxGetState(int device, std::uint32_t* flags, int* active) {
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  auto& all = cuda::primaries();
  const std::lock_guard lock(all.mutex);
  const cuda::PrimaryContext& primary = all.by_device[device];
  const Result status = write(flags, primary.flags);
  if (status != Result::kSuccess) return status;
  return write(active, primary.retained > 0 || cuda::device_in_use(device) ? 1 : 0);
}

Result cuDevicePrimaryCtxSetFlags_v2(int device, std::uint32_t flags) {
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  auto& all = cuda::primaries();
  const std::lock_guard lock(all.mutex);
  all.by_device[device].flags = flags;
  return Result::kSuccess;
}

// ---- contexts ----

Result cuCtxCreate_v2(Context** context, std::uint32_t flags, int device) {
  if (context == nullptr) return Result::kInvalidValue;
  if (!cuda::valid_device(device)) return Result::kInvalidDevice;
  *context = cuda::contexts().create(Context{.device = device, .flags = flags});
  return cuCtxPushCurrent_v2(*context);
}

Result cuCtxCreate_v3(Context** context, void*, int, std::uint32_t flags, int device) {
  return cuCtxCreate_v2(context, flags, device);
}

Result cuCtxCreate_v4(Context** context, void*, std::uint32_t flags, int device) {
  return cuCtxCreate_v2(context, flags, device);
}

Result cuCtxDestroy_v2(Context* context) {
  Context* found = cuda::find_context(context);
  if (found == nullptr || found->primary) return Result::kInvalidContext;
  std::erase(cuda::context_stack, found);
  cuda::contexts().destroy(found);
  return Result::kSuccess;
}

Result cuCtxPushCurrent_v2(Context* context) {
  if (cuda::find_context(context) == nullptr) return Result::kInvalidContext;
  cuda::context_stack.push_back(context);
  maya::set_current_device(context->device);
  return Result::kSuccess;
}

Result cuCtxPopCurrent_v2(Context** context) {
  if (cuda::context_stack.empty()) return Result::kInvalidContext;
  if (context != nullptr) *context = cuda::context_stack.back();
  cuda::context_stack.pop_back();
  const Context* next = cuda::context_stack.empty() ? nullptr : cuda::context_stack.back();
  if (next != nullptr) maya::set_current_device(next->device);
  return Result::kSuccess;
}

Result cuCtxSetCurrent(Context* context) {
  if (context != nullptr && cuda::find_context(context) == nullptr) return Result::kInvalidContext;
  return cuda::make_current(context);
}

Result cuCtxGetCurrent(Context** context) { return write(context, cuda::current_context_of_thread()); }

// Of a default stream the calling thread's, of another its device's. Contexts beside the primary one are not told
// apart.
Result cuStreamGetCtx(void* handle, Context** context) {
  if (handle == nullptr || handle == maya::kStreamLegacyHandle || handle == maya::kStreamPerThreadHandle) {
    return with_current([&](Context& current) { return write(context, &current); });
  }
  const maya::Stream* stream = maya::find_stream(handle);
  return stream == nullptr ? Result::kInvalidHandle : write(context, cuda::primary_context(stream->device));
}

Result cuStreamGetCtx_v2(void* handle, Context** context, void** green) {
  if (green != nullptr) *green = nullptr;  // of a part of a device: there are none here
  return cuStreamGetCtx(handle, context);
}

Result cuCtxGetDevice(int* device) {
  return with_current([&](Context& context) { return write(device, context.device); });
}

Result cuCtxGetDevice_v2(int* device, Context* context) {
  if (context == nullptr) return cuCtxGetDevice(device);
  return cuda::find_context(context) ? write(device, context->device) : Result::kInvalidContext;
}

Result cuCtxGetFlags(std::uint32_t* flags) {
  return with_current([&](Context& context) { return write(flags, context.flags); });
}

Result cuCtxGetId(Context* context, unsigned long long* id) {
  Context* of = context == nullptr ? cuda::current_context_of_thread() : cuda::find_context(context);
  return of == nullptr ? Result::kInvalidContext
                       : write(id, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(of)));
}

Result cuCtxGetApiVersion(Context*, std::uint32_t* version) { return write(version, 3020U); }

Result cuCtxSynchronize() {
  return with_current([](Context& context) { return result(maya::synchronize_device(context.device)); });
}

Result cuCtxSynchronize_v2(Context* context) {
  if (context == nullptr) return cuCtxSynchronize();
  if (cuda::find_context(context) == nullptr) return Result::kInvalidContext;
  return result(maya::synchronize_device(context->device));
}

Result cuCtxEnablePeerAccess(Context* peer, unsigned flags) {
  if (cuda::find_context(peer) == nullptr) return Result::kInvalidContext;
  return result(cudaDeviceEnablePeerAccess(peer->device, flags));
}

Result cuCtxDisablePeerAccess(Context* peer) {
  if (cuda::find_context(peer) == nullptr) return Result::kInvalidContext;
  return result(cudaDeviceDisablePeerAccess(peer->device));
}

}  // extern "C"
