// A factorisation of matrices, or a solve with one, under LAPACK's name for it: the operation that every call of
// cuSOLVER and those of cuBLAS beyond products record.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "math/output.h"
#include "math/types.h"

namespace maya::math {

enum class Routine : std::uint32_t {
  kGeqrf,
  kOrgqr,
  kOrmqr,
  kGels,
  kPotrf,
  kPotrs,
  kGetrf,
  kGetrs,
  kSytrf,
  kSytrs,
  kTrsm,  // BLAS', a solve too
  kSyevd,
  kSyevj,  // cuSOLVER's, by Jacobi's method; so is gesvdj
  kGesvd,
  kGesvdj,
  kGesvda,  // cuSOLVER's, from eigenvalues of the Gram matrix
  kGeev,
};

// `batch` matrices of m x n in one call. `k`: right-hand sides of a solve, reflectors of an orthogonal matrix. Free of
// addresses and of padding, so that its bytes are the operation's identity.
struct Lapack {
  std::uint64_t kind = 0x6c6170;  // "lap": tells this key from those of other kinds
  Routine routine = Routine::kGeqrf;
  DataType type = DataType::kR32F;
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  std::uint32_t vectors = 0;  // eigenvectors or singular vectors besides their values
  std::uint32_t batched = 0;  // a block or so a matrix, even for a batch of one
};
static_assert(sizeof(Lapack) == 56);

// What a call leaves: a matrix for each of the batch.
struct Written {
  Output output;
  std::int64_t rows = 0, columns = 1;
  DataType type = DataType::kR32F;
};

// Records `work` on `stream`. What it wrote then reads zero, for nobody computes it, but for `info`, the device's array
// of whether each matrix could be treated: all could.
void record_lapack(const Lapack& work, std::initializer_list<Written> written, int* info, void* stream);

// Of the eigenvalues of a Hermitian matrix, of singular values.
DataType real_type(DataType type);

}  // namespace maya::math
