// How a kernel walks its operands: the index space of a TensorIterator.
#pragma once

#include <array>
#include <cstdint>

#include "values/executor.h"

namespace maya::values {

inline constexpr int kMaxDims = 25;  // ATen/cuda/detail/OffsetCalculator.cuh
inline constexpr int kMaxOperands = 5;

// `numel` points in `dims` dimensions, the first varying fastest; a byte stride per dimension and operand.
struct Geometry {
  std::int64_t numel = 0;
  int dims = 0;
  std::array<std::int64_t, kMaxDims> sizes{};
  std::array<std::array<std::int64_t, kMaxDims>, kMaxOperands> strides{};  // [operand][dim]

  std::uint64_t hash() const;
};

// sizeof(OffsetCalculator<operands, uint32_t>).
constexpr std::size_t calculator_bytes(int operands) {
  return 4 + kMaxDims * 12 + kMaxDims * 4 * static_cast<std::size_t>(operands > 0 ? operands : 1);
}

// Reads OffsetCalculator<operands, uint32_t> {int dims; IntDivider {divisor, m1, shift} sizes_[25];
// uint32_t strides_[25][operands]} into the operands from `first` on; each stride is multiplied by its
// `unit` (1 where the calculator counts bytes). False where it is not one: sizes, magic numbers or the
// number of elements do not agree.
bool read_calculator(const std::byte* bytes, int operands, int first, const std::size_t* units, Geometry& geometry);

// A one-dimensional walk over densely packed elements of `bytes` each.
Geometry contiguous(std::int64_t numel, std::span<const std::size_t> bytes);

// TensorInfo<T, I> {T* data; I sizes[25], strides[25]; int dims} (ATen/cuda/detail/TensorInfo.cuh), as a
// walk over elements, the last dimension fastest.
struct TensorInfo {
  std::byte* data = nullptr;
  int dims = 0;
  std::array<std::int64_t, kMaxDims> sizes{}, strides{};

  // False: not one.
  bool read(const std::byte* bytes, std::size_t index_bytes) {
    data = read_at<std::byte*>(bytes, 0);
    dims = read_at<std::int32_t>(bytes, 8 + 2 * kMaxDims * index_bytes);
    if (dims < 0 || dims > kMaxDims) return false;
    const auto entry = [&](std::size_t at) {
      return index_bytes == 4 ? static_cast<std::int64_t>(read_at<std::uint32_t>(bytes, 8 + 4 * at))
                              : read_at<std::int64_t>(bytes, 8 + 8 * at);
    };
    for (std::size_t dim = 0; dim < static_cast<std::size_t>(dims); ++dim) {
      sizes[dim] = entry(dim);
      strides[dim] = entry(kMaxDims + dim);
      if (sizes[dim] <= 0) return false;
    }
    return true;
  }

  // Of the n-th element (IndexToOffset), in elements.
  std::int64_t offset(std::int64_t linear) const {
    std::int64_t sum = 0;
    for (int dim = dims - 1; dim > 0; --dim) {
      sum += linear % sizes[dim] * strides[dim];
      linear /= sizes[dim];
    }
    return dims > 0 ? sum + linear * strides[0] : 0;
  }
};

struct Operand {
  std::byte* data;
  ScalarType type;  // in memory
};

// The bytes from an operand's first to behind its last element.
std::int64_t extent(const Geometry& geometry, int operand, std::size_t element_bytes);

// Whether every element of an operand is known.
bool known_operand(const Geometry& geometry, int index, const Operand& operand);
void forget_operand(const Geometry& geometry, int index, const std::byte* data, std::size_t element_bytes);
// Likewise, of a known type.
void forget_operand(const Geometry& geometry, int index, const Operand& operand);

// Calls `visit(offsets)` for each point in order; offsets[operand] in bytes.
template <class Visit>
void walk(const Geometry& geometry, int operands, Visit visit) {
  std::array<std::int64_t, kMaxOperands> offsets{};
  std::array<std::int64_t, kMaxDims> index{};
  for (std::int64_t point = 0; point < geometry.numel; ++point) {
    visit(offsets);
    for (int dim = 0; dim < geometry.dims; ++dim) {
      for (int operand = 0; operand < operands; ++operand) offsets[operand] += geometry.strides[operand][dim];
      if (++index[dim] < geometry.sizes[dim]) break;
      for (int operand = 0; operand < operands; ++operand) {
        offsets[operand] -= geometry.strides[operand][dim] * geometry.sizes[dim];
      }
      index[dim] = 0;
    }
  }
}

}  // namespace maya::values
