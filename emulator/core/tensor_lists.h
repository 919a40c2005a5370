// multi_tensor_apply_kernel, behind torch._foreach_* and the optimizers: lists of tensors in one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace maya {

// The type of the kernel's first parameter (ATen/native/cuda/MultiTensorApply.cuh).
struct TensorListType {
  int depth = 0;         // lists; 0: not such a kernel
  int scalar_bytes = 0;  // of the scalar that goes with each tensor, 0: none
  bool steps = false;    // fused optimizers: a pointer to a step count goes with each tensor
};
TensorListType tensor_list_type(std::string_view parameter);           // its demangled type
TensorListType tensor_list_type_of_kernel(std::string_view kernel);  // by its demangled name

// The first parameter of one launch. Without tensors or elements when it lies in no way that is known.
class TensorLists {
 public:
  TensorLists(const TensorListType& type, const void* metadata, std::uint32_t blocks);

  std::size_t tensors() const { return tensors_; }  // numbered from 0
  std::byte* address(int list, std::size_t tensor) const;
  std::int64_t numel(std::size_t tensor) const;
  const std::byte* scalar(std::size_t tensor) const;
  std::uint64_t elements() const { return elements_; }  // that the blocks take from each list

 private:
  struct Layout;
  static Layout layout(const TensorListType& type, bool large);
  bool read(const TensorListType& type, bool large);

  const std::byte* metadata_;
  std::uint32_t blocks_;
  std::size_t room_ = 0, numel_ = 0, scalars_ = 0, scalar_bytes_ = 0;  // tensors there is room for; offsets
  std::size_t tensors_ = 0;
  std::uint64_t elements_ = 0;
};

}  // namespace maya
