// What a kernel launch moves through global memory and how many instructions it issues, found by running the address
// arithmetic of its PTX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/kernel.h"

namespace maya::cuda {

struct PtxLaunch {
  std::uint32_t grid[3];
  std::uint32_t block[3];
  void** arguments;  // as cuLaunchKernel's kernelParams
};

// One `.entry` of a PTX module. Integers, predicates and branches are evaluated for every thread of a few
// blocks; floating-point and loaded values are unknown. What is unknown and decides where the kernel goes
// makes the answer unknown too.
class PtxKernel {
 public:
  // nullopt: no such entry, or its directives are not understood.
  static std::optional<PtxKernel> parse(std::string_view ptx, std::string_view name);

  // What a launch writes behind one pointer argument: [first, first + bytes) from where it points.
  // bytes 0: it writes there, the extent cannot be told.
  struct Written {
    int argument;
    std::int64_t first;
    std::uint64_t bytes;
  };

  struct Moved {
    std::uint64_t bytes = 0;
    KernelWork work;
    std::vector<Written> written;
  };

  // Distinct bytes that the launch reads plus those it writes, over all blocks; nullopt: cannot be told.
  // Sampled blocks stand for the others, by what the first threads of many do: per pointer, the bytes of a block
  // times the blocks, but no more than the span of addresses that the sample touches. Where all threads of a block
  // take too long, those of its first and last warp stand for it.
  std::optional<Moved> moved(const PtxLaunch& launch) const;

  // The integer arguments: with grid and block, all that moved() depends on.
  std::vector<std::uint64_t> scalars(void** arguments) const;

  struct Parameter {
    std::string name;
    int bytes = 0;
    bool pointer = false;  // declared `.ptr`; compilers before LLVM 20 do not say
    bool floating = false;

    std::uint64_t value(const void* argument) const;
    bool is_pointer(std::uint64_t value) const;
  };

  struct Type {
    int bits = 32;
    bool is_signed = false;
  };

  struct Operand {
    enum class Kind : std::uint8_t { kNone, kRegister, kImmediate, kSpecial, kParameter } kind = Kind::kNone;
    int index = 0;               // register, parameter, or special register (tid.x .. nctaid.z)
    std::int64_t immediate = 0;  // or the offset from a register, for addresses
  };

  enum class Op : std::uint8_t {
    kMove,
    kAdd,
    kSub,
    kMulLow,
    kMulHigh,
    kMulWide,
    kMadLow,
    kMadWide,
    kShiftLeft,
    kShiftRight,
    kAnd,
    kOr,
    kXor,
    kNot,
    kNegate,
    kMin,
    kMax,
    kDivide,
    kRemainder,
    kSelect,
    kCompare,
    kConvert,
    kBitField,
    kLoad,
    kStore,
    kAtomic,
    kAsyncCopy,
    kBranch,
    kReturn,
    kUnknown,
    kRefuse,
  };

  static constexpr bool is_memory(Op op) {
    return op == Op::kLoad || op == Op::kStore || op == Op::kAtomic || op == Op::kAsyncCopy;
  }

  struct Instruction {
    Op op = Op::kUnknown;
    Type type, source_type;
    char comparison[4] = {};
    int guard = -1;  // predicate register; -1: always executed
    bool guard_negated = false;
    KernelWork work;           // of one thread; no lines
    int bytes = 0;             // of a memory access
    int target = 0;            // of a branch: instruction index
    std::vector<int> results;  // registers
    std::vector<Operand> sources;
  };

 private:
  friend class PtxParser;
  struct Block;
  struct Samples;
  enum class Threads : std::uint8_t { kAll, kOuterWarps, kFirst };

  // One block of a launch; false: it depends on values that are not known, or is over the budget (no steps are left).
  bool run_block(const PtxLaunch& launch, std::uint64_t index, Threads which, std::uint64_t& steps_left,
                 Block& block) const;
  bool run_sample(const PtxLaunch& launch, std::uint64_t index, Threads which, std::uint64_t& steps_left,
                  Samples& samples) const;

  // What the first thread of a block does, on average over the first `blocks`; of many as many as the budget allows.
  std::optional<KernelWork> first_threads(const PtxLaunch& launch, std::uint64_t blocks) const;

  std::optional<Moved> moved(const PtxLaunch& launch, Threads which, std::uint64_t& steps_left) const;

  std::vector<Parameter> parameters_;
  std::vector<Instruction> instructions_;
  int registers_ = 0;
};

}  // namespace maya::cuda
