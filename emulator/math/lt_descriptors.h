// cuBLASLt descriptors. They may live in memory of the caller (the *Init functions), so each fits the
// opaque struct of cublasLt.h, and their attributes are a table of offsets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "math/types.h"

namespace maya::math {

struct LtAttribute {
  std::int32_t id;
  std::uint32_t offset, bytes;
};

// cublasLtMatrixLayoutOpaque_t: 64 bytes.
struct MatrixLayout {
  static constexpr std::uint32_t kTag = 0x4d4c4159;
  std::uint32_t tag = kTag, capacity = 0;
  DataType type = DataType::kR32F;
  std::int32_t order = 0;  // cublasLtOrder_t; 0: column-major, 1: row-major
  std::uint64_t rows = 0, columns = 0;
  std::int64_t leading_dimension = 0;
  std::int32_t batch_count = 1;
  std::uint32_t batch_mode = 0;
  std::int64_t batch_stride = 0, plane_offset = 0;
  static std::span<const LtAttribute> attributes();
};
static_assert(sizeof(MatrixLayout) == 64);

// cublasLtMatmulDescOpaque_t: 256 bytes, 184 in CUDA 12 before 12.8, which has none of the attributes
// behind `fast_accumulation`.
struct MatmulDescriptor {
  static constexpr std::uint32_t kTag = 0x4d44534d;
  std::uint32_t tag = kTag, capacity = 0;
  ComputeType compute = ComputeType::k32F;
  std::int32_t scale_type = 0, pointer_mode = 0;
  Operation transpose_a = Operation::kNone, transpose_b = Operation::kNone, transpose_c = Operation::kNone;
  std::int32_t fill_mode = 2;  // CUBLAS_FILL_MODE_FULL
  std::uint32_t epilogue = 1;  // CUBLASLT_EPILOGUE_DEFAULT
  const void *bias = nullptr, *auxiliary = nullptr;
  std::int64_t bias_stride = 0, auxiliary_leading_dimension = 0, auxiliary_stride = 0, alpha_stride = 0;
  const void *scale_a = nullptr, *scale_b = nullptr, *scale_c = nullptr, *scale_d = nullptr;
  void* amax_d = nullptr;
  const void* auxiliary_scale = nullptr;
  void* auxiliary_amax = nullptr;
  std::int32_t sm_count_target = 0, auxiliary_type = -1, bias_type = -1;
  std::int8_t fast_accumulation = 0;
  std::int32_t scale_mode_a = 0, scale_mode_b = 0, scale_mode_c = 0, scale_mode_d = 0;
  std::int32_t auxiliary_scale_mode = 0, out_scale_mode = 0;
  void* out_scale = nullptr;
  void* emulation = nullptr;
  static std::span<const LtAttribute> attributes();
};
static_assert(sizeof(MatmulDescriptor) <= 256);
static_assert(offsetof(MatmulDescriptor, scale_mode_a) <= 184);

// cublasLtMatmulPreferenceOpaque_t: 64 bytes.
struct MatmulPreference {
  static constexpr std::uint32_t kTag = 0x4d505246;
  std::uint32_t tag = kTag, capacity = 0;
  std::uint32_t search_mode = 0, reduction_scheme_mask = 7;
  std::uint64_t max_workspace_bytes = 0;
  std::uint32_t min_alignment_a = 256, min_alignment_b = 256, min_alignment_c = 256, min_alignment_d = 256;
  float max_waves = 0;
  std::uint64_t implementation_mask = ~std::uint64_t{0};
  static std::span<const LtAttribute> attributes();
};
static_assert(sizeof(MatmulPreference) <= 64);

// cublasLtMatrixTransformDescOpaque_t: 64 bytes.
struct TransformDescriptor {
  static constexpr std::uint32_t kTag = 0x4d54524e;
  std::uint32_t tag = kTag, capacity = 0;
  std::int32_t scale_type = 0, pointer_mode = 0;
  Operation transpose_a = Operation::kNone, transpose_b = Operation::kNone;
  static std::span<const LtAttribute> attributes();
};
static_assert(sizeof(TransformDescriptor) <= 64);

// cublasLtMatmulAlgo_t: 64 bytes without a tag; a value the caller copies freely.
struct MatmulAlgorithm {
  std::int32_t id = 0;
  std::uint32_t tile = 20;  // CUBLASLT_MATMUL_TILE_128x128
  std::int32_t split_k = 1;
  std::uint32_t reduction_scheme = 0, swizzling = 0, custom_option = 0, stages = 0;
  std::uint16_t inner_shape = 0, cluster_shape = 0;
  std::uint64_t reserved[4] = {};
  static std::span<const LtAttribute> attributes();
};
static_assert(sizeof(MatmulAlgorithm) == 64);

struct HeuristicResult {
  MatmulAlgorithm algorithm{};
  std::size_t workspace_bytes = 0;
  Status state = Status::kSuccess;
  float waves = 0;
  std::int32_t reserved[4] = {};
};
static_assert(sizeof(HeuristicResult) == 96);

// cublasLt*SetAttribute and *GetAttribute on the first `capacity` bytes of a descriptor.
Status set_attribute(std::span<const LtAttribute> table, std::span<std::byte> object, std::int32_t id,
                     const void* value, std::size_t bytes);
Status get_attribute(std::span<const LtAttribute> table, std::span<const std::byte> object, std::int32_t id,
                     void* value, std::size_t bytes, std::size_t* written);

}  // namespace maya::math
