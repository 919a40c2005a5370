// Decodes the element-wise kernels of PyTorch's ATen/native/cuda/CUDALoops.cuh (2.6 to 2.15) and computes
// the functors of functor.h:
//   vectorized_elementwise_kernel<vec, F, std::array<char*, k>>(int N, F f, std::array<char*, k> data)
//     (2.15 has a fourth template argument)
//   unrolled_elementwise_kernel<F, array, .., InputCalculator, OutputCalculator, Loader, Storer>
//     (int N, F f, array data, InputCalculator ic, OutputCalculator oc, Loader l, Storer s)
//   elementwise_kernel<nt, vt, L>(int N, L f), L the lambda of
//     gpu_kernel_impl_nocast<F>: {OffsetCalculator<k>, std::array<char*, k>, F}
//     gpu_kernel_impl<F>:        {OffsetCalculator<k>, std::array<char*, k>, F, std::array<ScalarType, k>}
//   elementwise_kernel_with_index<I, F>(I N, F f, T* out) (RangeFactories.cu)
// data[0] is the output. k = 1 + the functor's number of tensor operands.
#include "core/elementwise.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>

#include "values/evaluation.h"
#include "values/formula.h"
#include "values/geometry.h"
#include "values/mover.h"

namespace maya::values {
namespace {

using Operands = std::array<Operand, kMaxOperands>;

class Elementwise : public Executor {
 public:
  Elementwise(std::optional<Functor> functor, std::size_t guessed_bytes)
      : functor_(functor), result_bytes_(functor ? size_of(functor->result) : guessed_bytes) {}

 protected:
  // data[0] the output; its and the inputs' types in memory where they are cast, else the functor's.
  bool compute(const Geometry& geometry, const std::byte* object, const std::byte* data,
               const std::int8_t* types) const {
    auto* const out = read_at<std::byte*>(data, 0);
    if (geometry.numel <= 0 || !on_device(out, 1)) return false;
    Operands operands;
    const bool collected = functor_ && collect(data, types, operands);
    if (collected && selects_numbers_as_bits(operands)) return move_selected(geometry, operands);
    if (collected && !computable(geometry, operands, object)) return leave(geometry, operands, object);
    if (!collected) {
      const std::size_t bytes = types != nullptr ? type_bytes(types[0]) : result_bytes_;
      forget_operand(geometry, 0, out, bytes);
      return true;
    }
    if (fills_with_zero(geometry, operands, object) || copies_large(geometry, operands)) return true;
    // Ones to be counted; truth values that are alike need not be stored.
    const bool fills = functor_->tensors == 0 && operands[0].type != ScalarType::kBool;
    const bool copies = functor_->op == Op::kCopy && (fills || functor_->tensors > 0);
    if (large(geometry, operands) && !copies && !Derivation::picked()) return leave(geometry, operands, object);
    if (fills && fills_large(geometry, operands, object)) return true;
    evaluate(geometry, operands, object);
    return true;
  }

  int tensors() const { return functor_ ? functor_->tensors : 0; }
  const std::optional<Functor>& functor() const { return functor_; }
  std::size_t result_bytes() const { return result_bytes_; }

  // The element sizes of the output and the inputs, uncast.
  std::array<std::size_t, kMaxOperands> element_bytes() const {
    std::array<std::size_t, kMaxOperands> bytes{result_bytes_};
    int tensor = 1;
    if (functor_) {
      for (const Source& source : functor_->operands()) {
        if (source.tensor) bytes[tensor++] = size_of(source.type);
      }
    }
    return bytes;
  }

 private:
  void evaluate(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    constexpr std::size_t kMost = Evaluation::kMost;
    const auto tensors = static_cast<std::size_t>(functor_->tensors);
    std::array<std::array<Lane, kMost>, kMaxOperands - 1> inputs;
    std::array<ScalarType, kMaxOperands - 1> types;
    std::array<Lane, kMost> results;
    std::array<std::byte*, kMost> to;
    std::size_t count = 0;
    for (std::size_t at = 0; at < tensors; ++at) types[at] = operands[at + 1].type;
    Evaluation evaluation(*functor_, object);
    Output output(operands[0].type, content_of(operands[0].type, geometry.numel));
    const auto compute_gathered = [&] {
      evaluation.of_each({inputs.data(), tensors}, {types.data(), tensors}, std::span(results).first(count));
      for (std::size_t i = 0; i < count; ++i) {
        output.put(to[i], cast(functor_->result, operands[0].type, results[i]));
      }
      count = 0;
    };
    walk(geometry, functor_->tensors + 1, [&](const auto& offsets) {
      for (std::size_t at = 0; at < tensors; ++at) {
        inputs[at][count] = load(types[at], operands[at + 1].data + offsets[at + 1]);
      }
      to[count++] = operands[0].data + offsets[0];
      if (count == kMost) compute_gathered();
    });
    if (count > 0) compute_gathered();
  }

  static std::size_t type_bytes(std::int8_t number) {
    const auto type = scalar_type(number);
    return type ? size_of(*type) : 1;
  }

  bool collect(const std::byte* data, const std::int8_t* types, Operands& operands) const {
    int at = 0;
    const auto add = [&](ScalarType uncast) {
      const auto type = types != nullptr ? scalar_type(types[at]) : std::optional(uncast);
      if (!type) return false;
      operands[at] = {read_at<std::byte*>(data, 8 * static_cast<std::size_t>(at)), *type};
      ++at;
      return true;
    };
    if (!add(functor_->result)) return false;
    return std::ranges::all_of(functor_->operands(),
                               [&](const Source& source) { return !source.tensor || add(source.type); });
  }

  // PyTorch 2.15's where takes its numbers for unsigned integers of their size.
  bool selects_numbers_as_bits(const Operands& operands) const {
    if (functor_->op != Op::kWhere || functor_->tensors != 3 || is_float(functor_->result)) return false;
    return std::ranges::any_of(std::array{operands[2], operands[3]}, [](const Operand& chosen) {
      const Content content = content_at(chosen.data);
      return content == Content::kFloat || content == Content::kCountableFloat;
    });
  }

  bool move_selected(const Geometry& geometry, const Operands& operands) const {
    const std::size_t bytes = size_of(operands[0].type);
    if (!small(geometry.numel, bytes) || !known_operand(geometry, 1, operands[1])) {
      Derivation::settle();
      forget_operand(geometry, 0, operands[0]);
      return true;
    }
    Mover mover(bytes);
    walk(geometry, 4, [&](const auto& offsets) {
      const int chosen = load(operands[1].type, operands[1].data + offsets[1]).i != 0 ? 2 : 3;
      mover.move(operands[0].data + offsets[0], operands[chosen].data + offsets[chosen]);
    });
    return true;
  }

  // Computes nothing; truth values that are alike are told as such, and others as what they follow from.
  bool leave(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    if (const auto value = same_for_all(geometry, operands, object)) {
      forget_alike(operands[0].data, static_cast<std::size_t>(geometry.numel), *value);
    } else if (const auto formula = formula_of(geometry, operands, object)) {
      forget_as({formula, 0}, operands[0].data, formula->bytes());
    } else {
      if (follows_from_picks(geometry, operands)) lose(std::to_string(geometry.numel) + " integers or truth values");
      Derivation::settle();
      forget_operand(geometry, 0, operands[0]);
    }
    return true;
  }

  // Integers or truth values that are known but for their number.
  bool follows_from_picks(const Geometry& geometry, const Operands& operands) const {
    if (is_float(operands[0].type) || functor_->tensors == 0) return false;
    for (int at = 1; at <= functor_->tensors; ++at) {
      const auto& [data, type] = operands[at];
      const std::int64_t span = extent(geometry, at, size_of(type));
      if (span <= 0 || !on_device(data, 1)) return false;
      if (!formula_at(data, static_cast<std::size_t>(span)).formula && !known_operand(geometry, at, operands[at])) {
        return false;
      }
    }
    return Derivation::picked();
  }

  static constexpr std::int64_t kMostOperations = 64;  // of a formula's element

  // nullptr: not integers or truth values that follow from known ones.
  std::shared_ptr<const Formula> formula_of(const Geometry& geometry, const Operands& operands,
                                            const std::byte* object) const {
    if (is_float(operands[0].type) || functor_->tensors == 0 || !in_order(geometry, operands[0])) return nullptr;
    std::vector<Formula::Input> inputs;
    for (int at = 1; at <= functor_->tensors; ++at) {
      const auto& [data, type] = operands[at];
      const std::int64_t span = extent(geometry, at, size_of(type));
      if (span <= 0 || !on_device(data, static_cast<std::size_t>(span))) return nullptr;
      const auto bytes = static_cast<std::size_t>(span);
      auto [formula, first] = formula_at(data, bytes);
      Formula::Input& input = inputs.emplace_back(Formula::Input{type, {}, std::move(formula), first});
      if (input.formula && input.formula->type() == type) continue;
      if (input.formula || bytes > kCountableBytes || !known_operand(geometry, at, operands[at])) return nullptr;
      if (Derivation::scored()) return nullptr;
      input.stored.assign(data, data + bytes);
    }
    const auto formula =
        std::make_shared<const Formula>(*functor_, object, geometry, operands[0].type, std::move(inputs));
    // A counter that is counted up in place follows from all that it was.
    return formula->operations() <= kMostOperations ? formula : nullptr;
  }

  // Whether the output is dense, and its elements lie as they are walked.
  static bool in_order(const Geometry& geometry, const Operand& out) {
    auto stride = static_cast<std::int64_t>(size_of(out.type));
    for (int dim = 0; dim < geometry.dims; ++dim) {
      if (geometry.sizes[dim] > 1 && geometry.strides[0][dim] != stride) return false;
      stride *= geometry.sizes[dim];
    }
    return on_device(out.data, static_cast<std::size_t>(stride));
  }

  // Of truth values: whether numbers are finite, which those are that nobody computed, and what is made of answers.
  std::optional<bool> same_for_all(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    const auto& [out, type] = operands[0];
    if (functor_->result != ScalarType::kBool || type != ScalarType::kBool) return std::nullopt;
    if (extent(geometry, 0, 1) != geometry.numel || !on_device(out, static_cast<std::size_t>(geometry.numel))) {
      return std::nullopt;
    }
    std::array<std::array<Lane, Evaluation::kMost>, kMaxOperands - 1> values;
    for (auto& each : values) each[0] = {};
    for (int at = 1; at <= functor_->tensors && !asks_whether_finite(geometry, operands, object); ++at) {
      if (operands[at].type != ScalarType::kBool) return std::nullopt;
      const auto value = alike(operands[at].data, static_cast<std::size_t>(extent(geometry, at, 1)));
      if (!value) return std::nullopt;
      values[at - 1][0].i = *value;
    }
    const std::array<ScalarType, kMaxOperands - 1> types{ScalarType::kBool, ScalarType::kBool, ScalarType::kBool,
                                                         ScalarType::kBool};
    std::array<Lane, 1> result;
    Evaluation(*functor_, object).of_each(values, types, result);
    return result[0].i != 0;
  }

  // isnan(x) is x != x, isfinite(x) is x == x and |x| != inf, isinf(x) is |x| == inf, and some ask |x| < inf: a number
  // nobody computed counts as finite, and so the answer is known.
  bool asks_whether_finite(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    if (functor_->op == Op::kIsNan || functor_->op == Op::kIsInfinite) return true;
    if ((functor_->op != Op::kEqual && functor_->op != Op::kLess) || !is_float(functor_->compute)) return false;
    if (functor_->tensors == 2) {
      return operands[1].data == operands[2].data && geometry.strides[1] == geometry.strides[2];
    }
    return std::ranges::any_of(functor_->operands(), [&](const Source& source) {
      return !source.tensor && std::isinf(load(source.type, object + source.offset).f);
    });
  }

  bool computable(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    const bool known_or_not = asks_whether_finite(geometry, operands, object);
    const bool countable = !known_or_not && countable_result(operands[0].type, object);
    for (int at = 0; at <= functor_->tensors; ++at) {
      if (!computes(geometry.numel, operands[at].type, countable)) return false;
      const std::int64_t span = extent(geometry, at, size_of(operands[at].type));
      if (span <= 0 || !on_device(operands[at].data, static_cast<std::size_t>(span))) return false;
      if (at > 0 && !known_or_not && !known_operand(geometry, at, operands[at])) return false;
    }
    return true;
  }

  // Integers, truth values, and floating-point numbers that are copied from them, or zero.
  bool countable_result(ScalarType result, const std::byte* object) const {
    if (!is_float(result)) return true;
    if (functor_->op != Op::kCopy) return false;
    const Source& source = functor_->sources[0];
    return source.tensor || load(source.type, object + source.offset).f == 0;
  }

  // What is forgotten reads zero: a large tensor is not touched.
  bool fills_with_zero(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    const Operand& out = operands[0];
    if (functor_->op != Op::kCopy || functor_->tensors > 0 || !dense(geometry, out)) return false;
    const std::int64_t bytes = geometry.numel * static_cast<std::int64_t>(size_of(out.type));
    const Source& source = functor_->sources[0];
    const Lane value = load(source.type, object + source.offset);
    if (is_float(source.type) ? value.f != 0 || std::signbit(value.f) : value.i != 0) return false;
    forget(out.data, static_cast<std::size_t>(bytes));
    wrote(out.data, static_cast<std::size_t>(bytes), content_of(out.type, geometry.numel));
    return true;
  }

  // Whether the output is dense, in whatever order its elements are walked.
  static bool dense(const Geometry& geometry, const Operand& out) {
    const std::size_t bytes = size_of(out.type);
    return extent(geometry, 0, bytes) == geometry.numel * static_cast<std::int64_t>(bytes);
  }

  // Of no use unless it follows from picks, as a mask of attention does not; and slow.
  bool large(const Geometry& geometry, const Operands& operands) const {
    return static_cast<std::size_t>(geometry.numel) * size_of(operands[0].type) > kSmallBytes;
  }

  // A large fill, two orders of magnitude faster than by lanes: torch.use_deterministic_algorithms fills whatever is
  // allocated, byte by byte where it is FP8.
  bool fills_large(const Geometry& geometry, const Operands& operands, const std::byte* object) const {
    const Operand& out = operands[0];
    if (functor_->op != Op::kCopy || !large(geometry, operands) || !dense(geometry, out)) return false;
    const std::size_t element = size_of(out.type), bytes = static_cast<std::size_t>(geometry.numel) * element;
    std::array<Lane, 1> value;
    Evaluation(*functor_, object).of_each({}, {}, value);
    store(out.type, cast(functor_->result, out.type, value[0]), out.data);
    for (std::size_t done = element; done < bytes; done += std::min(done, bytes - done)) {
      std::memcpy(out.data + done, out.data, std::min(done, bytes - done));
    }
    wrote(out.data, bytes, content_of(out.type, geometry.numel));
    return true;
  }

  // A large copy or cast, an order of magnitude faster than by lanes.
  bool copies_large(const Geometry& geometry, const Operands& operands) const {
    const auto& [out, in] = std::pair(operands[0], operands[1]);
    const auto bytes = geometry.numel * static_cast<std::int64_t>(size_of(out.type));
    const ScalarType between = functor_->sources[0].type;
    if (functor_->op != Op::kCopy || functor_->tensors != 1 || (between != out.type && between != in.type) ||
        functor_->result != out.type || !large(geometry, operands) || !dense(geometry, out)) {
      return false;
    }
    bool copied = false;
    with_countable(in.type, [&](auto from) {
      copied = with_countable(out.type, [&](auto to) {
        walk(geometry, 2, [&](const auto& offsets) {
          std::memcpy(&from, in.data + offsets[1], sizeof from);
          to = static_cast<decltype(to)>(from);
          std::memcpy(out.data + offsets[0], &to, sizeof to);
        });
      });
    });
    if (copied) wrote(out.data, static_cast<std::size_t>(bytes), content_of(out.type, geometry.numel));
    return copied;
  }

  std::optional<Functor> functor_;
  std::size_t result_bytes_;
};

class Vectorized : public Elementwise {
 public:
  using Elementwise::Elementwise;
  bool run(const Launch& launch) const override {
    const auto bytes = element_bytes();
    const auto geometry = contiguous(launch.argument<std::int32_t>(0), bytes);
    return compute(geometry, launch.bytes(1), launch.bytes(2), nullptr);
  }
};

class Unrolled : public Elementwise {
 public:
  Unrolled(std::optional<Functor> functor, std::size_t guessed_bytes, int inputs, bool strided, bool loads_cast,
           bool stores_cast)
      : Elementwise(functor, guessed_bytes),
        inputs_(inputs),
        strided_(strided),
        loads_cast_(loads_cast),
        stores_cast_(stores_cast) {}

  bool run(const Launch& launch) const override {
    auto bytes = element_bytes();
    std::array<std::int8_t, kMaxOperands> types{};
    if (!read_types(launch, types, bytes)) return false;
    auto geometry = contiguous(launch.argument<std::int32_t>(0), bytes);
    // The calculators count elements (make_input_offset_calculator, Loops.cuh).
    if (strided_ && (!read_calculator(launch.bytes(4), 1, 0, &bytes[0], geometry) ||
                     !read_calculator(launch.bytes(3), inputs_, 1, &bytes[1], geometry))) {
      return false;
    }
    const bool casts = loads_cast_ || stores_cast_;
    return compute(geometry, launch.bytes(1), launch.bytes(2), casts ? types.data() : nullptr);
  }

 private:
  // LoadWithCast<k> {std::array<ScalarType, k> dtypes; std::array<uint32_t, k> element_sizes}; StoreWithCast
  // likewise (MemoryAccess.cuh).
  bool read_types(const Launch& launch, std::array<std::int8_t, kMaxOperands>& types,
                  std::array<std::size_t, kMaxOperands>& bytes) const {
    if (!loads_cast_ && !stores_cast_) return true;
    if (!loads_cast_ || !stores_cast_) return false;
    types[0] = read_at<std::int8_t>(launch.bytes(6), 0);
    bytes[0] = read_at<std::uint32_t>(launch.bytes(6), 4);
    const std::size_t sizes = align_up(static_cast<std::size_t>(inputs_ > 0 ? inputs_ : 1), 4);
    for (int at = 0; at < inputs_; ++at) {
      types[at + 1] = read_at<std::int8_t>(launch.bytes(5), static_cast<std::size_t>(at));
      bytes[at + 1] = read_at<std::uint32_t>(launch.bytes(5), sizes + 4 * static_cast<std::size_t>(at));
    }
    for (int at = 0; at <= inputs_; ++at) {
      const auto type = scalar_type(types[at]);
      if (type && size_of(*type) != bytes[at]) return false;
    }
    return true;
  }

  int inputs_;
  bool strided_, loads_cast_, stores_cast_;
};

class Strided : public Elementwise {
 public:
  Strided(std::optional<Functor> functor, std::size_t guessed_bytes, int operands, bool casts)
      : Elementwise(functor, guessed_bytes), operands_(operands), casts_(casts) {}

  bool run(const Launch& launch) const override {
    Geometry geometry{.numel = launch.argument<std::int32_t>(0)};
    const std::byte* const lambda = launch.bytes(1);
    constexpr std::array<std::size_t, kMaxOperands> kBytes{1, 1, 1, 1, 1};  // byte strides
    if (!read_calculator(lambda, operands_, 0, kBytes.data(), geometry)) return false;
    const std::size_t data = align_up(calculator_bytes(operands_), 8);
    const std::size_t behind_data = data + 8 * static_cast<std::size_t>(operands_);
    const std::size_t object = functor() ? align_up(behind_data, functor()->alignment) : behind_data;
    const auto* types =
        casts_ && functor() ? reinterpret_cast<const std::int8_t*>(lambda + object + functor()->size) : nullptr;
    return compute(geometry, lambda + object, lambda + data, types);
  }

 private:
  int operands_;
  bool casts_;
};

// arange, range: out[i] = start + i * step, the lambda(I index) {acc start, acc step}
// (RangeFactories.cu, arange_cuda_out).
class Range : public Executor {
 public:
  Range(ScalarType index, ScalarType result) : index_(index), result_(result) {}

  bool run(const Launch& launch) const override {
    const std::int64_t numel = load(index_, launch.bytes(0)).i;
    auto* const out = launch.argument<std::byte*>(2);
    const std::size_t bytes = size_of(result_);
    if (numel <= 0 || !on_device(out, bytes)) return false;
    if (!computes(numel, result_, false)) {
      forget(out, static_cast<std::size_t>(numel) * bytes);
      return true;
    }
    const ScalarType wide = accumulator();
    const Lane start = load(wide, launch.bytes(1)), step = load(wide, launch.bytes(1) + size_of(wide));
    Output output(result_);
    for (std::int64_t at = 0; at < numel; ++at) {
      const Lane value =
          is_float(wide) ? Lane{.f = start.f + static_cast<double>(at) * step.f} : Lane{.i = start.i + at * step.i};
      output.put(out + static_cast<std::size_t>(at) * bytes, cast(wide, result_, value));
    }
    return true;
  }

 private:
  // at::acc_type<T, /*is_cuda=*/true>: long for integers, float for 16- and 32-bit, double for double.
  ScalarType accumulator() const {
    if (!is_float(result_)) return ScalarType::kInt64;
    return result_ == ScalarType::kDouble ? result_ : ScalarType::kFloat;
  }

  ScalarType index_, result_;
};

// distribution_elementwise_grid_stride_kernel<acc, unroll, D, L>(int64_t N, PhiloxCudaState, D, L): nobody
// computes random numbers. L is a lambda of distribution_nullary_kernel<T, ..> (DistributionTemplates.h), the
// first {char* out; int stride; ..}, the second {OffsetCalculator<1>; char* out; ..}.
class Random : public Executor {
 public:
  Random(std::size_t bytes, bool strided) : bytes_(bytes), strided_(strided) {}

  bool run(const Launch& launch) const override {
    const auto numel = launch.argument<std::int64_t>(0);
    const std::byte* const lambda = launch.bytes(3);
    constexpr std::size_t kUnits[] = {1};
    Geometry geometry{.numel = numel};
    if (strided_) {
      if (!read_calculator(lambda, 1, 0, kUnits, geometry)) return false;
    } else {
      const std::size_t strides[] = {static_cast<std::size_t>(read_at<std::int32_t>(lambda, 8))};
      geometry = contiguous(numel, strides);
    }
    const auto* const out = read_at<std::byte*>(lambda, strided_ ? align_up(calculator_bytes(1), 8) : 0);
    if (numel <= 0 || !on_device(out, bytes_)) return false;
    forget_operand(geometry, 0, out, bytes_);
    return true;
  }

 private:
  std::size_t bytes_;
  bool strided_;
};

std::unique_ptr<Executor> make_random(const Signature& kernel) {
  if (kernel.parameters.size() != 4) return nullptr;
  const FunctorType lambda = parse_functor(kernel.parameters[3]);
  if (lambda.name != "distribution_nullary_kernel" || lambda.templates.empty() || lambda.lambda > 2) return nullptr;
  const auto type = scalar_type(lambda.templates[0]);
  return type ? std::make_unique<Random>(size_of(*type), lambda.lambda == 2) : nullptr;
}

// "std::array<char*, 3ul>" -> 3
int array_length(std::string_view type) {
  const auto parts = parse_functor(type).templates;
  return parts.size() == 2 && parts[1][0] >= '0' && parts[1][0] <= '9' ? parts[1][0] - '0' : 0;
}

// The result's size where the functor does not compute: of a conversion its second type's, else that of the first
// element type its name holds.
std::size_t guess_bytes(std::string_view functor) {
  const FunctorType type = parse_functor(functor);
  const bool converts = type.name == "converting_copy_kernel_cuda" && type.templates.size() == 2;
  if (const int bytes = converts ? size_of_type(type.templates[1]) : -1; bytes > 0) return bytes;
  for (const auto* names : {&type.parameters, &type.templates}) {
    for (const auto name : *names) {
      if (const int bytes = size_of_type(name); bytes > 0) return bytes;
    }
  }
  return 4;
}

// The output and the inputs of a functor that does not compute; 0: its name does not say.
int guess_operands(std::string_view functor) {
  const FunctorType type = parse_functor(functor);
  if (type.lambda > 0) return 1 + static_cast<int>(type.parameters.size());
  if (type.templates.size() != 4) return 0;
  return type.name == "BinaryFunctor" ? 3 : type.name.ends_with("UnaryFunctor") ? 2 : 0;
}

std::unique_ptr<Executor> make_unrolled(const Signature& kernel, std::optional<Functor> functor) {
  if (kernel.parameters.size() != 7) return nullptr;
  const auto has = [&](int parameter, std::string_view text) { return kernel.parameters[parameter].starts_with(text); };
  const auto& array = kernel.parameters[2];
  const int inputs = array_length(array) - 1;
  const bool strided = has(3, "OffsetCalculator");
  if (inputs < 0 || inputs >= kMaxOperands || strided != has(4, "OffsetCalculator")) return nullptr;
  if (functor && functor->tensors != inputs) functor.reset();
  const auto casts = [&](int parameter) {
    return kernel.parameters[parameter].find("WithCast") != std::string_view::npos;
  };
  return std::make_unique<Unrolled>(functor, guess_bytes(kernel.templates[0]), inputs, strided, casts(5), casts(6));
}

// elementwise_kernel<nt, vt, gpu_kernel_impl{,_nocast}<F>(TensorIteratorBase&, F const&)::{lambda(int)#1}>
std::unique_ptr<Executor> make_strided(const Signature& kernel) {
  const FunctorType lambda = parse_functor(kernel.templates[2]);
  const bool casts = lambda.name == "gpu_kernel_impl";
  if ((!casts && lambda.name != "gpu_kernel_impl_nocast") || lambda.templates.size() != 1) return nullptr;
  const auto functor = find_functor(lambda.templates[0]);
  const int operands = functor ? functor->tensors + 1 : guess_operands(lambda.templates[0]);
  if (operands == 0 || operands > kMaxOperands) return nullptr;
  return std::make_unique<Strided>(functor, guess_bytes(lambda.templates[0]), operands, casts);
}

// The inner lambda's number is the place of the element type among the dispatched ones
// (AT_DISPATCH_ALL_TYPES_AND2(kHalf, kBFloat16, ..), ATen/Dispatch.h); its own parameter is the index.
std::optional<ScalarType> range_type(std::string_view lambda) {
  constexpr std::string_view kDispatched = "::{lambda()#1}::operator()() const::{lambda()#";
  constexpr ScalarType kTypes[] = {ScalarType::kUInt8, ScalarType::kInt8,  ScalarType::kInt32,
                                   ScalarType::kInt64, ScalarType::kInt16, ScalarType::kDouble,
                                   ScalarType::kFloat, ScalarType::kHalf,  ScalarType::kBFloat16};
  const std::string_view function = parse_functor(lambda).name;
  const auto at = lambda.find(kDispatched);
  if ((function != "arange_cuda_out" && function != "range_cuda_out") || at == lambda.npos) return std::nullopt;
  const int place = lambda[at + kDispatched.size()] - '1';
  if (place < 0 || place >= static_cast<int>(std::size(kTypes))) return std::nullopt;
  return kTypes[place];
}

}  // namespace

std::unique_ptr<Executor> make_elementwise(const Signature& kernel) {
  if (kernel.name == "vectorized_elementwise_kernel" &&
      (kernel.templates.size() == 3 || kernel.templates.size() == 4)) {
    auto functor = find_functor(kernel.templates[1]);
    if (functor && functor->tensors + 1 != array_length(kernel.templates[2])) functor.reset();
    return std::make_unique<Vectorized>(functor, guess_bytes(kernel.templates[1]));
  }
  if (kernel.name == "unrolled_elementwise_kernel" && !kernel.templates.empty()) {
    return make_unrolled(kernel, find_functor(kernel.templates[0]));
  }
  if (kernel.name == "elementwise_kernel" && kernel.templates.size() == 3) return make_strided(kernel);
  if (kernel.name == "distribution_elementwise_grid_stride_kernel") return make_random(kernel);
  if (kernel.name == "elementwise_kernel_with_index" && kernel.parameters.size() == 3) {
    const auto result = range_type(kernel.templates[1]);
    const auto index = scalar_type(kernel.templates[0]);
    if (result && index) return std::make_unique<Range>(*index, *result);
  }
  return nullptr;
}

}  // namespace maya::values
