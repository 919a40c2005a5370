// cuDNN's recurrent layers: descriptors, where the weights lie, sizes. Prototypes: cudnn_adv.h and cudnn_ops.h of
// cuDNN 9.
#include "math/cudnn_rnn.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "core/process.h"
#include "core/recorder.h"
#include "math/cudnn_descriptor.h"
#include "math/cudnn_handle.h"
#include "math/cudnn_pool.h"
#include "math/cudnn_tensor.h"
#include "values/values.h"

namespace maya::math::cudnn {
namespace {

Status set_dropout(Dropout* dropout, float probability) {
  if (find_dropout(dropout) == nullptr) return Status::kBadParam;
  dropout->probability = probability;
  return Status::kSuccess;
}

// A matrix or a bias of one gate, in elements from the weights' start.
struct Place {
  std::int64_t offset = 0;
  std::int64_t rows = 0, columns = 0;  // no columns: there is none
};

// The matrices of a pseudo-layer lie together, those of the input before those of the hidden state before the
// projection; the biases of all follow in the same order. PyTorch only asks that gates be contiguous.
Place matrix_place(const Recurrent& layers, int pseudo_layer, int gate) {
  const int layer = pseudo_layer / layers.directions, gates = layers.gates();
  Place place{.rows = layers.hidden, .columns = gate < gates ? layers.input_of(layer) : layers.output()};
  for (int before = 0; before < pseudo_layer; ++before)
    place.offset += layers.matrix_elements(before / layers.directions);
  const std::int64_t inputs = layers.input_of(layer) * layers.hidden, states = layers.output() * layers.hidden;
  place.offset += std::min(gate, gates) * inputs + std::max(gate - gates, 0) * states;
  if (gate == 2 * gates) place.rows = layers.projects() ? layers.projection : 0, place.columns = layers.hidden;
  return place;
}

Place bias_place(const Recurrent& layers, int pseudo_layer, int gate) {
  const int gates = layers.gates(), biases = layers.biases();
  const bool of_input = gate < gates;
  const bool there =
      gate < 2 * gates && (biases == 2 || (biases == 1 && of_input == (layers.bias == RecurrentBias::kInput)));
  Place place{.rows = layers.hidden, .columns = there ? 1 : 0};
  for (int each = 0; each < layers.layers * layers.directions; ++each)
    place.offset += layers.matrix_elements(each / layers.directions);
  const int ordinal = pseudo_layer * biases * gates + (biases == 2 ? gate : gate % gates);
  place.offset += std::int64_t{ordinal} * layers.hidden;
  return place;
}

void tell(const Place& place, std::int32_t type, const void* weights, Tensor* tensor, void** address) {
  const bool there = place.rows > 0 && place.columns > 0;
  if (address != nullptr) {
    const auto start = reinterpret_cast<std::uintptr_t>(weights);
    const auto bytes = static_cast<std::uintptr_t>(place.offset * dtype_bytes(type));
    *address = there ? reinterpret_cast<void*>(start + bytes) : nullptr;
  }
  if (find_tensor(tensor) == nullptr) return;
  if (there) tensor->set_contiguous(type, {1, static_cast<int>(place.rows), static_cast<int>(place.columns)});
  else *tensor = Tensor{};
}

}  // namespace

std::int64_t Recurrent::weight_elements() const {
  std::int64_t elements = std::int64_t{layers} * directions * biases() * gates() * hidden;
  for (int layer = 0; layer < layers; ++layer) elements += directions * matrix_elements(layer);
  return elements;
}

std::int64_t Sequences::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

std::int64_t Sequences::elements() const {
  return (packed() ? tokens() : std::int64_t{longest} * static_cast<std::int64_t>(lengths.size())) * width;
}

std::vector<std::int64_t> Sequences::alive() const {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(longest));
  for (const int length : lengths) {
    for (int step = 0; step < std::min(length, longest); ++step) ++counts[static_cast<std::size_t>(step)];
  }
  return counts;
}

Dropout* find_dropout(const void* handle) { return pool<Dropout>().find(handle); }
Recurrent* find_recurrent(const void* handle) { return pool<Recurrent>().find(handle); }
Sequences* find_sequences(const void* handle) { return pool<Sequences>().find(handle); }

}  // namespace maya::math::cudnn

using maya::Call;
using maya::math::cudnn::Dropout;
using maya::math::cudnn::Handle;
using maya::math::cudnn::Recurrent;
using maya::math::cudnn::Sequences;
using maya::math::cudnn::Status;
using maya::math::cudnn::Tensor;
namespace cudnn = maya::math::cudnn;

extern "C" {

// ---- dropout ----

Status cudnnCreateDropoutDescriptor(Dropout** dropout) { return cudnn::create(dropout); }
Status cudnnDestroyDropoutDescriptor(Dropout* dropout) { return cudnn::destroy(dropout); }

// A state of cuRAND's XORWOW, 48 bytes, for each thread that fits on the device.
Status cudnnDropoutGetStatesSize(const Handle*, std::size_t* bytes) {
  if (bytes == nullptr) return Status::kBadParamNullPointer;
  const maya::RankConfig& device = maya::rank_config();
  *bytes = std::size_t{48} * static_cast<std::size_t>(device.multiprocessors * device.max_threads_per_multiprocessor);
  return Status::kSuccess;
}

Status cudnnSetDropoutDescriptor(Dropout* dropout, const Handle*, float probability, void* states, std::size_t bytes,
                                 unsigned long long) {
  const Call call;
  if (states != nullptr) maya::values::forget(states, bytes);
  return cudnn::set_dropout(dropout, probability);
}

Status cudnnRestoreDropoutDescriptor(Dropout* dropout, const Handle*, float probability, void*, std::size_t,
                                     unsigned long long) {
  return cudnn::set_dropout(dropout, probability);
}

// ---- descriptors ----

Status cudnnCreateRNNDescriptor(Recurrent** layers) { return cudnn::create(layers); }
Status cudnnDestroyRNNDescriptor(Recurrent* layers) { return cudnn::destroy(layers); }

Status cudnnSetRNNDescriptor_v8(Recurrent* layers, std::int32_t algorithm, cudnn::Cell cell, cudnn::RecurrentBias bias,
                                std::int32_t direction, std::int32_t input_mode, std::int32_t type, std::int32_t,
                                std::int32_t math_type, std::int32_t input, std::int32_t hidden,
                                std::int32_t projection, std::int32_t count, const Dropout* dropout, std::uint32_t) {
  constexpr std::int32_t kSkipInput = 1;
  if (cudnn::find_recurrent(layers) == nullptr || hidden <= 0 || input <= 0 || count <= 0) return Status::kBadParam;
  if (input_mode == kSkipInput) {
    maya::refuse("cudnn", "cudnnSetRNNDescriptor_v8 (CUDNN_SKIP_INPUT)");
    return Status::kNotSupported;
  }
  const Dropout* known = cudnn::find_dropout(dropout);
  *layers = Recurrent{.algorithm = algorithm,
                      .cell = cell,
                      .bias = bias,
                      .directions = direction + 1,
                      .type = type,
                      .math_type = math_type,
                      .input = input,
                      .hidden = hidden,
                      .projection = projection,
                      .layers = count,
                      .dropout = known == nullptr ? 0 : known->probability};
  return Status::kSuccess;
}

Status cudnnCreateRNNDataDescriptor(Sequences** data) { return cudnn::create(data); }
Status cudnnDestroyRNNDataDescriptor(Sequences* data) { return cudnn::destroy(data); }

Status cudnnSetRNNDataDescriptor(Sequences* data, std::int32_t type, std::int32_t layout, int longest, int batch,
                                 int width, const int* lengths, const void*) {
  if (cudnn::find_sequences(data) == nullptr || longest < 0 || batch < 0) return Status::kBadParam;
  if (lengths == nullptr) return Status::kBadParamNullPointer;
  *data = Sequences{
      .type = type, .layout = layout, .longest = longest, .width = width, .lengths = {lengths, lengths + batch}};
  return Status::kSuccess;
}

// ---- weights and sizes ----

Status cudnnGetRNNWeightSpaceSize(const Handle*, const Recurrent* layers, std::size_t* bytes) {
  if (cudnn::find_recurrent(layers) == nullptr) return Status::kBadParam;
  if (bytes == nullptr) return Status::kBadParamNullPointer;
  *bytes = static_cast<std::size_t>(layers->weight_elements() * cudnn::dtype_bytes(layers->type));
  return Status::kSuccess;
}

Status cudnnGetRNNWeightParams(const Handle*, const Recurrent* layers, std::int32_t pseudo_layer, std::size_t,
                               const void* weights, std::int32_t gate, Tensor* matrix, void** matrix_address,
                               Tensor* bias, void** bias_address) {
  const Call call;
  if (cudnn::find_recurrent(layers) == nullptr) return Status::kBadParam;
  if (pseudo_layer < 0 || pseudo_layer >= layers->layers * layers->directions || gate < 0 ||
      gate > 2 * layers->gates()) {
    return Status::kBadParam;
  }
  cudnn::tell(cudnn::matrix_place(*layers, pseudo_layer, gate), layers->type, weights, matrix, matrix_address);
  cudnn::tell(cudnn::bias_place(*layers, pseudo_layer, gate), layers->type, weights, bias, bias_address);
  return Status::kSuccess;
}

// cuDNN does not say what it keeps. The backward pass needs the gates and the state of each token and layer, the
// outputs of the inner layers and what dropout let through; while a layer runs, its input's products are at hand.
Status cudnnGetRNNTempSpaceSizes(const Handle*, const Recurrent* layers, std::int32_t mode, const Sequences* input,
                                 std::size_t* workspace, std::size_t* reserve) {
  constexpr std::int32_t kTraining = 1;
  if (cudnn::find_recurrent(layers) == nullptr || cudnn::find_sequences(input) == nullptr) return Status::kBadParam;
  const std::int64_t element = cudnn::dtype_bytes(layers->type);
  const std::int64_t token = std::int64_t{layers->directions} * layers->hidden * element;
  const std::int64_t tokens = input->elements() / std::max(input->width, 1);
  const std::int64_t kept = layers->gates() + 2;
  if (workspace != nullptr) *workspace = static_cast<std::size_t>(tokens * token * layers->gates());
  if (reserve != nullptr)
    *reserve = mode == kTraining ? static_cast<std::size_t>(tokens * token * kept * layers->layers) : 0;
  return Status::kSuccess;
}

}  // extern "C"
