#include "math/lt_descriptors.h"

#include <algorithm>
#include <cstring>

namespace maya::math {
namespace {

template <class Object, class Member>
consteval std::uint32_t size_of(Member Object::*) {
  return sizeof(Member);
}

const LtAttribute* find(std::span<const LtAttribute> table, std::int32_t id, std::size_t capacity) {
  const auto at = std::ranges::find(table, id, &LtAttribute::id);
  return at == table.end() || at->offset + at->bytes > capacity ? nullptr : &*at;
}

}  // namespace

// Attribute numbers: cublasLtMatrixLayoutAttribute_t.
std::span<const LtAttribute> MatrixLayout::attributes() {
  using T = MatrixLayout;
  static constexpr LtAttribute kTable[] = {
      {0, offsetof(T, type), size_of(&T::type)},
      {1, offsetof(T, order), size_of(&T::order)},
      {2, offsetof(T, rows), size_of(&T::rows)},
      {3, offsetof(T, columns), size_of(&T::columns)},
      {4, offsetof(T, leading_dimension), size_of(&T::leading_dimension)},
      {5, offsetof(T, batch_count), size_of(&T::batch_count)},
      {6, offsetof(T, batch_stride), size_of(&T::batch_stride)},
      {7, offsetof(T, plane_offset), size_of(&T::plane_offset)},
      {8, offsetof(T, batch_mode), size_of(&T::batch_mode)},
  };
  return kTable;
}

// Attribute numbers: cublasLtMatmulDescAttributes_t.
std::span<const LtAttribute> MatmulDescriptor::attributes() {
  using T = MatmulDescriptor;
  static constexpr LtAttribute kTable[] = {
      {0, offsetof(T, compute), size_of(&T::compute)},
      {1, offsetof(T, scale_type), size_of(&T::scale_type)},
      {2, offsetof(T, pointer_mode), size_of(&T::pointer_mode)},
      {3, offsetof(T, transpose_a), size_of(&T::transpose_a)},
      {4, offsetof(T, transpose_b), size_of(&T::transpose_b)},
      {5, offsetof(T, transpose_c), size_of(&T::transpose_c)},
      {6, offsetof(T, fill_mode), size_of(&T::fill_mode)},
      {7, offsetof(T, epilogue), size_of(&T::epilogue)},
      {8, offsetof(T, bias), size_of(&T::bias)},
      {10, offsetof(T, bias_stride), size_of(&T::bias_stride)},
      {11, offsetof(T, auxiliary), size_of(&T::auxiliary)},
      {12, offsetof(T, auxiliary_leading_dimension), size_of(&T::auxiliary_leading_dimension)},
      {13, offsetof(T, auxiliary_stride), size_of(&T::auxiliary_stride)},
      {14, offsetof(T, alpha_stride), size_of(&T::alpha_stride)},
      {15, offsetof(T, sm_count_target), size_of(&T::sm_count_target)},
      {17, offsetof(T, scale_a), size_of(&T::scale_a)},
      {18, offsetof(T, scale_b), size_of(&T::scale_b)},
      {19, offsetof(T, scale_c), size_of(&T::scale_c)},
      {20, offsetof(T, scale_d), size_of(&T::scale_d)},
      {21, offsetof(T, amax_d), size_of(&T::amax_d)},
      {22, offsetof(T, auxiliary_type), size_of(&T::auxiliary_type)},
      {23, offsetof(T, auxiliary_scale), size_of(&T::auxiliary_scale)},
      {24, offsetof(T, auxiliary_amax), size_of(&T::auxiliary_amax)},
      {25, offsetof(T, fast_accumulation), size_of(&T::fast_accumulation)},
      {26, offsetof(T, bias_type), size_of(&T::bias_type)},
      {31, offsetof(T, scale_mode_a), size_of(&T::scale_mode_a)},
      {32, offsetof(T, scale_mode_b), size_of(&T::scale_mode_b)},
      {33, offsetof(T, scale_mode_c), size_of(&T::scale_mode_c)},
      {34, offsetof(T, scale_mode_d), size_of(&T::scale_mode_d)},
      {35, offsetof(T, auxiliary_scale_mode), size_of(&T::auxiliary_scale_mode)},
      {36, offsetof(T, out_scale), size_of(&T::out_scale)},
      {37, offsetof(T, out_scale_mode), size_of(&T::out_scale_mode)},
      {38, offsetof(T, emulation), size_of(&T::emulation)},
  };
  return kTable;
}

// Attribute numbers: cublasLtMatmulPreferenceAttributes_t.
std::span<const LtAttribute> MatmulPreference::attributes() {
  using T = MatmulPreference;
  static constexpr LtAttribute kTable[] = {
      {0, offsetof(T, search_mode), size_of(&T::search_mode)},
      {1, offsetof(T, max_workspace_bytes), size_of(&T::max_workspace_bytes)},
      {3, offsetof(T, reduction_scheme_mask), size_of(&T::reduction_scheme_mask)},
      {5, offsetof(T, min_alignment_a), size_of(&T::min_alignment_a)},
      {6, offsetof(T, min_alignment_b), size_of(&T::min_alignment_b)},
      {7, offsetof(T, min_alignment_c), size_of(&T::min_alignment_c)},
      {8, offsetof(T, min_alignment_d), size_of(&T::min_alignment_d)},
      {9, offsetof(T, max_waves), size_of(&T::max_waves)},
      {12, offsetof(T, implementation_mask), size_of(&T::implementation_mask)},
  };
  return kTable;
}

// Attribute numbers: cublasLtMatrixTransformDescAttributes_t.
std::span<const LtAttribute> TransformDescriptor::attributes() {
  using T = TransformDescriptor;
  static constexpr LtAttribute kTable[] = {
      {0, offsetof(T, scale_type), size_of(&T::scale_type)},
      {1, offsetof(T, pointer_mode), size_of(&T::pointer_mode)},
      {2, offsetof(T, transpose_a), size_of(&T::transpose_a)},
      {3, offsetof(T, transpose_b), size_of(&T::transpose_b)},
  };
  return kTable;
}

// Attribute numbers: cublasLtMatmulAlgoConfigAttributes_t.
std::span<const LtAttribute> MatmulAlgorithm::attributes() {
  using T = MatmulAlgorithm;
  static constexpr LtAttribute kTable[] = {
      {0, offsetof(T, id), size_of(&T::id)},
      {1, offsetof(T, tile), size_of(&T::tile)},
      {2, offsetof(T, split_k), size_of(&T::split_k)},
      {3, offsetof(T, reduction_scheme), size_of(&T::reduction_scheme)},
      {4, offsetof(T, swizzling), size_of(&T::swizzling)},
      {5, offsetof(T, custom_option), size_of(&T::custom_option)},
      {6, offsetof(T, stages), size_of(&T::stages)},
      {7, offsetof(T, inner_shape), size_of(&T::inner_shape)},
      {8, offsetof(T, cluster_shape), size_of(&T::cluster_shape)},
  };
  return kTable;
}

Status set_attribute(std::span<const LtAttribute> table, std::span<std::byte> object, std::int32_t id,
                     const void* value, std::size_t bytes) {
  const LtAttribute* attribute = find(table, id, object.size());
  if (attribute == nullptr || value == nullptr || bytes != attribute->bytes) return Status::kInvalidValue;
  std::memcpy(object.data() + attribute->offset, value, bytes);
  return Status::kSuccess;
}

Status get_attribute(std::span<const LtAttribute> table, std::span<const std::byte> object, std::int32_t id,
                     void* value, std::size_t bytes, std::size_t* written) {
  const LtAttribute* attribute = find(table, id, object.size());
  if (attribute == nullptr) return Status::kInvalidValue;
  if (bytes == 0 && written == nullptr) return Status::kInvalidValue;
  if (bytes != 0 && (value == nullptr || bytes != attribute->bytes)) return Status::kInvalidValue;
  if (bytes != 0) std::memcpy(value, object.data() + attribute->offset, bytes);
  if (written != nullptr) *written = attribute->bytes;
  return Status::kSuccess;
}

}  // namespace maya::math
