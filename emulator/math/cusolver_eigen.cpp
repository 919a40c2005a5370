// cuSOLVER's eigenvalues and singular values, as torch.linalg calls them. Prototypes: cusolverDn.h of CUDA 12 and 13,
// which agree on the functions here. The sizes of workspaces do not depend on the type: those of D, C and Z are aliases
// of S.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "math/cusolver.h"

namespace maya::math::cusolver {
namespace {

struct Hermitian {
  std::int32_t vectors = 0;
  std::int64_t n = 0;
  void* a = nullptr;
  std::int64_t lda = 0;
  void* values = nullptr;
  std::int64_t batch = 1;
  std::uint32_t batched = 0;
};

// The vectors take the matrix' place; without them it is overwritten, too.
Status symmetric(const Handle* handle, Routine routine, DataType type, const Hermitian& of, int* info) {
  const Lapack work{.routine = routine,
                    .type = type,
                    .m = of.n,
                    .n = of.n,
                    .batch = of.batch,
                    .vectors = of.vectors != 0,
                    .batched = of.batched};
  return run(handle, work,
             {matrix(of.a, of.n, of.n, of.lda, type, of.lda * of.n), vector(of.values, of.n, real_type(type), of.n)},
             info);
}

struct Singular {
  std::int32_t vectors = 0;
  std::int64_t m = 0, n = 0;
  void* a = nullptr;
  std::int64_t lda = 0;
  void* s = nullptr;
  void* u = nullptr;
  std::int64_t ldu = 0;
  void* v = nullptr;
  std::int64_t ldv = 0;
};

Lapack work_of(Routine routine, DataType type, const Singular& of) {
  return {.routine = routine, .type = type, .m = of.m, .n = of.n, .vectors = of.vectors != 0};
}

// Vectors as the caller has asked for: 'A' all, 'S' as many as there are values, 'O' in place of the matrix, 'N' none.
Status gesvd(const Handle* handle, DataType type, const Singular& of, int* info) {
  if (of.m < of.n) return Status::kInvalidValue;
  const auto job = static_cast<char>(of.vectors);
  Lapack work = work_of(Routine::kGesvd, type, of);
  work.vectors = job != 'N';
  const bool beside = job == 'A' || job == 'S';
  return run(handle, work,
             {matrix(of.a, of.m, of.n, of.lda, type), vector(of.s, of.n, real_type(type)),
              matrix(beside ? of.u : nullptr, of.m, job == 'A' ? of.m : of.n, of.ldu, type),
              matrix(beside ? of.v : nullptr, of.n, of.n, of.ldv, type)},
             info);
}

Status gesvdj(const Handle* handle, DataType type, const Singular& of, int economy, int* info) {
  const std::int64_t values = std::min(of.m, of.n);
  const bool vectors = of.vectors != 0;
  return run(handle, work_of(Routine::kGesvdj, type, of),
             {matrix(of.a, of.m, of.n, of.lda, type), vector(of.s, values, real_type(type)),
              matrix(vectors ? of.u : nullptr, of.m, economy != 0 ? values : of.m, of.ldu, type),
              matrix(vectors ? of.v : nullptr, of.n, economy != 0 ? values : of.n, of.ldv, type)},
             info);
}

// Square or small: all vectors.
Status gesvdj_batched(const Handle* handle, DataType type, const Singular& of, int* info, std::int64_t batch) {
  const std::int64_t values = std::min(of.m, of.n);
  const bool vectors = of.vectors != 0;
  Lapack work = work_of(Routine::kGesvdj, type, of);
  work.batch = batch;
  work.batched = 1;
  return run(handle, work,
             {matrix(of.a, of.m, of.n, of.lda, type, of.lda * of.n), vector(of.s, values, real_type(type), values),
              matrix(vectors ? of.u : nullptr, of.m, of.m, of.ldu, type, of.ldu * of.m),
              matrix(vectors ? of.v : nullptr, of.n, of.n, of.ldv, type, of.ldv * of.n)},
             info);
}

struct Strides {
  long long s, u, v;
};

// The `rank` largest values. `residuals` lie on the host.
Status gesvda(const Handle* handle, DataType type, const Singular& of, const Strides& strides, std::int64_t rank,
              int* info, double* residuals, std::int64_t batch) {
  const bool vectors = of.vectors != 0;
  Lapack work = work_of(Routine::kGesvda, type, of);
  work.batch = batch;
  work.batched = 1;
  if (residuals != nullptr) std::fill_n(residuals, batch, 0.0);
  return run(handle, work,
             {vector(of.s, rank, real_type(type), strides.s),
              matrix(vectors ? of.u : nullptr, of.m, rank, of.ldu, type, strides.u),
              matrix(vectors ? of.v : nullptr, of.n, rank, of.ldv, type, strides.v)},
             info);
}

}  // namespace
}  // namespace maya::math::cusolver

using maya::math::DataType;
using maya::math::Routine;
using maya::math::cusolver::answer;
using maya::math::cusolver::Handle;
using maya::math::cusolver::Status;
namespace cusolver = maya::math::cusolver;

extern "C" {

// ---- eigenvalues of a Hermitian matrix ----

Status cusolverDnSsyevd_bufferSize(const Handle*, std::int32_t, std::int32_t, int n, const void*, int, const void*,
                                   int* elements) {
  return answer(elements, cusolver::syevd_elements(n));
}

Status cusolverDnSsyevd(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info) {
  return cusolver::symmetric(handle, Routine::kSyevd, DataType::kR32F, {vectors, n, a, lda, values}, info);
}
Status cusolverDnDsyevd(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info) {
  return cusolver::symmetric(handle, Routine::kSyevd, DataType::kR64F, {vectors, n, a, lda, values}, info);
}
Status cusolverDnCheevd(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info) {
  return cusolver::symmetric(handle, Routine::kSyevd, DataType::kC32F, {vectors, n, a, lda, values}, info);
}
Status cusolverDnZheevd(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info) {
  return cusolver::symmetric(handle, Routine::kSyevd, DataType::kC64F, {vectors, n, a, lda, values}, info);
}

Status cusolverDnSsyevj_bufferSize(const Handle*, std::int32_t, std::int32_t, int n, const void*, int, const void*,
                                   int* elements, void*) {
  return answer(elements, cusolver::syevd_elements(n));
}

Status cusolverDnSsyevj(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info, void*) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kR32F, {vectors, n, a, lda, values}, info);
}
Status cusolverDnDsyevj(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info, void*) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kR64F, {vectors, n, a, lda, values}, info);
}
Status cusolverDnCheevj(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info, void*) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kC32F, {vectors, n, a, lda, values}, info);
}
Status cusolverDnZheevj(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda, void* values,
                        void*, int, int* info, void*) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kC64F, {vectors, n, a, lda, values}, info);
}

Status cusolverDnSsyevjBatched_bufferSize(const Handle*, std::int32_t, std::int32_t, int n, const void*, int,
                                          const void*, int* elements, void*, int batch) {
  return answer(elements, batch * cusolver::syevd_elements(n));
}

Status cusolverDnSsyevjBatched(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda,
                               void* values, void*, int, int* info, void*, int batch) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kR32F, {vectors, n, a, lda, values, batch, 1}, info);
}
Status cusolverDnDsyevjBatched(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda,
                               void* values, void*, int, int* info, void*, int batch) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kR64F, {vectors, n, a, lda, values, batch, 1}, info);
}
Status cusolverDnCheevjBatched(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda,
                               void* values, void*, int, int* info, void*, int batch) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kC32F, {vectors, n, a, lda, values, batch, 1}, info);
}
Status cusolverDnZheevjBatched(const Handle* handle, std::int32_t vectors, std::int32_t, int n, void* a, int lda,
                               void* values, void*, int, int* info, void*, int batch) {
  return cusolver::symmetric(handle, Routine::kSyevj, DataType::kC64F, {vectors, n, a, lda, values, batch, 1}, info);
}

// ---- singular values ----

Status cusolverDnSgesvd_bufferSize(const Handle*, int m, int n, int* elements) {
  return answer(elements, cusolver::gesvd_elements(m, n));
}

Status cusolverDnSgesvd(const Handle* handle, signed char job_u, signed char, int m, int n, void* a, int lda, void* s,
                        void* u, int ldu, void* vt, int ldvt, void*, int, void*, int* info) {
  return cusolver::gesvd(handle, DataType::kR32F, {job_u, m, n, a, lda, s, u, ldu, vt, ldvt}, info);
}
Status cusolverDnDgesvd(const Handle* handle, signed char job_u, signed char, int m, int n, void* a, int lda, void* s,
                        void* u, int ldu, void* vt, int ldvt, void*, int, void*, int* info) {
  return cusolver::gesvd(handle, DataType::kR64F, {job_u, m, n, a, lda, s, u, ldu, vt, ldvt}, info);
}
Status cusolverDnCgesvd(const Handle* handle, signed char job_u, signed char, int m, int n, void* a, int lda, void* s,
                        void* u, int ldu, void* vt, int ldvt, void*, int, void*, int* info) {
  return cusolver::gesvd(handle, DataType::kC32F, {job_u, m, n, a, lda, s, u, ldu, vt, ldvt}, info);
}
Status cusolverDnZgesvd(const Handle* handle, signed char job_u, signed char, int m, int n, void* a, int lda, void* s,
                        void* u, int ldu, void* vt, int ldvt, void*, int, void*, int* info) {
  return cusolver::gesvd(handle, DataType::kC64F, {job_u, m, n, a, lda, s, u, ldu, vt, ldvt}, info);
}

Status cusolverDnSgesvdj_bufferSize(const Handle*, std::int32_t, int, int m, int n, const void*, int, const void*,
                                    const void*, int, const void*, int, int* elements, void*) {
  return answer(elements, cusolver::gesvd_elements(m, n));
}

Status cusolverDnSgesvdj(const Handle* handle, std::int32_t vectors, int economy, int m, int n, void* a, int lda,
                         void* s, void* u, int ldu, void* v, int ldv, void*, int, int* info, void*) {
  return cusolver::gesvdj(handle, DataType::kR32F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, economy, info);
}
Status cusolverDnDgesvdj(const Handle* handle, std::int32_t vectors, int economy, int m, int n, void* a, int lda,
                         void* s, void* u, int ldu, void* v, int ldv, void*, int, int* info, void*) {
  return cusolver::gesvdj(handle, DataType::kR64F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, economy, info);
}
Status cusolverDnCgesvdj(const Handle* handle, std::int32_t vectors, int economy, int m, int n, void* a, int lda,
                         void* s, void* u, int ldu, void* v, int ldv, void*, int, int* info, void*) {
  return cusolver::gesvdj(handle, DataType::kC32F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, economy, info);
}
Status cusolverDnZgesvdj(const Handle* handle, std::int32_t vectors, int economy, int m, int n, void* a, int lda,
                         void* s, void* u, int ldu, void* v, int ldv, void*, int, int* info, void*) {
  return cusolver::gesvdj(handle, DataType::kC64F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, economy, info);
}

Status cusolverDnSgesvdjBatched_bufferSize(const Handle*, std::int32_t, int m, int n, const void*, int, const void*,
                                           const void*, int, const void*, int, int* elements, void*, int batch) {
  return answer(elements, batch * cusolver::gesvd_elements(m, n));
}

Status cusolverDnSgesvdjBatched(const Handle* handle, std::int32_t vectors, int m, int n, void* a, int lda, void* s,
                                void* u, int ldu, void* v, int ldv, void*, int, int* info, void*, int batch) {
  return cusolver::gesvdj_batched(handle, DataType::kR32F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, info, batch);
}
Status cusolverDnDgesvdjBatched(const Handle* handle, std::int32_t vectors, int m, int n, void* a, int lda, void* s,
                                void* u, int ldu, void* v, int ldv, void*, int, int* info, void*, int batch) {
  return cusolver::gesvdj_batched(handle, DataType::kR64F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, info, batch);
}
Status cusolverDnCgesvdjBatched(const Handle* handle, std::int32_t vectors, int m, int n, void* a, int lda, void* s,
                                void* u, int ldu, void* v, int ldv, void*, int, int* info, void*, int batch) {
  return cusolver::gesvdj_batched(handle, DataType::kC32F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, info, batch);
}
Status cusolverDnZgesvdjBatched(const Handle* handle, std::int32_t vectors, int m, int n, void* a, int lda, void* s,
                                void* u, int ldu, void* v, int ldv, void*, int, int* info, void*, int batch) {
  return cusolver::gesvdj_batched(handle, DataType::kC64F, {vectors, m, n, a, lda, s, u, ldu, v, ldv}, info, batch);
}

Status cusolverDnSgesvdaStridedBatched_bufferSize(const Handle*, std::int32_t, int, int m, int n, const void*, int,
                                                  long long, const void*, long long, const void*, int, long long,
                                                  const void*, int, long long, int* elements, int batch) {
  return answer(elements, batch * cusolver::gesvd_elements(m, n));
}

Status cusolverDnSgesvdaStridedBatched(const Handle* handle, std::int32_t vectors, int rank, int m, int n, const void*,
                                       int, long long, void* s, long long stride_s, void* u, int ldu,
                                       long long stride_u, void* v, int ldv, long long stride_v, void*, int, int* info,
                                       double* residuals, int batch) {
  return cusolver::gesvda(handle, DataType::kR32F, {vectors, m, n, nullptr, 0, s, u, ldu, v, ldv},
                          {stride_s, stride_u, stride_v}, rank, info, residuals, batch);
}
Status cusolverDnDgesvdaStridedBatched(const Handle* handle, std::int32_t vectors, int rank, int m, int n, const void*,
                                       int, long long, void* s, long long stride_s, void* u, int ldu,
                                       long long stride_u, void* v, int ldv, long long stride_v, void*, int, int* info,
                                       double* residuals, int batch) {
  return cusolver::gesvda(handle, DataType::kR64F, {vectors, m, n, nullptr, 0, s, u, ldu, v, ldv},
                          {stride_s, stride_u, stride_v}, rank, info, residuals, batch);
}
Status cusolverDnCgesvdaStridedBatched(const Handle* handle, std::int32_t vectors, int rank, int m, int n, const void*,
                                       int, long long, void* s, long long stride_s, void* u, int ldu,
                                       long long stride_u, void* v, int ldv, long long stride_v, void*, int, int* info,
                                       double* residuals, int batch) {
  return cusolver::gesvda(handle, DataType::kC32F, {vectors, m, n, nullptr, 0, s, u, ldu, v, ldv},
                          {stride_s, stride_u, stride_v}, rank, info, residuals, batch);
}
Status cusolverDnZgesvdaStridedBatched(const Handle* handle, std::int32_t vectors, int rank, int m, int n, const void*,
                                       int, long long, void* s, long long stride_s, void* u, int ldu,
                                       long long stride_u, void* v, int ldv, long long stride_v, void*, int, int* info,
                                       double* residuals, int batch) {
  return cusolver::gesvda(handle, DataType::kC64F, {vectors, m, n, nullptr, 0, s, u, ldu, v, ldv},
                          {stride_s, stride_u, stride_v}, rank, info, residuals, batch);
}

}  // extern "C"
