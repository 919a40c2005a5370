// What cuDNN's recurrent layers run: a product with the input of all steps at once, then step after step a product with
// the hidden state and a cell (Appleyard, Kocisky, Blunsom, "Optimizing Performance of Recurrent Neural Networks on
// GPUs", 2016, whose first optimisations these are). The persistent algorithms keep the weights on chip and have the
// cell in the same kernel. Layers follow each other here; cuDNN lets them overlap where the device has room.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/process.h"
#include "core/recorder.h"
#include "math/cudnn_descriptor.h"
#include "math/cudnn_handle.h"
#include "math/cudnn_rnn.h"
#include "math/cudnn_tensor.h"
#include "math/gemm.h"
#include "math/memory_bound.h"
#include "values/values.h"

namespace maya::math::cudnn {
namespace {

DataType matrix_type(std::int32_t type) {
  const std::string_view name = dtype(type);
  if (name == "fp64") return DataType::kR64F;
  if (name == "fp16") return DataType::kR16F;
  return name == "bf16" ? DataType::kR16BF : DataType::kR32F;
}

ComputeType compute_type(const Recurrent& layers) {
  constexpr std::int32_t kFusedMultiplyAdd = 3;  // CUDNN_FMA_MATH: no tensor cores
  const DataType type = matrix_type(layers.type);
  if (type == DataType::kR64F) return ComputeType::k64F;
  const bool tf32 = type == DataType::kR32F && layers.math_type != kFusedMultiplyAdd && rank_config().major >= 8;
  return tf32 ? ComputeType::k32FFastTF32 : ComputeType::k32F;
}

const char* cell_name(Cell cell) {
  switch (cell) {
    case Cell::kLstm: return "LSTM";
    case Cell::kGru: return "GRU";
    default: return "RNN";
  }
}

constexpr std::string_view kAssumed =
    "cuDNN's recurrent layers are timed as a product and a cell for each step, layer after layer: how its persistent "
    "kernels fare and how far its layers overlap is not known";

// One call's kernels, in the order in which they run on one stream.
class Pass {
 public:
  Pass(const Handle& handle, const Recurrent& layers, const Sequences& input)
      : stream_(handle.stream), layers_(layers), tokens_(input.tokens()), alive_(input.alive()) {
    note_once(kAssumed);
  }

  void forward(bool training) const {
    for (int layer = 0; layer < layers_.layers; ++layer) {
      for (int direction = 0; direction < layers_.directions; ++direction) {
        product(gate_rows(), tokens_, layers_.input_of(layer), true, false);
        for (const std::int64_t sequences : alive_) {
          product(gate_rows(), sequences, layers_.output(), true, false);
          cell(sequences, "forward", layers_.gates() * (training ? 3 : 2) + 3);
          if (layers_.projects()) product(layers_.output(), sequences, layers_.hidden, true, false);
        }
      }
      if (training) drop(layer);
    }
  }

  void backward_data() const {
    for (int layer = layers_.layers; layer-- > 0;) {
      for (int direction = 0; direction < layers_.directions; ++direction) {
        for (const std::int64_t sequences : alive_) {
          if (layers_.projects()) product(layers_.hidden, sequences, layers_.output(), false, false);
          cell(sequences, "backward", layers_.gates() * 2 + 4);
          product(layers_.output(), sequences, gate_rows(), false, false);
        }
        product(layers_.input_of(layer), tokens_, gate_rows(), false, false);
      }
      if (layer > 0) drop(layer - 1);
    }
  }

  void backward_weights() const {
    for (int layer = layers_.layers; layer-- > 0;) {
      for (int direction = 0; direction < layers_.directions; ++direction) {
        product(layers_.input_of(layer), gate_rows(), tokens_, false, true);
        product(layers_.output(), gate_rows(), tokens_, false, true);
        if (layers_.projects()) product(layers_.hidden, layers_.output(), tokens_, false, true);
        if (layers_.biases() > 0) kernel("cudnn::ops::bias_reduction_kernel", tokens_ * gate_rows());
      }
    }
  }

 private:
  std::int64_t gate_rows() const { return std::int64_t{layers_.gates()} * layers_.hidden; }

  void product(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a, bool transpose_b) const {
    const DataType type = matrix_type(layers_.type);
    Gemm gemm{.m = m, .n = n, .k = k, .a = type, .b = type, .c = type, .compute = compute_type(layers_)};
    gemm.transpose_a = transpose_a ? 1 : 0;
    gemm.transpose_b = transpose_b ? 1 : 0;
    gemm.library = Library::kCudnn;
    record_gemm(gemm, {}, stream_);
  }

  // `passes` over vectors of the hidden size: gates of both products and those kept, states read and written.
  void cell(std::int64_t sequences, const char* direction, std::int64_t passes) const {
    if (layers_.algorithm != 0) return;
    kernel(std::string("cudnn::") + cell_name(layers_.cell) + "_elementWise_" + direction,
           sequences * layers_.hidden * passes);
  }

  // Between layers, not after the last.
  void drop(int layer) const {
    if (layers_.dropout == 0 || layer + 1 == layers_.layers) return;
    kernel("cudnn::dropout_elementWise", 2 * tokens_ * layers_.directions * layers_.output());
  }

  void kernel(const std::string& name, std::int64_t elements) const {
    if (elements == 0) return;
    constexpr int kThreads = 256;
    const std::int64_t blocks = (elements + kThreads - 1) / kThreads;
    record_memory_bound(name, blocks, kThreads, elements * dtype_bytes(layers_.type), stream_);
  }

  void* stream_;
  const Recurrent& layers_;
  std::int64_t tokens_;
  std::vector<std::int64_t> alive_;  // [steps] sequences that reach it
};

void forget(const Sequences* data, void* values) {
  if (values == nullptr || find_sequences(data) == nullptr) return;
  values::forget(values, static_cast<std::size_t>(data->elements() * dtype_bytes(data->type)));
}

void forget(const Tensor* tensor, void* values) {
  if (values == nullptr || find_tensor(tensor) == nullptr) return;
  values::forget(values, static_cast<std::size_t>(tensor->bytes()));
}

// Runs `act` with the pass of a call whose handles are live.
Status with_pass(const Handle* handle, const Recurrent* layers, const Sequences* input, auto&& act) {
  const Handle* live = find_handle(handle);
  if (live == nullptr) return Status::kNotInitialized;
  if (find_recurrent(layers) == nullptr || find_sequences(input) == nullptr) return Status::kBadParam;
  act(Pass(*live, *layers, *input));
  return Status::kSuccess;
}

}  // namespace
}  // namespace maya::math::cudnn

using maya::Call;
using maya::math::cudnn::Handle;
using maya::math::cudnn::Recurrent;
using maya::math::cudnn::Sequences;
using maya::math::cudnn::Status;
using maya::math::cudnn::Tensor;
namespace cudnn = maya::math::cudnn;

extern "C" {

Status cudnnRNNForward(const Handle* handle, const Recurrent* layers, std::int32_t mode, const std::int32_t*,
                       const Sequences* input, const void*, const Sequences* output, void* y, const Tensor* states,
                       const void*, void* hy, const Tensor* cells, const void*, void* cy, std::size_t, const void*,
                       std::size_t, void*, std::size_t, void*) {
  constexpr std::int32_t kTraining = 1;
  const Call call;
  return cudnn::with_pass(handle, layers, input, [&](const cudnn::Pass& pass) {
    pass.forward(mode == kTraining);
    cudnn::forget(output, y);
    cudnn::forget(states, hy);
    cudnn::forget(cells, cy);
  });
}

Status cudnnRNNBackwardData_v8(const Handle* handle, const Recurrent* layers, const std::int32_t*, const Sequences*,
                               const void*, const void*, const Sequences* input, void* dx, const Tensor* states,
                               const void*, const void*, void* dhx, const Tensor* cells, const void*, const void*,
                               void* dcx, std::size_t, const void*, std::size_t, void*, std::size_t, void*) {
  const Call call;
  return cudnn::with_pass(handle, layers, input, [&](const cudnn::Pass& pass) {
    pass.backward_data();
    cudnn::forget(input, dx);
    cudnn::forget(states, dhx);
    cudnn::forget(cells, dcx);
  });
}

Status cudnnRNNBackwardWeights_v8(const Handle* handle, const Recurrent* layers, std::int32_t, const std::int32_t*,
                                  const Sequences* input, const void*, const Tensor*, const void*, const Sequences*,
                                  const void*, std::size_t bytes, void* gradients, std::size_t, void*, std::size_t,
                                  void*) {
  const Call call;
  return cudnn::with_pass(handle, layers, input, [&](const cudnn::Pass& pass) {
    pass.backward_weights();
    if (gradients != nullptr) maya::values::forget(gradients, bytes);
  });
}

}  // extern "C"
