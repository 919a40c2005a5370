// Decodes reduce_kernel<threads, vec, ReduceOp<T, Ops, uint32_t, Out, vt0, ..>>(ReduceOp) of PyTorch's
// ATen/native/cuda/Reduce.cuh (2.6 to 2.11) and reduces on the host:
//   ReduceOp {Ops ops; Acc ident; ReduceConfig config; OffsetCalculator<1> input; OffsetCalculator<2> output;
//             const void* src; char* dst[2]; void* acc_buf; void* cta_buf; int* semaphores; int64_t base_idx;
//             bool accumulate, final_output; int noutputs}
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/hash.h"
#include "values/formula.h"
#include "values/geometry.h"
#include "values/mover.h"

namespace maya::values {
namespace {

enum class Kind : std::uint8_t {
  kSum,
  kProduct,
  kAll,
  kAny,
  kMaximum,
  kMinimum,
  kMaximumAt,
  kMinimumAt,
  kArgMaximum,
  kArgMinimum,
  kMinMax,
  kMean,
  kNorm,
  kNormOne,
  kNormTwo,
  kNormZero,
  kLargestMagnitude,
  kSmallestMagnitude,
  kNanSum,
  kOther,
};

// What the template arguments say.
struct Shape {
  Kind kind;
  ScalarType element, result;
  ScalarType scalar = ScalarType::kFloat;  // of the value in Ops: MeanOps' factor, NormOps' exponent
  std::size_t ops_bytes = 1, ops_alignment = 1;
  std::size_t accumulator_bytes, accumulator_alignment;
};

struct Named {
  std::string_view name;
  Kind kind;
};

// ReduceSumProdKernel.cu, ReduceLogicKernel.cu, Reduce{Max,Min}ValuesKernel.cu: in func_wrapper_t
constexpr Named kWrapped[] = {
    {"sum_functor", Kind::kSum},        {"ReductionAddOp", Kind::kSum},    {"prod_functor", Kind::kProduct},
    {"ReductionMulOp", Kind::kProduct}, {"and_kernel_cuda", Kind::kAll},   {"or_kernel_cuda", Kind::kAny},
    {"MaxNanFunctor", Kind::kMaximum},  {"MinNanFunctor", Kind::kMinimum},
};

// native/SharedReduceOps.h: an accumulator of the given template argument, or a pair of it and an index.
struct Plain {
  std::string_view name;
  Kind kind;
  int accumulator;  // which template argument
};
constexpr Plain kPlain[] = {
    {"MeanOps", Kind::kMean, 1},
    {"NormOps", Kind::kNorm, 1},
    {"NormOneOps", Kind::kNormOne, 1},
    {"NormTwoOps", Kind::kNormTwo, 1},
    {"NormZeroOps", Kind::kNormZero, 1},
    {"NanSumOps", Kind::kNanSum, 0},
    {"AbsMaxOps", Kind::kLargestMagnitude, 1},
    {"AbsMinOps", Kind::kSmallestMagnitude, 1},
};
constexpr Named kIndexed[] = {
    {"MaxOps", Kind::kMaximumAt},
    {"MinOps", Kind::kMinimumAt},
    {"ArgMaxOps", Kind::kArgMaximum},
    {"ArgMinOps", Kind::kArgMinimum},
};

bool wrapped_shape(const FunctorType& wrapper, Shape& shape) {
  if (wrapper.templates.size() != 2) return false;
  const FunctorType inner = parse_functor(wrapper.templates[1]);
  const auto* named = std::ranges::find(kWrapped, inner.name, &Named::name);
  if (named == std::end(kWrapped)) return false;
  const auto& types = inner.lambda > 0 ? inner.parameters : inner.templates;
  const auto accumulator = types.empty() ? std::nullopt : scalar_type(types[0]);
  if (!accumulator) return false;
  shape.kind = named->kind;
  shape.accumulator_bytes = shape.accumulator_alignment = size_of(*accumulator);
  return true;
}

bool plain_shape(const FunctorType& ops, const Plain& plain, Shape& shape) {
  if (ops.templates.size() <= static_cast<std::size_t>(plain.accumulator)) return false;
  const auto accumulator = scalar_type(ops.templates[plain.accumulator]);
  if (!accumulator) return false;
  shape.kind = plain.kind;
  shape.accumulator_bytes = shape.accumulator_alignment = size_of(*accumulator);
  if (plain.kind == Kind::kMean || plain.kind == Kind::kNorm) {
    // MeanOps<T, Acc, Factor, Out> {Factor factor}, NormOps<T, Acc, ..> {Acc norm}
    const auto scalar =
        plain.kind == Kind::kMean && ops.templates.size() > 2 ? scalar_type(ops.templates[2]) : accumulator;
    if (!scalar) return false;
    shape.scalar = *scalar;
    shape.ops_bytes = shape.ops_alignment = size_of(*scalar);
  }
  return true;
}

std::optional<Shape> find_shape(const Signature& kernel) {
  if (kernel.templates.size() < 3) return std::nullopt;
  const FunctorType reduce = parse_functor(kernel.templates[2]);
  if (reduce.name != "ReduceOp" || reduce.templates.size() < 4 || reduce.templates[2] != "unsigned int") {
    return std::nullopt;
  }
  const auto element = scalar_type(reduce.templates[0]), result = scalar_type(reduce.templates[3]);
  if (!element || !result) return std::nullopt;
  Shape shape{
      .kind = Kind::kOther, .element = *element, .result = *result, .accumulator_bytes = 0, .accumulator_alignment = 1};
  const FunctorType ops = parse_functor(reduce.templates[1]);
  if (ops.name == "func_wrapper_t" && wrapped_shape(ops, shape)) return shape;
  for (const Plain& plain : kPlain) {
    if (plain.name == ops.name && plain_shape(ops, plain, shape)) return shape;
  }
  const auto* indexed = std::ranges::find(kIndexed, ops.name, &Named::name);
  if (indexed != std::end(kIndexed)) {  // pair<T, int64_t>
    shape.kind = indexed->kind;
    shape.accumulator_bytes = 16;
    shape.accumulator_alignment = 8;
    return shape;
  }
  if (ops.name == "MinMaxOps") {  // pair<T, T>
    shape.kind = Kind::kMinMax;
    shape.accumulator_alignment = size_of(shape.element);
    shape.accumulator_bytes = 2 * shape.accumulator_alignment;
    return shape;
  }
  if (ops.name == "WelfordOps") {  // {Acc correction; bool take_sqrt}, {Acc mean, m2; int n; Acc nf}
    const bool wide = shape.element == ScalarType::kDouble;
    shape.ops_alignment = shape.accumulator_alignment = wide ? 8 : 4;
    shape.ops_bytes = 2 * shape.ops_alignment;
    shape.accumulator_bytes = 4 * shape.accumulator_alignment;
    return shape;
  }
  return std::nullopt;
}

// One launch's arguments.
struct Arguments {
  Geometry reduced;  // operand 0: the input
  Geometry kept;     // operand 0: the output, 1: the input
  std::byte* source;
  std::byte* result;
  std::byte* second_result;
  std::int64_t base_index;
  int results;
  bool partial;  // accumulates with other launches
};

// Offsets within ReduceConfig: 14 ints, a bool, an int.
constexpr std::size_t kConfigBytes = 64, kInputs = 4, kOutputs = 8, kBlockWidth = 44, kBlockHeight = 48;

bool read_arguments(const Shape& shape, const Launch& launch, Arguments& arguments) {
  const std::byte* const bytes = launch.bytes(0);
  const std::size_t ident = align_up(shape.ops_bytes, shape.accumulator_alignment);
  const std::size_t config = align_up(ident + shape.accumulator_bytes, 4);
  const auto inputs = read_at<std::int32_t>(bytes, config + kInputs);
  const auto outputs = read_at<std::int32_t>(bytes, config + kOutputs);
  if (read_at<std::uint32_t>(bytes, config + kBlockWidth) != launch.block[0] ||
      read_at<std::uint32_t>(bytes, config + kBlockHeight) != launch.block[1] || inputs <= 0 || outputs <= 0) {
    return false;
  }
  constexpr std::size_t kUnits[] = {1, 1};
  arguments.reduced.numel = inputs;
  arguments.kept.numel = outputs;
  const std::size_t input = config + kConfigBytes, output = input + calculator_bytes(1);
  if (!read_calculator(bytes + input, 1, 0, kUnits, arguments.reduced) ||
      !read_calculator(bytes + output, 2, 0, kUnits, arguments.kept)) {
    return false;
  }
  const std::size_t source = align_up(output + calculator_bytes(2), 8);
  arguments.source = read_at<std::byte*>(bytes, source);
  arguments.result = read_at<std::byte*>(bytes, source + 8);
  arguments.second_result = read_at<std::byte*>(bytes, source + 16);
  arguments.base_index = read_at<std::int64_t>(bytes, source + 48);
  const bool accumulate = read_at<bool>(bytes, source + 56), final_output = read_at<bool>(bytes, source + 57);
  arguments.partial = accumulate || !final_output;
  arguments.results = read_at<std::int32_t>(bytes, source + 60);
  return arguments.results == 1 || arguments.results == 2;
}

// The input walked whole: what is reduced, then what is kept.
std::optional<Geometry> whole_input(const Arguments& arguments) {
  const Geometry &reduced = arguments.reduced, &kept = arguments.kept;
  if (reduced.dims + kept.dims > kMaxDims) return std::nullopt;
  Geometry whole = reduced;
  whole.numel = reduced.numel * kept.numel;
  whole.dims = reduced.dims + kept.dims;
  for (int dim = 0; dim < kept.dims; ++dim) {
    whole.sizes[reduced.dims + dim] = kept.sizes[dim];
    whole.strides[0][reduced.dims + dim] = kept.strides[1][dim];
  }
  return whole;
}

// A reduction in progress over lanes of double or int64.
template <class T>
struct Accumulator {
  T value{};
  T other{};  // kMinMax: the maximum
  std::int64_t index = 0;
  bool first = true;
};

template <class T>
bool is_nan(T value) {
  return value != value;
}

// Whether `value` replaces what was found: a NaN wins and stays (SharedReduceOps.h, LessOrNan).
template <class T>
bool beats(T value, T found, bool larger) {
  if (is_nan(found)) return false;
  return is_nan(value) || (larger ? value > found : value < found);
}

template <class T>
T magnitude(T value) {
  return value < 0 ? -value : value;
}

template <class T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_same_v<T, double>) return a + b;
  else return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

template <class T>
T wrapping_product(T a, T b) {
  if constexpr (std::is_same_v<T, double>) return a * b;
  else return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
}

template <class T>
void extremum(Accumulator<T>& acc, T value, std::int64_t at, bool larger) {
  if (!acc.first && !beats(value, acc.value, larger)) return;
  acc.value = value;
  acc.index = at;
}

template <class T>
void accumulate(Kind kind, double exponent, Accumulator<T>& acc, T x, std::int64_t at) {
  switch (kind) {
    case Kind::kSum:
    case Kind::kMean: acc.value = wrapping_sum(acc.value, x); break;
    case Kind::kNanSum:
      if (!is_nan(x)) acc.value = wrapping_sum(acc.value, x);
      break;
    case Kind::kProduct: acc.value = acc.first ? x : wrapping_product(acc.value, x); break;
    case Kind::kAll: acc.value = (acc.first || acc.value != 0) && x != 0; break;
    case Kind::kAny: acc.value = acc.value != 0 || x != 0; break;
    case Kind::kMaximum:
    case Kind::kMaximumAt:
    case Kind::kArgMaximum: extremum(acc, x, at, true); break;
    case Kind::kMinimum:
    case Kind::kMinimumAt:
    case Kind::kArgMinimum: extremum(acc, x, at, false); break;
    case Kind::kMinMax:
      if (acc.first || beats(x, acc.other, true)) acc.other = x;
      extremum(acc, x, at, false);
      break;
    case Kind::kNormOne: acc.value += magnitude(x); break;
    case Kind::kNormTwo: acc.value += x * x; break;
    case Kind::kNormZero: acc.value += x != 0; break;
    case Kind::kNorm: acc.value += static_cast<T>(std::pow(static_cast<double>(magnitude(x)), exponent)); break;
    case Kind::kLargestMagnitude: extremum(acc, magnitude(x), at, true); break;
    case Kind::kSmallestMagnitude: extremum(acc, magnitude(x), at, false); break;
    case Kind::kOther: break;
  }
  acc.first = false;
}

class Reduction : public Executor {
 public:
  explicit Reduction(const Shape& shape) : shape_(shape) {}

  bool run(const Launch& launch) const override {
    Arguments arguments;
    if (!read_arguments(shape_, launch, arguments) || !on_device(arguments.result, 1)) return false;
    if (!computable(arguments)) {
      if (reduces_alike(arguments) || reduces_formula(arguments)) return true;
      if (assume_truth(arguments)) return true;
      forget_results(arguments);
      if (!arguments.partial) assume_picks(arguments);
      return true;
    }
    const Lane scalar = load(shape_.scalar, launch.bytes(0));
    if (counts(arguments)) return true;
    if (is_float(shape_.element)) reduce<double>(arguments, scalar);
    else reduce<std::int64_t>(arguments, scalar);
    return true;
  }

 private:
  bool computable(const Arguments& arguments) const {
    const auto whole = whole_input(arguments);
    if (shape_.kind == Kind::kOther || arguments.partial || !whole) return false;
    const std::int64_t span = extent(*whole, 0, size_of(shape_.element));
    if (span <= 0 || !on_device(arguments.source, static_cast<std::size_t>(span)) ||
        !known_operand(*whole, 0, {arguments.source, shape_.element})) {
      return false;
    }
    if (picks(arguments) && Derivation::scored()) return false;  // scores rank nothing (ranking.cpp)
    // Of large floating-point tensors only those that count what was picked.
    if (computes(whole->numel, shape_.element, Derivation::picked())) return true;
    if (Derivation::picked()) lose("a reduction of " + std::to_string(whole->numel) + " elements");
    return false;
  }

  // The second result is packed as the first, in elements of its own type (ReduceOp::set_results).
  bool indexes() const { return shape_.kind == Kind::kMaximumAt || shape_.kind == Kind::kMinimumAt; }
  // Whether it tells an element of each row, not its value alone.
  bool picks(const Arguments& arguments) const {
    const bool only = shape_.kind == Kind::kArgMaximum || shape_.kind == Kind::kArgMinimum;
    return only || (indexes() && arguments.results == 2);
  }
  ScalarType second_type() const { return indexes() ? ScalarType::kInt64 : shape_.result; }
  std::int64_t second_offset(std::int64_t offset) const {
    return offset / static_cast<std::int64_t>(size_of(shape_.result)) *
           static_cast<std::int64_t>(size_of(second_type()));
  }

  void forget_results(const Arguments& arguments) const {
    forget_operand(arguments.kept, 0, {arguments.result, shape_.result});
    if (arguments.results < 2 || !on_device(arguments.second_result, 1)) return;
    Geometry second = arguments.kept;
    for (int dim = 0; dim < second.dims; ++dim) second.strides[0][dim] = second_offset(second.strides[0][dim]);
    forget_operand(second, 0, arguments.second_result, size_of(second_type()));
  }

  // any() and all() of any number of truth values that are alike.
  bool reduces_alike(const Arguments& arguments) const {
    const auto whole = whole_input(arguments);
    const bool told = shape_.kind == Kind::kAny || shape_.kind == Kind::kAll;
    if (!told || arguments.partial || !whole || shape_.element != ScalarType::kBool) return false;
    const auto value = alike(arguments.source, static_cast<std::size_t>(extent(*whole, 0, 1)));
    if (!value || !computes(arguments.kept.numel, shape_.result, false)) return false;
    Output results(shape_.result);
    walk(arguments.kept, 1, [&](const auto& kept) { results.put(arguments.result + kept[0], {.i = *value}); });
    return true;
  }

  // Integers or truth values that follow from known ones, as long as that does not take minutes.
  bool reduces_formula(const Arguments& arguments) const {
    const auto whole = whole_input(arguments);
    if (shape_.kind == Kind::kOther || arguments.partial || !whole || is_float(shape_.element)) return false;
    const bool scaled = shape_.kind == Kind::kMean || shape_.kind == Kind::kNorm;
    if (arguments.results != 1 || picks(arguments) || scaled) return false;
    const auto bytes = static_cast<std::size_t>(extent(*whole, 0, size_of(shape_.element)));
    const FormulaPart part = formula_at(arguments.source, bytes);
    if (!part.formula || part.formula->type() != shape_.element) return false;
    const auto values = reduced(part, arguments, *whole);
    if (!values && Derivation::picked()) lose("a reduction of " + std::to_string(whole->numel) + " elements");
    if (!values) return false;
    Output results(shape_.result, content_of(shape_.result, arguments.kept.numel));
    std::size_t next = 0;
    walk(arguments.kept, 1, [&](const auto& kept) { results.put(arguments.result + kept[0], values->at(next++)); });
    return true;
  }

  // In the order that the results are walked in; nullopt: it takes too many operations. A script may make the same mask
  // in each iteration: what was found is kept.
  std::optional<std::vector<Lane>> reduced(const FormulaPart& part, const Arguments& arguments,
                                           const Geometry& whole) const {
    constexpr std::int64_t kMostOfAll = std::int64_t{1} << 33;
    constexpr std::size_t kMostKept = 64;
    static std::mutex mutex;  // guards what follows
    static std::int64_t operations_of_all = 0;
    static std::map<std::uint64_t, std::vector<Lane>> found;
    std::uint64_t key = combine(combine(part.formula->hash(), whole.hash()), arguments.kept.hash());
    key = combine(combine(key, static_cast<std::uint64_t>(part.first)), static_cast<std::uint64_t>(shape_.kind));
    key = combine(key, static_cast<std::uint64_t>(shape_.result));
    const std::lock_guard lock(mutex);
    if (const auto at = found.find(key); at != found.end()) return at->second;
    const std::int64_t operations = whole.numel * part.formula->operations();
    if (operations > Formula::kMostAtOnce || operations_of_all + operations > kMostOfAll) return std::nullopt;
    operations_of_all += operations;
    if (found.size() >= kMostKept) found.clear();
    return found[key] = reduced(part, arguments);
  }

  std::vector<Lane> reduced(const FormulaPart& part, const Arguments& arguments) const {
    FormulaReader elements(*part.formula);
    std::vector<Lane> results;
    const auto element = [&](std::int64_t offset) {
      return elements.at((part.first + offset) / static_cast<std::int64_t>(size_of(shape_.element)));
    };
    walk(arguments.kept, 2,
         [&](const auto& kept) { results.push_back(reduce_row<std::int64_t>(arguments, {}, kept[1], element).first); });
    return results;
  }

  // all() of what nobody computed is true, any() of it is false: isfinite(gradients).all() and the like pass.
  bool assume_truth(const Arguments& arguments) const {
    const bool all = shape_.kind == Kind::kAll, any = shape_.kind == Kind::kAny;
    if ((!all && !any) || arguments.partial || !small(arguments.kept.numel, size_of(shape_.result))) return false;
    Output results(shape_.result);
    walk(arguments.kept, 1, [&](const auto& kept) { results.put(arguments.result + kept[0], {.i = all}); });
    return true;
  }

  // Which element an uncomputed row is largest or smallest at: each row the next (ranking.cpp).
  void assume_picks(const Arguments& arguments) const {
    if (!picks(arguments) || arguments.kept.numel > kCountableElements) return;
    const bool only = !indexes();
    std::byte* const picked = only ? arguments.result : arguments.second_result;
    if (!on_device(picked, 1)) return;
    Derivation::pick();
    Output output(ScalarType::kInt64);
    std::int64_t row = 0;
    walk(arguments.kept, 1, [&](const auto& kept) {
      output.put(picked + (only ? kept[0] : second_offset(kept[0])), Lane{.i = row++ % arguments.reduced.numel});
    });
  }

  // Sums of integers, the common reduction of large tensors.
  bool counts(const Arguments& arguments) const {
    if (shape_.kind != Kind::kSum || is_float(shape_.element) || is_float(shape_.result)) return false;
    return with_countable(shape_.element, [&](auto element) {
      Output results(shape_.result);
      walk(arguments.kept, 2, [&](const auto& kept) {
        std::uint64_t sum = 0;  // wraps
        walk(arguments.reduced, 1, [&](const auto& reduced) {
          std::memcpy(&element, arguments.source + kept[1] + reduced[0], sizeof element);
          sum += static_cast<std::uint64_t>(static_cast<std::int64_t>(element));
        });
        results.put(arguments.result + kept[0],
                    cast(ScalarType::kInt64, shape_.result, Lane{.i = static_cast<std::int64_t>(sum)}));
      });
    });
  }

  template <class T>
  void reduce(const Arguments& arguments, Lane scalar) const {
    Output results(shape_.result, content_of(shape_.result, arguments.kept.numel)), second_results(second_type());
    const auto element = [&](std::int64_t offset) { return load(shape_.element, arguments.source + offset); };
    walk(arguments.kept, 2, [&](const auto& kept) {
      const auto [first, second] = reduce_row<T>(arguments, scalar, kept[1], element);
      results.put(arguments.result + kept[0], first);
      if (arguments.results == 2) second_results.put(arguments.second_result + second_offset(kept[0]), second);
    });
  }

  // The results of what begins at `kept`, in bytes from the source, as `element` is.
  template <class T, class Element>
  std::pair<Lane, Lane> reduce_row(const Arguments& arguments, Lane scalar, std::int64_t kept, Element element) const {
    Accumulator<T> acc;
    std::int64_t at = arguments.base_index;
    walk(arguments.reduced, 1, [&](const auto& reduced) {
      const Lane x = element(kept + reduced[0]);
      if constexpr (std::is_same_v<T, double>) accumulate<T>(shape_.kind, scalar.f, acc, x.f, at++);
      else accumulate<T>(shape_.kind, 0, acc, x.i, at++);
    });
    return project(acc, scalar);
  }

  template <class T>
  std::pair<Lane, Lane> project(const Accumulator<T>& acc, Lane scalar) const {
    const auto result = [&](T value) {
      if constexpr (std::is_same_v<T, double>) return cast(ScalarType::kDouble, shape_.result, Lane{.f = value});
      else return cast(ScalarType::kInt64, shape_.result, Lane{.i = value});
    };
    switch (shape_.kind) {
      case Kind::kMean:
        if constexpr (std::is_same_v<T, double>) return {result(acc.value * scalar.f), {}};
        else return {result(wrapping_product(acc.value, scalar.i)), {}};
      case Kind::kNorm: return {result(static_cast<T>(std::pow(static_cast<double>(acc.value), 1 / scalar.f))), {}};
      case Kind::kNormTwo: return {result(static_cast<T>(std::sqrt(static_cast<double>(acc.value)))), {}};
      case Kind::kArgMaximum:
      case Kind::kArgMinimum: return {cast(ScalarType::kInt64, shape_.result, Lane{.i = acc.index}), {}};
      case Kind::kMinMax: return {result(acc.value), result(acc.other)};
      default: return {result(acc.value), Lane{.i = acc.index}};
    }
  }

  Shape shape_;
};

}  // namespace

std::unique_ptr<Executor> make_reduction(const Signature& kernel) {
  if (kernel.name != "reduce_kernel") return nullptr;
  const auto shape = find_shape(kernel);
  return shape ? std::make_unique<Reduction>(*shape) : nullptr;
}

}  // namespace maya::values
