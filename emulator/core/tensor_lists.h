// multi_tensor_apply_kernel, behind torch._foreach_* and the optimizers: lists of tensors in one launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace maya {

// The type of the parameter that holds the lists: the first (ATen/native/cuda/MultiTensorApply.cuh), or with Apex and
// Transformer Engine the third, after the elements of a chunk and a flag (Apex, csrc/multi_tensor_apply.cuh).
struct TensorListType {
  int depth = 0;         // lists; 0: not such a kernel
  bool apex = false;     // laid out as Apex does, Transformer Engine too
  int scalar_bytes = 0;  // of the scalar that goes with each tensor, 0: none
  bool steps = false;    // fused optimizers: a pointer to a step count goes with each tensor
};
TensorListType tensor_list_type(std::string_view parameter);         // its demangled type
TensorListType tensor_list_type_of_kernel(std::string_view kernel);  // by its demangled name

// The lists of one launch. Without tensors or elements when they lie in no way that is known.
class TensorLists {
 public:
  TensorLists(const TensorListType& type, void* const* args, std::uint32_t blocks);

  std::size_t tensors() const { return tensors_; }  // numbered from 0
  std::byte* address(int list, std::size_t tensor) const;
  std::int64_t numel(std::size_t tensor) const;
  const std::byte* scalar(std::size_t tensor) const;
  std::uint64_t elements() const { return elements_; }  // that the blocks take from each list

 private:
  // addresses[depth][room], element counts[room], then scalars[room] or pointers to step counts, then each block's
  // tensor and chunk. Offsets in bytes.
  struct Layout {
    std::size_t room, numel, numel_bytes, scalars, scalar_bytes, block_to_tensor, block_to_chunk, blocks, index_bytes;
  };
  static Layout layout(const TensorListType& type, bool large);
  static std::int64_t numel_at(const std::byte* metadata, const Layout& at, std::size_t tensor);
  bool read(const TensorListType& type, bool large);

  const std::byte* metadata_;
  std::uint32_t blocks_;
  std::int64_t chunk_ = 65536;  // elements
  Layout at_{};
  std::size_t tensors_ = 0;
  std::uint64_t elements_ = 0;
};

}  // namespace maya
