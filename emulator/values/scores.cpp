// The scores that a router gives tokens. Nobody computes its product, but how often a router goes over them until
// experts are balanced (Sinkhorn's normalisation) is decided on the host, and takes as long there as the layer's other
// work.
//
// They are taken to be those of first weights: normal, with a standard deviation of 0.02 (GPT-2's initializer_range and
// Megatron-LM's init_method_std) times the root of the hidden size, the tokens having been normalised; in part all
// tokens' in common, each expert's the same.
#include <array>
#include <cmath>
#include <random>

#include "values/executor.h"

namespace maya::values {
namespace {

constexpr double kInitialDeviation = 0.02;
constexpr double kInCommon = 0.26;  // of the variance, by scripts/fit/router_scores
// A router has few experts beside its tokens and their hidden size; other products have not.
constexpr std::int64_t kAtLeastTimes = 8;

constexpr std::size_t kDraws = 8191;  // a prime: no number of experts divides it
using Draws = std::array<float, kDraws>;

const Draws& standard_normal() {
  static const Draws draws = [] {
    Draws drawn;
    std::mt19937 bits;  // seeded alike in each rank: all loop equally often
    std::normal_distribution<float> normal;
    for (float& one : drawn) one = normal(bits);
    return drawn;
  }();
  return draws;
}

std::optional<ScalarType> score_type(std::string_view dtype) {
  if (dtype == "fp32") return ScalarType::kFloat;
  if (dtype == "bf16") return ScalarType::kBFloat16;
  if (dtype == "fp16") return ScalarType::kHalf;
  return std::nullopt;
}

}  // namespace

void assume_scores(std::byte* data, std::string_view dtype, std::int64_t rows, std::int64_t columns,
                   std::int64_t depth) {
  const auto type = score_type(dtype);
  if (!type || columns < 2 || columns * kAtLeastTimes > rows || columns * kAtLeastTimes > depth) return;
  const std::int64_t count = rows * columns;
  if (!computes(count, *type, false) || !on_device(data, static_cast<std::size_t>(count) * size_of(*type))) return;
  const Draws& draws = standard_normal();
  const double deviation = kInitialDeviation * std::sqrt(static_cast<double>(depth));
  const double own = deviation * std::sqrt(1 - kInCommon), common = deviation * std::sqrt(kInCommon);
  const Derivation assumed;
  Derivation::follow(Assumption::kScore);
  Output scores(*type);
  for (std::size_t at = 0; at < static_cast<std::size_t>(count); ++at) {
    const std::size_t expert = at % static_cast<std::size_t>(columns);
    const double score = own * draws[at % kDraws] + common * draws[kDraws - 1 - expert % kDraws];
    scores.put(data + at * size_of(*type), Lane{.f = score});
  }
}

}  // namespace maya::values
