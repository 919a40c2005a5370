// cuBLAS beyond products: solves with triangular matrices, and factorisations of many small ones at a time, as
// torch.linalg calls them. Prototypes: cublas_api.h of CUDA 12 and 13, which agree on the functions here.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/recorder.h"
#include "math/handle.h"
#include "math/lapack.h"

namespace maya::math {
namespace {

Status run(const CublasHandle* handle, const Lapack& work, std::initializer_list<Written> written, int* infos) {
  const Call call;
  if (find_cublas_handle(handle) == nullptr) return Status::kNotInitialized;
  if (work.m < 0 || work.n < 0 || work.k < 0 || work.batch < 0) return Status::kInvalidValue;
  record_lapack(work, written, infos, handle->stream);
  return Status::kSuccess;
}

// What the host learns of the call as a whole: nothing was wrong with its arguments.
void succeed(int* info) {
  if (info != nullptr) *info = 0;
}

// The triangle stands on the side of B that has its order.
Status trsm(const CublasHandle* handle, DataType type, std::int32_t side, std::int64_t m, std::int64_t n, Output b,
            std::int64_t batch) {
  constexpr std::int32_t kLeft = 0;
  const std::int64_t order = side == kLeft ? m : n, columns = side == kLeft ? n : m;
  return run(handle,
             {.routine = Routine::kTrsm,
              .type = type,
              .m = order,
              .n = order,
              .k = columns,
              .batch = batch,
              .batched = b.pointers},
             {{b, m, n, type}}, nullptr);
}

Status getrf_batched(const CublasHandle* handle, DataType type, std::int64_t n, Output a, int* pivots, int* infos,
                     std::int64_t batch) {
  return run(handle, {.routine = Routine::kGetrf, .type = type, .m = n, .n = n, .batch = batch, .batched = 1},
             {{a, n, n, type}, {{pivots, n, n}, n, 1, DataType::kR32I}}, infos);
}

Status getrs_batched(const CublasHandle* handle, DataType type, std::int64_t n, std::int64_t columns, Output b,
                     int* info, std::int64_t batch) {
  succeed(info);
  return run(handle,
             {.routine = Routine::kGetrs, .type = type, .m = n, .n = n, .k = columns, .batch = batch, .batched = 1},
             {{b, n, columns, type}}, nullptr);
}

Status geqrf_batched(const CublasHandle* handle, DataType type, std::int64_t m, std::int64_t n, Output a, void* tau,
                     int* info, std::int64_t batch) {
  const std::int64_t reflectors = std::min(m, n);
  succeed(info);
  return run(handle, {.routine = Routine::kGeqrf, .type = type, .m = m, .n = n, .batch = batch, .batched = 1},
             {{a, m, n, type}, {{tau, reflectors, 0, true}, reflectors, 1, type}}, nullptr);
}

Status gels_batched(const CublasHandle* handle, DataType type, std::int64_t m, std::int64_t n, std::int64_t columns,
                    Output a, Output c, int* info, int* infos, std::int64_t batch) {
  succeed(info);
  return run(handle,
             {.routine = Routine::kGels, .type = type, .m = m, .n = n, .k = columns, .batch = batch, .batched = 1},
             {{a, m, n, type}, {c, m, columns, type}}, infos);
}

}  // namespace
}  // namespace maya::math

using maya::math::CublasHandle;
using maya::math::DataType;
using maya::math::Operation;
using maya::math::Status;
namespace math = maya::math;

extern "C" {

// ---- solves with a triangular matrix ----

Status cublasStrsm_v2(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                      int n, const void*, const void*, int, void* b, int ldb) {
  return math::trsm(handle, DataType::kR32F, side, m, n, {b, ldb}, 1);
}
Status cublasDtrsm_v2(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                      int n, const void*, const void*, int, void* b, int ldb) {
  return math::trsm(handle, DataType::kR64F, side, m, n, {b, ldb}, 1);
}
Status cublasCtrsm_v2(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                      int n, const void*, const void*, int, void* b, int ldb) {
  return math::trsm(handle, DataType::kC32F, side, m, n, {b, ldb}, 1);
}
Status cublasZtrsm_v2(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                      int n, const void*, const void*, int, void* b, int ldb) {
  return math::trsm(handle, DataType::kC64F, side, m, n, {b, ldb}, 1);
}

Status cublasStrsmBatched(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                          int n, const void*, const void*, int, void* b, int ldb, int batch) {
  return math::trsm(handle, DataType::kR32F, side, m, n, {b, ldb, 0, true}, batch);
}
Status cublasDtrsmBatched(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                          int n, const void*, const void*, int, void* b, int ldb, int batch) {
  return math::trsm(handle, DataType::kR64F, side, m, n, {b, ldb, 0, true}, batch);
}
Status cublasCtrsmBatched(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                          int n, const void*, const void*, int, void* b, int ldb, int batch) {
  return math::trsm(handle, DataType::kC32F, side, m, n, {b, ldb, 0, true}, batch);
}
Status cublasZtrsmBatched(const CublasHandle* handle, std::int32_t side, std::int32_t, Operation, std::int32_t, int m,
                          int n, const void*, const void*, int, void* b, int ldb, int batch) {
  return math::trsm(handle, DataType::kC64F, side, m, n, {b, ldb, 0, true}, batch);
}

// ---- LU ----

Status cublasSgetrfBatched(const CublasHandle* handle, int n, void* a, int lda, int* pivots, int* info, int batch) {
  return math::getrf_batched(handle, DataType::kR32F, n, {a, lda, 0, true}, pivots, info, batch);
}
Status cublasDgetrfBatched(const CublasHandle* handle, int n, void* a, int lda, int* pivots, int* info, int batch) {
  return math::getrf_batched(handle, DataType::kR64F, n, {a, lda, 0, true}, pivots, info, batch);
}
Status cublasCgetrfBatched(const CublasHandle* handle, int n, void* a, int lda, int* pivots, int* info, int batch) {
  return math::getrf_batched(handle, DataType::kC32F, n, {a, lda, 0, true}, pivots, info, batch);
}
Status cublasZgetrfBatched(const CublasHandle* handle, int n, void* a, int lda, int* pivots, int* info, int batch) {
  return math::getrf_batched(handle, DataType::kC64F, n, {a, lda, 0, true}, pivots, info, batch);
}

Status cublasSgetrsBatched(const CublasHandle* handle, Operation, int n, int columns, const void*, int, const int*,
                           void* b, int ldb, int* info, int batch) {
  return math::getrs_batched(handle, DataType::kR32F, n, columns, {b, ldb, 0, true}, info, batch);
}
Status cublasDgetrsBatched(const CublasHandle* handle, Operation, int n, int columns, const void*, int, const int*,
                           void* b, int ldb, int* info, int batch) {
  return math::getrs_batched(handle, DataType::kR64F, n, columns, {b, ldb, 0, true}, info, batch);
}
Status cublasCgetrsBatched(const CublasHandle* handle, Operation, int n, int columns, const void*, int, const int*,
                           void* b, int ldb, int* info, int batch) {
  return math::getrs_batched(handle, DataType::kC32F, n, columns, {b, ldb, 0, true}, info, batch);
}
Status cublasZgetrsBatched(const CublasHandle* handle, Operation, int n, int columns, const void*, int, const int*,
                           void* b, int ldb, int* info, int batch) {
  return math::getrs_batched(handle, DataType::kC64F, n, columns, {b, ldb, 0, true}, info, batch);
}

// ---- QR, and least squares by it ----

Status cublasSgeqrfBatched(const CublasHandle* handle, int m, int n, void* a, int lda, void* tau, int* info,
                           int batch) {
  return math::geqrf_batched(handle, DataType::kR32F, m, n, {a, lda, 0, true}, tau, info, batch);
}
Status cublasDgeqrfBatched(const CublasHandle* handle, int m, int n, void* a, int lda, void* tau, int* info,
                           int batch) {
  return math::geqrf_batched(handle, DataType::kR64F, m, n, {a, lda, 0, true}, tau, info, batch);
}
Status cublasCgeqrfBatched(const CublasHandle* handle, int m, int n, void* a, int lda, void* tau, int* info,
                           int batch) {
  return math::geqrf_batched(handle, DataType::kC32F, m, n, {a, lda, 0, true}, tau, info, batch);
}
Status cublasZgeqrfBatched(const CublasHandle* handle, int m, int n, void* a, int lda, void* tau, int* info,
                           int batch) {
  return math::geqrf_batched(handle, DataType::kC64F, m, n, {a, lda, 0, true}, tau, info, batch);
}

Status cublasSgelsBatched(const CublasHandle* handle, Operation, int m, int n, int columns, void* a, int lda, void* c,
                          int ldc, int* info, int* infos, int batch) {
  return math::gels_batched(handle, DataType::kR32F, m, n, columns, {a, lda, 0, true}, {c, ldc, 0, true}, info, infos,
                            batch);
}
Status cublasDgelsBatched(const CublasHandle* handle, Operation, int m, int n, int columns, void* a, int lda, void* c,
                          int ldc, int* info, int* infos, int batch) {
  return math::gels_batched(handle, DataType::kR64F, m, n, columns, {a, lda, 0, true}, {c, ldc, 0, true}, info, infos,
                            batch);
}
Status cublasCgelsBatched(const CublasHandle* handle, Operation, int m, int n, int columns, void* a, int lda, void* c,
                          int ldc, int* info, int* infos, int batch) {
  return math::gels_batched(handle, DataType::kC32F, m, n, columns, {a, lda, 0, true}, {c, ldc, 0, true}, info, infos,
                            batch);
}
Status cublasZgelsBatched(const CublasHandle* handle, Operation, int m, int n, int columns, void* a, int lda, void* c,
                          int ldc, int* info, int* infos, int batch) {
  return math::gels_batched(handle, DataType::kC64F, m, n, columns, {a, lda, 0, true}, {c, ldc, 0, true}, info, infos,
                            batch);
}

}  // extern "C"
