// Decodes multi_tensor_apply_kernel<Metadata, Functor, Args..>(Metadata, Functor, Args..) of PyTorch's
// ATen/native/cuda/MultiTensorApply.cuh: lists of tensors, `depth` of them in parallel (core/tensor_lists.h).
// Functors are F<T, depth, read, result> (ForeachFunctors.cuh). An all-unknown list, the usual case, costs
// a look-up per tensor.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/tensor_lists.h"
#include "values/executor.h"
#include "values/functor.h"

namespace maya::values {
namespace {

TensorLists lists_of(const TensorListType& type, const Launch& launch) {
  return TensorLists(type, launch.args, launch.grid[0]);
}

bool computable(const std::byte* data, std::int64_t numel, ScalarType type) {
  const std::size_t bytes = static_cast<std::size_t>(numel) * size_of(type);
  return numel > 0 && bytes <= kSmallBytes && on_device(data, bytes) && known(data, bytes, content_of(type));
}

void forget_tensor(std::byte* data, std::int64_t numel, std::size_t element_bytes) {
  if (numel > 0) forget(data, static_cast<std::size_t>(numel) * element_bytes);
}

// Any functor: forgets the lists it may write.
class Forgetting : public Executor {
 public:
  Forgetting(const TensorListType& lists, int result, std::size_t element_bytes)
      : type_of_lists_(lists), result_(result), element_bytes_(element_bytes) {}

  bool run(const Launch& launch) const override {
    const TensorLists lists = lists_of(type_of_lists_, launch);
    for (std::size_t tensor = 0; tensor < lists.tensors(); ++tensor) {
      for (int list = 0; list < type_of_lists_.depth; ++list) {
        if (result_ >= 0 && list != result_) continue;
        forget_tensor(lists.address(list, tensor), lists.numel(tensor), element_bytes_);
      }
    }
    return true;
  }

 private:
  TensorListType type_of_lists_;
  int result_;  // -1: all
  std::size_t element_bytes_;
};

// BinaryOpScalarFunctor: result = op(list 0, scalar); the scalar is the last argument.
// BinaryOpScalarListFunctor: likewise, a scalar per tensor in the metadata.
// BinaryOpListAlphaFunctor: result = op(list 0, alpha * list 1); alpha is the last argument.
class Binary : public Executor {
 public:
  Binary(const TensorListType& lists, int result, ScalarType type, Functor functor, bool two_lists)
      : type_of_lists_(lists), result_(result), type_(type), functor_(functor), two_lists_(two_lists) {}

  bool run(const Launch& launch) const override {
    const TensorLists lists = lists_of(type_of_lists_, launch);
    for (std::size_t tensor = 0; tensor < lists.tensors(); ++tensor) {
      const std::int64_t numel = lists.numel(tensor);
      const auto* const first = lists.address(0, tensor);
      const auto* const second = two_lists_ ? lists.address(1, tensor) : first;
      auto* const result = lists.address(result_, tensor);
      if (!computable(first, numel, type_) || !computable(second, numel, type_)) {
        forget_tensor(result, numel, size_of(type_));
        continue;
      }
      compute(first, second, result, numel, scalar(launch, lists, tensor));
    }
    return true;
  }

 private:
  Lane scalar(const Launch& launch, const TensorLists& lists, std::size_t tensor) const {
    return load(functor_.compute, type_of_lists_.scalar_bytes ? lists.scalar(tensor) : launch.bytes(3));
  }

  void compute(const std::byte* first, const std::byte* second, std::byte* result, std::int64_t numel,
               Lane scalar) const {
    Output output(type_);
    for (std::int64_t at = 0; at < numel; ++at) {
      const std::size_t offset = static_cast<std::size_t>(at) * size_of(type_);
      Lane right = scalar;
      if (two_lists_) {
        const Lane other = load(type_, second + offset);
        if (is_float(type_)) right.f *= other.f;
        else right.i *= other.i;
      }
      const Lane operands[] = {load(type_, first + offset), right};
      const Lane value = apply(functor_, operands, 0);
      const ScalarType wide = is_float(functor_.compute) ? ScalarType::kDouble : ScalarType::kInt64;
      output.put(result + offset, cast(functor_.compute, type_, cast(wide, functor_.compute, value)));
    }
  }

  TensorListType type_of_lists_;
  int result_;
  ScalarType type_;
  Functor functor_;
  bool two_lists_;
};

// ZeroFunctor.
class Zero : public Executor {
 public:
  Zero(const TensorListType& lists, ScalarType type) : type_of_lists_(lists), type_(type) {}

  bool run(const Launch& launch) const override {
    const TensorLists lists = lists_of(type_of_lists_, launch);
    for (std::size_t tensor = 0; tensor < lists.tensors(); ++tensor) {
      auto* const data = lists.address(0, tensor);
      const auto bytes = static_cast<std::size_t>(lists.numel(tensor)) * size_of(type_);
      forget(data, bytes);  // zeroes it
      if (bytes <= kSmallBytes && on_device(data, bytes)) wrote(data, bytes, content_of(type_));
    }
    return true;
  }

 private:
  TensorListType type_of_lists_;
  ScalarType type_;
};

// _amp_foreach_non_finite_check_and_unscale_ (AmpKernels.cu): UnaryOpFunctor with a lambda
// {float* found_inf; const float* inv_scale}. A gradient nobody computed counts as finite, so what
// found_inf says stays known.
class Unscale : public Executor {
 public:
  Unscale(const TensorListType& lists, ScalarType type) : type_of_lists_(lists), type_(type) {}

  bool run(const Launch& launch) const override {
    auto* const found = read_at<std::byte*>(launch.bytes(2), 0);
    auto* const inverse = read_at<std::byte*>(launch.bytes(2), 8);
    const bool scale_known = computable(inverse, 1, ScalarType::kFloat);
    const TensorLists lists = lists_of(type_of_lists_, launch);
    for (std::size_t tensor = 0; tensor < lists.tensors(); ++tensor) {
      auto* const data = lists.address(0, tensor);
      const std::int64_t numel = lists.numel(tensor);
      if (!scale_known || !computable(data, numel, type_)) forget_tensor(data, numel, size_of(type_));
      else if (unscale(data, numel, load(ScalarType::kFloat, inverse).f)) report(found);
    }
    return true;
  }

 private:
  bool unscale(std::byte* data, std::int64_t numel, double inverse) const {
    bool found = false;
    for (std::int64_t at = 0; at < numel; ++at) {
      std::byte* const element = data + static_cast<std::size_t>(at) * size_of(type_);
      const double value = load(type_, element).f;
      found = found || !std::isfinite(value);
      store(type_, {.f = inverse == 1 ? value : value * inverse}, element);
    }
    return found;
  }

  static void report(std::byte* found) {
    if (!on_device(found, 4)) return;
    store(ScalarType::kFloat, {.f = 1}, found);
    wrote(found, 4, Content::kFloat);
  }

  TensorListType type_of_lists_;
  ScalarType type_;
};

// amp_update_scale_cuda_kernel(float* scale, int* tracker, const float* found_inf, double growth, double
// backoff, int interval) (AmpKernels.cu).
class UpdateScale : public Executor {
 public:
  bool run(const Launch& launch) const override {
    auto* const scale = launch.argument<std::byte*>(0);
    auto* const tracker = launch.argument<std::byte*>(1);
    auto* const found = launch.argument<std::byte*>(2);
    if (!computable(scale, 1, ScalarType::kFloat) || !computable(tracker, 1, ScalarType::kInt32) ||
        !computable(found, 1, ScalarType::kFloat)) {
      forget(scale, 4);
      forget(tracker, 4);
      return true;
    }
    const float before = read_at<float>(scale, 0);
    const bool infinite = read_at<float>(found, 0) != 0;
    std::int32_t successes = infinite ? 0 : read_at<std::int32_t>(tracker, 0) + 1;
    auto after = static_cast<float>(infinite ? before * launch.argument<double>(4) : before);
    if (successes == launch.argument<std::int32_t>(5)) {
      successes = 0;
      const auto grown = static_cast<float>(before * launch.argument<double>(3));
      if (std::isfinite(grown)) after = grown;
    }
    std::memcpy(scale, &after, sizeof after);
    std::memcpy(tracker, &successes, sizeof successes);
    return true;
  }
};

struct NamedOp {
  std::string_view name;
  Op op;
};
constexpr NamedOp kOps[] = {
    {"plus", Op::kAdd},        {"minus", Op::kSubtract},  {"multiplies", Op::kMultiply}, {"divides", Op::kDivide},
    {"maximum", Op::kMaximum}, {"minimum", Op::kMinimum}, {"power_functor", Op::kPower},
};

// The operation of `std::plus<float>` and its like on two operands of T.
std::optional<Functor> binary_functor(std::string_view operation) {
  const FunctorType type = parse_functor(operation);
  const auto compute = type.templates.empty() ? std::nullopt : scalar_type(type.templates[0]);
  if (!compute) return std::nullopt;
  const auto* const named = std::ranges::find(kOps, type.name, &NamedOp::name);
  if (named == std::end(kOps)) return std::nullopt;
  return Functor{.op = named->op, .sources = {}, .compute = *compute, .result = *compute};
}

std::unique_ptr<Executor> make_binary(const Signature& kernel, const TensorListType& lists, int result,
                                      ScalarType type) {
  const FunctorType functor = parse_functor(kernel.templates[1]);
  const bool alpha = functor.name == "BinaryOpListAlphaFunctor", list = functor.name == "BinaryOpScalarListFunctor";
  if (!alpha && !list && functor.name != "BinaryOpScalarFunctor") return nullptr;
  if (kernel.parameters.size() != (list ? 3u : 4u) || kernel.templates.size() < 3) return nullptr;
  const auto operation = binary_functor(kernel.templates[2]);
  return operation ? std::make_unique<Binary>(lists, result, type, *operation, alpha) : nullptr;
}

// lpnorm_cleanup<..>(const T* partial, TensorListAddresses {const void* addresses[]}, int chunks): the norm
// of tensor i goes to addresses[i], one block a tensor (ForeachReduceOp.cu).
class Norms : public Executor {
 public:
  bool run(const Launch& launch) const override {
    for (std::size_t tensor = 0; tensor < launch.grid[0]; ++tensor) {
      clobber(read_at<void*>(launch.bytes(1), 8 * tensor));
    }
    return true;
  }
};

}  // namespace

std::unique_ptr<Executor> make_foreach(const Signature& kernel) {
  if (kernel.name == "lpnorm_cleanup" || kernel.name == "lpmax_cleanup") {
    return kernel.parameters.size() == 3 ? std::make_unique<Norms>() : nullptr;
  }
  if (kernel.name == "amp_update_scale_cuda_kernel") {
    return kernel.parameters.size() == 6 ? std::make_unique<UpdateScale>() : nullptr;
  }
  if (kernel.name != "multi_tensor_apply_kernel" || kernel.templates.size() < 2) return nullptr;
  const TensorListType lists = tensor_list_type(kernel.templates[0]);
  const FunctorType functor = parse_functor(kernel.templates[1]);
  if (lists.depth == 0 || functor.templates.empty()) return nullptr;
  const bool norm =
      functor.name.starts_with("Lp") || functor.name.starts_with("L2Norm") || functor.name == "MaxNormFunctor";
  if (norm) return make_opaque(kernel);
  const auto type = scalar_type(functor.templates[0]);
  const bool regular = functor.templates.size() == 4 && decimal(functor.templates[1], -1) == lists.depth;
  const int result = regular ? decimal(functor.templates[3], -1) : -1;
  if (type && result >= 0 && result < lists.depth) {
    if (auto binary = make_binary(kernel, lists, result, *type)) return binary;
    if (functor.name == "ZeroFunctor") return std::make_unique<Zero>(lists, *type);
    if (kernel.templates.size() > 2 &&
        parse_functor(kernel.templates[2]).name == "_amp_foreach_non_finite_check_and_unscale_cuda_") {
      return std::make_unique<Unscale>(lists, *type);
    }
  }
  return std::make_unique<Forgetting>(lists, result, type ? size_of(*type) : 8);
}

}  // namespace maya::values
