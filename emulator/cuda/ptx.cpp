#include "cuda/ptx.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <utility>

#include "cuda/ptx_block.h"

namespace maya::cuda {
namespace {

constexpr std::uint64_t kStepBudget = 40'000'000;  // of all sampled blocks together

std::uint64_t distinct_bytes(std::vector<Interval>& intervals) {
  std::ranges::sort(intervals, {}, &Interval::begin);
  std::uint64_t total = 0, reached = 0;
  for (const Interval& interval : intervals) {
    const std::uint64_t begin = std::max(interval.begin, reached), end = interval.begin + interval.bytes;
    if (end > begin) total += end - begin;
    reached = std::max(reached, end);
  }
  return total;
}

// Behind one pointer, in one direction, over the sampled blocks.
struct Reached {
  double interior = 0, last = 0;  // bytes of the blocks sampled before the last one, and of that
  std::uint64_t lowest = std::numeric_limits<std::uint64_t>::max(), highest = 0;
  bool spans = true;  // false: some addresses are unknown, and so is the span
};

void add_block(Reached& reached, Touched& touched, bool last) {
  (last ? reached.last : reached.interior) +=
      static_cast<double>(distinct_bytes(touched.intervals) + touched.unplaced_bytes);
  reached.spans = reached.spans && touched.unplaced_bytes == 0;
  for (const Interval& interval : touched.intervals) {
    reached.lowest = std::min(reached.lowest, interval.begin);
    reached.highest = std::max(reached.highest, interval.begin + interval.bytes);
  }
}

PtxKernel::Written written_span(const Reached& reached, int argument, void** arguments) {
  if (!reached.spans || reached.highest <= reached.lowest) return {argument, 0, 0};
  const std::uint64_t base = address_argument(arguments, argument);
  return {argument, static_cast<std::int64_t>(reached.lowest - base), reached.highest - reached.lowest};
}

std::uint32_t warps_of(const PtxLaunch& launch) { return (launch.threads() + kWarp - 1) / kWarp; }

enum class Threads : std::uint8_t { kAll, kOuterWarps };

std::vector<std::uint32_t> chosen_threads(const PtxLaunch& launch, Threads which) {
  const std::uint32_t last_warp = warps_of(launch) - 1;
  std::vector<std::uint32_t> threads;
  for (std::uint32_t thread = 0; thread < launch.threads(); ++thread) {
    const std::uint32_t warp = thread / kWarp;
    if (which == Threads::kAll || warp == 0 || warp == last_warp) threads.push_back(thread);
  }
  return threads;
}

std::vector<std::uint64_t> sampled_blocks(std::uint64_t blocks) {
  std::vector<std::uint64_t> sample{0, 1, blocks / 2, blocks - 1};
  std::erase_if(sample, [&](std::uint64_t index) { return index >= blocks; });
  std::ranges::sort(sample);
  sample.erase(std::ranges::unique(sample).begin(), sample.end());
  return sample;
}

// Blocks so far apart, around the grid, are each another one, and any first few of them lie scattered.
std::uint64_t scattering_stride(std::uint64_t blocks) {
  auto stride = static_cast<std::uint64_t>(std::ceil(static_cast<double>(blocks) / std::numbers::phi));
  while (std::gcd(stride, blocks) > 1) ++stride;
  return stride;
}

// `work`, member by member, times what `of` is of `over`.
KernelWork in_proportion(KernelWork work, const KernelWork& of, const KernelWork& over) {
  for (double KernelWork::* member : kMembersOfWork) {
    if (over.*member > 0) work.*member *= of.*member / over.*member;
  }
  return work;
}

// Sampled blocks of a launch.
struct Samples {
  std::map<std::pair<int, bool>, Reached> reached;
  KernelWork interior, last;   // of the blocks before the last one, and of that
  KernelWork representatives;  // of the blocks before the last one: of each its first thread, or all
  int interior_blocks = 0;
  PtxReads read;

  void add(PtxBlock& block, bool is_last) {
    for (auto& [where, touched] : block.footprint()) add_block(reached[where], touched, is_last);
    (is_last ? last : interior) += block.work();
    read.add(block.read());
  }

  void add_representative(const PtxBlock& block) {
    representatives += block.work();
    ++interior_blocks;
    read.add(block.read());
  }

  // From here on, they stand for `blocks` before the last one, whose representatives do `each` on average: under a
  // causal mask some go over all keys and some over a few. Of a few blocks, a load that one in two does is done by all
  // or by none: where they are so near the average, it is theirs that counts.
  void stand_for(std::uint64_t blocks, const KernelWork& average) {
    const double more = static_cast<double>(blocks) / interior_blocks;
    const KernelWork sampled = representatives * (1.0 / interior_blocks);
    const KernelWork& each = alike(average, sampled) ? sampled : average;
    interior = in_proportion(interior * more, each, sampled);
    const double lines = in_proportion({0, 0, 0, more}, each, sampled).lines;
    for (auto& [where, bytes] : reached) bytes.interior *= lines;
  }
};

// What a block does by its representative, on average over the first `blocks`; of many as many as the budget allows.
std::optional<KernelWork> average(PtxBlock& representative, std::uint64_t blocks, Samples& samples) {
  const std::uint64_t wanted = std::min<std::uint64_t>(blocks, 256), stride = scattering_stride(blocks);
  std::uint64_t steps_left = kStepBudget / 4, taken = 0;
  KernelWork work;
  for (; taken < wanted && representative.run(taken * stride % blocks, steps_left); ++taken) {
    work += representative.work();
    samples.read.add(representative.read());
  }
  if (taken == 0 || (taken < wanted && steps_left > 0)) return std::nullopt;
  return work * (1.0 / static_cast<double>(taken));
}

bool sample(const PtxKernel& kernel, const PtxLaunch& launch, Threads which, PtxLoads loads, std::uint64_t& steps_left,
            Samples& samples) {
  PtxBlock chosen(kernel, launch, chosen_threads(launch, which), loads), first(kernel, launch, {0}, loads);
  // What a thread gets from others decides where some kernels go: one alone cannot tell.
  PtxBlock& representative = first.run(0, steps_left) ? first : chosen;
  const std::uint64_t last = launch.blocks() - 1;
  for (const std::uint64_t index : sampled_blocks(last + 1)) {
    if (!chosen.run(index, steps_left)) return false;
    samples.add(chosen, index == last);
    if (index == last) continue;
    if (&representative == &first && !first.run(index, steps_left)) return false;
    samples.add_representative(representative);
  }
  if (last == 0) return true;
  const std::optional<KernelWork> each = average(representative, last, samples);
  if (each) samples.stand_for(last, *each);
  return each.has_value();
}

// `samples` of all threads, or of one warp or two: over all warps.
PtxKernel::Moved moved_by(const PtxKernel& kernel, const PtxLaunch& launch, Threads which, Samples& samples) {
  const double warps = which == Threads::kAll ? 1 : std::max(warps_of(launch) / 2.0, 1.0);
  PtxKernel::Moved moved;
  bool anywhere = false;
  moved.work += samples.interior * warps;
  moved.work += samples.last * warps;
  for (const auto& [where, reached] : samples.reached) {
    const auto all = static_cast<std::uint64_t>(std::llround((reached.interior + reached.last) * warps));
    moved.bytes += reached.spans ? std::min(all, reached.highest - reached.lowest) : all;
    const auto& [argument, written] = where;
    if (!written) continue;
    if (argument < 0) anywhere = true;
    else if (which == Threads::kAll) moved.written.push_back(written_span(reached, argument, launch.arguments));
    else moved.written.push_back({argument, 0, 0});
  }
  if (anywhere) moved.written = kernel.may_write(launch.arguments);
  moved.follows_from = PtxContents(samples.read.apart(), {}, launch.arguments);
  return moved;
}

}  // namespace

std::uint64_t PtxKernel::Parameter::value(const void* argument) const {
  std::uint64_t bits = 0;
  std::memcpy(&bits, argument, static_cast<std::size_t>(std::min(bytes, 8)));
  return bits;
}

bool PtxKernel::Parameter::is_pointer(std::uint64_t value) const {
  constexpr std::uint64_t kLowestAddress = std::uint64_t{1} << 32;
  return pointer || (bytes == 8 && !floating && value >= kLowestAddress);
}

std::vector<std::uint64_t> PtxKernel::scalars(void** arguments) const {
  std::vector<std::uint64_t> values;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::uint64_t value = parameters_[i].value(arguments[i]);
    if (!parameters_[i].floating && !parameters_[i].is_pointer(value)) values.push_back(value);
  }
  return values;
}

std::vector<PtxKernel::Written> PtxKernel::may_write(void** arguments) const {
  std::vector<Written> written;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (stored_to_[i] && parameters_[i].is_pointer(parameters_[i].value(arguments[i]))) {
      written.push_back({static_cast<int>(i), 0, 0});
    }
  }
  return written;
}

std::optional<PtxKernel::Moved> PtxKernel::moved(const PtxLaunch& launch) const {
  if (launch.arguments == nullptr && !parameters_.empty()) return std::nullopt;
  for (const PtxLoads loads : {PtxLoads::kUnknown, PtxLoads::kKnown}) {
    for (const Threads which : {Threads::kAll, Threads::kOuterWarps}) {
      std::uint64_t steps_left = kStepBudget;
      Samples samples;
      if (sample(*this, launch, which, loads, steps_left, samples)) return moved_by(*this, launch, which, samples);
      if (steps_left > 0) break;  // no fewer threads would do
    }
  }
  return std::nullopt;
}

}  // namespace maya::cuda
