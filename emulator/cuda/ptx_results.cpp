// What kernels compute of integers and truth values, by running all threads of their PTX.
#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "cuda/ptx.h"
#include "cuda/ptx_block.h"

namespace maya::cuda {
namespace {

using Stored = PtxBlock::Stored;

constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;  // stored by all blocks

// By place; of several at one place the last.
class Elements {
 public:
  void add(std::span<const Stored> stored) {
    for (const Stored& it : stored) elements_[{it.pointer, it.address}] = it;
  }

  // What lies beside each other, and is known or not, together.
  std::vector<PtxKernel::Result> runs(void** arguments) const {
    std::vector<PtxKernel::Result> runs;
    std::uint64_t end = 0;
    for (const auto& [place, element] : elements_) {
      const auto& [argument, address] = place;
      const bool beside = !runs.empty() && runs.back().argument == argument && end == address;
      if (!beside || runs.back().known != element.known) {
        const std::uint64_t base = address_argument(arguments, argument);
        runs.push_back({argument, static_cast<std::int64_t>(address - base), {}, element.known});
      }
      const auto* const data = reinterpret_cast<const std::byte*>(&element.bits);
      runs.back().bytes.insert(runs.back().bytes.end(), data, data + element.bytes);
      end = address + element.bytes;
    }
    return runs;
  }

 private:
  std::map<std::pair<int, std::uint64_t>, Stored> elements_;
};

// Of a block: whether there are any known, of a kernel that stores little.
bool worth_it(std::span<const Stored> stored, std::uint64_t blocks) {
  const auto sum = [](std::uint64_t bytes, const Stored& it) { return bytes + it.bytes; };
  return std::ranges::any_of(stored, &Stored::known) &&
         std::accumulate(stored.begin(), stored.end(), std::uint64_t{0}, sum) * blocks <= kMostBytes;
}

bool loads(PtxBlock& block) {
  return std::ranges::any_of(block.footprint(), [](const auto& it) { return !it.first.second; });
}

}  // namespace

std::optional<PtxKernel::Results> PtxKernel::results(const PtxLaunch& launch, std::uint64_t& steps_left) const {
  if (!stores_integers_ || launch.arguments == nullptr) return std::nullopt;
  PtxBlock first(*this, launch, {0}, PtxLoads::kKnown);
  first.run(0, steps_left);
  if (loads(first) && first.read().empty()) return std::nullopt;
  std::vector<std::uint32_t> threads(launch.threads());
  std::iota(threads.begin(), threads.end(), 0);
  PtxBlock block(*this, launch, threads, PtxLoads::kKnown, PtxTraffic::kIgnored);
  const std::uint64_t blocks = launch.blocks(), steps_before = steps_left;
  Elements elements;
  PtxReads read, missed;
  for (std::uint64_t index = 0; index < blocks; ++index) {
    if (!block.run(index, steps_left) || !block.stores_are_placed()) return std::nullopt;
    const std::uint64_t taken = steps_before - steps_left;
    if (index == 0 && (!worth_it(block.stored(), blocks) || taken * (blocks - 1) > steps_left)) return std::nullopt;
    elements.add(block.stored());
    read.add(block.read());
    missed.add(block.missed());
  }
  return Results{elements.runs(launch.arguments), PtxContents(read.apart(), missed.apart(), launch.arguments)};
}

}  // namespace maya::cuda
