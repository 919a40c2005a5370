// The older API's tensor descriptors (cudnnTensorDescriptor_t), which normalisation and recurrent layers share.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

namespace maya::math::cudnn {

inline constexpr int kMostDimensions = 8;  // CUDNN_DIM_MAX

struct Tensor {
  std::int32_t type = 0;
  int rank = 0;
  std::array<int, kMostDimensions> sizes{}, strides{};

  std::int64_t bytes() const;
  void set_contiguous(std::int32_t of, std::initializer_list<int> dimensions);
};

Tensor* find_tensor(const void* handle);  // nullptr: destroyed or foreign

}  // namespace maya::math::cudnn
