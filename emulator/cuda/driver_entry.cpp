// Looking driver functions up by name: cuGetProcAddress and cudaGetDriverEntryPoint*, from the ABI tables.
#include <array>
#include <cstring>
#include <string>
#include <string_view>

#include "abi/stubs.h"
#include "core/process.h"
#include "cuda/driver.h"

namespace maya::cuda {
namespace {

// CUdriverProcAddressQueryResult and cudaDriverEntryPointQueryResult.
enum class Query : std::int32_t { kFound = 0, kNotFound = 1, kVersionNotSufficient = 2 };

struct Found {
  void* address = nullptr;
  Query query = Query::kNotFound;
};

bool is_driver_function(std::string_view name) {
  return name.size() > 2 && name.starts_with("cu") && name[2] >= 'A' && name[2] <= 'Z';
}

// The newest form of `name` that CUDA `version` has: cuCtxCreate is cuCtxCreate_v4 from 12.5 on. With
// `per_thread`, the form whose default stream is the calling thread's, where there is one.
Found find(std::string_view name, int version, bool per_thread) {
  constexpr std::array<const char*, 4> kForms{"_v4", "_v3", "_v2", ""};
  constexpr std::array<const char*, 3> kStreams{"_ptsz", "_ptds", ""};
  Found found;
  if (!is_driver_function(name)) return found;
  for (const char* form : kForms) {
    for (const char* stream : kStreams) {
      if (*stream != '\0' && !per_thread) continue;
      const abi::Symbol* symbol = abi::lookup(std::string(name) + form + stream);
      if (symbol == nullptr) continue;
      if (symbol->since <= version) return {symbol->address, Query::kFound};
      found.query = Query::kVersionNotSufficient;
    }
  }
  return found;
}

constexpr unsigned long long kPerThreadDefaultStream = 2;  // CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM

Result find(const char* name, void** function, int version, unsigned long long flags, Query* query) {
  if (name == nullptr || function == nullptr) return Result::kInvalidValue;
  const Found found = find(name, version, (flags & kPerThreadDefaultStream) != 0);
  *function = found.address;
  if (query != nullptr) *query = found.query;
  return found.address == nullptr ? Result::kNotFound : Result::kSuccess;
}

// The runtime reports what was not found through `query` alone.
Result find_entry_point(const char* name, void** function, unsigned version, unsigned long long flags, Query* query) {
  const Result status = find(name, function, static_cast<int>(version), flags, query);
  return status == Result::kNotFound ? Result::kSuccess : status;
}

}  // namespace
}  // namespace maya::cuda

using maya::cuda::Query;
using maya::cuda::Result;
namespace cuda = maya::cuda;

extern "C" {

Result cuGetProcAddress(const char* name, void** function, int version, unsigned long long flags) {
  return cuda::find(name, function, version, flags, nullptr);
}

Result cuGetProcAddress_v2(const char* name, void** function, int version, unsigned long long flags, Query* query) {
  return cuda::find(name, function, version, flags, query);
}

Result cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags, Query* query) {
  const auto version = static_cast<unsigned>(maya::rank_config().driver_version);
  return cuda::find_entry_point(name, function, version, flags, query);
}

Result cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned version, unsigned long long flags,
                                        Query* query) {
  return cuda::find_entry_point(name, function, version, flags, query);
}

// What is left of CUPTI (cupti.cpp) asks for the driver's private tables; NVRTC asks for one and does without.
Result cuGetExportTable(const void** table, const void* id) {
  if (table == nullptr) return Result::kInvalidValue;
  constexpr unsigned char kOfNvrtc[] = {0xda, 0x91, 0x51, 0xd3, 0x3a, 0xe6, 0xcc, 0x41,
                                        0xa5, 0xc0, 0x4f, 0x26, 0xd5, 0x33, 0xe3, 0x28};
  if (!(id && std::memcmp(id, kOfNvrtc, sizeof kOfNvrtc) == 0)) cuda::tell_of_profiler();
  *table = nullptr;
  return Result::kNotFound;
}

// The driver's log (CUDA 12.9): there are no entries to call back with.
Result cuLogsRegisterCallback(void (*function)(void*, int, char*, std::size_t), void*, void** callback) {
  if (function == nullptr) return Result::kInvalidValue;
  if (callback != nullptr) *callback = reinterpret_cast<void*>(function);
  return Result::kSuccess;
}

Result cuLogsUnregisterCallback(void*) { return Result::kSuccess; }

}  // extern "C"
