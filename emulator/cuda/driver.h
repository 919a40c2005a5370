// What the driver API's source files share. Streams, events, memory and kernels are those of core/: a
// CUstream is a cudaStream_t, a CUfunction a KernelInfo.
#pragma once

#include <cstddef>
#include <cstdint>

namespace maya::cuda {

// CUresult. Equal to the runtime's error of the same meaning, so that either API passes on the other's.
enum class Result : std::int32_t {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kFileNotFound = 301,
  kInvalidHandle = 400,
  kNotFound = 500,
  kLaunchOutOfResources = 701,
  kNotSupported = 801,
};

inline Result result(int code) { return static_cast<Result>(code); }

using DevicePointer = std::uintptr_t;  // CUdeviceptr of the _v2 functions

// A context: the primary one of its device, or one that cuCtxCreate made, which shares everything with it.
struct Context {
  int device = 0;
  bool primary = false;
  std::uint32_t flags = 0;
};

bool device_in_use(int device);  // its primary context is active

Context* find_context(const void* handle);  // nullptr: destroyed or foreign
Context* primary_context(int device);
// The calling thread's: the top of its stack, else the primary one once the device is in use.
Context* current_context_of_thread();

void tell_of_profiler();  // that one which the script starts sees nothing of the device

}  // namespace maya::cuda

// The runtime API's entry points that the driver's are made of. Those with the same parameters and errors
// are aliases in abi/cuda.tsv and need nothing here.
extern "C" {
int cudaDeviceEnablePeerAccess(int device, unsigned flags);
int cudaDeviceDisablePeerAccess(int device);
const char* cudaGetErrorString(int code);
}
