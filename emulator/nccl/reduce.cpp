#include "nccl/reduce.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

namespace maya::nccl {
namespace {

// A small binary float held in an integer: `Exponent` and `Mantissa` bits. `Finite` formats (e4m3fn) have no
// infinity and a single NaN, all bits set (OCP 8-bit floating point specification, table 1).
template <class Bits, int Exponent, int Mantissa, bool Finite = false>
struct Minifloat {
  Bits bits;

  static constexpr int kBias = (1 << (Exponent - 1)) - 1;
  static constexpr int kTop = (1 << Exponent) - 1;

  static double decode(Bits bits) {
    const int exponent = bits >> Mantissa & kTop;
    const int mantissa = bits & ((1 << Mantissa) - 1);
    const double sign = bits >> (Exponent + Mantissa) & 1 ? -1.0 : 1.0;
    if constexpr (Finite) {
      if (exponent == kTop && mantissa == (1 << Mantissa) - 1) return std::numeric_limits<double>::quiet_NaN();
    } else if (exponent == kTop) {
      return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - kBias - Mantissa);
    return sign * std::ldexp(mantissa + (1 << Mantissa), exponent - kBias - Mantissa);
  }

  static Bits encode(double value) {
    const Bits sign = static_cast<Bits>(std::signbit(value) ? 1 << (Exponent + Mantissa) : 0);
    const Bits largest = static_cast<Bits>(Finite ? (1 << (Exponent + Mantissa)) - 2 : (kTop << Mantissa) - 1);
    const double magnitude = std::fabs(value);
    if (std::isnan(value)) return static_cast<Bits>(sign | ((1 << (Exponent + Mantissa)) - 1));
    if (std::isinf(value)) return static_cast<Bits>(sign | (Finite ? largest : kTop << Mantissa));
    if (magnitude == 0) return sign;
    const int exponent = std::max(std::ilogb(magnitude), 1 - kBias);
    // Round to nearest even in units of the last place; a carry moves into the exponent by itself.
    const auto units = static_cast<long>(std::nearbyint(std::ldexp(magnitude, Mantissa - exponent)));
    const long encoded = units + (static_cast<long>(exponent + kBias - 1) << Mantissa);
    if (encoded > largest) return static_cast<Bits>(sign | (Finite ? largest : kTop << Mantissa));
    return static_cast<Bits>(sign | encoded);
  }
};

using Float16 = Minifloat<std::uint16_t, 5, 10>;
using Bfloat16 = Minifloat<std::uint16_t, 8, 7>;
using Float8e4m3 = Minifloat<std::uint8_t, 4, 3, true>;
using Float8e5m2 = Minifloat<std::uint8_t, 5, 2>;

template <class T>
auto widen(T value) {
  if constexpr (std::is_arithmetic_v<T>) return value;
  else return T::decode(value.bits);
}

template <class T, class Wide>
T narrow(Wide value) {
  if constexpr (std::is_arithmetic_v<T>) return static_cast<T>(value);
  else return T{T::encode(value)};
}

// Integers wrap as unsigned ones do.
template <class T>
auto modular(T value) {
  if constexpr (std::is_integral_v<T>) return static_cast<std::uint64_t>(value);
  else return value;
}

template <class T>
T combine_elements(Reduction reduction, T left, T right) {
  const auto a = widen(left), b = widen(right);
  switch (reduction) {
    case Reduction::kProduct: return narrow<T>(modular(a) * modular(b));
    case Reduction::kMaximum: return narrow<T>(a < b || b != b ? b : a);  // a NaN stays
    case Reduction::kMinimum: return narrow<T>(b < a || b != b ? b : a);
    default: return narrow<T>(modular(a) + modular(b));
  }
}

template <class T>
T scale_element(T value, double factor) {
  if constexpr (std::is_integral_v<T>) {
    if (factor > 0 && factor < 1) return static_cast<T>(value / static_cast<T>(std::lround(1 / factor)));
    return static_cast<T>(static_cast<double>(value) * factor);
  } else {
    return narrow<T>(widen(value) * static_cast<decltype(widen(value))>(factor));
  }
}

template <class Visit>
decltype(auto) with_type(DataType type, Visit&& visit) {
  switch (type) {
    case DataType::kInt8: return visit(std::int8_t{});
    case DataType::kUint8: return visit(std::uint8_t{});
    case DataType::kInt32: return visit(std::int32_t{});
    case DataType::kUint32: return visit(std::uint32_t{});
    case DataType::kInt64: return visit(std::int64_t{});
    case DataType::kUint64: return visit(std::uint64_t{});
    case DataType::kFloat16: return visit(Float16{});
    case DataType::kFloat32: return visit(float{});
    case DataType::kFloat64: return visit(double{});
    case DataType::kBfloat16: return visit(Bfloat16{});
    case DataType::kFloat8e4m3: return visit(Float8e4m3{});
    default: return visit(Float8e5m2{});
  }
}

template <class T>
T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

}  // namespace

std::size_t element_bytes(DataType type) {
  return with_type(type, [](auto zero) { return sizeof zero; });
}

std::string_view dtype_name(DataType type) {
  // The trace names no unsigned type but uint8; their size is what matters.
  constexpr std::string_view names[kDataTypes] = {"int8", "uint8", "int32", "int32", "int64",    "int64",
                                                  "fp16", "fp32",  "fp64",  "bf16",  "fp8_e4m3", "fp8_e5m2"};
  return names[static_cast<int>(type)];
}

std::string_view reduction_name(Reduction reduction) {
  constexpr std::string_view names[] = {"sum", "product", "max", "min", "average", "scaled_sum"};
  return names[static_cast<int>(reduction)];
}

bool is_float(DataType type) { return type >= DataType::kFloat16; }

void accumulate(DataType type, Reduction reduction, std::span<std::byte> accumulator,
                std::span<const std::byte> operand) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t at = 0; at + sizeof(T) <= accumulator.size(); at += sizeof(T)) {
      const T sum = combine_elements(reduction, load<T>(&accumulator[at]), load<T>(&operand[at]));
      std::memcpy(&accumulator[at], &sum, sizeof(T));
    }
  });
}

void scale(DataType type, double factor, std::span<std::byte> values) {
  with_type(type, [&](auto zero) {
    using T = decltype(zero);
    for (std::size_t at = 0; at + sizeof(T) <= values.size(); at += sizeof(T)) {
      const T scaled = scale_element(load<T>(&values[at]), factor);
      std::memcpy(&values[at], &scaled, sizeof(T));
    }
  });
}

double to_double(DataType type, const std::byte* element) {
  return with_type(type, [&](auto zero) { return static_cast<double>(widen(load<decltype(zero)>(element))); });
}

}  // namespace maya::nccl
