// What a library call leaves behind in device memory, and that nobody computed it.
#pragma once

#include <cstdint>

#include "math/types.h"

namespace maya::math {

// Where the results go: a batch of matrices, column-major.
struct Output {
  void* data = nullptr;  // nullptr: unknown
  std::int64_t leading_dimension = 0;
  std::int64_t stride = 0;  // elements from one matrix of the batch to the next
  bool pointers = false;    // data is a device array of pointers, one a matrix
};

// `batch` matrices of rows x columns elements then read zero and are not known.
void forget_output(const Output& output, std::int64_t rows, std::int64_t columns, std::int64_t batch, DataType type);

}  // namespace maya::math
