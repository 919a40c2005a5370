// Compiled by test_layouts.py beside NVIDIA's own header: our declarations of its structures agree with it.
#include <driver_types.h>

#include <cstddef>

#include "cuda/runtime_types.h"

namespace ours = maya::cudart;

#if CUDA_MAJOR >= 13
using Properties = ours::DeviceProperties13;
#else
using Properties = ours::DeviceProperties12;
static_assert(offsetof(Properties, clockRate) == offsetof(cudaDeviceProp, clockRate));
static_assert(offsetof(Properties, memoryClockRate) == offsetof(cudaDeviceProp, memoryClockRate));
#endif
static_assert(sizeof(Properties) == sizeof(cudaDeviceProp));
static_assert(offsetof(Properties, totalGlobalMem) == offsetof(cudaDeviceProp, totalGlobalMem));
static_assert(offsetof(Properties, major) == offsetof(cudaDeviceProp, major));
static_assert(offsetof(Properties, multiProcessorCount) == offsetof(cudaDeviceProp, multiProcessorCount));
static_assert(offsetof(Properties, maxSurfaceCubemapLayered) == offsetof(cudaDeviceProp, maxSurfaceCubemapLayered));
static_assert(offsetof(Properties, l2CacheSize) == offsetof(cudaDeviceProp, l2CacheSize));
static_assert(offsetof(Properties, sharedMemPerMultiprocessor) == offsetof(cudaDeviceProp, sharedMemPerMultiprocessor));
static_assert(offsetof(Properties, sharedMemPerBlockOptin) == offsetof(cudaDeviceProp, sharedMemPerBlockOptin));
static_assert(offsetof(Properties, clusterLaunch) == offsetof(cudaDeviceProp, clusterLaunch));

static_assert(sizeof(ours::PointerAttributes) <= sizeof(cudaPointerAttributes));
static_assert(offsetof(ours::PointerAttributes, hostPointer) == offsetof(cudaPointerAttributes, hostPointer));
static_assert(offsetof(ours::FuncAttributes, numRegs) == offsetof(cudaFuncAttributes, numRegs));
static_assert(offsetof(ours::FuncAttributes, nonPortableClusterSizeAllowed) ==
              offsetof(cudaFuncAttributes, nonPortableClusterSizeAllowed));
static_assert(sizeof(ours::FuncAttributes) == sizeof(cudaFuncAttributes));
static_assert(sizeof(ours::IpcHandle) == sizeof(cudaIpcMemHandle_t));
static_assert(sizeof(ours::LaunchConfig) == sizeof(cudaLaunchConfig_t));
static_assert(offsetof(ours::LaunchConfig, stream) == offsetof(cudaLaunchConfig_t, stream));
static_assert(sizeof(ours::LaunchAttribute) == sizeof(cudaLaunchAttribute));
static_assert(offsetof(ours::LaunchAttribute, value) == offsetof(cudaLaunchAttribute, val));
static_assert(cudaLaunchAttributeClusterDimension == 4 && cudaFuncAttributeMaxDynamicSharedMemorySize == 8);
