// cuBLAS handles: created, validated, destroyed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/handle_pool.h"
#include "math/types.h"

namespace maya::math {

struct CublasHandle {
  void* stream = nullptr;
  MathMode math_mode = MathMode::kDefault;
  std::int32_t math_flags = 0;
  PointerMode pointer_mode = PointerMode::kHost;
  std::int32_t atomics_mode = 0;
  std::int32_t sm_count_target = 0;
  std::int32_t emulation_strategy = 0;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

struct CublasLtHandle {
  void* reserved = nullptr;
};

// nullptr: destroyed or foreign.
CublasHandle* find_cublas_handle(const void* handle);

// The version number the emulated cuBLAS reports, major * 10000 + minor * 100 + patch.
int cublas_version();
Status cublas_property(int type, int* value);

}  // namespace maya::math
