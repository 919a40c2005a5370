#include "math/types.h"

namespace maya::math {

std::string_view dtype_name(DataType type) {
  switch (type) {
    case DataType::kR32F: return "fp32";
    case DataType::kR64F: return "fp64";
    case DataType::kR16F: return "fp16";
    case DataType::kR16BF: return "bf16";
    case DataType::kR8F_E4M3: return "fp8_e4m3";
    case DataType::kR8F_E5M2: return "fp8_e5m2";
    case DataType::kR4F_E2M1: return "fp4_e2m1";
    case DataType::kR64I: return "int64";
    case DataType::kR32I: return "int32";
    case DataType::kR16I: return "int16";
    case DataType::kR8I: return "int8";
    case DataType::kR8U: return "uint8";
    case DataType::kC32F: return "complex64";
    case DataType::kC64F: return "complex128";
    case DataType::kC16F: return "complex32";
  }
  return {};
}

std::size_t dtype_bytes(DataType type) {
  switch (type) {
    case DataType::kC64F: return 16;
    case DataType::kR64F:
    case DataType::kR64I:
    case DataType::kC32F: return 8;
    case DataType::kR32F:
    case DataType::kR32I:
    case DataType::kC16F: return 4;
    case DataType::kR16F:
    case DataType::kR16BF:
    case DataType::kR16I: return 2;
    case DataType::kR8I:
    case DataType::kR8U:
    case DataType::kR8F_E4M3:
    case DataType::kR8F_E5M2: return 1;
    case DataType::kR4F_E2M1: return 0;
  }
  return 0;
}

std::string_view compute_name(ComputeType type, DataType operand) {
  switch (type) {
    case ComputeType::k16F:
    case ComputeType::k16FPedantic: return "fp16";
    case ComputeType::k64F:
    case ComputeType::k64FPedantic:
    case ComputeType::k64FEmulatedFixedPoint: return "fp64";
    case ComputeType::k32I:
    case ComputeType::k32IPedantic: return "int32";
    default: break;
  }
  // The FAST modes say how single-precision operands may be rounded; narrower ones need no rounding.
  const bool single = operand == DataType::kR32F || operand == DataType::kC32F;
  if (single && type == ComputeType::k32FFastTF32) return "tf32";
  if (single && type == ComputeType::k32FFast16F) return "fp16";
  if (single && type == ComputeType::k32FFast16BF) return "bf16";
  return "fp32";
}

std::string_view status_name(Status status) {
  switch (status) {
    case Status::kSuccess: return "CUBLAS_STATUS_SUCCESS";
    case Status::kNotInitialized: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case Status::kAllocFailed: return "CUBLAS_STATUS_ALLOC_FAILED";
    case Status::kInvalidValue: return "CUBLAS_STATUS_INVALID_VALUE";
    case Status::kArchMismatch: return "CUBLAS_STATUS_ARCH_MISMATCH";
    case Status::kMappingError: return "CUBLAS_STATUS_MAPPING_ERROR";
    case Status::kExecutionFailed: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case Status::kInternalError: return "CUBLAS_STATUS_INTERNAL_ERROR";
    case Status::kNotSupported: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case Status::kLicenseError: return "CUBLAS_STATUS_LICENSE_ERROR";
  }
  return "CUBLAS_STATUS_UNKNOWN";
}

std::string_view status_string(Status status) {
  switch (status) {
    case Status::kSuccess: return "success";
    case Status::kNotInitialized: return "the library was not initialized";
    case Status::kAllocFailed: return "the resource allocation failed";
    case Status::kInvalidValue: return "an invalid numeric value was used as an argument";
    case Status::kArchMismatch: return "an absent device architectural feature is required";
    case Status::kMappingError: return "an access to GPU memory space failed";
    case Status::kExecutionFailed: return "the GPU program failed to execute";
    case Status::kInternalError: return "an internal operation failed";
    case Status::kNotSupported: return "the functionality is not supported";
    case Status::kLicenseError: return "the functionality requested requires some license";
  }
  return "unknown status";
}

}  // namespace maya::math
