// cuDNN's batch normalisation, which PyTorch asks of the older API. Prototypes: cudnn_ops.h of cuDNN 9.
#include <array>
#include <cstdint>
#include <span>

#include "core/recorder.h"
#include "math/cudnn_descriptor.h"
#include "math/cudnn_handle.h"
#include "math/cudnn_tensor.h"
#include "math/memory_bound.h"
#include "values/values.h"

namespace maya::math::cudnn {
namespace {

// Normalisation is bound by memory: `read` and `written` are passed over once each. Its statistics take a
// second look at the input, which the kernels find in cache where it fits.
Status record_pass(const Handle* handle, const char* name, std::span<const Tensor* const> read, const Tensor* written,
                   void* output) {
  const Call call;
  const Handle* live = find_handle(handle);
  if (live == nullptr) return Status::kNotInitialized;
  if (find_tensor(written) == nullptr) return Status::kBadParam;
  std::int64_t bytes = written->bytes();
  for (const Tensor* tensor : read) {
    if (find_tensor(tensor) == nullptr) return Status::kBadParam;
    bytes += tensor->bytes();
  }
  constexpr int kThreads = 512;
  record_memory_bound(name, written->sizes[1], kThreads, bytes, live->stream);  // a block a channel
  values::forget(output, static_cast<std::size_t>(written->bytes()));
  return Status::kSuccess;
}

Status no_bytes(std::size_t* bytes) {
  if (bytes == nullptr) return Status::kBadParamNullPointer;
  *bytes = 0;
  return Status::kSuccess;
}

}  // namespace
}  // namespace maya::math::cudnn

using maya::math::cudnn::Handle;
using maya::math::cudnn::Status;
using maya::math::cudnn::Tensor;
namespace cudnn = maya::math::cudnn;

extern "C" {

// ---- sizes: nothing is kept between forward and backward but the statistics ----

Status cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(const Handle*, int, int, const Tensor*, const Tensor*,
                                                                const Tensor*, const Tensor*, const void*,
                                                                std::size_t* bytes) {
  return cudnn::no_bytes(bytes);
}

Status cudnnGetBatchNormalizationBackwardExWorkspaceSize(const Handle*, int, int, const Tensor*, const Tensor*,
                                                         const Tensor*, const Tensor*, const Tensor*, const Tensor*,
                                                         const void*, std::size_t* bytes) {
  return cudnn::no_bytes(bytes);
}

Status cudnnGetBatchNormalizationTrainingExReserveSpaceSize(const Handle*, int, int, const void*, const Tensor*,
                                                            std::size_t* bytes) {
  return cudnn::no_bytes(bytes);
}

// ---- passes ----

Status cudnnBatchNormalizationForwardTrainingEx(const Handle* handle, int, int, const void*, const void*,
                                                const Tensor* x, const void*, const Tensor* z, const void*,
                                                const Tensor* y, void* output, const Tensor*, const void*, const void*,
                                                double, void*, void*, double, void*, void*, const void*, void*,
                                                std::size_t, void*, std::size_t) {
  const std::array<const Tensor*, 2> read{x, z};
  return cudnn::record_pass(handle, "cudnn::bn_fw_tr_1C11_kernel", std::span(read).first(z == nullptr ? 1 : 2), y,
                            output);
}

Status cudnnBatchNormalizationForwardInference(const Handle* handle, int, const void*, const void*, const Tensor* x,
                                               const void*, const Tensor* y, void* output, const Tensor*, const void*,
                                               const void*, const void*, const void*, double) {
  const std::array<const Tensor*, 1> read{x};
  return cudnn::record_pass(handle, "cudnn::bn_fw_inf_1C11_kernel", read, y, output);
}

Status cudnnBatchNormalizationBackwardEx(const Handle* handle, int, int, const void*, const void*, const void*,
                                         const void*, const Tensor* x, const void*, const Tensor*, const void*,
                                         const Tensor* dy, const void*, const Tensor*, void*, const Tensor* dx,
                                         void* output, const Tensor*, const void*, const void*, void*, void*, double,
                                         const void*, const void*, const void*, void*, std::size_t, void*,
                                         std::size_t) {
  const std::array<const Tensor*, 2> read{x, dy};
  return cudnn::record_pass(handle, "cudnn::bn_bw_1C11_kernel", read, dx, output);
}

}  // extern "C"
