// cuSOLVER: handles, and its dense factorisations and solves, as torch.linalg calls them. Prototypes: cusolverDn.h of
// CUDA 12 and 13, which agree on the functions here. The sizes of workspaces (..._bufferSize) do not depend on the
// type: those of D, C and Z are aliases of S.
#include "math/cusolver.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <utility>

#include "core/handle_pool.h"
#include "core/recorder.h"

namespace maya::math::cusolver {
namespace {

HandlePool<Handle, 4096>& handles() { return handle_pool<Handle, 4096>(); }

Status geqrf(const Handle* handle, DataType type, std::int64_t m, std::int64_t n, void* a, std::int64_t lda, void* tau,
             int* info) {
  return run(handle, {.routine = Routine::kGeqrf, .type = type, .m = m, .n = n},
             {matrix(a, m, n, lda, type), vector(tau, std::min(m, n), type)}, info);
}

Status orgqr(const Handle* handle, DataType type, std::int64_t m, std::int64_t n, std::int64_t k, void* a,
             std::int64_t lda, int* info) {
  return run(handle, {.routine = Routine::kOrgqr, .type = type, .m = m, .n = n, .k = k}, {matrix(a, m, n, lda, type)},
             info);
}

// From the right Q meets rows of C: what it costs is that of the transposed product.
Status ormqr(const Handle* handle, DataType type, std::int32_t side, std::int64_t m, std::int64_t n, std::int64_t k,
             void* c, std::int64_t ldc, int* info) {
  constexpr std::int32_t kLeft = 0;
  Lapack work{.routine = Routine::kOrmqr, .type = type, .m = m, .n = n, .k = k};
  if (side != kLeft) std::swap(work.m, work.n);
  return run(handle, work, {matrix(c, m, n, ldc, type)}, info);
}

Status potrf(const Handle* handle, DataType type, std::int64_t n, void* a, std::int64_t lda, int* info) {
  return run(handle, {.routine = Routine::kPotrf, .type = type, .m = n, .n = n}, {matrix(a, n, n, lda, type)}, info);
}

Status potrf_batched(const Handle* handle, DataType type, std::int64_t n, void* a, std::int64_t lda, int* info,
                     std::int64_t batch) {
  return run(handle, {.routine = Routine::kPotrf, .type = type, .m = n, .n = n, .batch = batch, .batched = 1},
             {{{a, lda, 0, true}, n, n, type}}, info);
}

Status solve(const Handle* handle, Routine routine, DataType type, std::int64_t n, std::int64_t columns, void* b,
             std::int64_t ldb, int* info) {
  return run(handle, {.routine = routine, .type = type, .m = n, .n = n, .k = columns},
             {matrix(b, n, columns, ldb, type)}, info);
}

// One `info` for the whole batch.
Status potrs_batched(const Handle* handle, DataType type, std::int64_t n, std::int64_t columns, void* b,
                     std::int64_t ldb, int* info, std::int64_t batch) {
  const Lapack work{
      .routine = Routine::kPotrs, .type = type, .m = n, .n = n, .k = columns, .batch = batch, .batched = 1};
  if (info != nullptr) *info = 0;
  return run(handle, work, {{{b, ldb, 0, true}, n, columns, type}}, nullptr);
}

// No pivots are asked for: none are written.
Status getrf(const Handle* handle, DataType type, std::int64_t m, std::int64_t n, void* a, std::int64_t lda,
             int* pivots, int* info) {
  return run(handle, {.routine = Routine::kGetrf, .type = type, .m = m, .n = n},
             {matrix(a, m, n, lda, type), vector(pivots, std::min(m, n), DataType::kR32I)}, info);
}

Status sytrf(const Handle* handle, DataType type, std::int64_t n, void* a, std::int64_t lda, int* pivots, int* info) {
  return run(handle, {.routine = Routine::kSytrf, .type = type, .m = n, .n = n},
             {matrix(a, n, n, lda, type), vector(pivots, n, DataType::kR32I)}, info);
}

}  // namespace

Handle* find_handle(const void* handle) { return handles().find(handle); }

Status run(const Handle* handle, const Lapack& work, std::initializer_list<Written> written, int* info) {
  const Call call;
  if (find_handle(handle) == nullptr) return Status::kNotInitialized;
  if (work.m < 0 || work.n < 0 || work.k < 0 || work.batch < 0) return Status::kInvalidValue;
  record_lapack(work, written, info, handle->stream);
  return Status::kSuccess;
}

Status answer(int* elements, std::int64_t wanted) {
  if (elements == nullptr || wanted < 0) return Status::kInvalidValue;
  *elements = static_cast<int>(std::min<std::int64_t>(wanted, std::numeric_limits<int>::max()));
  return Status::kSuccess;
}

Status answer(std::size_t* on_device, std::size_t* on_host, std::int64_t wanted, DataType type) {
  if (on_device == nullptr || on_host == nullptr || wanted < 0) return Status::kInvalidValue;
  *on_device = static_cast<std::size_t>(wanted) * dtype_bytes(type);
  *on_host = 0;
  return Status::kSuccess;
}

}  // namespace maya::math::cusolver

using maya::math::DataType;
using maya::math::Operation;
using maya::math::Routine;
using maya::math::cusolver::answer;
using maya::math::cusolver::Handle;
using maya::math::cusolver::Status;
namespace cusolver = maya::math::cusolver;

extern "C" {

Status cusolverDnCreate(Handle** handle) {
  if (handle == nullptr) return Status::kInvalidValue;
  *handle = cusolver::handles().create();
  return Status::kSuccess;
}

Status cusolverDnDestroy(Handle* handle) {
  return cusolver::handles().destroy(handle) ? Status::kSuccess : Status::kNotInitialized;
}

Status cusolverDnSetStream(Handle* handle, void* stream) {
  if (cusolver::find_handle(handle) == nullptr) return Status::kNotInitialized;
  handle->stream = stream;
  return Status::kSuccess;
}

// ---- QR: A = Q R, Q as reflectors ----

Status cusolverDnSgeqrf_bufferSize(const Handle*, int m, int n, void*, int, int* elements) {
  return answer(elements, cusolver::panel_elements(m, n));
}

Status cusolverDnSgeqrf(const Handle* handle, int m, int n, void* a, int lda, void* tau, void*, int, int* info) {
  return cusolver::geqrf(handle, DataType::kR32F, m, n, a, lda, tau, info);
}
Status cusolverDnDgeqrf(const Handle* handle, int m, int n, void* a, int lda, void* tau, void*, int, int* info) {
  return cusolver::geqrf(handle, DataType::kR64F, m, n, a, lda, tau, info);
}
Status cusolverDnCgeqrf(const Handle* handle, int m, int n, void* a, int lda, void* tau, void*, int, int* info) {
  return cusolver::geqrf(handle, DataType::kC32F, m, n, a, lda, tau, info);
}
Status cusolverDnZgeqrf(const Handle* handle, int m, int n, void* a, int lda, void* tau, void*, int, int* info) {
  return cusolver::geqrf(handle, DataType::kC64F, m, n, a, lda, tau, info);
}

// ---- Q itself, and Q times a matrix ----

Status cusolverDnSorgqr_bufferSize(const Handle*, int m, int n, int, const void*, int, const void*, int* elements) {
  return answer(elements, cusolver::panel_elements(m, n));
}

Status cusolverDnSorgqr(const Handle* handle, int m, int n, int k, void* a, int lda, const void*, void*, int,
                        int* info) {
  return cusolver::orgqr(handle, DataType::kR32F, m, n, k, a, lda, info);
}
Status cusolverDnDorgqr(const Handle* handle, int m, int n, int k, void* a, int lda, const void*, void*, int,
                        int* info) {
  return cusolver::orgqr(handle, DataType::kR64F, m, n, k, a, lda, info);
}
Status cusolverDnCungqr(const Handle* handle, int m, int n, int k, void* a, int lda, const void*, void*, int,
                        int* info) {
  return cusolver::orgqr(handle, DataType::kC32F, m, n, k, a, lda, info);
}
Status cusolverDnZungqr(const Handle* handle, int m, int n, int k, void* a, int lda, const void*, void*, int,
                        int* info) {
  return cusolver::orgqr(handle, DataType::kC64F, m, n, k, a, lda, info);
}

Status cusolverDnSormqr_bufferSize(const Handle*, std::int32_t, Operation, int m, int n, int, const void*, int,
                                   const void*, const void*, int, int* elements) {
  return answer(elements, cusolver::panel_elements(m, n));
}

Status cusolverDnSormqr(const Handle* handle, std::int32_t side, Operation, int m, int n, int k, const void*, int,
                        const void*, void* c, int ldc, void*, int, int* info) {
  return cusolver::ormqr(handle, DataType::kR32F, side, m, n, k, c, ldc, info);
}
Status cusolverDnDormqr(const Handle* handle, std::int32_t side, Operation, int m, int n, int k, const void*, int,
                        const void*, void* c, int ldc, void*, int, int* info) {
  return cusolver::ormqr(handle, DataType::kR64F, side, m, n, k, c, ldc, info);
}
Status cusolverDnCunmqr(const Handle* handle, std::int32_t side, Operation, int m, int n, int k, const void*, int,
                        const void*, void* c, int ldc, void*, int, int* info) {
  return cusolver::ormqr(handle, DataType::kC32F, side, m, n, k, c, ldc, info);
}
Status cusolverDnZunmqr(const Handle* handle, std::int32_t side, Operation, int m, int n, int k, const void*, int,
                        const void*, void* c, int ldc, void*, int, int* info) {
  return cusolver::ormqr(handle, DataType::kC64F, side, m, n, k, c, ldc, info);
}

// ---- Cholesky ----

Status cusolverDnSpotrf_bufferSize(const Handle*, std::int32_t, int n, void*, int, int* elements) {
  return answer(elements, cusolver::panel_elements(n, n));
}

Status cusolverDnSpotrf(const Handle* handle, std::int32_t, int n, void* a, int lda, void*, int, int* info) {
  return cusolver::potrf(handle, DataType::kR32F, n, a, lda, info);
}
Status cusolverDnDpotrf(const Handle* handle, std::int32_t, int n, void* a, int lda, void*, int, int* info) {
  return cusolver::potrf(handle, DataType::kR64F, n, a, lda, info);
}
Status cusolverDnCpotrf(const Handle* handle, std::int32_t, int n, void* a, int lda, void*, int, int* info) {
  return cusolver::potrf(handle, DataType::kC32F, n, a, lda, info);
}
Status cusolverDnZpotrf(const Handle* handle, std::int32_t, int n, void* a, int lda, void*, int, int* info) {
  return cusolver::potrf(handle, DataType::kC64F, n, a, lda, info);
}

Status cusolverDnSpotrfBatched(const Handle* handle, std::int32_t, int n, void* a, int lda, int* info, int batch) {
  return cusolver::potrf_batched(handle, DataType::kR32F, n, a, lda, info, batch);
}
Status cusolverDnDpotrfBatched(const Handle* handle, std::int32_t, int n, void* a, int lda, int* info, int batch) {
  return cusolver::potrf_batched(handle, DataType::kR64F, n, a, lda, info, batch);
}
Status cusolverDnCpotrfBatched(const Handle* handle, std::int32_t, int n, void* a, int lda, int* info, int batch) {
  return cusolver::potrf_batched(handle, DataType::kC32F, n, a, lda, info, batch);
}
Status cusolverDnZpotrfBatched(const Handle* handle, std::int32_t, int n, void* a, int lda, int* info, int batch) {
  return cusolver::potrf_batched(handle, DataType::kC64F, n, a, lda, info, batch);
}

Status cusolverDnSpotrs(const Handle* handle, std::int32_t, int n, int columns, const void*, int, void* b, int ldb,
                        int* info) {
  return cusolver::solve(handle, Routine::kPotrs, DataType::kR32F, n, columns, b, ldb, info);
}
Status cusolverDnDpotrs(const Handle* handle, std::int32_t, int n, int columns, const void*, int, void* b, int ldb,
                        int* info) {
  return cusolver::solve(handle, Routine::kPotrs, DataType::kR64F, n, columns, b, ldb, info);
}
Status cusolverDnCpotrs(const Handle* handle, std::int32_t, int n, int columns, const void*, int, void* b, int ldb,
                        int* info) {
  return cusolver::solve(handle, Routine::kPotrs, DataType::kC32F, n, columns, b, ldb, info);
}
Status cusolverDnZpotrs(const Handle* handle, std::int32_t, int n, int columns, const void*, int, void* b, int ldb,
                        int* info) {
  return cusolver::solve(handle, Routine::kPotrs, DataType::kC64F, n, columns, b, ldb, info);
}

Status cusolverDnSpotrsBatched(const Handle* handle, std::int32_t, int n, int columns, void*, int, void* b, int ldb,
                               int* info, int batch) {
  return cusolver::potrs_batched(handle, DataType::kR32F, n, columns, b, ldb, info, batch);
}
Status cusolverDnDpotrsBatched(const Handle* handle, std::int32_t, int n, int columns, void*, int, void* b, int ldb,
                               int* info, int batch) {
  return cusolver::potrs_batched(handle, DataType::kR64F, n, columns, b, ldb, info, batch);
}
Status cusolverDnCpotrsBatched(const Handle* handle, std::int32_t, int n, int columns, void*, int, void* b, int ldb,
                               int* info, int batch) {
  return cusolver::potrs_batched(handle, DataType::kC32F, n, columns, b, ldb, info, batch);
}
Status cusolverDnZpotrsBatched(const Handle* handle, std::int32_t, int n, int columns, void*, int, void* b, int ldb,
                               int* info, int batch) {
  return cusolver::potrs_batched(handle, DataType::kC64F, n, columns, b, ldb, info, batch);
}

// ---- LU ----

Status cusolverDnSgetrf_bufferSize(const Handle*, int m, int n, void*, int, int* elements) {
  return answer(elements, cusolver::panel_elements(m, n));
}

Status cusolverDnSgetrf(const Handle* handle, int m, int n, void* a, int lda, void*, int* pivots, int* info) {
  return cusolver::getrf(handle, DataType::kR32F, m, n, a, lda, pivots, info);
}
Status cusolverDnDgetrf(const Handle* handle, int m, int n, void* a, int lda, void*, int* pivots, int* info) {
  return cusolver::getrf(handle, DataType::kR64F, m, n, a, lda, pivots, info);
}
Status cusolverDnCgetrf(const Handle* handle, int m, int n, void* a, int lda, void*, int* pivots, int* info) {
  return cusolver::getrf(handle, DataType::kC32F, m, n, a, lda, pivots, info);
}
Status cusolverDnZgetrf(const Handle* handle, int m, int n, void* a, int lda, void*, int* pivots, int* info) {
  return cusolver::getrf(handle, DataType::kC64F, m, n, a, lda, pivots, info);
}

Status cusolverDnSgetrs(const Handle* handle, Operation, int n, int columns, const void*, int, const int*, void* b,
                        int ldb, int* info) {
  return cusolver::solve(handle, Routine::kGetrs, DataType::kR32F, n, columns, b, ldb, info);
}
Status cusolverDnDgetrs(const Handle* handle, Operation, int n, int columns, const void*, int, const int*, void* b,
                        int ldb, int* info) {
  return cusolver::solve(handle, Routine::kGetrs, DataType::kR64F, n, columns, b, ldb, info);
}
Status cusolverDnCgetrs(const Handle* handle, Operation, int n, int columns, const void*, int, const int*, void* b,
                        int ldb, int* info) {
  return cusolver::solve(handle, Routine::kGetrs, DataType::kC32F, n, columns, b, ldb, info);
}
Status cusolverDnZgetrs(const Handle* handle, Operation, int n, int columns, const void*, int, const int*, void* b,
                        int ldb, int* info) {
  return cusolver::solve(handle, Routine::kGetrs, DataType::kC64F, n, columns, b, ldb, info);
}

// ---- LDL ----

Status cusolverDnSsytrf_bufferSize(const Handle*, int n, void*, int, int* elements) {
  return answer(elements, cusolver::panel_elements(n, n));
}

Status cusolverDnSsytrf(const Handle* handle, std::int32_t, int n, void* a, int lda, int* pivots, void*, int,
                        int* info) {
  return cusolver::sytrf(handle, DataType::kR32F, n, a, lda, pivots, info);
}
Status cusolverDnDsytrf(const Handle* handle, std::int32_t, int n, void* a, int lda, int* pivots, void*, int,
                        int* info) {
  return cusolver::sytrf(handle, DataType::kR64F, n, a, lda, pivots, info);
}
Status cusolverDnCsytrf(const Handle* handle, std::int32_t, int n, void* a, int lda, int* pivots, void*, int,
                        int* info) {
  return cusolver::sytrf(handle, DataType::kC32F, n, a, lda, pivots, info);
}
Status cusolverDnZsytrf(const Handle* handle, std::int32_t, int n, void* a, int lda, int* pivots, void*, int,
                        int* info) {
  return cusolver::sytrf(handle, DataType::kC64F, n, a, lda, pivots, info);
}

}  // extern "C"
