// Devices: selection, properties, attributes, limits, peers.
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>

#include "core/device.h"
#include "core/memory.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/runtime_error.h"
#include "cuda/runtime_types.h"

using namespace maya;
using namespace maya::cudart;

namespace {

bool valid(int device) { return device >= 0 && device < device_count(); }

int attribute(int number, int device) { return device_attribute(number, device).value_or(0); }

void fill_textures(auto& p) {
  p.maxTexture1D = 131072;
  p.maxTexture1DMipmap = 32768;
  p.maxTexture2D[0] = 131072, p.maxTexture2D[1] = 65536;
  p.maxTexture2DMipmap[0] = p.maxTexture2DMipmap[1] = 32768;
  p.maxTexture2DLinear[0] = 131072, p.maxTexture2DLinear[1] = 65000, p.maxTexture2DLinear[2] = 2097120;
  p.maxTexture2DGather[0] = p.maxTexture2DGather[1] = 32768;
  for (int& side : p.maxTexture3D) side = 16384;
  p.maxTexture3DAlt[0] = p.maxTexture3DAlt[1] = 8192, p.maxTexture3DAlt[2] = 32768;
  p.maxTextureCubemap = 32768;
  p.maxTexture1DLayered[0] = 32768, p.maxTexture1DLayered[1] = 2048;
  p.maxTexture2DLayered[0] = p.maxTexture2DLayered[1] = 32768, p.maxTexture2DLayered[2] = 2048;
  p.maxTextureCubemapLayered[0] = 32768, p.maxTextureCubemapLayered[1] = 2046;
  p.maxSurface1D = 32768;
  p.maxSurface2D[0] = 131072, p.maxSurface2D[1] = 65536;
  for (int& side : p.maxSurface3D) side = 16384;
  p.maxSurface1DLayered[0] = 32768, p.maxSurface1DLayered[1] = 2048;
  p.maxSurface2DLayered[0] = p.maxSurface2DLayered[1] = 32768, p.maxSurface2DLayered[2] = 2048;
  p.maxSurfaceCubemap = 32768;
  p.maxSurfaceCubemapLayered[0] = 32768, p.maxSurfaceCubemapLayered[1] = 2046;
}

// What both layouts have.
template <class Properties>
Properties describe(int device) {
  const RankConfig& config = rank_config();
  Properties p{};
  std::snprintf(p.name, sizeof p.name, "%s", config.device_name.c_str());
  device_uuid(device, p.uuid.bytes);
  p.totalGlobalMem = config.memory_bytes;
  p.sharedMemPerBlock = static_cast<std::size_t>(attribute(8, device));
  p.regsPerBlock = attribute(12, device);
  p.warpSize = attribute(10, device);
  p.memPitch = static_cast<std::size_t>(attribute(11, device));
  p.maxThreadsPerBlock = attribute(1, device);
  for (int axis = 0; axis < 3; ++axis) {
    p.maxThreadsDim[axis] = attribute(2 + axis, device);
    p.maxGridSize[axis] = attribute(5 + axis, device);
  }
  p.totalConstMem = static_cast<std::size_t>(attribute(9, device));
  p.major = config.major;
  p.minor = config.minor;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
  p.multiProcessorCount = config.multiprocessors;
  p.canMapHostMemory = 1;
  fill_textures(p);
  p.surfaceAlignment = 512;
  p.concurrentKernels = 1;
  p.ECCEnabled = 1;
  p.pciBusID = attribute(33, device);
  p.asyncEngineCount = attribute(40, device);
  p.unifiedAddressing = 1;
  p.memoryBusWidth = config.memory_bus_bits;
  p.l2CacheSize = static_cast<int>(config.l2_bytes);
  p.maxThreadsPerMultiProcessor = config.max_threads_per_multiprocessor;
  p.streamPrioritiesSupported = p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.sharedMemPerMultiprocessor = static_cast<std::size_t>(config.shared_memory_per_multiprocessor);
  p.regsPerMultiprocessor = attribute(82, device);
  p.managedMemory = 1;
  p.concurrentManagedAccess = p.computePreemptionSupported = p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.sharedMemPerBlockOptin = static_cast<std::size_t>(config.shared_memory_per_block_optin);
  p.maxBlocksPerMultiProcessor = attribute(106, device);
  p.reservedSharedMemPerBlock = static_cast<std::size_t>(attribute(111, device));
  p.hostRegisterSupported = p.hostRegisterReadOnlySupported = p.memoryPoolsSupported = 1;
  p.memoryPoolSupportedHandleTypes = 1;  // POSIX file descriptor
  p.ipcEventSupported = 1;
  p.clusterLaunch = attribute(120, device);
  return p;
}

struct Peers {
  std::mutex mutex;  // guards: enabled
  std::set<std::pair<int, int>> enabled;
};

Peers& peers() {
  static Peers* const instance = new Peers;
  return *instance;
}

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) {
  *count = device_count();
  return cudaSuccess;
}

int cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

int cudaSetDevice(int device) {
  if (!valid(device)) return result(cudaErrorInvalidDevice);
  set_current_device(device);
  return cudaSuccess;
}

int cudaInitDevice(int device, unsigned, unsigned) { return valid(device) ? 0 : result(cudaErrorInvalidDevice); }
int cudaSetDeviceFlags(unsigned) { return cudaSuccess; }
int cudaGetDeviceFlags(unsigned* flags) {
  *flags = 8;  // cudaDeviceMapHost
  return cudaSuccess;
}
int cudaSetValidDevices(int*, int) { return cudaSuccess; }
int cudaDeviceReset() { return cudaSuccess; }

int cudaGetDeviceProperties_v2(DeviceProperties12* properties, int device) {
  if (!valid(device)) return result(cudaErrorInvalidDevice);
  *properties = describe<DeviceProperties12>(device);
  properties->clockRate = rank_config().clock_khz;
  properties->memoryClockRate = rank_config().memory_clock_khz;
  properties->deviceOverlap = 1;
  properties->maxTexture1DLinear = 268435456;
  properties->singleToDoublePrecisionPerfRatio = 2;
  properties->cooperativeMultiDeviceLaunch = 1;
  return cudaSuccess;
}

int cudaGetDeviceProperties(DeviceProperties13* properties, int device) {
  if (!valid(device)) return result(cudaErrorInvalidDevice);
  *properties = describe<DeviceProperties13>(device);
  return cudaSuccess;
}

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (!valid(device)) return result(cudaErrorInvalidDevice);
  const auto found = device_attribute(attribute, device);
  if (!found) return result(cudaErrorInvalidValue);
  *value = *found;
  return cudaSuccess;
}

int cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (!valid(device)) return result(cudaErrorInvalidDevice);
  std::snprintf(text, static_cast<std::size_t>(bytes), "0000:%02X:00.0", 0x10 + device);
  return cudaSuccess;
}

int cudaDeviceGetByPCIBusId(int* device, const char* text) {
  unsigned domain = 0, bus = 0;
  if (std::sscanf(text, "%x:%x:", &domain, &bus) != 2 || !valid(static_cast<int>(bus) - 0x10))
    return result(cudaErrorInvalidDevice);
  *device = static_cast<int>(bus) - 0x10;
  return cudaSuccess;
}

int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (least) *least = 0;
  if (greatest) *greatest = -5;
  return cudaSuccess;
}

int cudaDeviceSynchronize() {
  const Call call;
  return result(synchronize_device(current_device()));
}

int cudaDriverGetVersion(int* version) {
  device_count();  // reads the configuration that MAYA_CONFIG names
  *version = rank_config().driver_version;
  return cudaSuccess;
}

int cudaRuntimeGetVersion(int* version) {
  *version = runtime_major() == 12 ? 12040 : 13000;
  return cudaSuccess;
}

int cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (!valid(device) || !valid(peer)) return result(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

int cudaDeviceEnablePeerAccess(int peer, unsigned) {
  if (!valid(peer) || peer == current_device()) return result(cudaErrorInvalidDevice);
  std::lock_guard lock(peers().mutex);
  const bool added = peers().enabled.emplace(current_device(), peer).second;
  return added ? cudaSuccess : result(cudaErrorPeerAccessAlreadyEnabled);
}

int cudaDeviceDisablePeerAccess(int peer) {
  std::lock_guard lock(peers().mutex);
  return peers().enabled.erase({current_device(), peer}) ? cudaSuccess : result(cudaErrorPeerAccessNotEnabled);
}

int cudaDeviceGetP2PAttribute(int* value, int attribute, int device, int peer) {
  if (!valid(device) || !valid(peer)) return result(cudaErrorInvalidDevice);
  constexpr int kPerformanceRank = 1;
  *value = attribute == kPerformanceRank ? 0 : device != peer;
  return cudaSuccess;
}

int cudaDeviceGetLimit(std::size_t* value, int limit) {
  // Stack size, printf FIFO, malloc heap, sync depth, pending launches, L2 granularity, persisting L2:
  // the documented defaults.
  constexpr std::size_t kDefaults[] = {1024, 1048576, 8388608, 2, 2048, 64, 0};
  if (limit < 0 || limit > 6) return result(215);  // cudaErrorUnsupportedLimit
  *value = kDefaults[limit];
  return cudaSuccess;
}

int cudaDeviceSetLimit(int limit, std::size_t) { return limit >= 0 && limit <= 6 ? 0 : result(215); }
int cudaDeviceSetCacheConfig(int) { return cudaSuccess; }
int cudaProfilerStart() { return cudaSuccess; }
int cudaProfilerStop() { return cudaSuccess; }
int cudaCtxResetPersistingL2Cache() { return cudaSuccess; }

}  // extern "C"
