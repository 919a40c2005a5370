// cuFFT, as PyTorch's transforms use it: plans of up to three dimensions, many at a time. Prototypes: cufft.h and
// cufftXt.h of CUDA 13.
//
// A transform is bound by memory: a pass over all of it for each dimension, more for one that does not fit on a
// multiprocessor (cuFFT's documentation names no numbers; 8192 complex fp32 take 64 KiB).
#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/recorder.h"
#include "math/memory_bound.h"
#include "math/types.h"
#include "values/values.h"

namespace maya::math::cufft {
namespace {

enum class Status : std::int32_t { kSuccess = 0, kInvalidPlan = 1, kInvalidValue = 4, kNotSupported = 16 };

struct Plan {
  void* stream = nullptr;
  DataType input = DataType::kC32F, output = DataType::kC32F;
  std::int64_t batch = 0;
  std::vector<std::int64_t> sizes;

  bool complex(DataType type) const {
    return type == DataType::kC16F || type == DataType::kC32F || type == DataType::kC64F;
  }

  // Of a real transform the other half of the last dimension is its mirror.
  std::int64_t elements(DataType type) const {
    const bool halved = complex(type) && !(complex(input) && complex(output));
    std::int64_t product = batch;
    for (std::size_t i = 0; i < sizes.size(); ++i)
      product *= halved && i + 1 == sizes.size() ? sizes[i] / 2 + 1 : sizes[i];
    return product;
  }
  std::size_t bytes(DataType type) const { return static_cast<std::size_t>(elements(type)) * dtype_bytes(type); }
};

class Plans {
 public:
  int create() {
    const std::lock_guard lock(mutex_);
    plans_[++last_] = std::make_shared<Plan>();
    return last_;
  }
  std::shared_ptr<Plan> find(int handle) {
    const std::lock_guard lock(mutex_);
    const auto at = plans_.find(handle);
    return at == plans_.end() ? nullptr : at->second;
  }
  bool destroy(int handle) {
    const std::lock_guard lock(mutex_);
    return plans_.erase(handle) > 0;
  }

 private:
  std::mutex mutex_;  // protects what follows
  std::map<int, std::shared_ptr<Plan>> plans_;
  int last_ = 0;
};

Plans& plans() {
  static auto* const instance = new Plans;  // outlives every caller's destructor
  return *instance;
}

Status with_plan(int handle, auto&& act) {
  const std::shared_ptr<Plan> plan = plans().find(handle);
  return plan == nullptr ? Status::kInvalidPlan : act(*plan);
}

bool has_large_prime(std::int64_t size) {
  constexpr std::int64_t kLargestKernel = 127;  // cuFFT documentation, "Bluestein's algorithm"
  for (std::int64_t factor = 2; factor <= kLargestKernel; ++factor)
    while (size % factor == 0) size /= factor;
  return size > 1;
}

// Passes over the data for one dimension.
int passes(std::int64_t size) {
  constexpr std::int64_t kOnChip = 8192;
  // Bluestein's algorithm: two transforms of at least twice the length and a product between them.
  if (has_large_prime(size))
    return 4 * passes(static_cast<std::int64_t>(std::bit_ceil(2 * static_cast<std::uint64_t>(size)))) + 2;
  int count = 1;
  for (std::int64_t left = size; left > kOnChip; left = (left + kOnChip - 1) / kOnChip) ++count;
  return count;
}

int passes(const Plan& plan) {
  int count = 0;
  for (const std::int64_t size : plan.sizes) count += passes(size);
  return std::max(count, 1);
}

// The first pass reads the input, the last one writes the output; what lies between them is as large as the complex
// side.
void run(const Plan& plan, void* to) {
  const std::size_t whole = std::max(plan.bytes(plan.input), plan.bytes(plan.output));
  std::string shape;
  for (const std::int64_t size : plan.sizes) shape += (shape.empty() ? "" : "x") + std::to_string(size);
  const int count = passes(plan);
  for (int pass = 0; pass < count; ++pass) {
    const std::size_t read = pass == 0 ? plan.bytes(plan.input) : whole;
    const std::size_t written = pass == count - 1 ? plan.bytes(plan.output) : whole;
    const std::string name = "cufft_" + std::string(dtype_name(plan.input)) + "_" +
                             std::string(dtype_name(plan.output)) + "_" + shape + "_pass" + std::to_string(pass + 1);
    constexpr int kThreads = 256, kElementsABlock = 1024;
    const std::int64_t blocks = std::max<std::int64_t>(plan.elements(plan.output) / kElementsABlock, 1);
    record_memory_bound(name, blocks, kThreads, static_cast<std::int64_t>(read + written), plan.stream);
  }
  values::forget(to, plan.bytes(plan.output));
}

}  // namespace
}  // namespace maya::math::cufft

using maya::Call;
using maya::math::DataType;
using maya::math::cufft::Plan;
using maya::math::cufft::plans;
using maya::math::cufft::Status;
using maya::math::cufft::with_plan;

extern "C" {

Status cufftCreate(int* handle) {
  if (handle == nullptr) return Status::kInvalidValue;
  *handle = plans().create();
  return Status::kSuccess;
}

Status cufftDestroy(int handle) { return plans().destroy(handle) ? Status::kSuccess : Status::kInvalidPlan; }

Status cufftSetAutoAllocation(int handle, int) {
  return with_plan(handle, [](Plan&) { return Status::kSuccess; });
}

Status cufftSetWorkArea(int handle, void*) {
  return with_plan(handle, [](Plan&) { return Status::kSuccess; });
}

Status cufftSetStream(int handle, void* stream) {
  return with_plan(handle, [&](Plan& plan) {
    plan.stream = stream;
    return Status::kSuccess;
  });
}

// The strides of dimensions and batches are PyTorch's own: it has copied what is not laid out as the plan says.
Status cufftXtMakePlanMany(int handle, int rank, const long long* sizes, const long long*, long long, long long,
                           DataType input, const long long*, long long, long long, DataType output, long long batch,
                           std::size_t* work, DataType) {
  if (rank < 1 || rank > 3 || sizes == nullptr || batch < 1) return Status::kInvalidValue;
  if (maya::math::dtype_bytes(input) == 0 || maya::math::dtype_bytes(output) == 0) return Status::kNotSupported;
  return with_plan(handle, [&](Plan& plan) {
    plan.input = input;
    plan.output = output;
    plan.batch = batch;
    plan.sizes.assign(sizes, sizes + rank);
    // Passes between the first and the last go there.
    const bool several = maya::math::cufft::passes(plan) > 1;
    if (work != nullptr) *work = several ? std::max(plan.bytes(input), plan.bytes(output)) : 0;
    return Status::kSuccess;
  });
}

Status cufftXtExec(int handle, void*, void* output, int) {
  const Call call;
  return with_plan(handle, [&](Plan& plan) {
    maya::math::cufft::run(plan, output);
    return Status::kSuccess;
  });
}

}  // extern "C"
