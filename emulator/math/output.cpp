#include "math/output.h"

#include <cstddef>
#include <span>

#include "values/values.h"

namespace maya::math {
namespace {

void forget_range(void* data, std::size_t bytes, DataType type) {
  return type == DataType::kR32I || type == DataType::kR64I ? values::forget_integers(data, bytes)
                                                            : values::forget(data, bytes);
}

void forget_matrix(std::byte* data, std::int64_t rows, std::int64_t columns, std::int64_t leading_dimension,
                   DataType type) {
  const auto bytes = [&](std::int64_t elements) { return static_cast<std::size_t>(elements) * dtype_bytes(type); };
  const std::size_t extent = bytes((columns - 1) * leading_dimension + rows);
  if (leading_dimension == rows || extent > values::kSmallBytes) return forget_range(data, extent, type);
  for (std::int64_t column = 0; column < columns; ++column) {
    forget_range(data + bytes(column * leading_dimension), bytes(rows), type);
  }
}

}  // namespace

void forget_output(const Output& output, std::int64_t rows, std::int64_t columns, std::int64_t batch, DataType type) {
  const std::size_t element = dtype_bytes(type);
  if (output.data == nullptr || element == 0 || rows == 0 || columns == 0) return;
  const auto count = static_cast<std::size_t>(batch);
  if (output.pointers) {
    if (!values::known(output.data, count * sizeof(void*))) return;
    for (std::byte* data : std::span(static_cast<std::byte**>(output.data), count)) {
      forget_matrix(data, rows, columns, output.leading_dimension, type);
    }
    return;
  }
  if (output.leading_dimension == rows && output.stride == rows * columns) {
    return forget_range(output.data, count * static_cast<std::size_t>(rows * columns) * element, type);
  }
  for (std::size_t i = 0; i < count; ++i) {
    auto* data = static_cast<std::byte*>(output.data) + i * static_cast<std::size_t>(output.stride) * element;
    forget_matrix(data, rows, columns, output.leading_dimension, type);
  }
}

}  // namespace maya::math
