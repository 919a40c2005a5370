// cudaGetDriverEntryPoint*: driver functions by name, through the driver API's own resolver.
#include <cstdint>

#include "core/process.h"
#include "cuda/runtime_error.h"
#include "cuda/runtime_types.h"

extern "C" int cuGetProcAddress_v2(const char* symbol, void** address, int version, std::uint64_t flags, int* status);

using namespace maya::cudart;

extern "C" {

int cudaGetDriverEntryPointByVersion(const char* symbol, void** address, unsigned version, unsigned long long flags,
                                     int* status) {
  int found = 0;  // cudaDriverEntryPointQueryResult and CUdriverProcAddressQueryResult share their values
  *address = nullptr;
  const int error = cuGetProcAddress_v2(symbol, address, static_cast<int>(version), flags, &found);
  if (status) *status = found;
  return error == cudaErrorSymbolNotFound ? cudaSuccess : result(error);
}

int cudaGetDriverEntryPoint(const char* symbol, void** address, unsigned long long flags, int* status) {
  return cudaGetDriverEntryPointByVersion(symbol, address, static_cast<unsigned>(maya::rank_config().driver_version),
                                          flags, status);
}

}  // extern "C"
