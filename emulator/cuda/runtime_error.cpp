#include "cuda/runtime_error.h"

#include <utility>

namespace maya::cudart {
namespace {
thread_local int last_error = 0;
}

int result(int error) {
  if (error != 0) last_error = error;
  return error;
}

}  // namespace maya::cudart

using namespace maya::cudart;

extern "C" {

int cudaGetLastError() { return std::exchange(last_error, 0); }
int cudaPeekAtLastError() { return last_error; }

const char* cudaGetErrorName(int error) {
  const ErrorText* found = error_text(error);
  return found ? found->name : "unrecognized error code";
}

const char* cudaGetErrorString(int error) {
  const ErrorText* found = error_text(error);
  return found ? found->text : "unrecognized error code";
}

}  // extern "C"
