#include "values/scalar.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace maya::values {
namespace {

struct Name {
  std::string_view cpp;
  ScalarType type;
};

constexpr Name kNames[] = {
    {"unsigned char", ScalarType::kUInt8},
    {"signed char", ScalarType::kInt8},
    {"short", ScalarType::kInt16},
    {"int", ScalarType::kInt32},
    {"long", ScalarType::kInt64},
    {"c10::Half", ScalarType::kHalf},
    {"float", ScalarType::kFloat},
    {"double", ScalarType::kDouble},
    {"bool", ScalarType::kBool},
    {"c10::BFloat16", ScalarType::kBFloat16},
    {"unsigned short", ScalarType::kUInt16},
    {"unsigned int", ScalarType::kUInt32},
    {"unsigned long", ScalarType::kUInt64},
    {"long long", ScalarType::kInt64},
};

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
void write(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

float half_to_float(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float magnitude = 0;
  if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa), -24);
  } else if (exponent == 31) {
    magnitude = mantissa ? std::nanf("") : INFINITY;
  } else {
    magnitude = std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return bits & 0x8000 ? -magnitude : magnitude;
}

// IEEE 754 round to nearest, ties to even.
std::uint16_t float_to_half(float value) {
  const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return sign | 0x7e00;
  if (magnitude >= 65520.0f) return sign | 0x7c00;  // halfway beyond the largest finite half, 65504
  if (magnitude < 0x1p-14f) {                       // subnormal: a multiple of 2^-24
    return sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(magnitude, 24)));
  }
  int exponent = 0;
  const float fraction = std::frexp(magnitude, &exponent);                                     // in [0.5, 1)
  const auto mantissa = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(fraction, 11)));  // 1024..2048
  return sign | static_cast<std::uint16_t>((static_cast<std::uint32_t>(exponent + 13) << 10) + mantissa);
}

float bfloat16_to_float(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

std::uint16_t float_to_bfloat16(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // ties to even
}

std::int64_t to_integer(double value) {
  // Out of range is undefined in C++; the GPU saturates (PTX ISA, cvt).
  if (std::isnan(value)) return 0;
  if (value >= 0x1p63) return INT64_MAX;
  if (value <= -0x1p63) return INT64_MIN;
  return static_cast<std::int64_t>(value);
}

std::int64_t wrap(ScalarType type, std::int64_t value) {
  switch (type) {
    case ScalarType::kUInt8: return static_cast<std::uint8_t>(value);
    case ScalarType::kInt8: return static_cast<std::int8_t>(value);
    case ScalarType::kInt16: return static_cast<std::int16_t>(value);
    case ScalarType::kInt32: return static_cast<std::int32_t>(value);
    case ScalarType::kBool: return value != 0;
    case ScalarType::kUInt16: return static_cast<std::uint16_t>(value);
    case ScalarType::kUInt32: return static_cast<std::uint32_t>(value);
    default: return value;
  }
}

double round(ScalarType type, double value) {
  switch (type) {
    case ScalarType::kHalf: return half_to_float(float_to_half(static_cast<float>(value)));
    case ScalarType::kBFloat16: return bfloat16_to_float(float_to_bfloat16(static_cast<float>(value)));
    case ScalarType::kFloat: return static_cast<float>(value);
    default: return value;
  }
}

}  // namespace

std::optional<ScalarType> scalar_type(std::string_view cpp_name) {
  for (const Name& name : kNames) {
    if (name.cpp == cpp_name) return name.type;
  }
  return std::nullopt;
}

std::optional<ScalarType> scalar_type(std::int8_t number) {
  for (const Name& name : kNames) {
    if (static_cast<std::int8_t>(name.type) == number) return name.type;
  }
  return std::nullopt;
}

std::size_t size_of(ScalarType type) {
  switch (type) {
    case ScalarType::kUInt8:
    case ScalarType::kInt8:
    case ScalarType::kBool: return 1;
    case ScalarType::kInt16:
    case ScalarType::kUInt16:
    case ScalarType::kHalf:
    case ScalarType::kBFloat16: return 2;
    case ScalarType::kInt32:
    case ScalarType::kUInt32:
    case ScalarType::kFloat: return 4;
    case ScalarType::kInt64:
    case ScalarType::kUInt64:
    case ScalarType::kDouble: return 8;
  }
  return 0;
}

bool is_float(ScalarType type) {
  return type == ScalarType::kHalf || type == ScalarType::kFloat || type == ScalarType::kDouble ||
         type == ScalarType::kBFloat16;
}

Lane load(ScalarType type, const std::byte* from) {
  switch (type) {
    case ScalarType::kUInt8: return {.i = read<std::uint8_t>(from)};
    case ScalarType::kInt8: return {.i = read<std::int8_t>(from)};
    case ScalarType::kInt16: return {.i = read<std::int16_t>(from)};
    case ScalarType::kInt32: return {.i = read<std::int32_t>(from)};
    case ScalarType::kInt64: return {.i = read<std::int64_t>(from)};
    case ScalarType::kHalf: return {.f = half_to_float(read<std::uint16_t>(from))};
    case ScalarType::kFloat: return {.f = read<float>(from)};
    case ScalarType::kDouble: return {.f = read<double>(from)};
    case ScalarType::kBool: return {.i = read<std::uint8_t>(from) != 0};
    case ScalarType::kBFloat16: return {.f = bfloat16_to_float(read<std::uint16_t>(from))};
    case ScalarType::kUInt16: return {.i = read<std::uint16_t>(from)};
    case ScalarType::kUInt32: return {.i = read<std::uint32_t>(from)};
    case ScalarType::kUInt64: return {.i = read<std::int64_t>(from)};
  }
  return {.i = 0};
}

void store(ScalarType type, Lane value, std::byte* to) {
  switch (type) {
    case ScalarType::kHalf: return write(to, float_to_half(static_cast<float>(value.f)));
    case ScalarType::kBFloat16: return write(to, float_to_bfloat16(static_cast<float>(value.f)));
    case ScalarType::kFloat: return write(to, static_cast<float>(value.f));
    case ScalarType::kDouble: return write(to, value.f);
    case ScalarType::kBool: return write(to, static_cast<std::uint8_t>(value.i != 0));
    default: std::memcpy(to, &value.i, size_of(type));  // little-endian: the low bytes
  }
}

Lane cast(ScalarType from, ScalarType to, Lane value) {
  if (from == to) return value;
  if (is_float(to)) {
    const double wide = is_float(from)                ? value.f
                        : from == ScalarType::kUInt64 ? static_cast<double>(static_cast<std::uint64_t>(value.i))
                                                      : static_cast<double>(value.i);
    return {.f = round(to, wide)};
  }
  if (!is_float(from)) return {.i = wrap(to, value.i)};
  if (to == ScalarType::kBool) return {.i = value.f != 0};
  return {.i = wrap(to, to_integer(value.f))};
}

}  // namespace maya::values
