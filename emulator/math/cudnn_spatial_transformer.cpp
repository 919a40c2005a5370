// cuDNN's spatial transformer: a grid from an affine matrix, and a bilinear sample of an image at each of its points
// (Jaderberg, Simonyan, Zisserman, Kavukcuoglu, "Spatial Transformer Networks", 2015). Prototypes: cudnn_ops.h of
// cuDNN 9. All of it is bound by memory: neighbours of a point are taken to be in cache.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/recorder.h"
#include "math/cudnn_descriptor.h"
#include "math/cudnn_handle.h"
#include "math/cudnn_pool.h"
#include "math/cudnn_tensor.h"
#include "math/memory_bound.h"
#include "values/values.h"

namespace maya::math::cudnn {
namespace {

// Of what is sampled: [images, channels, height, width].
struct SpatialTransformer {
  std::int32_t type = 0;
  int images = 0, height = 0, width = 0;

  std::int64_t points() const { return std::int64_t{images} * height * width; }
  std::int64_t grid_bytes() const { return 2 * points() * dtype_bytes(type); }
  std::int64_t matrix_bytes() const { return std::int64_t{6} * images * dtype_bytes(type); }
};

SpatialTransformer* find_transformer(const void* handle) { return pool<SpatialTransformer>().find(handle); }

// What a kernel writes.
struct Extent {
  void* data;
  std::int64_t bytes;
};

Status run(const Handle* handle, const SpatialTransformer* transformer, const char* name, std::int64_t read,
           std::initializer_list<Extent> written) {
  constexpr int kThreads = 256;
  if (find_handle(handle) == nullptr || find_transformer(transformer) == nullptr) return Status::kBadParam;
  std::int64_t moved = read;
  for (const auto& [data, bytes] : written) {
    if (data != nullptr) values::forget(data, static_cast<std::size_t>(bytes));
    moved += bytes;
  }
  const std::int64_t blocks = std::max<std::int64_t>(transformer->points() / kThreads, 1);
  record_memory_bound(std::string("cudnn::spatial_transformer_") + name, blocks, kThreads, moved, handle->stream);
  return Status::kSuccess;
}

}  // namespace
}  // namespace maya::math::cudnn

using maya::Call;
using maya::math::cudnn::Handle;
using maya::math::cudnn::SpatialTransformer;
using maya::math::cudnn::Status;
using maya::math::cudnn::Tensor;
namespace cudnn = maya::math::cudnn;

extern "C" {

Status cudnnCreateSpatialTransformerDescriptor(SpatialTransformer** transformer) { return cudnn::create(transformer); }
Status cudnnDestroySpatialTransformerDescriptor(SpatialTransformer* transformer) { return cudnn::destroy(transformer); }

Status cudnnSetSpatialTransformerNdDescriptor(SpatialTransformer* transformer, std::int32_t, std::int32_t type,
                                              int dimensions, const int* sizes) {
  if (cudnn::find_transformer(transformer) == nullptr || dimensions != 4) return Status::kBadParam;
  if (sizes == nullptr) return Status::kBadParamNullPointer;
  *transformer = {.type = type, .images = sizes[0], .height = sizes[2], .width = sizes[3]};
  return Status::kSuccess;
}

Status cudnnSpatialTfGridGeneratorForward(const Handle* handle, const SpatialTransformer* transformer, const void*,
                                          void* grid) {
  const Call call;
  if (cudnn::find_transformer(transformer) == nullptr) return Status::kBadParam;
  return cudnn::run(handle, transformer, "grid", transformer->matrix_bytes(), {{grid, transformer->grid_bytes()}});
}

Status cudnnSpatialTfGridGeneratorBackward(const Handle* handle, const SpatialTransformer* transformer, const void*,
                                           void* matrix_gradient) {
  const Call call;
  if (cudnn::find_transformer(transformer) == nullptr) return Status::kBadParam;
  return cudnn::run(handle, transformer, "grid_backward", transformer->grid_bytes(),
                    {{matrix_gradient, transformer->matrix_bytes()}});
}

Status cudnnSpatialTfSamplerForward(const Handle* handle, const SpatialTransformer* transformer, const void*,
                                    const Tensor* x, const void*, const void*, const void*, const Tensor* y,
                                    void* output) {
  const Call call;
  if (cudnn::find_transformer(transformer) == nullptr || cudnn::find_tensor(x) == nullptr ||
      cudnn::find_tensor(y) == nullptr) {
    return Status::kBadParam;
  }
  return cudnn::run(handle, transformer, "sample", x->bytes() + transformer->grid_bytes(), {{output, y->bytes()}});
}

// Each point adds to its four neighbours' gradients, which are read besides.
Status cudnnSpatialTfSamplerBackward(const Handle* handle, const SpatialTransformer* transformer, const void*,
                                     const Tensor* x, const void*, const void*, const Tensor* dx, void* input_gradient,
                                     const void*, const Tensor* dy, const void*, const void*, const void*,
                                     void* grid_gradient) {
  const Call call;
  if (cudnn::find_transformer(transformer) == nullptr || cudnn::find_tensor(x) == nullptr ||
      cudnn::find_tensor(dx) == nullptr || cudnn::find_tensor(dy) == nullptr) {
    return Status::kBadParam;
  }
  const std::int64_t read = x->bytes() + dx->bytes() + dy->bytes() + transformer->grid_bytes();
  return cudnn::run(handle, transformer, "sample_backward", read,
                    {{input_gradient, dx->bytes()}, {grid_gradient, transformer->grid_bytes()}});
}

}  // extern "C"
