// The enumerations that cuBLAS and cuBLASLt share, with the values of cublas_api.h and library_types.h
// (CUDA 12 and 13 agree on all of them).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace maya::math {

enum class Status : std::int32_t {
  kSuccess = 0,
  kNotInitialized = 1,
  kAllocFailed = 3,
  kInvalidValue = 7,
  kArchMismatch = 8,
  kMappingError = 11,
  kExecutionFailed = 13,
  kInternalError = 14,
  kNotSupported = 15,
  kLicenseError = 16,
};

enum class DataType : std::int32_t {
  kR32F = 0,
  kR64F = 1,
  kR16F = 2,
  kR8I = 3,
  kC32F = 4,
  kC64F = 5,
  kC16F = 6,
  kR8U = 8,
  kR32I = 10,
  kR16BF = 14,
  kR16I = 20,
  kR64I = 24,
  kR8F_E4M3 = 28,
  kR8F_E5M2 = 29,
  kR4F_E2M1 = 33,
};

enum class ComputeType : std::int32_t {
  k16F = 64,
  k16FPedantic = 65,
  k32F = 68,
  k32FPedantic = 69,
  k64F = 70,
  k64FPedantic = 71,
  k32I = 72,
  k32IPedantic = 73,
  k32FFast16F = 74,
  k32FFast16BF = 75,
  k32FFastTF32 = 77,
  k32FEmulated16BFx9 = 78,
  k64FEmulatedFixedPoint = 79,
};

enum class Operation : std::int32_t { kNone = 0, kTranspose = 1, kConjugateTranspose = 2 };

enum class PointerMode : std::int32_t { kHost = 0, kDevice = 1 };

// cublasMath_t without its flag bits.
enum class MathMode : std::int32_t { kDefault = 0, kTensorOp = 1, kPedantic = 2, kTf32 = 3 };

// docs/trace-format.md's name of a type; empty where cuBLAS has no such operand.
std::string_view dtype_name(DataType type);
std::size_t dtype_bytes(DataType type);  // 0: less than a byte, or unknown

// The precision that the multiplication runs in: `tf32` only where the caller allowed it.
std::string_view compute_name(ComputeType type, DataType operand);

std::string_view status_name(Status status);
std::string_view status_string(Status status);

}  // namespace maya::math
