// cuDNN's CTC loss: descriptors, and what it runs. Prototypes: cudnn_adv.h of cuDNN 9.
//
// Graves, Fernandez, Gomez, Schmidhuber, "Connectionist Temporal Classification", 2006: forward and backward variables
// over a lattice of time steps and labels with blanks between them (equations 6 and 10), a time step after the other,
// and from both the gradient of each probability (equation 16). cuDNN gives loss and gradient in one call.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
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

struct CtcLoss {
  std::int32_t type = 0;
  int longest_label = 0;  // 0: not told
};

CtcLoss* find_ctc_loss(const void* handle) { return pool<CtcLoss>().find(handle); }

Status set_ctc_loss(CtcLoss* loss, std::int32_t type, int longest_label) {
  if (find_ctc_loss(loss) == nullptr) return Status::kBadParam;
  *loss = {type, longest_label};
  return Status::kSuccess;
}

// Of a batch: probabilities [steps, sequences, alphabet].
struct Lattice {
  std::int64_t steps = 0, sequences = 0, alphabet = 0, labels = 0, item = 4;

  std::int64_t bytes() const { return steps * sequences * (2 * labels + 1) * item; }
  std::int64_t probability_bytes() const { return steps * sequences * alphabet * item; }
};

Lattice lattice(const Tensor& probabilities, int longest_label) {
  return {probabilities.sizes[0], probabilities.sizes[1], probabilities.sizes[2], longest_label,
          dtype_bytes(probabilities.type)};
}

int longest(const int* lengths, int sequences) {
  const std::span all(lengths, static_cast<std::size_t>(std::max(sequences, 0)));
  return all.empty() ? 0 : *std::max_element(all.begin(), all.end());
}

// cuDNN does not say what it keeps: both variables of the lattice, and the probabilities after their softmax.
Status workspace(const Tensor* probabilities, int longest_label, std::size_t* bytes) {
  if (find_tensor(probabilities) == nullptr) return Status::kBadParam;
  if (bytes == nullptr) return Status::kBadParamNullPointer;
  const Lattice over = lattice(*probabilities, longest_label);
  *bytes = static_cast<std::size_t>(2 * over.bytes() + over.probability_bytes());
  return Status::kSuccess;
}

// A block a sequence walks its lattice forth and back; then each probability has its gradient.
Status run(const Handle* handle, const Tensor* probabilities, int longest_label, void* costs, void* gradients) {
  constexpr int kThreads = 256;
  if (find_handle(handle) == nullptr || find_tensor(probabilities) == nullptr) return Status::kBadParam;
  const Lattice over = lattice(*probabilities, longest_label);
  const auto item = static_cast<std::size_t>(over.item);
  if (costs != nullptr) values::forget(costs, static_cast<std::size_t>(over.sequences) * item);
  const std::string steps = "cudnn::ctc_loss_steps_" + std::to_string(over.steps);
  const int passes = gradients == nullptr ? 1 : 2;
  for (int pass = 0; pass < passes; ++pass)
    record_memory_bound(steps, over.sequences, kThreads, 2 * over.bytes(), handle->stream);
  if (gradients == nullptr) return Status::kSuccess;
  values::forget(gradients, static_cast<std::size_t>(over.probability_bytes()));
  record_memory_bound("cudnn::ctc_loss_gradient", over.steps * over.sequences, kThreads,
                      2 * over.probability_bytes() + 2 * over.bytes(), handle->stream);
  return Status::kSuccess;
}

}  // namespace
}  // namespace maya::math::cudnn

using maya::Call;
using maya::math::cudnn::CtcLoss;
using maya::math::cudnn::Handle;
using maya::math::cudnn::Status;
using maya::math::cudnn::Tensor;
namespace cudnn = maya::math::cudnn;

extern "C" {

Status cudnnCreateCTCLossDescriptor(CtcLoss** loss) { return cudnn::create(loss); }
Status cudnnDestroyCTCLossDescriptor(CtcLoss* loss) { return cudnn::destroy(loss); }

Status cudnnSetCTCLossDescriptorEx(CtcLoss* loss, std::int32_t type, std::int32_t, std::int32_t) {
  return cudnn::set_ctc_loss(loss, type, 0);
}

Status cudnnSetCTCLossDescriptor_v8(CtcLoss* loss, std::int32_t type, std::int32_t, std::int32_t, int longest_label) {
  return cudnn::set_ctc_loss(loss, type, longest_label);
}

Status cudnnSetCTCLossDescriptor_v9(CtcLoss* loss, std::int32_t type, std::int32_t, std::int32_t, int longest_label) {
  return cudnn::set_ctc_loss(loss, type, longest_label);
}

// ---- labels and lengths on the host ----

Status cudnnGetCTCLossWorkspaceSize(const Handle*, const Tensor* probabilities, const Tensor*, const int*,
                                    const int* label_lengths, const int*, std::int32_t, const CtcLoss*,
                                    std::size_t* bytes) {
  if (cudnn::find_tensor(probabilities) == nullptr) return Status::kBadParam;
  return cudnn::workspace(probabilities, cudnn::longest(label_lengths, probabilities->sizes[1]), bytes);
}

Status cudnnCTCLoss(const Handle* handle, const Tensor* probabilities, const void*, const int*,
                    const int* label_lengths, const int*, void* costs, const Tensor*, void* gradients, std::int32_t,
                    const CtcLoss*, void*, std::size_t) {
  const Call call;
  if (cudnn::find_tensor(probabilities) == nullptr) return Status::kBadParam;
  return cudnn::run(handle, probabilities, cudnn::longest(label_lengths, probabilities->sizes[1]), costs, gradients);
}

// ---- on the device: the descriptor has the longest that may be ----

Status cudnnGetCTCLossWorkspaceSize_v8(const Handle*, std::int32_t, const CtcLoss* loss, const Tensor* probabilities,
                                       const Tensor*, std::size_t* bytes) {
  if (cudnn::find_ctc_loss(loss) == nullptr) return Status::kBadParam;
  return cudnn::workspace(probabilities, loss->longest_label, bytes);
}

Status cudnnCTCLoss_v8(const Handle* handle, std::int32_t, const CtcLoss* loss, const Tensor* probabilities,
                       const void*, const int*, const int* label_lengths, const int*, void* costs, const Tensor*,
                       void* gradients, std::size_t, void*) {
  const Call call;
  if (cudnn::find_ctc_loss(loss) == nullptr || cudnn::find_tensor(probabilities) == nullptr) return Status::kBadParam;
  const int sequences = probabilities->sizes[1];
  const std::size_t bytes = static_cast<std::size_t>(sequences) * sizeof *label_lengths;
  const bool known = maya::values::known(label_lengths, bytes, maya::values::Content::kInteger);
  const int longest = known ? cudnn::longest(label_lengths, sequences) : loss->longest_label;
  return cudnn::run(handle, probabilities, longest, costs, gradients);
}

}  // extern "C"
