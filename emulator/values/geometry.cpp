#include "values/geometry.h"

#include <span>

#include "core/hash.h"

namespace maya::values {
namespace {

// IntDivider<unsigned> {divisor, m1, shift} (ATen/cuda/detail/IntegerDivider.cuh): 2^shift >= divisor.
bool is_divider(std::uint32_t divisor, std::uint32_t magic, std::uint32_t shift) {
  if (divisor == 0 || divisor > INT32_MAX || shift > 31) return false;
  const std::uint64_t expected = ((std::uint64_t{1} << 32) * ((std::uint64_t{1} << shift) - divisor)) / divisor + 1;
  return (std::uint64_t{1} << shift) >= divisor && expected == magic;
}

}  // namespace

std::uint64_t Geometry::hash() const {
  std::uint64_t hash = combine(static_cast<std::uint64_t>(numel), static_cast<std::uint64_t>(dims));
  hash = combine(hash, hash_bytes(std::as_bytes(std::span(sizes))));
  for (const auto& of_operand : strides) hash = combine(hash, hash_bytes(std::as_bytes(std::span(of_operand))));
  return hash;
}

bool read_calculator(const std::byte* bytes, int operands, int first, const std::size_t* units, Geometry& geometry) {
  const int dims = read_at<std::int32_t>(bytes, 0);
  if (dims < 0 || dims > kMaxDims) return false;
  geometry.dims = dims;
  std::int64_t numel = 1;
  for (int dim = 0; dim < dims; ++dim) {
    const std::size_t size = 4 + static_cast<std::size_t>(dim) * 12;
    const auto divisor = read_at<std::uint32_t>(bytes, size);
    if (!is_divider(divisor, read_at<std::uint32_t>(bytes, size + 4), read_at<std::uint32_t>(bytes, size + 8))) {
      return false;
    }
    geometry.sizes[dim] = divisor;
    numel *= divisor;
    for (int operand = 0; operand < operands; ++operand) {
      const std::size_t at = 4 + kMaxDims * 12 + 4 * static_cast<std::size_t>(dim * operands + operand);
      // Strides may be negative (flip): 32-bit two's complement.
      geometry.strides[first + operand][dim] =
          static_cast<std::int64_t>(read_at<std::int32_t>(bytes, at)) * static_cast<std::int64_t>(units[operand]);
    }
  }
  if (geometry.numel == 0) geometry.numel = numel;
  return numel == geometry.numel;
}

Geometry contiguous(std::int64_t numel, std::span<const std::size_t> bytes) {
  Geometry geometry{.numel = numel, .dims = 1};
  geometry.sizes[0] = numel;
  for (std::size_t operand = 0; operand < bytes.size(); ++operand) {
    geometry.strides[operand][0] = static_cast<std::int64_t>(bytes[operand]);
  }
  return geometry;
}

std::int64_t extent(const Geometry& geometry, int operand, std::size_t element_bytes) {
  std::int64_t last = 0;
  for (int dim = 0; dim < geometry.dims; ++dim) {
    last += geometry.strides[operand][dim] * (geometry.sizes[dim] - 1);
  }
  return last + static_cast<std::int64_t>(element_bytes);
}

bool known_operand(const Geometry& geometry, int index, const Operand& operand) {
  const std::size_t bytes = size_of(operand.type);
  const std::int64_t span = extent(geometry, index, bytes);
  const Content content = content_of(operand.type, span / static_cast<std::int64_t>(bytes));
  if (span > 0 && known(operand.data, static_cast<std::size_t>(span), content)) return true;
  if (geometry.numel * static_cast<std::int64_t>(bytes) >= span) return false;  // dense: no gaps to excuse
  if (!known(operand.data, bytes, content)) return false;
  bool all = true;
  walk(geometry, index + 1,
       [&](const auto& offsets) { all = all && known(operand.data + offsets[index], bytes, content); });
  return all;
}

void forget_operand(const Geometry& geometry, int index, const std::byte* data, std::size_t element_bytes) {
  const std::int64_t span = extent(geometry, index, element_bytes);
  const std::int64_t dense = geometry.numel * static_cast<std::int64_t>(element_bytes);
  if (span <= dense || dense > static_cast<std::int64_t>(kSmallBytes)) {
    if (span > 0) forget(data, static_cast<std::size_t>(span));
    return;
  }
  walk(geometry, index + 1, [&](const auto& offsets) { forget(data + offsets[index], element_bytes); });
}

void forget_operand(const Geometry& geometry, int index, const Operand& operand) {
  const auto bytes = static_cast<std::int64_t>(size_of(operand.type));
  const bool dense = extent(geometry, index, size_of(operand.type)) == geometry.numel * bytes;
  if (dense && !is_float(operand.type)) forget_integers(operand.data, static_cast<std::size_t>(geometry.numel * bytes));
  else forget_operand(geometry, index, operand.data, size_of(operand.type));
}

}  // namespace maya::values
