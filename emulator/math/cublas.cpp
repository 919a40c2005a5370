// cuBLAS: handles with the state that the final call needs, and every GEMM, GEMV and dot entry point.
// Prototypes: cublas_api.h of CUDA 12 and 13, which agree on the functions here.
#include <algorithm>
#include <complex>

#include "core/device.h"
#include "core/process.h"
#include "core/recorder.h"
#include "math/gemm.h"
#include "math/handle.h"

namespace maya::math {
namespace {

HandlePool<CublasHandle, 4096>& handles() { return handle_pool<CublasHandle, 4096>(); }

// cublasSetMathMode sets a default for the entry points that name no FAST mode themselves.
ComputeType apply_math_mode(const CublasHandle& handle, ComputeType compute) {
  if (compute != ComputeType::k32F) return compute;
  switch (handle.math_mode) {
    case MathMode::kTf32: return ComputeType::k32FFastTF32;
    case MathMode::kTensorOp: return ComputeType::k32FFast16F;
    default: return compute;
  }
}

struct LeadingDimensions {
  std::int64_t a, b;
};

bool valid_operation(Operation op) { return op >= Operation::kNone && op <= Operation::kConjugateTranspose; }

Status check_arguments(const Gemm& gemm, Operation op_a, Operation op_b, const LeadingDimensions& ld,
                       const Output& output) {
  if (!valid_operation(op_a) || !valid_operation(op_b)) return Status::kInvalidValue;
  if (gemm.m < 0 || gemm.n < 0 || gemm.k < 0 || gemm.batch < 0) return Status::kInvalidValue;
  const std::int64_t one = 1;
  if (ld.a < std::max(one, gemm.transpose_a ? gemm.k : gemm.m)) return Status::kInvalidValue;
  if (ld.b < std::max(one, gemm.transpose_b ? gemm.n : gemm.k)) return Status::kInvalidValue;
  if (output.leading_dimension < std::max(one, gemm.m)) return Status::kInvalidValue;
  const auto known = [](DataType type) { return !dtype_name(type).empty(); };
  return known(gemm.a) && known(gemm.b) && known(gemm.c) ? Status::kSuccess : Status::kNotSupported;
}

struct Shape {
  Operation op_a, op_b;
  std::int64_t m, n, k, batch = 1;
};

struct Types {
  DataType a, b, c;
  ComputeType compute;
};

Status run_gemm(const CublasHandle* handle, const Shape& shape, const Types& types, const LeadingDimensions& ld,
                const Output& output) {
  const Call call;
  if (find_cublas_handle(handle) == nullptr) return Status::kNotInitialized;
  Gemm gemm;
  gemm.m = shape.m, gemm.n = shape.n, gemm.k = shape.k, gemm.batch = shape.batch;
  gemm.a = types.a, gemm.b = types.b, gemm.c = types.c;
  gemm.compute = apply_math_mode(*handle, types.compute);
  gemm.transpose_a = shape.op_a != Operation::kNone;
  gemm.transpose_b = shape.op_b != Operation::kNone;
  gemm.multiprocessors = multiprocessors_left(handle->sm_count_target);
  const Status status = check_arguments(gemm, shape.op_a, shape.op_b, ld, output);
  if (status == Status::kSuccess) record_gemm(gemm, output, handle->stream);
  return status;
}

constexpr Types same(DataType type, ComputeType compute) { return {type, type, type, compute}; }
constexpr Types kSingle = same(DataType::kR32F, ComputeType::k32F);
constexpr Types kDouble = same(DataType::kR64F, ComputeType::k64F);
constexpr Types kHalf = same(DataType::kR16F, ComputeType::k16F);
constexpr Types kComplex = same(DataType::kC32F, ComputeType::k32F);
constexpr Types kDoubleComplex = same(DataType::kC64F, ComputeType::k64F);

// y[m] = op(A) x[k]: a product with one column. A is rows x columns as stored.
Status run_gemv(const CublasHandle* handle, Operation op, std::int64_t rows, std::int64_t columns, std::int64_t lda,
                void* y, std::int64_t increment, const Types& types) {
  const bool transposed = op != Operation::kNone;
  const std::int64_t m = transposed ? columns : rows, k = transposed ? rows : columns;
  const std::int64_t one = 1;
  return run_gemm(handle, {op, Operation::kNone, m, 1, k}, types, {lda, std::max(one, k)},
                  {increment == 1 ? y : nullptr, std::max(one, m)});
}

// result = x . y: a row times a column. The host waits for it when the result lies in host memory.
template <class T>
Status run_dot(const CublasHandle* handle, std::int64_t n, T* result, const Types& types) {
  const Call call;
  if (find_cublas_handle(handle) == nullptr) return Status::kNotInitialized;
  if (result == nullptr) return Status::kInvalidValue;
  Gemm gemm;
  gemm.m = gemm.n = 1, gemm.k = std::max<std::int64_t>(n, 0), gemm.transpose_a = 1;
  gemm.a = types.a, gemm.b = types.b, gemm.c = types.c;
  gemm.compute = apply_math_mode(*handle, types.compute);
  const bool host = handle->pointer_mode == PointerMode::kHost;
  if (host) *result = T{};
  record_gemm(gemm, {host ? nullptr : result, 1}, handle->stream, host);
  return Status::kSuccess;
}

}  // namespace

CublasHandle* find_cublas_handle(const void* handle) { return handles().find(handle); }

// Of the wheels: nvidia-cublas 13.1 beside PyTorch 2.11, nvidia-cublas-cu12 12.4.5 beside 2.6.
int cublas_version() { return runtime_major() >= 13 ? 130100 : 120405; }

Status cublas_property(int type, int* value) {
  if (value == nullptr || type < 0 || type > 2) return Status::kInvalidValue;
  const int version = cublas_version();
  const int parts[] = {version / 10000, version / 100 % 100, version % 100};
  *value = parts[type];
  return Status::kSuccess;
}

}  // namespace maya::math

using maya::math::ComputeType;
using maya::math::CublasHandle;
using maya::math::DataType;
using maya::math::MathMode;
using maya::math::Operation;
using maya::math::PointerMode;
using maya::math::Status;
namespace math = maya::math;
using Complex = std::complex<float>;
using DoubleComplex = std::complex<double>;

namespace {

// Every state setter and getter: the handle first, then what it does to it.
template <class Do>
Status with_handle(CublasHandle* handle, Do&& act) {
  if (math::find_cublas_handle(handle) == nullptr) return Status::kNotInitialized;
  return act(*handle);
}

template <class T>
Status read_state(CublasHandle* handle, T* out, T CublasHandle::* member) {
  return with_handle(handle, [&](CublasHandle& live) {
    if (out == nullptr) return Status::kInvalidValue;
    *out = live.*member;
    return Status::kSuccess;
  });
}

template <class T>
Status write_state(CublasHandle* handle, T value, T CublasHandle::* member) {
  return with_handle(handle, [&](CublasHandle& live) {
    live.*member = value;
    return Status::kSuccess;
  });
}

}  // namespace

extern "C" {

// ---- handles and their state ----

Status cublasCreate_v2(CublasHandle** handle) {
  if (handle == nullptr) return Status::kInvalidValue;
  *handle = math::handles().create();
  return Status::kSuccess;
}

Status cublasDestroy_v2(CublasHandle* handle) {
  return math::handles().destroy(handle) ? Status::kSuccess : Status::kNotInitialized;
}

Status cublasSetStream_v2(CublasHandle* handle, void* stream) {
  return with_handle(handle, [&](CublasHandle& live) {
    live.stream = stream;
    live.workspace = nullptr;  // cublasSetStream: "unconditionally resets the cuBLAS library workspace"
    live.workspace_bytes = 0;
    return Status::kSuccess;
  });
}

Status cublasGetStream_v2(CublasHandle* handle, void** stream) {
  return read_state(handle, stream, &CublasHandle::stream);
}

Status cublasSetWorkspace_v2(CublasHandle* handle, void* workspace, std::size_t bytes) {
  return with_handle(handle, [&](CublasHandle& live) {
    live.workspace = workspace;
    live.workspace_bytes = bytes;
    return Status::kSuccess;
  });
}

Status cublasSetMathMode(CublasHandle* handle, std::int32_t mode) {
  constexpr std::int32_t kFlags = 16;  // CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION
  return with_handle(handle, [&](CublasHandle& live) {
    live.math_mode = static_cast<MathMode>(mode & ~kFlags);
    live.math_flags = mode & kFlags;
    return Status::kSuccess;
  });
}

Status cublasGetMathMode(CublasHandle* handle, std::int32_t* mode) {
  return with_handle(handle, [&](CublasHandle& live) {
    if (mode == nullptr) return Status::kInvalidValue;
    *mode = static_cast<std::int32_t>(live.math_mode) | live.math_flags;
    return Status::kSuccess;
  });
}

Status cublasSetPointerMode_v2(CublasHandle* handle, PointerMode mode) {
  return write_state(handle, mode, &CublasHandle::pointer_mode);
}

Status cublasGetPointerMode_v2(CublasHandle* handle, PointerMode* mode) {
  return read_state(handle, mode, &CublasHandle::pointer_mode);
}

Status cublasSetAtomicsMode(CublasHandle* handle, std::int32_t mode) {
  return write_state(handle, mode, &CublasHandle::atomics_mode);
}

Status cublasGetAtomicsMode(CublasHandle* handle, std::int32_t* mode) {
  return read_state(handle, mode, &CublasHandle::atomics_mode);
}

Status cublasSetSmCountTarget(CublasHandle* handle, std::int32_t count) {
  return write_state(handle, count, &CublasHandle::sm_count_target);
}

Status cublasGetSmCountTarget(CublasHandle* handle, std::int32_t* count) {
  return read_state(handle, count, &CublasHandle::sm_count_target);
}

Status cublasSetEmulationStrategy(CublasHandle* handle, std::int32_t strategy) {
  return write_state(handle, strategy, &CublasHandle::emulation_strategy);
}

Status cublasGetEmulationStrategy(CublasHandle* handle, std::int32_t* strategy) {
  return read_state(handle, strategy, &CublasHandle::emulation_strategy);
}

Status cublasGetVersion_v2(CublasHandle*, int* version) {
  if (version == nullptr) return Status::kInvalidValue;
  *version = math::cublas_version();
  return Status::kSuccess;
}

Status cublasGetProperty(int type, int* value) { return math::cublas_property(type, value); }

std::size_t cublasGetCudartVersion() { return static_cast<std::size_t>(maya::rank_config().driver_version); }

const char* cublasGetStatusName(Status status) { return math::status_name(status).data(); }

const char* cublasGetStatusString(Status status) { return math::status_string(status).data(); }

// ---- C = alpha op(A) op(B) + beta C ----

Status cublasSgemm_v2(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const float*,
                      const float*, int lda, const float*, int ldb, const float*, float* c, int ldc) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, math::kSingle, {lda, ldb}, {c, ldc});
}

Status cublasDgemm_v2(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const double*,
                      const double*, int lda, const double*, int ldb, const double*, double* c, int ldc) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, math::kDouble, {lda, ldb}, {c, ldc});
}

Status cublasHgemm(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*, const void*,
                   int lda, const void*, int ldb, const void*, void* c, int ldc) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, math::kHalf, {lda, ldb}, {c, ldc});
}

Status cublasCgemm_v2(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                      const void*, int lda, const void*, int ldb, const void*, void* c, int ldc) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, math::kComplex, {lda, ldb}, {c, ldc});
}

Status cublasZgemm_v2(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                      const void*, int lda, const void*, int ldb, const void*, void* c, int ldc) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, math::kDoubleComplex, {lda, ldb}, {c, ldc});
}

Status cublasSgemmEx(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const float*,
                     const void*, DataType type_a, int lda, const void*, DataType type_b, int ldb, const float*,
                     void* c, DataType type_c, int ldc) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, {type_a, type_b, type_c, ComputeType::k32F}, {lda, ldb},
                        {c, ldc});
}

Status cublasGemmEx(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*, const void*,
                    DataType type_a, int lda, const void*, DataType type_b, int ldb, const void*, void* c,
                    DataType type_c, int ldc, ComputeType compute, int) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k}, {type_a, type_b, type_c, compute}, {lda, ldb}, {c, ldc});
}

// ---- batches of equal products, by stride or by arrays of pointers ----

Status cublasSgemmStridedBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k,
                                 const float*, const float*, int lda, long long, const float*, int ldb, long long,
                                 const float*, float* c, int ldc, long long stride, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kSingle, {lda, ldb}, {c, ldc, stride});
}

Status cublasDgemmStridedBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k,
                                 const double*, const double*, int lda, long long, const double*, int ldb, long long,
                                 const double*, double* c, int ldc, long long stride, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kDouble, {lda, ldb}, {c, ldc, stride});
}

Status cublasHgemmStridedBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                                 const void*, int lda, long long, const void*, int ldb, long long, const void*, void* c,
                                 int ldc, long long stride, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kHalf, {lda, ldb}, {c, ldc, stride});
}

Status cublasCgemmStridedBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                                 const void*, int lda, long long, const void*, int ldb, long long, const void*, void* c,
                                 int ldc, long long stride, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kComplex, {lda, ldb}, {c, ldc, stride});
}

Status cublasZgemmStridedBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                                 const void*, int lda, long long, const void*, int ldb, long long, const void*, void* c,
                                 int ldc, long long stride, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kDoubleComplex, {lda, ldb}, {c, ldc, stride});
}

Status cublasGemmStridedBatchedEx(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k,
                                  const void*, const void*, DataType type_a, int lda, long long, const void*,
                                  DataType type_b, int ldb, long long, const void*, void* c, DataType type_c, int ldc,
                                  long long stride, int batch, ComputeType compute, int) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, {type_a, type_b, type_c, compute}, {lda, ldb},
                        {c, ldc, stride});
}

Status cublasSgemmBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const float*,
                          const void*, int lda, const void*, int ldb, const float*, void* c, int ldc, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kSingle, {lda, ldb}, {c, ldc, 0, true});
}

Status cublasDgemmBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const double*,
                          const void*, int lda, const void*, int ldb, const double*, void* c, int ldc, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kDouble, {lda, ldb}, {c, ldc, 0, true});
}

Status cublasHgemmBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                          const void*, int lda, const void*, int ldb, const void*, void* c, int ldc, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kHalf, {lda, ldb}, {c, ldc, 0, true});
}

Status cublasCgemmBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                          const void*, int lda, const void*, int ldb, const void*, void* c, int ldc, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kComplex, {lda, ldb}, {c, ldc, 0, true});
}

Status cublasZgemmBatched(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                          const void*, int lda, const void*, int ldb, const void*, void* c, int ldc, int batch) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, math::kDoubleComplex, {lda, ldb}, {c, ldc, 0, true});
}

Status cublasGemmBatchedEx(CublasHandle* handle, Operation op_a, Operation op_b, int m, int n, int k, const void*,
                           const void*, DataType type_a, int lda, const void*, DataType type_b, int ldb, const void*,
                           void* c, DataType type_c, int ldc, int batch, ComputeType compute, int) {
  return math::run_gemm(handle, {op_a, op_b, m, n, k, batch}, {type_a, type_b, type_c, compute}, {lda, ldb},
                        {c, ldc, 0, true});
}

// ---- y = alpha op(A) x + beta y ----

Status cublasSgemv_v2(CublasHandle* handle, Operation op, int rows, int columns, const float*, const float*, int lda,
                      const float*, int, const float*, float* y, int increment) {
  return math::run_gemv(handle, op, rows, columns, lda, y, increment, math::kSingle);
}

Status cublasDgemv_v2(CublasHandle* handle, Operation op, int rows, int columns, const double*, const double*, int lda,
                      const double*, int, const double*, double* y, int increment) {
  return math::run_gemv(handle, op, rows, columns, lda, y, increment, math::kDouble);
}

Status cublasCgemv_v2(CublasHandle* handle, Operation op, int rows, int columns, const void*, const void*, int lda,
                      const void*, int, const void*, void* y, int increment) {
  return math::run_gemv(handle, op, rows, columns, lda, y, increment, math::kComplex);
}

Status cublasZgemv_v2(CublasHandle* handle, Operation op, int rows, int columns, const void*, const void*, int lda,
                      const void*, int, const void*, void* y, int increment) {
  return math::run_gemv(handle, op, rows, columns, lda, y, increment, math::kDoubleComplex);
}

// ---- result = x . y ----

Status cublasSdot_v2(CublasHandle* handle, int n, const float*, int, const float*, int, float* result) {
  return math::run_dot(handle, n, result, math::kSingle);
}

Status cublasDdot_v2(CublasHandle* handle, int n, const double*, int, const double*, int, double* result) {
  return math::run_dot(handle, n, result, math::kDouble);
}

Status cublasCdotu_v2(CublasHandle* handle, int n, const void*, int, const void*, int, Complex* result) {
  return math::run_dot(handle, n, result, math::kComplex);
}

Status cublasCdotc_v2(CublasHandle* handle, int n, const void*, int, const void*, int, Complex* result) {
  return math::run_dot(handle, n, result, math::kComplex);
}

Status cublasZdotu_v2(CublasHandle* handle, int n, const void*, int, const void*, int, DoubleComplex* result) {
  return math::run_dot(handle, n, result, math::kDoubleComplex);
}

Status cublasZdotc_v2(CublasHandle* handle, int n, const void*, int, const void*, int, DoubleComplex* result) {
  return math::run_dot(handle, n, result, math::kDoubleComplex);
}

Status cublasDotEx(CublasHandle* handle, int n, const void*, DataType type_x, int, const void*, DataType type_y, int,
                   void* result, DataType type_result, DataType) {
  const math::Types types{type_x, type_y, type_result, ComputeType::k32F};
  switch (math::dtype_bytes(type_result)) {
    case 2: return math::run_dot(handle, n, static_cast<std::uint16_t*>(result), types);
    case 4: return math::run_dot(handle, n, static_cast<float*>(result), types);
    case 8: return math::run_dot(handle, n, static_cast<double*>(result), types);
    default: return Status::kNotSupported;
  }
}

}  // extern "C"
