// What a profiler asks CUPTI first, as PyTorch's does, which goes on without the device: there is nothing of it to see.
// CUPTI itself would miss the driver's private tables, and CUDA 13.2's looks for them again, without end, to say so.
#include <cstdint>

#include "core/recorder.h"
#include "cuda/driver.h"

namespace maya::cuda {

void tell_of_profiler() { note_once("a profiler that the script starts sees no device activity"); }

}  // namespace maya::cuda

namespace {

constexpr int kNotInitialized = 15;  // CUPTI_ERROR_NOT_INITIALIZED

int refuse_profiler() {
  maya::cuda::tell_of_profiler();
  return kNotInitialized;
}

}  // namespace

extern "C" {

int cuptiGetVersion(std::uint32_t*) { return refuse_profiler(); }

int cuptiSubscribe(void*, void*, void*) { return refuse_profiler(); }

int cuptiGetResultString(int result, const char** text) {
  if (text == nullptr) return 1;  // CUPTI_ERROR_INVALID_PARAMETER
  *text = result == 0 ? "CUPTI_SUCCESS" : "CUPTI_ERROR_NOT_INITIALIZED";
  return 0;
}

}  // extern "C"
