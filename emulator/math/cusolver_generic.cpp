// cuSOLVER's generic interface (64 bit sizes, types as arguments), as torch.linalg calls it. Prototypes: cusolverDn.h
// of CUDA 12 and 13, which agree on the functions here.
#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "math/cusolver.h"

using maya::math::DataType;
using maya::math::Lapack;
using maya::math::Routine;
using maya::math::cusolver::answer;
using maya::math::cusolver::Handle;
using maya::math::cusolver::matrix;
using maya::math::cusolver::run;
using maya::math::cusolver::Status;
using maya::math::cusolver::vector;
namespace cusolver = maya::math::cusolver;
using Index = std::int64_t;

extern "C" {

// ---- factorisations and solves ----

Status cusolverDnXgeqrf_bufferSize(const Handle*, const void*, Index m, Index n, DataType type, const void*, Index,
                                   DataType, const void*, DataType, std::size_t* on_device, std::size_t* on_host) {
  return answer(on_device, on_host, cusolver::panel_elements(m, n), type);
}

Status cusolverDnXgeqrf(const Handle* handle, const void*, Index m, Index n, DataType type, void* a, Index lda,
                        DataType tau_type, void* tau, DataType, void*, std::size_t, void*, std::size_t, int* info) {
  return run(handle, {.routine = Routine::kGeqrf, .type = type, .m = m, .n = n},
             {matrix(a, m, n, lda, type), vector(tau, std::min(m, n), tau_type)}, info);
}

Status cusolverDnXpotrf_bufferSize(const Handle*, const void*, std::int32_t, Index n, DataType type, const void*, Index,
                                   DataType, std::size_t* on_device, std::size_t* on_host) {
  return answer(on_device, on_host, cusolver::panel_elements(n, n), type);
}

Status cusolverDnXpotrf(const Handle* handle, const void*, std::int32_t, Index n, DataType type, void* a, Index lda,
                        DataType, void*, std::size_t, void*, std::size_t, int* info) {
  return run(handle, {.routine = Routine::kPotrf, .type = type, .m = n, .n = n}, {matrix(a, n, n, lda, type)}, info);
}

Status cusolverDnXpotrs(const Handle* handle, const void*, std::int32_t, Index n, Index columns, DataType type,
                        const void*, Index, DataType, void* b, Index ldb, int* info) {
  return run(handle, {.routine = Routine::kPotrs, .type = type, .m = n, .n = n, .k = columns},
             {matrix(b, n, columns, ldb, type)}, info);
}

Status cusolverDnXsytrs_bufferSize(const Handle*, std::int32_t, Index n, Index columns, DataType type, const void*,
                                   Index, const Index*, DataType, const void*, Index, std::size_t* on_device,
                                   std::size_t* on_host) {
  return answer(on_device, on_host, cusolver::panel_elements(n, columns), type);
}

Status cusolverDnXsytrs(const Handle* handle, std::int32_t, Index n, Index columns, DataType type, const void*, Index,
                        const Index*, DataType, void* b, Index ldb, void*, std::size_t, void*, std::size_t, int* info) {
  return run(handle, {.routine = Routine::kSytrs, .type = type, .m = n, .n = n, .k = columns},
             {matrix(b, n, columns, ldb, type)}, info);
}

// ---- eigenvalues ----

Status cusolverDnXsyevd_bufferSize(const Handle*, const void*, std::int32_t, std::int32_t, Index n, DataType type,
                                   const void*, Index, DataType, const void*, DataType, std::size_t* on_device,
                                   std::size_t* on_host) {
  return answer(on_device, on_host, cusolver::syevd_elements(n), type);
}

Status cusolverDnXsyevd(const Handle* handle, const void*, std::int32_t vectors, std::int32_t, Index n, DataType type,
                        void* a, Index lda, DataType value_type, void* values, DataType, void*, std::size_t, void*,
                        std::size_t, int* info) {
  return run(handle, {.routine = Routine::kSyevd, .type = type, .m = n, .n = n, .vectors = vectors != 0},
             {matrix(a, n, n, lda, type), vector(values, n, value_type)}, info);
}

Status cusolverDnXsyevBatched_bufferSize(const Handle*, const void*, std::int32_t, std::int32_t, Index n, DataType type,
                                         const void*, Index, DataType, const void*, DataType, std::size_t* on_device,
                                         std::size_t* on_host, Index batch) {
  return answer(on_device, on_host, batch * cusolver::syevd_elements(n), type);
}

Status cusolverDnXsyevBatched(const Handle* handle, const void*, std::int32_t vectors, std::int32_t, Index n,
                              DataType type, void* a, Index lda, DataType value_type, void* values, DataType, void*,
                              std::size_t, void*, std::size_t, int* info, Index batch) {
  // PyTorch 2.15 gives it single matrices, too: which method it has for those is documented nowhere.
  const bool single = batch == 1;
  const Lapack work{.routine = single ? Routine::kSyevd : Routine::kSyevj,
                    .type = type,
                    .m = n,
                    .n = n,
                    .batch = batch,
                    .vectors = vectors != 0,
                    .batched = !single};
  return run(handle, work, {matrix(a, n, n, lda, type, lda * n), vector(values, n, value_type, n)}, info);
}

Status cusolverDnXgeev_bufferSize(const Handle*, const void*, std::int32_t, std::int32_t, Index n, DataType type,
                                  const void*, Index, DataType, const void*, DataType, const void*, Index, DataType,
                                  const void*, Index, DataType, std::size_t* on_device, std::size_t* on_host) {
  return answer(on_device, on_host, cusolver::syevd_elements(n), type);
}

Status cusolverDnXgeev(const Handle* handle, const void*, std::int32_t left, std::int32_t right, Index n, DataType type,
                       void* a, Index lda, DataType value_type, void* values, DataType left_type, void* left_vectors,
                       Index ldvl, DataType right_type, void* right_vectors, Index ldvr, DataType, void*, std::size_t,
                       void*, std::size_t, int* info) {
  return run(handle, {.routine = Routine::kGeev, .type = type, .m = n, .n = n, .vectors = left != 0 || right != 0},
             {matrix(a, n, n, lda, type), vector(values, n, value_type),
              matrix(left != 0 ? left_vectors : nullptr, n, n, ldvl, left_type),
              matrix(right != 0 ? right_vectors : nullptr, n, n, ldvr, right_type)},
             info);
}

}  // extern "C"
