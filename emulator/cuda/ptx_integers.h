// Integer arithmetic of PTX, on 64 bits of which a type's lowest count.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "cuda/ptx.h"

namespace maya::cuda {

inline std::uint64_t narrow(std::uint64_t bits, PtxKernel::Type type) {
  if (type.bits >= 64 || type.bits <= 0) return type.bits > 0 ? bits : 0;
  const int unused = 64 - type.bits;
  bits <<= unused;
  return type.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(bits) >> unused) : bits >> unused;
}

inline bool less(std::uint64_t a, std::uint64_t b, PtxKernel::Type type) {
  a = narrow(a, type), b = narrow(b, type);
  return type.is_signed ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
}

inline std::uint64_t divide(PtxKernel::Type type, std::uint64_t a, std::uint64_t b, bool remainder) {
  a = narrow(a, type), b = narrow(b, type);
  if (b == 0) return 0;
  if (!type.is_signed) return remainder ? a % b : a / b;
  const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
  if (y == -1) return remainder ? 0 : static_cast<std::uint64_t>(-static_cast<std::uint64_t>(x));
  return static_cast<std::uint64_t>(remainder ? x % y : x / y);
}

inline std::uint64_t high_half(PtxKernel::Type type, std::uint64_t a, std::uint64_t b) {
  if (type.bits <= 32) return (narrow(a, type) * narrow(b, type)) >> type.bits;
  if (type.is_signed) {
    return static_cast<std::uint64_t>(
        (static_cast<__int128>(static_cast<std::int64_t>(a)) * static_cast<std::int64_t>(b)) >> 64);
  }
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

inline std::uint64_t shift_right(PtxKernel::Type type, std::uint64_t value, std::uint64_t by) {
  value = narrow(value, type);
  const auto most = static_cast<std::uint64_t>(type.bits) - 1;
  if (by > most && !type.is_signed) return 0;
  by = std::min(by, most);
  return type.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> by) : value >> by;
}

// Of the lowest 16 bits.
inline std::uint64_t half_of(PtxKernel::Op op, PtxKernel::Type type, std::uint64_t a, std::uint64_t b) {
  const bool first = (op == PtxKernel::Op::kMin) == less(a, b, type);
  return narrow(op == PtxKernel::Op::kAdd ? a + b : first ? a : b, {16, false});
}

inline std::uint64_t reduced(std::string_view how, PtxKernel::Type type, std::uint64_t a, std::uint64_t b) {
  if (how == "add") return narrow(a + b, type);
  if (how == "min") return less(b, a, type) ? b : a;
  if (how == "max") return less(a, b, type) ? b : a;
  return how == "and" ? a & b : how == "or" ? a | b : a ^ b;
}

// The bytes of b and a, four of them as `which` tells (PTX ISA, prmt): the highest bit of a number spreads its byte's
// sign.
inline std::uint64_t permuted(std::uint64_t a, std::uint64_t b, std::uint64_t which) {
  const std::uint64_t from = narrow(b, {32, false}) << 32 | narrow(a, {32, false});
  std::uint64_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t number = which >> (4 * i) & 15, byte = from >> (8 * (number & 7)) & 255;
    result |= ((number & 8) == 0 ? byte : byte >> 7 != 0 ? 255 : 0) << (8 * i);
  }
  return result;
}

}  // namespace maya::cuda
