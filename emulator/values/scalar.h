// Element types and the arithmetic class they compute in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "values/values.h"

namespace maya::values {

// Numbered as c10::ScalarType (c10/core/ScalarType.h), because dynamic casts pass these numbers.
enum class ScalarType : std::int8_t {
  kUInt8 = 0,
  kInt8 = 1,
  kInt16 = 2,
  kInt32 = 3,
  kInt64 = 4,
  kHalf = 5,
  kFloat = 6,
  kDouble = 7,
  kBool = 11,
  kBFloat16 = 15,
  kUInt16 = 27,
  kUInt32 = 28,
  kUInt64 = 29,
};

// Of a C++ type as the demangler spells it: "long", "c10::BFloat16".
std::optional<ScalarType> scalar_type(std::string_view cpp_name);
// Of a c10::ScalarType number; empty for the types that do not compute here.
std::optional<ScalarType> scalar_type(std::int8_t number);

std::size_t size_of(ScalarType type);
bool is_float(ScalarType type);

inline Content content_of(ScalarType type) {
  if (type == ScalarType::kUInt8 || type == ScalarType::kInt8) return Content::kBytes;  // raw buffers
  return is_float(type) ? Content::kFloat : Content::kInteger;
}

// One element on its way through a computation: `f` for the floating-point types, else `i`.
union Lane {
  double f;
  std::int64_t i;
};

Lane load(ScalarType type, const std::byte* from);
void store(ScalarType type, Lane value, std::byte* to);
// Calls `visit(T{})` with the type that large countable tensors are made of; false: not one of those.
template <class Visit>
bool with_countable(ScalarType type, Visit visit) {
  switch (type) {
    case ScalarType::kBool: visit(bool{}); return true;
    case ScalarType::kInt32: visit(std::int32_t{}); return true;
    case ScalarType::kInt64: visit(std::int64_t{}); return true;
    case ScalarType::kFloat: visit(float{}); return true;
    default: return false;
  }
}

// static_cast from one element type to another, with the rounding of the latter.
Lane cast(ScalarType from, ScalarType to, Lane value);

}  // namespace maya::values
