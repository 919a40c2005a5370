// The element-wise functors of PyTorch's CUDA kernels: which operation, on which types, with which
// scalars captured at which offset.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "values/scalar.h"

namespace maya::values {

enum class Op : std::uint8_t {
  kCopy,
  kAdd,
  kSubtract,
  kAddScaled,
  kMultiply,
  kDivide,
  kDivideFloor,
  kDivideTrunc,
  kRemainder,
  kFmod,
  kPower,
  kMinimum,
  kMaximum,
  kEqual,
  kLess,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kLogicalNot,
  kAnd,
  kOr,
  kXor,
  kNot,
  kShiftLeft,
  kShiftRight,
  kNegate,
  kAbsolute,
  kSign,
  kSquare,
  kCube,
  kInverseSquare,
  kReciprocal,
  kSquareRoot,
  kReciprocalSquareRoot,
  kExp,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSin,
  kCos,
  kTanh,
  kSigmoid,
  kFloor,
  kCeil,
  kTrunc,
  kRound,
  kIsNan,
  kIsInfinite,
  kWhere,
  kClamp,
  kClampBetween,
  kAddProduct,
  kAddQuotient,
  kLerp,
};

// One operand: a tensor, or a scalar inside the functor's bytes.
struct Source {
  ScalarType type;  // that the functor takes it as
  bool tensor;
  std::uint16_t offset = 0;  // of a scalar
};

struct Functor {
  Op op;
  std::array<Source, 4> sources;
  int source_count = 0;
  int tensors = 0;                        // how many sources are tensors, in order
  ScalarType compute;                     // the type it computes in
  ScalarType result;                      // the type it returns
  bool selects = false;                   // an int at offset 0 picks the comparison
  std::uint16_t size = 1, alignment = 1;  // of the functor object; 1: empty

  std::span<const Source> operands() const { return {sources.data(), static_cast<std::size_t>(source_count)}; }
};

// Of a functor's demangled type; empty: not one of those that compute.
std::optional<Functor> find_functor(std::string_view type);

// One result from `operands` (in the order of Functor::sources, of their types, except that those of the
// compute type's class are of the compute type). `selector`: see Functor::selects.
Lane apply(const Functor& functor, std::span<const Lane> operands, int selector);

// Likewise, many: `operands[i]` has the i-th operand of each result.
void apply_each(const Functor& functor, std::span<const std::span<const Lane>> operands, int selector,
                std::span<Lane> results);

}  // namespace maya::values
