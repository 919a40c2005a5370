// Prototypes: cudnn_ops.h of cuDNN 9.
#include "math/cudnn_tensor.h"

#include <algorithm>
#include <cstddef>

#include "math/cudnn_descriptor.h"
#include "math/cudnn_handle.h"
#include "math/cudnn_pool.h"

namespace maya::math::cudnn {

std::int64_t Tensor::bytes() const {
  std::int64_t elements = rank > 0 ? 1 : 0;
  for (int i = 0; i < rank; ++i) elements *= sizes[static_cast<std::size_t>(i)];
  return elements * dtype_bytes(type);
}

void Tensor::set_contiguous(std::int32_t of, std::initializer_list<int> dimensions) {
  type = of;
  rank = static_cast<int>(dimensions.size());
  std::ranges::copy(dimensions, sizes.begin());
  int stride = 1;
  for (std::size_t i = dimensions.size(); i-- > 0; stride *= sizes[i]) strides[i] = stride;
}

Tensor* find_tensor(const void* handle) { return pool<Tensor>().find(handle); }

}  // namespace maya::math::cudnn

using maya::math::cudnn::Status;
using maya::math::cudnn::Tensor;
namespace cudnn = maya::math::cudnn;

extern "C" {

Status cudnnCreateTensorDescriptor(Tensor** tensor) { return cudnn::create(tensor); }
Status cudnnDestroyTensorDescriptor(Tensor* tensor) { return cudnn::destroy(tensor); }

Status cudnnSetTensorNdDescriptor(Tensor* tensor, std::int32_t type, int rank, const int* sizes, const int* strides) {
  if (cudnn::find_tensor(tensor) == nullptr || rank < 0 || rank > cudnn::kMostDimensions) return Status::kBadParam;
  if (sizes == nullptr || strides == nullptr) return Status::kBadParamNullPointer;
  tensor->type = type;
  tensor->rank = rank;
  std::copy_n(sizes, rank, tensor->sizes.begin());
  std::copy_n(strides, rank, tensor->strides.begin());
  return Status::kSuccess;
}

Status cudnnGetTensorNdDescriptor(const Tensor* tensor, int room, std::int32_t* type, int* rank, int* sizes,
                                  int* strides) {
  if (cudnn::find_tensor(tensor) == nullptr) return Status::kBadParam;
  if (type == nullptr || rank == nullptr) return Status::kBadParamNullPointer;
  *type = tensor->type;
  *rank = tensor->rank;
  const int count = std::min(room, tensor->rank);
  if (sizes != nullptr) std::copy_n(tensor->sizes.begin(), count, sizes);
  if (strides != nullptr) std::copy_n(tensor->strides.begin(), count, strides);
  return Status::kSuccess;
}

}  // extern "C"
