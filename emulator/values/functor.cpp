#include "values/functor.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <vector>

#include "values/signature.h"

namespace maya::values {
namespace {

// How a functor's captures and result follow from its operand type T (at::opmath_type<T> is float for
// the 16-bit types).
enum class Captures : std::uint8_t {
  kNone,           // f(x..)
  kScalar,         // {T s}: f(x.., s)
  kOpmath,         // {opmath s}: f(x.., s)
  kTwoOpmath,      // {opmath s, opmath t}: f(x.., s, t)
  kCompare,        // {int selector}: f(a, b)
  kCompareScalar,  // {int selector, T s}: f(x, s)
  kClampLimits,    // {int selector, opmath low, opmath high}
};

enum class Result : std::uint8_t { kSame, kBool, kHalf, kBFloat16, kSecond };  // kSecond: its second template argument

struct Entry {
  std::string_view name;  // of the class, or of the function a lambda is written in
  int lambda;             // its number there; 0: a class, -1: any lambda
  Op op;
  Captures captures = Captures::kNone;
  Result result = Result::kSame;
};

// Files are under aten/src/ATen/native/cuda of PyTorch 2.11, and of 2.15 where that has another.
constexpr Entry kEntries[] = {
    // FillKernel.cu, Copy.cu
    {"direct_copy_kernel_cuda", -1, Op::kCopy},
    {"bfloat16_copy_kernel_cuda", -1, Op::kCopy, Captures::kNone, Result::kBFloat16},
    {"float16_copy_kernel_cuda", -1, Op::kCopy, Captures::kNone, Result::kHalf},
    {"converting_copy_kernel_cuda", -1, Op::kCopy, Captures::kNone, Result::kSecond},  // 2.15
    {"neg_kernel_cuda", -1, Op::kNegate},
    {"neg_conj_kernel_cuda", -1, Op::kNegate},
    // ufunc/add.h, BinaryMulKernel.cu, BinaryDiv*.cu, BinaryRemainderKernel.cu
    {"MulFunctor", 0, Op::kMultiply},
    {"DivFunctor", 0, Op::kDivide},
    {"div_floor_kernel_cuda", -1, Op::kDivideFloor},
    {"div_trunc_kernel_cuda", -1, Op::kDivideTrunc},
    {"remainder_kernel_cuda", -1, Op::kRemainder},
    {"fmod_kernel_cuda", -1, Op::kFmod},
    // CompareEQKernel.cu, CompareKernels.cu, BinaryLogicalOpsKernels.cu, BinaryBitwiseOpsKernels.cu
    {"CompareEqFunctor", 0, Op::kEqual, Captures::kCompare, Result::kBool},
    {"CompareFunctor", 0, Op::kLess, Captures::kCompare, Result::kBool},
    {"compare_scalar_kernel", -1, Op::kLess, Captures::kCompareScalar, Result::kBool},
    {"logical_and_kernel_cuda", -1, Op::kLogicalAnd, Captures::kNone, Result::kBool},
    {"logical_or_kernel_cuda", -1, Op::kLogicalOr, Captures::kNone, Result::kBool},
    {"logical_xor_kernel_cuda", -1, Op::kLogicalXor, Captures::kNone, Result::kBool},
    {"logical_not_kernel_cuda", -1, Op::kLogicalNot, Captures::kNone, Result::kBool},
    {"BitwiseAndFunctor", 0, Op::kAnd},
    {"BitwiseOrFunctor", 0, Op::kOr},
    {"BitwiseXorFunctor", 0, Op::kXor},
    {"bitwise_not_kernel_cuda", -1, Op::kNot},
    {"lshift_kernel_cuda", -1, Op::kShiftLeft},
    {"rshift_kernel_cuda", -1, Op::kShiftRight},
    // MaxMinElementwiseKernel.cu, TensorCompare.cu, UnaryOpsKernel.cu
    {"maximum_kernel_cuda", -1, Op::kMaximum},
    {"minimum_kernel_cuda", -1, Op::kMinimum},
    {"where_kernel_impl", -1, Op::kWhere},
    {"clamp_kernel_impl", -1, Op::kClampBetween},
    {"launch_clamp_scalar", -1, Op::kClamp, Captures::kClampLimits},
    {"clamp_scalar_kernel_impl", -1, Op::kClamp, Captures::kClampLimits},
    {"clamp_min_kernel_cuda", -1, Op::kMaximum, Captures::kScalar},
    {"clamp_max_kernel_cuda", -1, Op::kMinimum, Captures::kScalar},
    {"isnan_kernel_impl", -1, Op::kIsNan, Captures::kNone, Result::kBool},
    {"isposinf_kernel_impl", -1, Op::kIsInfinite, Captures::kNone, Result::kBool},
    // AbsKernel.cu, UnarySignKernels.cu, UnaryFractionKernels.cu, Unary*Kernel.cu, PowKernel.cu
    {"AbsFunctor", 0, Op::kAbsolute},
    {"sign_kernel_cuda", -1, Op::kSign},
    {"reciprocal_kernel_cuda", -1, Op::kReciprocal},
    {"floor_kernel_cuda", -1, Op::kFloor},
    {"ceil_kernel_cuda", -1, Op::kCeil},
    {"trunc_kernel_cuda", -1, Op::kTrunc},
    {"round_kernel_cuda", -1, Op::kRound},
    {"sqrt_kernel_cuda", -1, Op::kSquareRoot},
    {"rsqrt_kernel_cuda", -1, Op::kReciprocalSquareRoot},
    {"exp_kernel_cuda", -1, Op::kExp},
    {"expm1_kernel_cuda", -1, Op::kExpm1},
    {"log_kernel_cuda", -1, Op::kLog},
    {"log2_kernel_cuda", -1, Op::kLog2},
    {"log10_kernel_cuda", -1, Op::kLog10},
    {"log1p_kernel_cuda", -1, Op::kLog1p},
    {"sin_kernel_cuda", -1, Op::kSin},
    {"cos_kernel_cuda", -1, Op::kCos},
    {"tanh_kernel_cuda", -1, Op::kTanh},
    {"sigmoid_kernel_cuda", -1, Op::kSigmoid},
    {"pow_tensor_scalar_kernel_impl", 1, Op::kSquare},
    {"pow_tensor_scalar_kernel_impl", 2, Op::kCube},
    {"pow_tensor_scalar_kernel_impl", 3, Op::kInverseSquare},
    {"pow_tensor_scalar_kernel_impl", 4, Op::kPower, Captures::kScalar},
    {"pow_tensor_tensor_kernel", -1, Op::kPower},
    // PointwiseOpsKernel.cu, Lerp.cu
    {"addcmul_cuda_kernel", -1, Op::kAddProduct, Captures::kOpmath},
    {"addcdiv_cuda_kernel", -1, Op::kAddQuotient, Captures::kOpmath},
    {"lerp_tensor_kernel", -1, Op::kLerp},
    {"lerp_scalar_kernel", -1, Op::kLerp, Captures::kOpmath},
};

ScalarType opmath(ScalarType type) {
  return type == ScalarType::kHalf || type == ScalarType::kBFloat16 ? ScalarType::kFloat : type;
}

void add_tensor(Functor& functor, ScalarType type) {
  functor.sources[functor.source_count++] = {type, true};
  ++functor.tensors;
}

void add_scalar(Functor& functor, ScalarType type, std::size_t behind) {
  const std::size_t size = size_of(type);
  const std::size_t offset = (behind + size - 1) / size * size;
  functor.sources[functor.source_count++] = {type, false, static_cast<std::uint16_t>(offset)};
  functor.alignment = static_cast<std::uint16_t>(std::max<std::size_t>(functor.alignment, size));
  const std::size_t end = offset + size;
  functor.size = static_cast<std::uint16_t>((end + functor.alignment - 1) / functor.alignment * functor.alignment);
}

void add_captures(Functor& functor, Captures captures, ScalarType type) {
  const ScalarType wide = opmath(type);
  switch (captures) {
    case Captures::kNone: return;
    case Captures::kScalar: return add_scalar(functor, type, 0);
    case Captures::kOpmath: return add_scalar(functor, wide, 0);
    case Captures::kTwoOpmath:
      add_scalar(functor, wide, 0);
      return add_scalar(functor, wide, functor.sources[functor.source_count - 1].offset + size_of(wide));
    case Captures::kCompare:
    case Captures::kCompareScalar:
    case Captures::kClampLimits:
      functor.selects = true;
      functor.size = functor.alignment = 4;
      if (captures == Captures::kCompareScalar) add_scalar(functor, type, 4);
      if (captures == Captures::kClampLimits) {
        add_scalar(functor, wide, 4);
        add_scalar(functor, wide, functor.sources[functor.source_count - 1].offset + size_of(wide));
      }
      return;
  }
}

std::optional<ScalarType> result_type(Result result, ScalarType type, const FunctorType& functor) {
  switch (result) {
    case Result::kSame: return type;
    case Result::kBool: return ScalarType::kBool;
    case Result::kHalf: return ScalarType::kHalf;
    case Result::kBFloat16: return ScalarType::kBFloat16;
    case Result::kSecond: return functor.templates.size() == 2 ? scalar_type(functor.templates[1]) : std::nullopt;
  }
  return type;
}

// A class's element type is its (last) template argument.
std::optional<ScalarType> class_type(const FunctorType& type) {
  return type.templates.empty() ? std::nullopt : scalar_type(type.templates.back());
}

const Entry* find_entry(const FunctorType& type) {
  for (const Entry& entry : kEntries) {
    if (entry.name == type.name && (entry.lambda == type.lambda || (entry.lambda == -1 && type.lambda > 0))) {
      return &entry;
    }
  }
  return nullptr;
}

bool is_unary(Op op) { return op == Op::kCopy || op == Op::kNegate || op == Op::kAbsolute; }

// Lambdas name their parameters' types; the classes of the table take two of theirs, AbsFunctor one.
bool add_parameters(Functor& functor, const Entry& entry, const FunctorType& type) {
  if (type.lambda == 0) {
    const auto element = class_type(type);
    if (!element) return false;
    add_tensor(functor, *element);
    if (!is_unary(entry.op)) add_tensor(functor, *element);
    return true;
  }
  if (type.parameters.empty() || type.parameters.size() > 3) return false;
  for (const auto name : type.parameters) {
    const auto element = scalar_type(name);
    if (!element) return false;
    add_tensor(functor, *element);
  }
  return true;
}

// FillFunctor<T> {T value}.
std::optional<Functor> fill(ScalarType type) {
  Functor functor{.op = Op::kCopy, .sources = {}, .compute = type, .result = type};
  add_scalar(functor, type, 0);
  return functor;
}

// CUDAFunctor{,OnSelf,OnOther}_add<T>: self + alpha * other in opmath; the scalar operand, if any, then
// alpha are the fields (torchgen/dest/ufunc.py).
std::optional<Functor> add_scaled(std::string_view name, ScalarType type) {
  const ScalarType wide = opmath(type);
  Functor functor{.op = Op::kAddScaled, .sources = {}, .compute = wide, .result = type};
  const bool self = name == "CUDAFunctorOnSelf_add", other = name == "CUDAFunctorOnOther_add";
  if (other) add_scalar(functor, wide, 0);
  else add_tensor(functor, type);
  if (self) add_scalar(functor, wide, 0);
  else add_tensor(functor, type);
  add_scalar(functor, wide, self || other ? size_of(wide) : 0);
  return functor;
}

// masked_fill_kernel: lambda(T self, bool mask) {T value} -> mask ? value : self.
std::optional<Functor> masked_fill(const FunctorType& type) {
  if (type.parameters.size() != 2) return std::nullopt;
  const auto element = scalar_type(type.parameters[0]);
  if (!element || type.parameters[1] != "bool") return std::nullopt;
  Functor functor{.op = Op::kWhere, .sources = {}, .compute = *element, .result = *element};
  add_tensor(functor, *element);
  add_tensor(functor, ScalarType::kBool);
  add_scalar(functor, *element, 0);
  return functor;
}

// {Binary,AUnary,BUnary}Functor<A, B, R, F> (Loops.cuh): F on operands of A and B, one of them perhaps a
// scalar of F's own parameter type stored behind F.
std::optional<Functor> wrapped(const FunctorType& type) {
  if (type.templates.size() != 4) return std::nullopt;
  const auto first = scalar_type(type.templates[0]), second = scalar_type(type.templates[1]);
  const auto result = scalar_type(type.templates[2]);
  const auto inner = find_functor(type.templates[3]);
  if (!first || !second || !result || !inner || inner->source_count != 2) return std::nullopt;
  Functor functor = *inner;
  functor.source_count = functor.tensors = 0;
  functor.result = *result;
  const std::size_t behind = inner->size;
  const bool empty = inner->size == 1 && !inner->selects;
  if (type.name == "AUnaryFunctor") {
    add_scalar(functor, inner->sources[0].type, empty ? 1 : behind);
  } else {
    add_tensor(functor, *first);
  }
  if (type.name == "BUnaryFunctor") {
    add_scalar(functor, inner->sources[1].type, empty ? 1 : behind);
  } else {
    add_tensor(functor, *second);
  }
  return functor;
}

// div_{floor,trunc}_kernel_cuda with a scalar divisor, floating point: lambda(T) {opmath b, opmath 1/b} or
// {opmath 1/b} (BinaryDivFloorKernel.cu, BinaryDivTruncKernel.cu).
std::optional<Functor> divide_by_scalar(const FunctorType& type, Op op) {
  const auto element = scalar_type(type.parameters[0]);
  if (!element || !is_float(*element)) return std::nullopt;
  Functor functor{.op = op, .sources = {}, .compute = opmath(*element), .result = *element};
  add_tensor(functor, *element);
  if (op == Op::kDivideTrunc) return std::nullopt;  // only the inverse is kept; rare
  add_captures(functor, Captures::kTwoOpmath, *element);
  functor.source_count = 2;  // the inverse is not needed
  return functor;
}

// --- arithmetic ---

template <class T>
T get(Lane lane) {
  if constexpr (std::is_same_v<T, double>) return lane.f;
  else return lane.i;
}

Lane lane(double value) { return {.f = value}; }
Lane lane(std::int64_t value) { return {.i = value}; }

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_same_v<T, double>) return std::isnan(value);
  else return value != value;
}

double divide_floor(double a, double b) {
  // Python's floor division (c10/util/generic_math.h, div_floor_floating).
  if (b == 0) return a / b;
  const double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0 && (b < 0) != (remainder < 0)) quotient -= 1;
  if (quotient == 0) return std::copysign(0.0, a / b);
  const double floored = std::floor(quotient);
  return quotient - floored > 0.5 ? floored + 1 : floored;
}

// The GPU does not trap on a zero divisor; the quotient is all ones.
std::int64_t divide_trunc(std::int64_t a, std::int64_t b) {
  if (b == 0) return -1;
  return b == -1 ? static_cast<std::int64_t>(-static_cast<std::uint64_t>(a)) : a / b;
}

std::int64_t divide_floor(std::int64_t a, std::int64_t b) {
  const std::int64_t quotient = divide_trunc(a, b);
  return b != 0 && b != -1 && a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

double divide_trunc(double a, double b) { return std::trunc(a / b); }

std::int64_t modulo(std::int64_t a, std::int64_t b) { return b == 0 || b == -1 ? 0 : a % b; }
double modulo(double a, double b) { return std::fmod(a, b); }

template <class T>
T remainder(T a, T b) {  // of the divisor's sign, as Python's %
  const T rest = modulo(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent % 2 ? -1 : 1) : 0;
  std::uint64_t result = 1, square = static_cast<std::uint64_t>(base);
  for (; exponent != 0; exponent >>= 1, square *= square) {
    if (exponent & 1) result *= square;
  }
  return static_cast<std::int64_t>(result);
}

double power(double base, double exponent) { return std::pow(base, exponent); }

template <class T>
bool compare(T a, T b, int selector) {
  // enum class OpType {GE, GT, LE, LT} (CompareKernels.cu)
  switch (selector) {
    case 0: return a >= b;
    case 1: return a > b;
    case 2: return a <= b;
    default: return a < b;
  }
}

template <class T>
T clamp(T value, T low, T high, int limits) {
  // enum class ClampLimits {Min, Max, MinMax} (native/TensorCompare.h); a lone limit is the first.
  if (is_nan(value)) return value;
  if (limits == 0) return std::max(value, low);
  if (limits == 1) return std::min(value, low);
  return std::min(std::max(value, low), high);
}

template <class T>
T sum_scaled(T self, T other, T alpha) {
  if constexpr (std::is_same_v<T, double>) return self + alpha * other;
  // Unsigned, because integers wrap on the GPU.
  else
    return static_cast<T>(static_cast<std::uint64_t>(self) +
                          static_cast<std::uint64_t>(alpha) * static_cast<std::uint64_t>(other));
}

template <class T>
T product(T a, T b) {
  return sum_scaled<T>(0, a, b);
}

Lane bitwise(Op op, std::int64_t a, std::int64_t b, ScalarType type) {
  const auto bits = static_cast<std::int64_t>(8 * size_of(type));
  switch (op) {
    case Op::kAnd: return lane(a & b);
    case Op::kOr: return lane(a | b);
    case Op::kXor: return lane(a ^ b);
    case Op::kNot: return lane(type == ScalarType::kBool ? std::int64_t{a == 0} : ~a);
    case Op::kShiftLeft:
      return lane(b < 0 || b >= bits ? std::int64_t{0} : static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << b));
    default: return lane(b < 0 || b >= bits ? (a < 0 ? std::int64_t{-1} : std::int64_t{0}) : a >> b);
  }
}

double unary(Op op, double x) {
  switch (op) {
    case Op::kReciprocal: return 1 / x;
    case Op::kInverseSquare: return 1 / (x * x);
    case Op::kSquareRoot: return std::sqrt(x);
    case Op::kReciprocalSquareRoot: return 1 / std::sqrt(x);
    case Op::kExp: return std::exp(x);
    case Op::kExpm1: return std::expm1(x);
    case Op::kLog: return std::log(x);
    case Op::kLog2: return std::log2(x);
    case Op::kLog10: return std::log10(x);
    case Op::kLog1p: return std::log1p(x);
    case Op::kSin: return std::sin(x);
    case Op::kCos: return std::cos(x);
    case Op::kTanh: return std::tanh(x);
    case Op::kSigmoid: return 1 / (1 + std::exp(-x));
    case Op::kFloor: return std::floor(x);
    case Op::kCeil: return std::ceil(x);
    case Op::kTrunc: return std::trunc(x);
    default: return std::nearbyint(x);  // kRound: ties to even
  }
}

template <class T>
Lane apply_as(const Functor& functor, std::span<const Lane> x, int selector) {
  const T a = get<T>(x[0]);
  const T b = x.size() > 1 ? get<T>(x[1]) : T{};
  const T c = x.size() > 2 ? get<T>(x[2]) : T{};
  switch (functor.op) {
    case Op::kCopy: return x[0];
    case Op::kAddScaled: return lane(sum_scaled(a, b, c));
    case Op::kAdd: return lane(sum_scaled(a, b, T{1}));
    case Op::kSubtract: return lane(sum_scaled(a, b, T{-1}));
    case Op::kMultiply: return lane(product(a, b));
    case Op::kDivide:
      if constexpr (std::is_same_v<T, double>) return lane(a / b);
      else return lane(divide_trunc(a, b));
    case Op::kDivideFloor: return lane(divide_floor(a, b));
    case Op::kDivideTrunc: return lane(divide_trunc(a, b));
    case Op::kRemainder: return lane(remainder(a, b));
    case Op::kFmod: return lane(modulo(a, b));
    case Op::kPower: return lane(power(a, b));
    case Op::kMinimum: return is_nan(a) ? x[0] : is_nan(b) ? x[1] : lane(std::min(a, b));
    case Op::kMaximum: return is_nan(a) ? x[0] : is_nan(b) ? x[1] : lane(std::max(a, b));
    case Op::kEqual: return lane(std::int64_t{(a == b) == (selector == 0)});  // EqOpType {EQ, NE}
    case Op::kLess: return lane(std::int64_t{compare(a, b, selector)});
    case Op::kLogicalAnd: return lane(std::int64_t{a != 0 && b != 0});
    case Op::kLogicalOr: return lane(std::int64_t{a != 0 || b != 0});
    case Op::kLogicalXor: return lane(std::int64_t{(a != 0) != (b != 0)});
    case Op::kLogicalNot: return lane(std::int64_t{a == 0});
    case Op::kNegate: return lane(product(a, T{-1}));
    case Op::kAbsolute: return lane(a < 0 || (a == 0 && !is_nan(a)) ? T{0} - a : a);
    case Op::kSign: return lane(static_cast<T>((a > 0) - (a < 0)));
    case Op::kSquare: return lane(product(a, a));
    case Op::kCube: return lane(product(product(a, a), a));
    case Op::kIsNan: return lane(std::int64_t{is_nan(a)});
    case Op::kIsInfinite: return lane(std::int64_t{static_cast<double>(a) == INFINITY});
    case Op::kClamp: return lane(clamp(a, b, c, selector));
    case Op::kClampBetween: return is_nan(b) ? x[1] : is_nan(c) ? x[2] : lane(clamp(a, b, c, 2));
    case Op::kAddProduct: return lane(sum_scaled(a, product(b, c), get<T>(x[3])));
    case Op::kAddQuotient:
      if constexpr (std::is_same_v<T, double>) return lane(a + x[3].f * (b / c));
      else return lane(sum_scaled(a, divide_trunc(b, c), x[3].i));
    case Op::kLerp: return lane(sum_scaled(a, sum_scaled(b, a, T{-1}), c));
    default: break;
  }
  if constexpr (std::is_same_v<T, double>) return lane(unary(functor.op, a));
  else return bitwise(functor.op, a, b, functor.compute);
}

// where(condition, a, b) and masked_fill(self, mask, value): the condition is of another class.
Lane select(const Functor& functor, std::span<const Lane> x) {
  const bool fill = functor.sources[0].type != ScalarType::kBool || !functor.sources[2].tensor;
  if (fill) return x[1].i != 0 ? x[2] : x[0];
  return x[0].i != 0 ? x[1] : x[2];
}

// Mixed operands, ldexp(float, int) for one, do not compute here; a selection may have its condition.
bool one_class(const Functor& functor) {
  return functor.op == Op::kWhere || std::ranges::all_of(functor.operands(), [&](const Source& source) {
           return is_float(source.type) == is_float(functor.compute);
         });
}

}  // namespace

std::optional<Functor> find_functor(std::string_view name) {
  const FunctorType type = parse_functor(name);
  if (type.name == "BinaryFunctor" || type.name == "AUnaryFunctor" || type.name == "BUnaryFunctor") {
    return wrapped(type);
  }
  if (type.name == "masked_fill_kernel") return masked_fill(type);
  const auto element = class_type(type);
  if (type.lambda == 0 && element) {
    if (type.name == "FillFunctor") return fill(*element);
    if (type.name.starts_with("CUDAFunctor") && type.name.ends_with("_add")) return add_scaled(type.name, *element);
  }
  const Entry* entry = find_entry(type);
  if (entry == nullptr) return std::nullopt;
  if (type.lambda > 0 && type.parameters.size() == 1 &&
      (entry->op == Op::kDivideFloor || entry->op == Op::kDivideTrunc)) {
    return divide_by_scalar(type, entry->op);
  }
  Functor functor{.op = entry->op, .sources = {}, .compute = {}, .result = {}};
  if (!add_parameters(functor, *entry, type)) return std::nullopt;
  const ScalarType element_type = functor.sources[functor.tensors - 1].type;
  functor.compute = opmath(element_type);
  const auto result = result_type(entry->result, element_type, type);
  if (!result) return std::nullopt;
  functor.result = *result;
  add_captures(functor, entry->captures, element_type);
  return one_class(functor) ? std::optional(functor) : std::nullopt;
}

Lane apply(const Functor& functor, std::span<const Lane> operands, int selector) {
  if (functor.op == Op::kWhere) return select(functor, operands);
  return is_float(functor.compute) ? apply_as<double>(functor, operands, selector)
                                   : apply_as<std::int64_t>(functor, operands, selector);
}

void apply_each(const Functor& functor, std::span<const std::span<const Lane>> operands, int selector,
                std::span<Lane> results) {
  const auto each = [&](auto function) {
    const auto *const a = operands[0].data(), *const b = operands[operands.size() > 1 ? 1 : 0].data();
    for (std::size_t i = 0; i < results.size(); ++i) results[i].i = function(a[i].i, b[i].i);
  };
  using Integer = std::int64_t;
  // What masks are made of is worth a loop of its own: an order of magnitude.
  switch (is_float(functor.compute) ? Op::kLerp : functor.op) {
    case Op::kCopy: return each([](Integer a, Integer) { return a; });
    case Op::kSubtract: return each([](Integer a, Integer b) { return sum_scaled(a, b, Integer{-1}); });
    case Op::kEqual: return each([=](Integer a, Integer b) { return Integer{(a == b) == (selector == 0)}; });
    case Op::kLess: return each([=](Integer a, Integer b) { return Integer{compare(a, b, selector)}; });
    case Op::kAnd: return each([](Integer a, Integer b) { return a & b; });
    case Op::kOr: return each([](Integer a, Integer b) { return a | b; });
    case Op::kLogicalAnd: return each([](Integer a, Integer b) { return Integer{a != 0 && b != 0}; });
    case Op::kLogicalOr: return each([](Integer a, Integer b) { return Integer{a != 0 || b != 0}; });
    default: break;
  }
  if (functor.op == Op::kAddScaled && !is_float(functor.compute)) {
    const auto *const a = operands[0].data(), *const b = operands[1].data(), *const c = operands[2].data();
    for (std::size_t i = 0; i < results.size(); ++i) results[i].i = sum_scaled(a[i].i, b[i].i, c[i].i);
    return;
  }
  std::array<Lane, 4> one{};
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t at = 0; at < operands.size(); ++at) one[at] = operands[at][i];
    results[i] = apply(functor, {one.data(), operands.size()}, selector);
  }
}

}  // namespace maya::values
