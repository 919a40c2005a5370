// Kernels: registration, launch, attributes, occupancy.
#include <algorithm>
#include <map>
#include <mutex>
#include <span>
#include <vector>

#include "core/device.h"
#include "core/kernel.h"
#include "core/memory.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/runtime_error.h"
#include "cuda/runtime_symbols.h"
#include "cuda/runtime_types.h"
#include "nccl/user_buffers.h"

using namespace maya;
using namespace maya::cudart;

namespace {

struct Variables {
  std::mutex mutex;  // guards: by_symbol
  std::map<const void*, DeviceVariable> by_symbol;
};

Variables& variables() {
  static Variables* const instance = new Variables;
  return *instance;
}

struct PushedLaunch {
  dim3 grid, block;
  std::size_t shared_bytes;
  void* stream;
};

std::vector<PushedLaunch>& pushed_launches() {
  static thread_local std::vector<PushedLaunch> pushed;
  return pushed;
}

bool launchable(const KernelInfo& kernel, const dim3& grid, const dim3& block) {
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  return grid.x && grid.y && grid.z && threads && threads <= static_cast<std::uint64_t>(kernel.max_threads_per_block) &&
         grid.y <= 65535 && grid.z <= 65535 && block.z <= 64;
}

// Blocks in a cluster, from the launch attribute cudaLaunchAttributeClusterDimension.
int cluster_blocks(const LaunchConfig& config) {
  constexpr int kClusterDimension = 4;
  for (const LaunchAttribute& attribute : std::span(config.attrs, config.numAttrs))
    if (attribute.id == kClusterDimension)
      return static_cast<int>(attribute.value[0] * attribute.value[1] * attribute.value[2]);
  return 1;
}

int launch(const void* function, const dim3& grid, const dim3& block, void** args, std::size_t shared_bytes,
           void* stream) {
  KernelInfo* kernel = find_kernel(function);
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  if (!launchable(*kernel, grid, block)) return result(cudaErrorInvalidConfiguration);
  if (shared_bytes > static_cast<std::size_t>(rank_config().shared_memory_per_block_optin))
    return result(cudaErrorInvalidValue);
  if (!find_stream(stream)) return result(cudaErrorInvalidResourceHandle);
  const std::uint32_t g[3] = {grid.x, grid.y, grid.z}, b[3] = {block.x, block.y, block.z};
  if (!nccl::launch_exchange(*kernel, args, stream)) record_launch(*kernel, g, b, args, shared_bytes, stream);
  return cudaSuccess;
}

// The architecture whose code of a registered kernel runs: the device's, or the oldest there is. CUDA 13 compiles for
// Turing and later (release notes), and CUB, which picks its tuning by this, has none for what it was not compiled for.
int code_version() {
  constexpr int kCuda13 = 13000, kTuring = 75;
  const RankConfig& config = rank_config();
  const int device = config.major * 10 + config.minor;
  return config.driver_version >= kCuda13 ? std::max(device, kTuring) : device;
}

}  // namespace

DeviceVariable maya::cudart::device_variable(const void* symbol) {
  std::lock_guard lock(variables().mutex);
  const auto found = variables().by_symbol.find(symbol);
  if (found == variables().by_symbol.end()) return {};
  DeviceVariable& variable = found->second;
  if (!variable.address) {  // a module's variables are part of the context's footprint
    variable.address = reserve_address(variable.bytes, 4096);
    add_range(variable.address, variable.bytes, MemoryKind::kDevice, current_device());
  }
  return variable;
}

extern "C" {

void** __cudaRegisterFatBinary(void* image) { return new void*(image); }
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) { delete handle; }
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void**, const char* host_function, char*, const char* device_name, int thread_limit, void*,
                            void*, void*, void*, int*) {
  KernelInfo* kernel = register_kernel(device_name, host_function);
  if (thread_limit > 0) kernel->max_threads_per_block = thread_limit;
}

void __cudaRegisterVar(void**, char* host_variable, char*, const char*, int, std::size_t bytes, int, int) {
  std::lock_guard lock(variables().mutex);
  variables().by_symbol[host_variable] = {nullptr, bytes};
}

void __cudaRegisterManagedVar(void**, void** host_pointer, char*, const char*, int, std::size_t bytes, int, int) {
  *host_pointer = reserve_address(bytes, 4096);
  add_range(*host_pointer, bytes, MemoryKind::kManaged, 0);
  std::lock_guard lock(variables().mutex);
  variables().by_symbol[host_pointer] = {*host_pointer, bytes};
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, void* stream) {
  pushed_launches().push_back({grid, block, shared_bytes, stream});
  return 0;
}

int __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (pushed_launches().empty()) return result(52);  // cudaErrorMissingConfiguration
  const PushedLaunch pushed = pushed_launches().back();
  pushed_launches().pop_back();
  *grid = pushed.grid;
  *block = pushed.block;
  *shared_bytes = pushed.shared_bytes;
  *static_cast<void**>(stream) = pushed.stream;
  return cudaSuccess;
}

int cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** args, std::size_t shared_bytes, void* stream) {
  const Call call;
  return launch(function, grid, block, args, shared_bytes, stream);
}

int cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** args, std::size_t shared_bytes,
                                void* stream) {
  const Call call;
  return launch(function, grid, block, args, shared_bytes, stream);
}

int cudaLaunchKernelExC(const LaunchConfig* config, const void* function, void** args) {
  const Call call;
  return launch(function, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}

int __cudaLaunchKernel(void* kernel, dim3 grid, dim3 block, void** args, std::size_t shared_bytes, void* stream) {
  const Call call;
  return launch(kernel, grid, block, args, shared_bytes, stream);
}

int cudaGetKernel(void** kernel, const void* function) {
  *kernel = find_kernel(function);
  return *kernel ? cudaSuccess : result(cudaErrorInvalidDeviceFunction);
}
int __cudaGetKernel(void** kernel, const void* function) { return cudaGetKernel(kernel, function); }
int cudaGetFuncBySymbol(void** handle, const void* symbol) { return cudaGetKernel(handle, symbol); }

int cudaFuncGetName(const char** name, const void* function) {
  const KernelInfo* kernel = find_kernel(function);
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  *name = kernel->mangled.c_str();
  return cudaSuccess;
}

int cudaFuncGetAttributes(FuncAttributes* attributes, const void* function) {
  const Call call;
  const KernelInfo* kernel = find_kernel(function);
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  *attributes = {};
  attributes->sharedSizeBytes = static_cast<std::size_t>(kernel->static_shared_bytes);
  attributes->maxThreadsPerBlock = kernel->max_threads_per_block;
  attributes->numRegs = kernel->registers;
  attributes->ptxVersion = attributes->binaryVersion = code_version();
  attributes->maxDynamicSharedSizeBytes = kernel->max_dynamic_shared_bytes;
  attributes->preferredShmemCarveout = -1;
  return cudaSuccess;
}

int cudaFuncSetAttribute(const void* function, int attribute, int value) {
  const Call call;
  KernelInfo* kernel = find_kernel(function);
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  constexpr int kMaxDynamicShared = 8;
  if (attribute < 8 || attribute > 15) return result(cudaErrorInvalidValue);
  if (attribute == kMaxDynamicShared) {
    if (value < 0 || value > rank_config().shared_memory_per_block_optin) return result(cudaErrorInvalidValue);
    kernel->max_dynamic_shared_bytes = value;
  }
  return cudaSuccess;
}

int cudaKernelSetAttributeForDevice(void* kernel, int attribute, int value, int) {
  return cudaFuncSetAttribute(kernel, attribute, value);
}
int cudaFuncSetCacheConfig(const void*, int) { return cudaSuccess; }

int cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function, int block_size,
                                                           std::size_t shared_bytes, unsigned) {
  const Call call;
  const KernelInfo* kernel = find_kernel(function);
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  *blocks = blocks_per_multiprocessor(*kernel, block_size, shared_bytes);
  return cudaSuccess;
}
int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int block_size,
                                                  std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

int cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void* function, int blocks, int) {
  const Call call;
  const KernelInfo* kernel = find_kernel(function);
  if (!kernel || blocks <= 0) return result(cudaErrorInvalidValue);
  const RankConfig& config = rank_config();
  const int reserved = device_attribute(111, current_device()).value_or(0) + kernel->static_shared_bytes;
  const int share = config.shared_memory_per_multiprocessor / blocks - reserved;
  *bytes = static_cast<std::size_t>(std::clamp(share, 0, config.shared_memory_per_block_optin));
  return cudaSuccess;
}

int cudaOccupancyMaxPotentialClusterSize(int* size, const void*, const LaunchConfig*) {
  *size = device_attribute(120, current_device()).value_or(0) ? 8 : 1;  // the portable cluster size
  return cudaSuccess;
}

int cudaOccupancyMaxActiveClusters(int* clusters, const void* function, const LaunchConfig* config) {
  const Call call;
  const KernelInfo* kernel = find_kernel(function);
  if (!kernel) return result(cudaErrorInvalidDeviceFunction);
  const dim3 block = config->blockDim;
  const int resident =
      blocks_per_multiprocessor(*kernel, static_cast<int>(block.x * block.y * block.z), config->dynamicSmemBytes);
  *clusters = rank_config().multiprocessors * resident / cluster_blocks(*config);
  return cudaSuccess;
}

}  // extern "C"
