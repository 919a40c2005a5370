// What cuSOLVER's dense calls share: handles, statuses, and how one is recorded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "math/lapack.h"

namespace maya::math::cusolver {

// cusolverStatus_t.
enum class Status : std::int32_t { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 3 };

struct Handle {
  void* stream = nullptr;
};

Handle* find_handle(const void* handle);  // nullptr: destroyed or foreign

// Records `work` on the handle's stream (lapack.h).
Status run(const Handle* handle, const Lapack& work, std::initializer_list<Written> written, int* info);

// A matrix of a batch that lies `stride` elements from the next.
inline Written matrix(void* data, std::int64_t rows, std::int64_t columns, std::int64_t leading_dimension,
                      DataType type, std::int64_t stride = 0) {
  return {{data, leading_dimension, stride}, rows, columns, type};
}
inline Written vector(void* data, std::int64_t elements, DataType type, std::int64_t stride = 0) {
  return matrix(data, elements, 1, elements, type, stride);
}

// What a ..._bufferSize call answers: elements of the typed interface, bytes of the generic one. cuSOLVER does not say
// how much it takes; these are LAPACK's own workspaces, blocked as below, and a copy where a routine writes beside its
// input.
Status answer(int* elements, std::int64_t wanted);
Status answer(std::size_t* on_device, std::size_t* on_host, std::int64_t wanted, DataType type);

inline constexpr std::int64_t kBlock = 64;  // columns of a panel

constexpr std::int64_t panel_elements(std::int64_t rows, std::int64_t columns) {
  return (rows > columns ? rows : columns) * kBlock;
}
constexpr std::int64_t syevd_elements(std::int64_t n) { return 1 + 6 * n + 2 * n * n; }  // LAPACK's ssyevd
constexpr std::int64_t gesvd_elements(std::int64_t m, std::int64_t n) { return m * n + 3 * n + panel_elements(m, n); }

}  // namespace maya::math::cusolver
