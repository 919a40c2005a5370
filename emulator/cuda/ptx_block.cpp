#include "cuda/ptx_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <tuple>

#include "values/values.h"

namespace maya::cuda {
namespace {

using Op = PtxKernel::Op;
using Type = PtxKernel::Type;
using Operand = PtxKernel::Operand;

constexpr std::size_t kWarp = 32;
constexpr std::uint64_t kLine = 128;
constexpr std::size_t kSharedBytes = 256 * 1024;
constexpr std::uint8_t kKnown = 1, kUnknown = 0;
constexpr std::uint64_t kNothing = 0;

std::uint64_t narrow(std::uint64_t bits, Type type) {
  if (type.bits >= 64 || type.bits <= 0) return type.bits > 0 ? bits : 0;
  const int unused = 64 - type.bits;
  bits <<= unused;
  return type.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(bits) >> unused) : bits >> unused;
}

bool less(std::uint64_t a, std::uint64_t b, Type type) {
  a = narrow(a, type), b = narrow(b, type);
  return type.is_signed ? static_cast<std::int64_t>(a) < static_cast<std::int64_t>(b) : a < b;
}

std::uint64_t divide(Type type, std::uint64_t a, std::uint64_t b, bool remainder) {
  a = narrow(a, type), b = narrow(b, type);
  if (b == 0) return 0;
  if (!type.is_signed) return remainder ? a % b : a / b;
  const auto x = static_cast<std::int64_t>(a), y = static_cast<std::int64_t>(b);
  if (y == -1) return remainder ? 0 : static_cast<std::uint64_t>(-static_cast<std::uint64_t>(x));
  return static_cast<std::uint64_t>(remainder ? x % y : x / y);
}

std::uint64_t high_half(Type type, std::uint64_t a, std::uint64_t b) {
  if (type.bits <= 32) return (narrow(a, type) * narrow(b, type)) >> type.bits;
  if (type.is_signed) {
    return static_cast<std::uint64_t>(
        (static_cast<__int128>(static_cast<std::int64_t>(a)) * static_cast<std::int64_t>(b)) >> 64);
  }
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(a) * b) >> 64);
}

std::uint64_t shift_right(Type type, std::uint64_t value, std::uint64_t by) {
  value = narrow(value, type);
  const auto most = static_cast<std::uint64_t>(type.bits) - 1;
  if (by > most && !type.is_signed) return 0;
  by = std::min(by, most);
  return type.is_signed ? static_cast<std::uint64_t>(static_cast<std::int64_t>(value) >> by) : value >> by;
}

// The lane that a lane of a warp takes from (PTX ISA, shfl.sync), by the mode, b and c; -1: from itself.
int partner(std::string_view mode, int lane, std::uint64_t b, std::uint64_t c) {
  const int by = static_cast<int>(b & 31), segment = static_cast<int>(c >> 8 & 31), clamp = static_cast<int>(c & 31);
  const int most = (lane & segment) | (clamp & ~segment);
  int from = 0;
  if (mode == "up") from = lane - by;
  else if (mode == "down") from = lane + by;
  else if (mode == "bfly") from = lane ^ by;
  else from = (lane & segment) | (by & ~segment);
  const bool inside = mode == "up" ? from >= most : from <= most;
  return inside ? from : -1;
}

// Of the lowest 16 bits.
std::uint64_t half_of(Op op, Type type, std::uint64_t a, std::uint64_t b) {
  const bool first = (op == Op::kMin) == less(a, b, type);
  return narrow(op == Op::kAdd ? a + b : first ? a : b, {16, false});
}

std::uint64_t reduced(std::string_view how, Type type, std::uint64_t a, std::uint64_t b) {
  if (how == "add") return narrow(a + b, type);
  if (how == "min") return less(b, a, type) ? b : a;
  if (how == "max") return less(a, b, type) ? b : a;
  return how == "and" ? a & b : how == "or" ? a | b : a ^ b;
}

// The bytes of b and a, four of them as `which` tells (PTX ISA, prmt): the highest bit of a number spreads its byte's
// sign.
std::uint64_t permuted(std::uint64_t a, std::uint64_t b, std::uint64_t which) {
  const std::uint64_t from = narrow(b, {32, false}) << 32 | narrow(a, {32, false});
  std::uint64_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint64_t number = which >> (4 * i) & 15, byte = from >> (8 * (number & 7)) & 255;
    result |= ((number & 8) == 0 ? byte : byte >> 7 != 0 ? 255 : 0) << (8 * i);
  }
  return result;
}

}  // namespace

PtxBlock::PtxBlock(const PtxKernel& kernel, const PtxLaunch& launch, std::vector<std::uint32_t> threads, PtxLoads loads)
    : kernel_(kernel), launch_(launch), threads_(std::move(threads)), loads_(loads), lanes_(threads_.size()) {
  const std::size_t values = static_cast<std::size_t>(kernel.registers_) * lanes_;
  bits_.resize(values);
  registers_known_.resize(values);
  pointers_.resize(static_cast<std::size_t>(kernel.registers_));
  all_lanes_known_.resize(pointers_.size());
  for (std::vector<std::uint64_t>& special : specials_) special.resize(lanes_);
  for (std::size_t i = 0; i < kernel.parameters_.size(); ++i) {
    arguments_.push_back(kernel.parameters_[i].value(launch.arguments[i]));
  }
  all_known_.resize(lanes_, 1);
  at_.resize(lanes_);
  active_.resize(lanes_);
  executed_.resize(lanes_);
  result_.resize(lanes_);
  result_known_.resize(lanes_);
}

void PtxBlock::begin(std::uint64_t block) {
  std::ranges::fill(registers_known_, std::uint8_t{0});
  std::ranges::fill(pointers_, std::int16_t{-1});
  std::ranges::fill(shared_known_, std::uint8_t{0});
  std::ranges::fill(all_lanes_known_, std::uint8_t{0});
  std::ranges::fill(active_, std::uint8_t{1});
  together_ = true;
  common_ = 0;
  active_lanes_ = lanes_;
  const auto& [grid, size, arguments] = launch_;
  const auto rows = static_cast<std::uint32_t>(block / grid[0]);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const std::uint32_t thread = threads_[lane];
    const std::array<std::uint32_t, 12> specials{thread % size[0],
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
    for (std::size_t i = 0; i < specials.size(); ++i) specials_[i][lane] = specials[i];
  }
  footprint_.clear();
  work_ = {};
  stored_.clear();
  stores_are_placed_ = true;
  read_.clear();
  known_ = {};
}

bool PtxBlock::run(std::uint64_t block, std::uint64_t& steps_left) {
  begin(block);
  const std::vector<Instruction>& instructions = kernel_.instructions_;
  for (std::size_t at = next(); at < instructions.size(); at = next()) {
    const Instruction& instruction = instructions[at];
    if (steps_left < active_lanes_) return steps_left = 0, false;
    steps_left -= active_lanes_;
    find_executed(instruction);
    work_ += instruction.work * static_cast<double>(executed_lanes_);
    if (instruction.op == Op::kBranch || instruction.op == Op::kReturn) {
      if (!leave(instruction, at)) return false;
      continue;
    }
    if (executed_lanes_ > 0) {
      if (instruction.op == Op::kRefuse) return false;
      execute(instruction);
    }
    ++common_;
    for (std::size_t lane = 0; lane < lanes_ && !together_; ++lane) at_[lane] += active_[lane];
  }
  return true;
}

// The instruction of the lanes that are furthest behind, which become active.
std::size_t PtxBlock::next() {
  const std::size_t end = kernel_.instructions_.size();
  if (together_) return active_lanes_ > 0 ? common_ : end;
  common_ = std::ranges::min(at_);
  active_lanes_ = 0;
  together_ = true;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    active_[lane] = at_[lane] == common_ && common_ < end;
    active_lanes_ += active_[lane];
    together_ = together_ && (active_[lane] || at_[lane] >= end);
  }
  return common_;
}

void PtxBlock::find_executed(const Instruction& instruction) {
  doubtful_ = false;
  executed_lanes_ = active_lanes_;
  if (instruction.guard < 0) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) executed_[lane] = active_[lane] ? kSurely : kNot;
    return;
  }
  const Source guard = source({Operand::Kind::kRegister, instruction.guard});
  executed_lanes_ = 0;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const bool known = guard.is_known(lane), holds = (guard.of(lane) != 0) != instruction.guard_negated;
    executed_[lane] = !active_[lane] || (known && !holds) ? kNot : known ? kSurely : kPerhaps;
    executed_lanes_ += executed_[lane] != kNot;
    doubtful_ = doubtful_ || executed_[lane] == kPerhaps;
  }
}

// A branch or a return, which is at `at`. False: nobody knows where to.
bool PtxBlock::leave(const Instruction& instruction, std::size_t at) {
  if (doubtful_ && !skips_arithmetic_only(instruction, at + 1)) return false;
  const std::size_t end = kernel_.instructions_.size();
  const std::size_t target = instruction.op == Op::kReturn ? end : static_cast<std::size_t>(instruction.target);
  const auto leaving = static_cast<std::size_t>(std::ranges::count(executed_, kSurely));
  if (together_ && (leaving == 0 || leaving == active_lanes_)) {
    common_ = leaving == 0 ? at + 1 : target;
    return true;
  }
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (active_[lane]) at_[lane] = executed_[lane] == kSurely ? target : at + 1;
    else if (together_) at_[lane] = end;
  }
  together_ = false;
  return true;
}

// A branch on a floating-point value, over its special cases: either way the same memory is touched.
bool PtxBlock::skips_arithmetic_only(const Instruction& branch, std::size_t next) const {
  if (branch.op != Op::kBranch) return false;
  const auto target = static_cast<std::size_t>(branch.target);
  for (; next != target && next < kernel_.instructions_.size(); ++next) {
    const Instruction& skipped = kernel_.instructions_[next];
    if (PtxKernel::is_memory(skipped.op)) return false;
    // Back to the end of a loop that was laid out before its middle: what is skipped has to go there, too.
    if (target < next && skipped.op == Op::kBranch) return skipped.guard < 0 && skipped.target == branch.target;
  }
  return next == target;
}

PtxBlock::Source PtxBlock::source(const Operand& operand) const {
  const auto index = static_cast<std::size_t>(operand.index);
  const auto immediate = static_cast<std::uint64_t>(operand.immediate);
  switch (operand.kind) {
    case Operand::Kind::kRegister:
      return {&bits_[index * lanes_], &registers_known_[index * lanes_], 1, immediate,
              pointers_[index],       all_lanes_known_[index] != 0};
    case Operand::Kind::kImmediate: return {&kNothing, &kKnown, 0, immediate, -1, true};
    case Operand::Kind::kSpecial: return {specials_[index].data(), all_known_.data(), 1, 0, -1, true};
    case Operand::Kind::kParameter: {
      const PtxKernel::Parameter& parameter = kernel_.parameters_[index];
      const bool pointer = parameter.is_pointer(arguments_[index]);
      return {&arguments_[index],
              parameter.floating ? &kUnknown : &kKnown,
              0,
              0,
              static_cast<std::int16_t>(pointer ? operand.index : -1),
              !parameter.floating};
    }
    case Operand::Kind::kNone: break;
  }
  return {&kNothing, &kUnknown};
}

void PtxBlock::execute(const Instruction& instruction) {
  const bool addressed = !instruction.sources.empty();
  switch (instruction.op) {
    case Op::kLoad:
    case Op::kStore:
    case Op::kAtomic:
    case Op::kAsyncCopy:
      if (addressed) touch(instruction, source(instruction.sources.front()));
      break;
    case Op::kLoadShared: return load_shared(instruction, source(instruction.sources.front()));
    case Op::kStoreShared: return store_shared(instruction, source(instruction.sources.front()));
    case Op::kChangeShared: forget_shared(); break;
    case Op::kLoadMatrix: return load_matrices(instruction, source(instruction.sources.front()));
    case Op::kStoreMatrix: return store_matrices(instruction, source(instruction.sources.front()));
    case Op::kShuffle: return shuffle(instruction);
    case Op::kReduce: return reduce(instruction);
    case Op::kPack: return pack(instruction);
    default: return compute(instruction);
  }
  if (instruction.op == Op::kLoad && loads_ == PtxLoads::kKnown && addressed) {
    return load(instruction, source(instruction.sources.front()));
  }
  write_unknown(instruction);
}

void PtxBlock::compute(const Instruction& instruction) {
  const std::size_t count = instruction.sources.size();
  const bool several = instruction.results.size() > 1 && instruction.op != Op::kCompare;
  const Source none{&kNothing, &kKnown, 0, 0, -1, true};
  Sources in{none, none, none};
  if (instruction.results.empty()) return;
  if (instruction.op == Op::kUnknown || count == 0 || count > in.size() || several) return write_unknown(instruction);
  for (std::size_t i = 0; i < count; ++i) in[i] = source(instruction.sources[i]);
  const std::int16_t pointer = std::max({in[0].pointer, in[1].pointer, in[2].pointer});
  if (!compute(instruction, in)) return write_unknown(instruction);
  write(instruction.results.front(), pointer);
  write_unknown(instruction, 1);  // of a comparison that gives its contrary, too
}

// The result of each lane, and whether it is known.
template <class Function>
bool PtxBlock::map(const Sources& in, Function function) {
  const auto [a, b, c] = in;
  if (a.step == 1 && b.step == 1 && c.step == 0) {
    const std::uint64_t third = c.of(0);
    for (std::size_t lane = 0; lane < lanes_; ++lane) result_[lane] = function(a.bits[lane], b.bits[lane], third);
  } else if (a.step == 1 && b.step == 0 && c.step == 0) {
    const std::uint64_t second = b.of(0), third = c.of(0);
    for (std::size_t lane = 0; lane < lanes_; ++lane) result_[lane] = function(a.bits[lane], second, third);
  } else {
    for (std::size_t lane = 0; lane < lanes_; ++lane) result_[lane] = function(a.of(lane), b.of(lane), c.of(lane));
  }
  if (a.all_known && b.all_known && c.all_known) return std::ranges::fill(result_known_, std::uint8_t{1}), true;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    result_known_[lane] = a.is_known(lane) & b.is_known(lane) & c.is_known(lane);
  }
  return true;
}

// False: not one of the operations that are evaluated.
bool PtxBlock::compute(const Instruction& instruction, const Sources& in) {
  using Bits = std::uint64_t;
  const Type type = instruction.type, twice{type.bits * 2, type.is_signed}, from = instruction.source_type;
  const auto bits = static_cast<Bits>(type.bits);
  const bool remainder = instruction.op == Op::kRemainder;
  if (instruction.packed) {
    return map(in, [=, op = instruction.op](Bits a, Bits b, Bits) {
      return half_of(op, type, a, b) | half_of(op, type, a >> 16, b >> 16) << 16;
    });
  }
  switch (instruction.op) {
    case Op::kMove: return map(in, [=](Bits a, Bits, Bits) { return narrow(a, type); });
    case Op::kAdd: return map(in, [=](Bits a, Bits b, Bits) { return narrow(a + b, type); });
    case Op::kSub: return map(in, [=](Bits a, Bits b, Bits) { return narrow(a - b, type); });
    case Op::kMulLow: return map(in, [=](Bits a, Bits b, Bits) { return narrow(a * b, type); });
    case Op::kMulHigh: return map(in, [=](Bits a, Bits b, Bits) { return narrow(high_half(type, a, b), type); });
    case Op::kMulWide:
      return map(in, [=](Bits a, Bits b, Bits) { return narrow(narrow(a, type) * narrow(b, type), twice); });
    case Op::kMadLow: return map(in, [=](Bits a, Bits b, Bits c) { return narrow(a * b + c, type); });
    case Op::kMadWide:
      return map(in, [=](Bits a, Bits b, Bits c) { return narrow(narrow(a, type) * narrow(b, type) + c, twice); });
    case Op::kShiftLeft: return map(in, [=](Bits a, Bits b, Bits) { return b >= bits ? 0 : narrow(a << b, type); });
    case Op::kShiftRight: return map(in, [=](Bits a, Bits b, Bits) { return shift_right(type, a, b); });
    case Op::kAnd: return map(in, [=](Bits a, Bits b, Bits) { return narrow(a & b, type); });
    case Op::kOr: return map(in, [=](Bits a, Bits b, Bits) { return narrow(a | b, type); });
    case Op::kXor: return map(in, [=](Bits a, Bits b, Bits) { return narrow(a ^ b, type); });
    case Op::kNot: return map(in, [=](Bits a, Bits, Bits) { return narrow(~a, type); });
    case Op::kNegate: return map(in, [=](Bits a, Bits, Bits) { return narrow(~a + 1, type); });
    case Op::kMin: return map(in, [=](Bits a, Bits b, Bits) { return less(a, b, type) ? a : b; });
    case Op::kMax: return map(in, [=](Bits a, Bits b, Bits) { return less(a, b, type) ? b : a; });
    case Op::kConvert: return map(in, [=](Bits a, Bits, Bits) { return narrow(narrow(a, from), type); });
    case Op::kCountBits:
      return map(in,
                 [=](Bits a, Bits, Bits) { return static_cast<Bits>(std::popcount(narrow(a, {type.bits, false}))); });
    case Op::kPermute: return map(in, permuted);
    case Op::kBitField:
      return map(in, [=](Bits a, Bits b, Bits c) {
        return narrow(shift_right({type.bits, false}, a, b), {static_cast<int>(c), type.is_signed});
      });
    case Op::kDivide:
    case Op::kRemainder:
      map(in, [=](Bits a, Bits b, Bits) { return divide(type, a, b, remainder); });
      for (std::size_t lane = 0; lane < lanes_; ++lane) result_known_[lane] &= narrow(in[1].of(lane), type) != 0;
      return true;
    case Op::kCompare: return compare(instruction, in);
    case Op::kSelect: return select(in);
    default: return false;
  }
}

bool PtxBlock::compare(const Instruction& instruction, const Sources& in) {
  using Bits = std::uint64_t;
  using Combined = PtxKernel::Combined;
  const Type type = instruction.type;
  const std::string_view how(instruction.how);
  const bool equality = how == "eq" || how == "ne", greater = how == "gt" || how == "hi";
  const bool swapped = greater || how == "le" || how == "ls", strict = greater || how == "lt" || how == "lo";
  const bool negated = equality ? how == "ne" : !strict;
  const auto holds = [=](Bits a, Bits b) {
    const bool found = equality ? narrow(a, type) == narrow(b, type) : swapped ? less(b, a, type) : less(a, b, type);
    return Bits{found != negated};
  };
  switch (instruction.combined) {
    case Combined::kNot: return map(in, [=](Bits a, Bits b, Bits) { return holds(a, b); });
    case Combined::kAnd: return map(in, [=](Bits a, Bits b, Bits c) { return holds(a, b) & c; });
    case Combined::kOr: return map(in, [=](Bits a, Bits b, Bits c) { return holds(a, b) | c; });
    case Combined::kXor: return map(in, [=](Bits a, Bits b, Bits c) { return holds(a, b) ^ c; });
  }
  return false;
}

bool PtxBlock::select(const Sources& in) {
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const Source& chosen = in[in[2].of(lane) != 0 ? 0 : 1];
    result_[lane] = chosen.of(lane);
    result_known_[lane] = in[2].is_known(lane) && chosen.is_known(lane);
  }
  return true;
}

// Several registers make one, or one gives several; the first holds the lowest bits.
void PtxBlock::pack(const Instruction& instruction) {
  const auto& [sources, results] = std::tie(instruction.sources, instruction.results);
  const std::size_t parts = std::max(sources.size(), results.size());
  const int bits = instruction.type.bits / static_cast<int>(parts);
  if (sources.empty() || (sources.size() > 1 && results.size() > 1)) return write_unknown(instruction);
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      std::uint64_t whole = 0;
      result_known_[lane] = 1;
      for (std::size_t part = 0; part < sources.size(); ++part) {
        const Source from = source(sources[part]);
        whole |= narrow(from.of(lane), {sources.size() > 1 ? bits : 64, false}) << (static_cast<int>(part) * bits);
        result_known_[lane] &= from.is_known(lane);
      }
      result_[lane] = narrow(whole >> (static_cast<int>(i) * bits), {results.size() > 1 ? bits : 64, false});
    }
    write(results[i], -1);
  }
}

void PtxBlock::shuffle(const Instruction& instruction) {
  if (!together_ || instruction.sources.size() < 3) return write_unknown(instruction);
  const Source value = source(instruction.sources[0]), by = source(instruction.sources[1]),
               clamp = source(instruction.sources[2]);
  const std::string_view mode(instruction.how);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const int own = static_cast<int>(lane % kWarp), other = partner(mode, own, by.of(lane), clamp.of(lane));
    const std::size_t from = other < 0 ? lane : lane - lane % kWarp + static_cast<std::size_t>(other);
    const bool there = from < lanes_ && by.is_known(lane) && clamp.is_known(lane);
    result_[lane] = there ? value.of(from) : 0;
    result_known_[lane] = there && value.is_known(from);
  }
  write(instruction.results.front(), -1);
  write_unknown(instruction, 1);  // whether there was a partner
}

// Over the lanes of each warp.
void PtxBlock::reduce(const Instruction& instruction) {
  const std::string_view how(instruction.how);
  const Source value = source(instruction.sources.front());
  const Type type = instruction.type;
  for (std::size_t first = 0; first < lanes_; first += kWarp) {
    const std::size_t end = std::min(first + kWarp, lanes_);
    bool known = together_ && end - first == kWarp;
    std::uint64_t result = value.of(first);
    for (std::size_t lane = first; lane < end; ++lane)
      known = known && value.is_known(lane) && executed_[lane] == kSurely;
    for (std::size_t lane = first + 1; lane < end; ++lane) result = reduced(how, type, result, value.of(lane));
    std::fill_n(&result_[first], end - first, result);
    std::fill_n(&result_known_[first], end - first, known ? kKnown : kUnknown);
  }
  write(instruction.results.front(), -1);
}

void PtxBlock::touch(const Instruction& instruction, const Source& address) {
  const bool atomic = instruction.op == Op::kAtomic, stores = instruction.op == Op::kStore;
  if (!stores) add(footprint_[{address.pointer, false}], address, instruction.bytes);
  if (stores || atomic) add(footprint_[{address.pointer, true}], address, instruction.bytes);
  if (stores && loads_ == PtxLoads::kKnown) store(instruction, address);
  if (instruction.op == Op::kAsyncCopy) forget_shared(source(instruction.sources[1]), instruction.bytes);
}

void PtxBlock::add(Touched& touched, const Source& address, int bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (executed_[lane] == kNot) continue;
    if (!address.is_known(lane)) {
      touched.unplaced_bytes += size;
      continue;
    }
    const std::uint64_t at = address.of(lane);
    Interval* const last = touched.intervals.empty() ? nullptr : &touched.intervals.back();
    if (last != nullptr && last->begin + last->bytes == at) last->bytes += size;
    else touched.intervals.push_back({at, size});
  }
  count_lines(address, size);
}

// The lines that the threads of a warp ask for together.
void PtxBlock::count_lines(const Source& address, std::uint64_t bytes) {
  for (std::size_t first = 0; first < lanes_; first += kWarp) {
    warp_lines_.clear();
    for (std::size_t lane = first; lane < std::min(first + kWarp, lanes_); ++lane) {
      if (executed_[lane] == kNot || !address.is_known(lane)) continue;
      const std::uint64_t at = address.of(lane);
      for (std::uint64_t line = at / kLine; line <= (at + bytes - 1) / kLine; ++line) warp_lines_.push_back(line);
    }
    std::ranges::sort(warp_lines_);
    work_.lines += static_cast<double>(warp_lines_.size() - std::ranges::unique(warp_lines_).size());
  }
}

// nullptr: not all of it is known.
const std::byte* PtxBlock::known_bytes(std::uint64_t address, std::size_t bytes) {
  const auto* const data = reinterpret_cast<const std::byte*>(address);
  if (address < known_.begin || address + bytes > known_.end) {
    const std::span<const std::byte> around = values::known_around(data);
    known_.begin = reinterpret_cast<std::uint64_t>(around.data());
    known_.end = known_.begin + around.size();
  }
  return address >= known_.begin && address + bytes <= known_.end ? data : nullptr;
}

void PtxBlock::load(const Instruction& instruction, const Source& address) {
  const std::size_t bytes = static_cast<std::size_t>(instruction.type.bits) / 8;
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      result_known_[lane] = 0;
      if (executed_[lane] == kNot || !address.is_known(lane)) continue;
      const std::uint64_t at = address.of(lane) + i * bytes;
      const std::byte* const data = known_bytes(at, bytes);
      if (data == nullptr) continue;
      result_[lane] = 0;
      std::memcpy(&result_[lane], data, bytes);
      result_[lane] = narrow(result_[lane], instruction.type);
      result_known_[lane] = 1;
      read_.add({at, bytes, address.pointer});
    }
    write(instruction.results[i], -1);
  }
}

void PtxBlock::store(const Instruction& instruction, const Source& address) {
  const auto bytes = static_cast<std::uint8_t>(instruction.type.bits / 8);
  for (std::size_t i = 1; i < instruction.sources.size(); ++i) {
    const Source value = source(instruction.sources[i]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (executed_[lane] == kNot) continue;
      const bool known = executed_[lane] == kSurely && value.is_known(lane);
      const std::uint64_t at = address.of(lane) + (i - 1) * bytes;
      if (!address.is_known(lane) || address.pointer < 0) stores_are_placed_ = false;
      else stored_.push_back({at, value.of(lane), address.pointer, bytes, known});
    }
  }
}

void PtxBlock::load_shared(const Instruction& instruction, const Source& address) {
  const std::size_t bytes = static_cast<std::size_t>(instruction.type.bits) / 8;
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      result_known_[lane] = address.is_known(lane);
      read_shared(lane, address.of(lane) + i * bytes, instruction.type);
    }
    write(instruction.results[i], -1);
  }
}

void PtxBlock::store_shared(const Instruction& instruction, const Source& address) {
  const std::size_t bytes = static_cast<std::size_t>(instruction.type.bits) / 8;
  if (shared_.empty()) shared_.resize(kSharedBytes), shared_known_.resize(kSharedBytes);
  for (std::size_t i = 1; i < instruction.sources.size(); ++i) {
    const Source value = source(instruction.sources[i]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (executed_[lane] == kNot) continue;
      if (!address.is_known(lane)) return forget_shared();
      const bool known = executed_[lane] == kSurely && value.is_known(lane);
      write_shared(address.of(lane) + (i - 1) * bytes, bytes, value.of(lane), known);
    }
  }
}

// Matrices of 8 rows of 16 bytes: lane 8 i + j has the address of the i-th one's row j, and each lane four bytes of it,
// those of a row in four lanes after each other (PTX ISA, ldmatrix).
void PtxBlock::load_matrices(const Instruction& instruction, const Source& rows) {
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::size_t in_warp = lane % kWarp, from = std::min(lane - in_warp + 8 * i + in_warp / 4, lanes_ - 1);
      result_known_[lane] = rows.is_known(from);
      read_shared(lane, rows.of(from) + in_warp % 4 * 4, {32, false});
    }
    write(instruction.results[i], -1);
  }
}

void PtxBlock::store_matrices(const Instruction& instruction, const Source& rows) {
  if (shared_.empty()) shared_.resize(kSharedBytes), shared_known_.resize(kSharedBytes);
  for (std::size_t i = 1; i < instruction.sources.size(); ++i) {
    const Source value = source(instruction.sources[i]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::size_t in_warp = lane % kWarp, from = std::min(lane - in_warp + 8 * (i - 1) + in_warp / 4, lanes_ - 1);
      if (!rows.is_known(from)) return forget_shared();
      write_shared(rows.of(from) + in_warp % 4 * 4, 4, value.of(lane), value.is_known(lane));
    }
  }
}

// What lies there becomes a lane's result, which is known no more where that is not.
void PtxBlock::read_shared(std::size_t lane, std::uint64_t address, Type type) {
  const std::size_t bytes = static_cast<std::size_t>(type.bits) / 8;
  result_[lane] = 0;
  result_known_[lane] &= together_ && address + bytes <= shared_.size();
  if (!result_known_[lane]) return;
  const auto* const known = &shared_known_[address];
  result_known_[lane] = std::all_of(known, known + bytes, [](std::uint8_t it) { return it != 0; });
  std::memcpy(&result_[lane], &shared_[address], bytes);
  result_[lane] = narrow(result_[lane], type);
}

void PtxBlock::write_shared(std::uint64_t address, std::size_t bytes, std::uint64_t bits, bool known) {
  if (address + bytes > shared_.size()) return;
  std::memcpy(&shared_[address], &bits, bytes);
  std::fill_n(&shared_known_[address], bytes, known && together_ ? kKnown : kUnknown);
}

void PtxBlock::forget_shared(const Source& address, int bytes) {
  for (std::size_t lane = 0; lane < lanes_ && !shared_known_.empty(); ++lane) {
    if (executed_[lane] == kNot) continue;
    if (!address.is_known(lane)) return forget_shared();
    const std::size_t first = std::min<std::size_t>(address.of(lane), kSharedBytes);
    std::fill_n(&shared_known_[first], std::min<std::size_t>(static_cast<std::size_t>(bytes), kSharedBytes - first), 0);
  }
}

void PtxBlock::forget_shared() { std::ranges::fill(shared_known_, std::uint8_t{0}); }

// What was found goes to a register of the lanes that execute.
void PtxBlock::write(int index, std::int16_t pointer) {
  const auto at = static_cast<std::size_t>(index);
  std::uint64_t* const bits = &bits_[at * lanes_];
  std::uint8_t* const known = &registers_known_[at * lanes_];
  if (executed_lanes_ == lanes_ && !doubtful_) {
    std::ranges::copy(result_, bits);
    std::ranges::copy(result_known_, known);
    pointers_[at] = pointer;
    all_lanes_known_[at] = std::ranges::find(result_known_, std::uint8_t{0}) == result_known_.end();
    return;
  }
  pointers_[at] = std::max(pointers_[at], pointer);
  all_lanes_known_[at] = 0;
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (executed_[lane] == kNot) continue;
    bits[lane] = result_[lane];
    known[lane] = executed_[lane] == kSurely && result_known_[lane];
  }
}

void PtxBlock::write_unknown(const Instruction& instruction, std::size_t first) {
  if (instruction.results.size() <= first) return;
  std::ranges::fill(result_known_, std::uint8_t{0});
  for (const int index : std::span(instruction.results).subspan(first)) write(index, -1);
}

}  // namespace maya::cuda
