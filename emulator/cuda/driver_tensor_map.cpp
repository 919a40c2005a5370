// Descriptors of tensors for the tensor memory accelerator, which CUTLASS' and Triton's kernels of Hopper and later
// take among their arguments: opaque to all but the device. Prototypes: cuda.h of CUDA 12 and 13.
#include <algorithm>
#include <array>

#include "cuda/driver.h"

namespace maya::cuda {
namespace {

constexpr std::uint32_t kMostDimensions = 5;
using TensorMap = std::array<std::uint64_t, 16>;  // CUtensorMap

bool aligned(const void* address, std::uintptr_t bytes) {
  return address != nullptr && reinterpret_cast<std::uintptr_t>(address) % bytes == 0;
}

// What the real one holds is not documented: nothing reads ours.
Result encode(TensorMap* map, std::uint32_t rank, const void* address, const std::uint64_t* sizes) {
  if (!aligned(map, 64) || !aligned(address, 16) || sizes == nullptr) return Result::kInvalidValue;
  if (rank == 0 || rank > kMostDimensions) return Result::kInvalidValue;
  *map = {reinterpret_cast<std::uintptr_t>(address), rank};
  std::copy_n(sizes, rank, map->begin() + 2);
  return Result::kSuccess;
}

}  // namespace
}  // namespace maya::cuda

using maya::cuda::Result;

extern "C" {

Result cuTensorMapEncodeTiled(maya::cuda::TensorMap* map, int, std::uint32_t rank, void* address,
                              const std::uint64_t* sizes, const std::uint64_t*, const std::uint32_t*,
                              const std::uint32_t*, int, int, int, int) {
  return maya::cuda::encode(map, rank, address, sizes);
}

Result cuTensorMapEncodeIm2col(maya::cuda::TensorMap* map, int, std::uint32_t rank, void* address,
                               const std::uint64_t* sizes, const std::uint64_t*, const int*, const int*, std::uint32_t,
                               std::uint32_t, const std::uint32_t*, int, int, int, int) {
  return rank < 3 ? Result::kInvalidValue : maya::cuda::encode(map, rank, address, sizes);
}

Result cuTensorMapReplaceAddress(maya::cuda::TensorMap* map, void* address) {
  if (!maya::cuda::aligned(map, 64) || !maya::cuda::aligned(address, 16)) return Result::kInvalidValue;
  (*map)[0] = reinterpret_cast<std::uintptr_t>(address);
  return Result::kSuccess;
}

}  // extern "C"
