// Decodes the kernels of PyTorch 2.6 to 2.11 that add or multiply up rows, and computes them: cumsum and cumprod
// (aten/src/ATen/native/cuda/ScanUtils.cuh, cub's DeviceScan).
#include <string>

#include "values/executor.h"

namespace maya::values {
namespace {

// A running sum or product of rows:
//   tensor_kernel_scan_innermost_dim<T, Op>(T* to, const T* from, unsigned rows, unsigned row, unsigned, T, Op)
//   tensor_kernel_scan_outer_dim<T, I, Op>(T* to, const T* from, unsigned outer, unsigned inner, unsigned row, ..)
//   cub DeviceScanKernel<..>(const T* from, T* to, ScanTileState, int, Op, Init, I count): one row
class Scan : public Executor {
 public:
  enum class Form : std::uint8_t { kInnermost, kOuter, kCub };
  Scan(ScalarType type, Form form, bool product, std::size_t count_bytes = 4, int count_at = 6)
      : type_(type), form_(form), product_(product), count_bytes_(count_bytes), count_at_(count_at) {}

  bool run(const Launch& launch) const override {
    auto* const to = launch.argument<std::byte*>(form_ == Form::kCub ? 1 : 0);
    auto* const from = launch.argument<std::byte*>(form_ == Form::kCub ? 0 : 1);
    std::int64_t outer = 1, inner = 1, row = 0;
    if (form_ == Form::kCub) {
      row = count_bytes_ == 8 ? launch.argument<std::int64_t>(count_at_) : launch.argument<std::uint32_t>(count_at_);
    } else {
      outer = launch.argument<std::uint32_t>(2);
      const std::int64_t third = launch.argument<std::uint32_t>(3);
      if (form_ == Form::kOuter) inner = third;
      row = form_ == Form::kOuter ? launch.argument<std::uint32_t>(4) : third;
    }
    const std::size_t bytes = size_of(type_), all = static_cast<std::size_t>(outer * inner * row) * bytes;
    if (all == 0 || !on_device(to, all)) return false;
    if (!on_device(from, all) || !known(from, all, content_of(type_, outer * inner * row)) ||
        !computes(outer * inner * row, type_, Derivation::picked())) {
      if (Derivation::picked()) lose("a running sum of " + std::to_string(outer * inner * row) + " elements");
      forget(to, all);
      return true;
    }
    for (std::int64_t line = 0; line < outer * inner; ++line) {
      scan(from, to, line / inner * row * inner + line % inner, inner, row);
    }
    wrote(to, all, content_of(type_, outer * inner * row));
    return true;
  }

 private:
  void scan(const std::byte* from, std::byte* to, std::int64_t first, std::int64_t step, std::int64_t row) const {
    Lane sum = is_float(type_) ? Lane{.f = product_ ? 1.0 : 0.0} : Lane{.i = product_ ? 1 : 0};
    for (std::int64_t at = 0; at < row; ++at) {
      const auto offset = static_cast<std::size_t>(first + at * step) * size_of(type_);
      const Lane value = load(type_, from + offset);
      if (is_float(type_)) sum.f = product_ ? sum.f * value.f : sum.f + value.f;
      else
        sum.i = static_cast<std::int64_t>(
            product_ ? static_cast<std::uint64_t>(sum.i) * static_cast<std::uint64_t>(value.i)
                     : static_cast<std::uint64_t>(sum.i) + static_cast<std::uint64_t>(value.i));
      store(type_, sum, to + offset);
    }
  }

  ScalarType type_;
  Form form_;
  bool product_;
  std::size_t count_bytes_;
  int count_at_;
};

// "std::plus<long>", "cuda::std::__4::plus<void>": 1; multiplies: 2; else 0.
int scan_operation(std::string_view type) {
  const auto name = parse_functor(type).name;
  return name == "plus" ? 1 : name == "multiplies" ? 2 : 0;
}

}  // namespace

std::unique_ptr<Executor> make_scan(const Signature& kernel) {
  const bool cub = kernel.name == "DeviceScanKernel", outer = kernel.name == "tensor_kernel_scan_outer_dim";
  if (!cub && !outer && kernel.name != "tensor_kernel_scan_innermost_dim") return nullptr;
  if (cub && kernel.parameters.size() != 7) return nullptr;
  if (!cub && kernel.templates.size() < 2) return nullptr;
  const int operation = scan_operation(cub ? kernel.parameters[4] : kernel.templates.back());
  std::string_view element = cub ? kernel.parameters[1] : kernel.templates[0];
  if (cub && element.ends_with('*')) element.remove_suffix(1);
  const auto type = scalar_type(element);
  if (operation == 0 || !type) return nullptr;
  if (cub) {
    const auto count = scalar_type(kernel.parameters[6]);
    const bool same = kernel.parameters[0].starts_with(element);
    if (!count || !same) return nullptr;
    return std::make_unique<Scan>(*type, Scan::Form::kCub, operation == 2, size_of(*count), 6);
  }
  return std::make_unique<Scan>(*type, outer ? Scan::Form::kOuter : Scan::Form::kInnermost, operation == 2);
}

}  // namespace maya::values
