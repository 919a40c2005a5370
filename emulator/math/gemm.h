// One matrix multiplication, however it was asked for: the operation that every GEMM entry point records.
#pragma once

#include <cstdint>

#include "math/output.h"
#include "math/types.h"

namespace maya::math {

enum class Library : std::uint32_t { kCublas = 0, kCublasLt = 1, kCudnn = 2 };

// C[m,n] = op(A)[m,k] op(B)[k,n], column-major, `batch` times. Free of addresses and of padding, so that
// its bytes are the operation's identity.
struct Gemm {
  std::uint64_t kind = 0x6d6d6567;  // "gemm": tells this key from those of other kinds
  std::int64_t m = 0, n = 0, k = 0, batch = 1;
  DataType a = DataType::kR32F, b = DataType::kR32F, c = DataType::kR32F;
  ComputeType compute = ComputeType::k32F;
  std::uint32_t transpose_a = 0, transpose_b = 0;
  std::uint32_t epilogue = 1;  // cublasLtEpilogue_t; 1: none
  Library library = Library::kCublas;
  std::uint32_t multiprocessors = 0;  // that the caller leaves it; 0: all
  std::uint32_t unused = 0;
};
static_assert(sizeof(Gemm) == 80);

// What a caller's target for the count of multiprocessors leaves a product; 0: all.
std::uint32_t multiprocessors_left(std::int32_t target);

// Records `gemm` on `stream`; its output then reads zero, for nobody computes it. `blocking`: the call
// returns only when the result is there. Empty products launch nothing, as in the libraries.
void record_gemm(const Gemm& gemm, const Output& output, void* stream, bool blocking = false);

}  // namespace maya::math
