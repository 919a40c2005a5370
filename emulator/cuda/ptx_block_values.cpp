// What a block's instructions make of the values of registers.
#include <algorithm>
#include <bit>
#include <string_view>

#include "cuda/ptx_block.h"
#include "cuda/ptx_integers.h"

namespace maya::cuda {
namespace {

using Op = PtxKernel::Op;
using Type = PtxKernel::Type;
using Operand = PtxKernel::Operand;

constexpr std::uint8_t kKnown = 1, kUnknown = 0;
constexpr std::uint64_t kNothing = 0;

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

// One of the most common types, known when compiled.
template <int bits, bool is_signed>
struct Fixed {
  constexpr operator Type() const { return {bits, is_signed}; }
};

template <class Function>
bool of_type(Type type, Function function) {
  if (type.bits != 32) return function(type);
  return type.is_signed ? function(Fixed<32, true>{}) : function(Fixed<32, false>{});
}

}  // namespace

PtxBlock::Source PtxBlock::source(const Operand& operand) const {
  const auto index = static_cast<std::size_t>(operand.index);
  const auto immediate = static_cast<std::uint64_t>(operand.immediate);
  switch (operand.kind) {
    case Operand::Kind::kRegister: {
      const auto& [values, pointer] = registers_[index];
      const std::size_t step = values.uniform ? 0 : 1;
      if (values.all_known) return {values.bits.data(), &kKnown, step, 0, immediate, pointer, true};
      return {values.bits.data(), values.known.data(), step, step, immediate, pointer, false};
    }
    case Operand::Kind::kImmediate: return {&kNothing, &kKnown, 0, 0, immediate, -1, true};
    case Operand::Kind::kSpecial: {
      const std::vector<std::uint64_t>& values = specials_[index];
      return {values.data(), &kKnown, values.size() == lanes_ ? std::size_t{1} : 0, 0, 0, -1, true};
    }
    case Operand::Kind::kParameter: {
      const PtxKernel::Parameter& parameter = kernel_.parameters_[index];
      const bool pointer = parameter.is_pointer(arguments_[index]), known = !parameter.floating;
      const auto from = static_cast<std::int16_t>(pointer ? operand.index : -1);
      return {&arguments_[index], known ? &kKnown : &kUnknown, 0, 0, 0, from, known};
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
  const Source none{&kNothing, &kKnown, 0, 0, 0, -1, true};
  Sources in{none, none, none};
  if (instruction.results.empty()) return;
  if (instruction.op == Op::kUnknown || count == 0 || count > in.size() || several) return write_unknown(instruction);
  for (std::size_t i = 0; i < count; ++i) in[i] = source(instruction.sources[i]);
  const std::int16_t pointer = std::max({in[0].pointer, in[1].pointer, in[2].pointer});
  if (!compute(instruction, in)) return write_unknown(instruction);
  if (instruction.op == Op::kCompare || instruction.type.bits == 1) find_uniform();
  write(instruction.results.front(), pointer);
  write_unknown(instruction, 1);  // of a comparison that gives its contrary, too
}

// The result of each lane, and whether it is known.
template <class Function>
bool PtxBlock::map(const Sources& in, Function function) {
  const auto [a, b, c] = in;
  std::uint64_t* const bits = result_.bits.data();
  result_.uniform = a.step == 0 && b.step == 0 && c.step == 0;
  result_.all_known = a.all_known && b.all_known && c.all_known;
  if (result_.uniform) {
    bits[0] = function(a.of(0), b.of(0), c.of(0));
  } else if (a.step == 1 && b.step == 1 && c.step == 0) {
    const std::uint64_t third = c.of(0);
    for (std::size_t lane = 0; lane < lanes_; ++lane) bits[lane] = function(a.bits[lane], b.bits[lane], third);
  } else if (a.step == 1 && b.step == 0 && c.step == 0) {
    const std::uint64_t second = b.of(0), third = c.of(0);
    for (std::size_t lane = 0; lane < lanes_; ++lane) bits[lane] = function(a.bits[lane], second, third);
  } else {
    for (std::size_t lane = 0; lane < lanes_; ++lane) bits[lane] = function(a.of(lane), b.of(lane), c.of(lane));
  }
  if (result_.all_known) return true;
  for (std::size_t lane = 0; lane < distinct_lanes(); ++lane) {
    result_.known[lane] = a.is_known(lane) & b.is_known(lane) & c.is_known(lane);
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
    case Op::kPermute: return permute(in);
    case Op::kBitField:
      return map(in, [=](Bits a, Bits b, Bits c) {
        return narrow(shift_right({type.bits, false}, a, b), {static_cast<int>(c), type.is_signed});
      });
    case Op::kDivide:
    case Op::kRemainder:
      map(in, [=](Bits a, Bits b, Bits) { return divide(type, a, b, remainder); });
      for (std::size_t lane = 0; lane < distinct_lanes(); ++lane) {
        if (narrow(in[1].of(lane), type) == 0) forget_result(lane);
      }
      return true;
    case Op::kCompare: return compare(instruction, in);
    case Op::kSelect: return select(in);
    default: return false;
  }
}

// Triton pads with a register that nothing sets, and picks none of its bytes.
bool PtxBlock::permute(const Sources& in) {
  const auto [a, b, which] = in;
  map(in, permuted);
  for (std::size_t lane = 0; lane < distinct_lanes() && !result_.all_known; ++lane) {
    const std::uint64_t from_second = which.of(lane) & 0x4444;
    result_.known[lane] =
        which.is_known(lane) & (from_second == 0x4444 || a.is_known(lane)) & (from_second == 0 || b.is_known(lane));
  }
  return true;
}

bool PtxBlock::compare(const Instruction& instruction, const Sources& in) {
  using Bits = std::uint64_t;
  using Combined = PtxKernel::Combined;
  const std::string_view how(instruction.how);
  const bool equality = how == "eq" || how == "ne", greater = how == "gt" || how == "hi";
  const bool swapped = greater || how == "le" || how == "ls", strict = greater || how == "lt" || how == "lo";
  const Bits negated = equality ? how == "ne" : !strict;
  const auto combine = [&, this](auto holds) {
    switch (instruction.combined) {
      case Combined::kNot: return map(in, [=](Bits a, Bits b, Bits) { return Bits{holds(a, b)} ^ negated; });
      case Combined::kAnd: return map(in, [=](Bits a, Bits b, Bits c) { return (Bits{holds(a, b)} ^ negated) & c; });
      case Combined::kOr: return map(in, [=](Bits a, Bits b, Bits c) { return (Bits{holds(a, b)} ^ negated) | c; });
      case Combined::kXor: return map(in, [=](Bits a, Bits b, Bits c) { return Bits{holds(a, b)} ^ negated ^ c; });
    }
    return false;
  };
  return of_type(instruction.type, [&](auto type) {
    if (equality) return combine([=](Bits a, Bits b) { return narrow(a, type) == narrow(b, type); });
    if (swapped) return combine([=](Bits a, Bits b) { return less(b, a, type); });
    return combine([=](Bits a, Bits b) { return less(a, b, type); });
  });
}

bool PtxBlock::select(const Sources& in) {
  using Bits = std::uint64_t;
  const auto [first, second, which] = in;
  if (which.step == 0 && which.is_known(0)) {
    const Source chosen = which.of(0) != 0 ? first : second;
    return map({chosen, chosen, which}, [](Bits a, Bits, Bits) { return a; });
  }
  map(in, [](Bits a, Bits b, Bits c) { return c != 0 ? a : b; });
  for (std::size_t lane = 0; lane < distinct_lanes() && !result_.all_known; ++lane) {
    const Source& chosen = which.of(lane) != 0 ? first : second;
    result_.known[lane] = which.is_known(lane) && chosen.is_known(lane);
  }
  return true;
}

// Several registers make one, or one gives several; the first holds the lowest bits.
void PtxBlock::pack(const Instruction& instruction) {
  const std::size_t count = instruction.sources.size(), parts = std::max(count, instruction.results.size());
  const int bits = instruction.type.bits / static_cast<int>(parts);
  if (count == 0 || (count > 1 && instruction.results.size() > 1)) return write_unknown(instruction);
  std::vector<Source> sources;
  for (const Operand& operand : instruction.sources) sources.push_back(source(operand));
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    Values& result = new_result();
    result.uniform = std::ranges::all_of(sources, [](const Source& it) { return it.step == 0; });
    for (std::size_t lane = 0; lane < distinct_lanes(); ++lane) {
      std::uint64_t whole = 0;
      result.known[lane] = 1;
      for (std::size_t part = 0; part < count; ++part) {
        whole |= narrow(sources[part].of(lane), {count > 1 ? bits : 64, false}) << (static_cast<int>(part) * bits);
        result.known[lane] &= sources[part].is_known(lane);
      }
      const int shift = static_cast<int>(i) * bits;
      result.bits[lane] = narrow(whole >> shift, {instruction.results.size() > 1 ? bits : 64, false});
    }
    write(instruction.results[i], -1);
  }
}

void PtxBlock::shuffle(const Instruction& instruction) {
  if (!together_ || instruction.sources.size() < 3) return write_unknown(instruction);
  const Source value = source(instruction.sources[0]), by = source(instruction.sources[1]),
               clamp = source(instruction.sources[2]);
  const std::string_view mode(instruction.how);
  Values& result = new_result();
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    const int own = static_cast<int>(lane % kWarp), other = partner(mode, own, by.of(lane), clamp.of(lane));
    const std::size_t from = other < 0 ? lane : lane - lane % kWarp + static_cast<std::size_t>(other);
    const bool there = from < lanes_ && by.is_known(lane) && clamp.is_known(lane);
    result.bits[lane] = there ? value.of(from) : 0;
    result.known[lane] = there && value.is_known(from);
  }
  write(instruction.results.front(), value.pointer);
  write_unknown(instruction, 1);  // whether there was a partner
}

// Over the lanes of each warp.
void PtxBlock::reduce(const Instruction& instruction) {
  const std::string_view how(instruction.how);
  const Source value = source(instruction.sources.front());
  const Type type = instruction.type;
  Values& result_of_all = new_result();
  for (std::size_t first = 0; first < lanes_; first += kWarp) {
    const std::size_t end = std::min(first + kWarp, lanes_);
    bool known = together_ && end - first == kWarp;
    std::uint64_t result = value.of(first);
    for (std::size_t lane = first; lane < end; ++lane)
      known = known && value.is_known(lane) && executed_[lane] == kSurely;
    for (std::size_t lane = first + 1; lane < end; ++lane) result = reduced(how, type, result, value.of(lane));
    std::fill_n(&result_of_all.bits[first], end - first, result);
    std::fill_n(&result_of_all.known[first], end - first, known ? kKnown : kUnknown);
  }
  write(instruction.results.front(), -1);
}

}  // namespace maya::cuda
