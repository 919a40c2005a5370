// What the names and parameters of PyTorch's element-wise kernels say about their traffic.
#pragma once

#include <string_view>

namespace maya {

struct ElementwiseShape {
  int elements_argument = -1;  // which parameter is the element count; -1: not an element-wise kernel
  int bytes_per_element = -1;  // read and written; -1: the name does not tell
};

// `name`: demangled. at::native::{vectorized_,unrolled_,}elementwise_kernel take the element count first
// (pytorch/aten/src/ATen/native/cuda/CUDALoops.cuh).
ElementwiseShape elementwise_shape(std::string_view name);

// Bytes of an element of the type that a kernel's name spells; -1: not a plain number.
int size_of_type(std::string_view type);

// The text between the bracket that `text` begins with and its partner.
std::string_view bracketed(std::string_view text);

}  // namespace maya
