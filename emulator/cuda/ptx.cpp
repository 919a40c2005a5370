#include "cuda/ptx.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>

namespace maya::cuda {
namespace {

using Kernel = PtxKernel;
using Op = PtxKernel::Op;
using Type = PtxKernel::Type;
using Operand = PtxKernel::Operand;
using Instruction = PtxKernel::Instruction;

constexpr std::uint64_t kStepBudget = 40'000'000;  // instructions of all sampled threads together

struct Value {
  std::uint64_t bits = 0;
  bool known = false;
  std::int16_t pointer = -1;  // the parameter an address came from
};

std::uint64_t narrow(std::uint64_t bits, Type type) {
  if (type.bits >= 64) return bits;
  const std::uint64_t mask = (std::uint64_t{1} << type.bits) - 1;
  bits &= mask;
  const bool negative = type.is_signed && (bits >> (type.bits - 1)) != 0;
  return negative ? bits | ~mask : bits;
}

struct Interval {
  std::uint64_t begin, bytes;
};

// What one block touches behind one pointer, in one direction.
struct Touched {
  std::vector<Interval> intervals;
  std::uint64_t unplaced_bytes = 0;  // accesses at addresses that depend on loaded values
};
using Footprint = std::map<std::pair<int, bool>, Touched>;  // by (pointer parameter, written)

// The lines that the threads of a warp ask for together: threads access memory in the same order.
class WarpLines {
 public:
  void begin_thread() { access_ = 0; }

  void add(std::uint64_t address, std::uint64_t bytes) {
    if (access_ == accesses_.size()) accesses_.emplace_back();
    for (std::uint64_t line = address / kLine; line <= (address + bytes - 1) / kLine; ++line) {
      accesses_[access_].push_back(line);
    }
    ++access_;
  }

  // How many they were; the next warp's come then.
  double take() {
    std::size_t lines = 0;
    for (std::vector<std::uint64_t>& access : accesses_) {
      std::ranges::sort(access);
      lines += access.size() - std::ranges::unique(access).size();
      access.clear();
    }
    return static_cast<double>(lines);
  }

 private:
  static constexpr std::uint64_t kLine = 128;
  std::vector<std::vector<std::uint64_t>> accesses_;
  std::size_t access_ = 0;
};

// One thread at a time: registers and the run through the instructions.
class Thread {
 public:
  Thread(const std::vector<Kernel::Parameter>& parameters, const std::vector<Instruction>& instructions, int registers,
         const PtxLaunch& launch, Footprint& footprint)
      : parameters_(parameters),
        instructions_(instructions),
        launch_(launch),
        footprint_(footprint),
        registers_(static_cast<std::size_t>(registers)) {}

  // Of all threads that were run. A warp is 32 of them, one after the other.
  KernelWork work() {
    end_warp();
    return work_;
  }

  void end_warp() { work_.lines += lines_.take(); }

  // False: the run depends on values that are not known, or is over the budget.
  bool run(const std::array<std::uint32_t, 12>& specials, std::uint64_t& steps_left) {
    specials_ = &specials;
    lines_.begin_thread();
    std::ranges::fill(registers_, Value{});
    for (std::size_t at = 0; at < instructions_.size();) {
      if (steps_left == 0) return false;
      --steps_left;
      const Instruction& instruction = instructions_[at++];
      const int executed = guard(instruction);
      if (executed == 0) continue;
      work_ += instruction.work;
      if (instruction.op == Op::kReturn && executed > 0) return true;
      if (instruction.op == Op::kBranch || instruction.op == Op::kReturn) {
        if (executed < 0 && !skips_arithmetic_only(instruction, at)) return false;
        if (executed > 0) at = static_cast<std::size_t>(instruction.target);
        continue;
      }
      if (instruction.op == Op::kRefuse) return false;
      if (PtxKernel::is_memory(instruction.op)) touch(instruction);
      store_results(instruction, executed < 0);
    }
    return true;
  }

 private:
  // 1: executed, 0: not, -1: unknown.
  int guard(const Instruction& instruction) const {
    if (instruction.guard < 0) return 1;
    const Value& value = registers_[static_cast<std::size_t>(instruction.guard)];
    if (!value.known) return -1;
    return (value.bits != 0) != instruction.guard_negated ? 1 : 0;
  }

  // A branch on a floating-point value, over its special cases: either way the same memory is touched.
  bool skips_arithmetic_only(const Instruction& branch, std::size_t next) const {
    if (branch.op != Op::kBranch) return false;
    const auto target = static_cast<std::size_t>(branch.target);
    for (; next != target && next < instructions_.size(); ++next) {
      const Instruction& skipped = instructions_[next];
      if (PtxKernel::is_memory(skipped.op)) return false;
      // Back to the end of a loop that was laid out before its middle: what is skipped has to go there, too.
      if (target < next && skipped.op == Op::kBranch) return skipped.guard < 0 && skipped.target == branch.target;
    }
    return next == target;
  }

  Value read(const Operand& operand) const {
    switch (operand.kind) {
      case Operand::Kind::kRegister: {
        Value value = registers_[static_cast<std::size_t>(operand.index)];
        value.bits += static_cast<std::uint64_t>(operand.immediate);
        return value;
      }
      case Operand::Kind::kImmediate: return {static_cast<std::uint64_t>(operand.immediate), true, -1};
      case Operand::Kind::kSpecial: return {(*specials_)[static_cast<std::size_t>(operand.index)], true, -1};
      case Operand::Kind::kParameter: return parameter(operand);
      case Operand::Kind::kNone: break;
    }
    return {};
  }

  Value parameter(const Operand& operand) const {
    const Kernel::Parameter& parameter = parameters_[static_cast<std::size_t>(operand.index)];
    const std::uint64_t bits = parameter.value(launch_.arguments[operand.index]);
    const bool pointer = parameter.is_pointer(bits);
    return {bits, !parameter.floating, static_cast<std::int16_t>(pointer ? operand.index : -1)};
  }

  void touch(const Instruction& instruction) {
    if (instruction.sources.empty()) return;
    const Value address = read(instruction.sources.front());
    if (instruction.op != Op::kStore) add(address, instruction.bytes, false);
    if (instruction.op == Op::kStore || instruction.op == Op::kAtomic) add(address, instruction.bytes, true);
  }

  void add(const Value& address, int bytes, bool written) {
    Touched& touched = footprint_[{address.pointer, written}];
    if (address.known) {
      touched.intervals.push_back({address.bits, static_cast<std::uint64_t>(bytes)});
      lines_.add(address.bits, static_cast<std::uint64_t>(bytes));
    } else touched.unplaced_bytes += static_cast<std::uint64_t>(bytes);
  }

  void store_results(const Instruction& instruction, bool doubtful) {
    if (instruction.results.empty()) return;
    Value value = doubtful ? Value{} : evaluate(instruction);
    for (int index : instruction.results) {
      registers_[static_cast<std::size_t>(index)] = value;
      value = {};  // only the first of several results is ever an integer of interest
    }
  }

  Value evaluate(const Instruction& instruction) const {
    std::array<Value, 3> in{};
    const bool packed =
        instruction.sources.empty() || (instruction.results.size() > 1 && instruction.op != Op::kCompare);
    const bool combined = instruction.op == Op::kCompare && instruction.sources.size() > 2;
    if (instruction.op == Op::kUnknown || PtxKernel::is_memory(instruction.op) || packed || combined) return {};
    if (instruction.sources.size() > in.size()) return {};
    for (std::size_t i = 0; i < instruction.sources.size(); ++i) in[i] = read(instruction.sources[i]);
    if (instruction.op == Op::kSelect) return in[2].known ? in[in[2].bits != 0 ? 0 : 1] : Value{};
    Value result;
    result.pointer = std::max({in[0].pointer, in[1].pointer, in[2].pointer});
    result.known = true;
    for (std::size_t i = 0; i < instruction.sources.size(); ++i) result.known = result.known && in[i].known;
    if (result.known) result.bits = compute(instruction, in, result.known);
    return result;
  }

  static bool compare(const Instruction& instruction, std::uint64_t a, std::uint64_t b) {
    const std::string_view how(instruction.comparison);
    const Type type = instruction.type;
    a = narrow(a, type), b = narrow(b, type);
    const bool less = type.is_signed ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
    if (how == "eq") return a == b;
    if (how == "ne") return a != b;
    if (how == "lt" || how == "lo") return less;
    if (how == "le" || how == "ls") return less || a == b;
    if (how == "gt" || how == "hi") return !less && a != b;
    return !less;  // ge, hs
  }

  static std::uint64_t divide(Type type, std::uint64_t a, std::uint64_t b, bool remainder) {
    a = narrow(a, type), b = narrow(b, type);
    if (!type.is_signed) return remainder ? a % b : a / b;
    const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
    return static_cast<std::uint64_t>(remainder ? x % y : x / y);
  }

  static std::uint64_t high_half(Type type, std::uint64_t a, std::uint64_t b) {
    if (type.bits <= 32) return (narrow(a, type) * narrow(b, type)) >> type.bits;
    if (type.is_signed) {
      return static_cast<std::uint64_t>(
          (static_cast<__int128>(static_cast<std::int64_t>(a)) * static_cast<std::int64_t>(b)) >> 64);
    }
    return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
  }

  static std::uint64_t shift_right(Type type, std::uint64_t value, std::uint64_t by) {
    value = narrow(value, type);
    if (by >= static_cast<std::uint64_t>(type.bits)) by = static_cast<std::uint64_t>(type.bits) - 1;
    return type.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> by) : value >> by;
  }

  static std::uint64_t compute(const Instruction& instruction, const std::array<Value, 3>& in, bool& known) {
    const Type type = instruction.type;
    const std::uint64_t a = in[0].bits, b = in[1].bits, c = in[2].bits;
    const auto wide = [&] { return narrow(a, type) * narrow(b, type); };
    const auto less = [&] {
      return type.is_signed ? static_cast<std::int64_t>(narrow(a, type)) < static_cast<std::int64_t>(narrow(b, type))
                            : narrow(a, type) < narrow(b, type);
    };
    switch (instruction.op) {
      case Op::kMove: return narrow(a, type);
      case Op::kAdd: return narrow(a + b, type);
      case Op::kSub: return narrow(a - b, type);
      case Op::kMulLow: return narrow(a * b, type);
      case Op::kMulHigh: return narrow(high_half(type, a, b), type);
      case Op::kMulWide: return narrow(wide(), {type.bits * 2, type.is_signed});
      case Op::kMadLow: return narrow(a * b + c, type);
      case Op::kMadWide: return narrow(wide() + c, {type.bits * 2, type.is_signed});
      case Op::kShiftLeft: return b >= static_cast<std::uint64_t>(type.bits) ? 0 : narrow(a << b, type);
      case Op::kShiftRight: return shift_right(type, a, b);
      case Op::kAnd: return narrow(a & b, type);
      case Op::kOr: return narrow(a | b, type);
      case Op::kXor: return narrow(a ^ b, type);
      case Op::kNot: return narrow(~a, type);
      case Op::kNegate: return narrow(~a + 1, type);
      case Op::kMin: return less() ? a : b;
      case Op::kMax: return less() ? b : a;
      case Op::kCompare: return compare(instruction, a, b) ? 1 : 0;
      case Op::kConvert: return narrow(narrow(a, instruction.source_type), type);
      case Op::kBitField: return narrow(shift_right({type.bits, false}, a, b), {static_cast<int>(c), type.is_signed});
      case Op::kDivide:
      case Op::kRemainder:
        known = narrow(b, type) != 0;
        return known ? divide(type, a, b, instruction.op == Op::kRemainder) : 0;
      default: known = false; return 0;
    }
  }

  const std::vector<Kernel::Parameter>& parameters_;
  const std::vector<Instruction>& instructions_;
  const PtxLaunch& launch_;
  Footprint& footprint_;
  WarpLines lines_;
  KernelWork work_;
  const std::array<std::uint32_t, 12>* specials_ = nullptr;
  std::vector<Value> registers_;
};

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

PtxKernel::Written written_span(const Reached& reached, int argument, const void* value) {
  if (!reached.spans || reached.highest <= reached.lowest) return {argument, 0, 0};
  std::uint64_t base = 0;
  std::memcpy(&base, value, sizeof base);
  return {argument, static_cast<std::int64_t>(reached.lowest - base), reached.highest - reached.lowest};
}

constexpr std::uint32_t kWarp = 32;

std::uint64_t blocks_of(const PtxLaunch& launch) {
  return std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
}

std::uint32_t threads_of(const PtxLaunch& launch) { return launch.block[0] * launch.block[1] * launch.block[2]; }

std::uint32_t warps_of(const PtxLaunch& launch) { return (threads_of(launch) + kWarp - 1) / kWarp; }

// The special registers of one thread, as Operand::index counts them.
std::array<std::uint32_t, 12> specials_of(const PtxLaunch& launch, std::uint64_t block, std::uint32_t thread) {
  const auto& [grid, size, arguments] = launch;
  const auto rows = static_cast<std::uint32_t>(block / grid[0]);
  return {thread % size[0],
          thread / size[0] % size[1],
          thread / size[0] / size[1],
          static_cast<std::uint32_t>(block % grid[0]),
          rows % grid[1],
          rows / grid[1],
          size[0],
          size[1],
          size[2],
          grid[0],
          grid[1],
          grid[2]};
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
  for (double KernelWork::* member : {&KernelWork::instructions, &KernelWork::doubles, &KernelWork::specials,
                                      &KernelWork::lines, &KernelWork::products}) {
    if (over.*member > 0) work.*member *= of.*member / over.*member;
  }
  return work;
}

}  // namespace

struct PtxKernel::Block {
  Footprint footprint;
  KernelWork work;
};

struct PtxKernel::Samples {
  std::map<std::pair<int, bool>, Reached> reached;
  KernelWork interior, last;  // of the blocks before the last one, and of that
  KernelWork first_threads;   // of the blocks before the last one
  int interior_blocks = 0;

  // From here on, they stand for `blocks` before the last one, whose first threads do `each` on average: under a causal
  // mask some go over all keys and some over a few.
  void stand_for(std::uint64_t blocks, const KernelWork& each) {
    const double more = static_cast<double>(blocks) / interior_blocks;
    const KernelWork average = first_threads * (1.0 / interior_blocks);
    interior = in_proportion(interior * more, each, average);
    const double lines = in_proportion({0, 0, 0, more}, each, average).lines;
    for (auto& [where, bytes] : reached) bytes.interior *= lines;
  }
};

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

bool PtxKernel::run_block(const PtxLaunch& launch, std::uint64_t index, Threads which, std::uint64_t& steps_left,
                          Block& block) const {
  Thread thread(parameters_, instructions_, registers_, launch, block.footprint);
  const std::uint32_t threads = which == Threads::kFirst ? 1 : threads_of(launch), last_warp = warps_of(launch) - 1;
  for (std::uint32_t t = 0; t < threads; ++t) {
    const std::uint32_t warp = t / kWarp;
    if (which == Threads::kOuterWarps && warp != 0 && warp != last_warp) continue;
    if (t % kWarp == 0) thread.end_warp();
    if (!thread.run(specials_of(launch, index, t), steps_left)) return false;
  }
  block.work = thread.work();
  return true;
}

bool PtxKernel::run_sample(const PtxLaunch& launch, std::uint64_t index, Threads which, std::uint64_t& steps_left,
                           Samples& samples) const {
  Block run, first;
  if (!run_block(launch, index, which, steps_left, run)) return false;
  const bool last = index == blocks_of(launch) - 1;
  for (auto& [where, touched] : run.footprint) add_block(samples.reached[where], touched, last);
  (last ? samples.last : samples.interior) += run.work;
  if (last) return true;
  if (!run_block(launch, index, Threads::kFirst, steps_left, first)) return false;
  samples.first_threads += first.work;
  ++samples.interior_blocks;
  return true;
}

std::optional<KernelWork> PtxKernel::first_threads(const PtxLaunch& launch, std::uint64_t blocks) const {
  const std::uint64_t wanted = std::min<std::uint64_t>(blocks, 256), stride = scattering_stride(blocks);
  std::uint64_t steps_left = kStepBudget / 4, taken = 0;
  KernelWork work;
  for (; taken < wanted; ++taken) {
    Block run;
    if (!run_block(launch, taken * stride % blocks, Threads::kFirst, steps_left, run)) break;
    work += run.work;
  }
  if (taken == 0 || (taken < wanted && steps_left > 0)) return std::nullopt;
  return work * (1.0 / static_cast<double>(taken));
}

std::optional<PtxKernel::Moved> PtxKernel::moved(const PtxLaunch& launch) const {
  if (launch.arguments == nullptr && !parameters_.empty()) return std::nullopt;
  std::uint64_t steps_left = kStepBudget;
  std::optional<Moved> known = moved(launch, Threads::kAll, steps_left);
  if (known || steps_left > 0) return known;
  steps_left = kStepBudget;
  return moved(launch, Threads::kOuterWarps, steps_left);
}

std::optional<PtxKernel::Moved> PtxKernel::moved(const PtxLaunch& launch, Threads which,
                                                 std::uint64_t& steps_left) const {
  Samples samples;
  const std::uint64_t last_block = blocks_of(launch) - 1;
  for (const std::uint64_t index : sampled_blocks(last_block + 1)) {
    if (!run_sample(launch, index, which, steps_left, samples)) return std::nullopt;
  }
  if (last_block > 0) {
    const std::optional<KernelWork> each = first_threads(launch, last_block);
    if (!each) return std::nullopt;
    samples.stand_for(last_block, *each);
  }
  const double warps = which == Threads::kAll ? 1 : std::max(warps_of(launch) / 2.0, 1.0);
  Moved moved;
  moved.work += samples.interior * warps;
  moved.work += samples.last * warps;
  for (const auto& [where, reached] : samples.reached) {
    const auto all = static_cast<std::uint64_t>(std::llround((reached.interior + reached.last) * warps));
    moved.bytes += reached.spans ? std::min(all, reached.highest - reached.lowest) : all;
    const auto& [argument, written] = where;
    if (!written || argument < 0) continue;
    moved.written.push_back(which == Threads::kAll ? written_span(reached, argument, launch.arguments[argument])
                                                   : Written{argument, 0, 0});
  }
  return moved;
}

}  // namespace maya::cuda
