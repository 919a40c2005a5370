// A kernel registered by the process: __cudaRegisterFunction, cudaLibrary*, cuModuleGetFunction.
#pragma once

#include <string>

namespace maya {

struct KernelInfo {
  std::string name;                      // demangled
  const void* host_function = nullptr;   // the host stub, or the CUfunction of a loaded module
  // Filled by maya::values at the first launch.
  mutable const void* executor = nullptr;
  mutable bool resolved = false;
};

}  // namespace maya
