// What the names and parameters of PyTorch's element-wise kernels say about their traffic.
#pragma once

#include <cstdint>
#include <string_view>

namespace maya {

struct ElementwiseShape {
  int elements_argument = -1;  // which parameter is the element count; -1: not an element-wise kernel
  int bytes_per_element = -1;  // read and written; -1: the name does not tell
};

// `name`: demangled. at::native::{vectorized_,unrolled_,}elementwise_kernel take the element count first
// (pytorch/aten/src/ATen/native/cuda/CUDALoops.cuh).
ElementwiseShape elementwise_shape(std::string_view name);

// multi_tensor_apply_kernel, behind torch._foreach_* and the optimizers: lists of tensors in one launch.
struct MultiTensorShape {
  int depth = 0;         // lists; 0: not such a kernel
  int scalar_bytes = 0;  // of the scalar that goes with each tensor, 0: none
  bool steps = false;    // fused optimizers: a pointer to a step count goes with each tensor
};
MultiTensorShape multi_tensor_shape(std::string_view name);

// Elements that `blocks` blocks take from each list; `metadata`: the kernel's first parameter.
std::uint64_t multi_tensor_elements(const MultiTensorShape& shape, const void* metadata, std::uint32_t blocks);

}  // namespace maya
