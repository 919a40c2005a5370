// Content hashing. Equal bytes hash equally in every process, so ranks can compare.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace maya {

// Folds a 64x64 -> 128-bit product: every input bit reaches every output bit.
inline std::uint64_t fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t combine(std::uint64_t hash, std::uint64_t value) {
  return fold(hash ^ 0x9e3779b97f4a7c15, value ^ 0xd1b54a32d192ed03);  // odd, irrational-derived
}

inline std::uint64_t hash_bytes(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0x2545f4914f6cdd1d ^ bytes.size();
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= 8; at += 8, left -= 8) {
    std::uint64_t word;
    std::memcpy(&word, at, 8);
    hash = combine(hash, word);
  }
  std::uint64_t tail = 0;
  if (left) std::memcpy(&tail, at, left);
  return combine(hash, tail);
}

inline std::uint64_t hash_bytes(std::string_view text) {
  return hash_bytes(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace maya
