// NCCL's element types and the arithmetic of its reductions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace maya::nccl {

// ncclDataType_t (nccl.h 2.28).
enum class DataType : std::uint8_t {
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8e4m3,
  kFloat8e5m2
};
inline constexpr int kDataTypes = 12;

// ncclRedOp_t; kPreMulSum stands for the operations that ncclRedOpCreatePreMulSum makes.
enum class Reduction : std::uint8_t { kSum, kProduct, kMaximum, kMinimum, kAverage, kPreMulSum };

std::size_t element_bytes(DataType type);
std::string_view dtype_name(DataType type);  // docs/trace-format.md's names
std::string_view reduction_name(Reduction reduction);
bool is_float(DataType type);

// accumulator[i] = accumulator[i] (op) operand[i]; both hold `type`. Rounds after each step, as a ring does.
void accumulate(DataType type, Reduction reduction, std::span<std::byte> accumulator,
                std::span<const std::byte> operand);

// x[i] *= factor. For kAverage (factor 1/n) integers divide by n = 1/factor with truncation.
void scale(DataType type, double factor, std::span<std::byte> values);

// One element as a number.
double to_double(DataType type, const std::byte* element);

}  // namespace maya::nccl
