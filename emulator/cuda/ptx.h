// What a kernel launch moves through global memory and how many instructions it issues, found by running the address
// arithmetic of its PTX.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
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

  std::uint64_t blocks() const { return std::uint64_t{grid[0]} * grid[1] * grid[2]; }
  std::uint32_t threads() const { return block[0] * block[1] * block[2]; }  // of a block
};

// Where a pointer argument points.
inline std::uint64_t address_argument(void** arguments, int argument) {
  std::uint64_t address = 0;
  std::memcpy(&address, arguments[argument], sizeof address);
  return address;
}

// Whether loads of device memory give what is known there, as the lists of a mask's blocks.
enum class PtxLoads : std::uint8_t { kUnknown, kKnown };

// Known device memory that was loaded, at `address`, which came from a pointer argument (-1: from none).
struct PtxRead {
  std::uint64_t address, bytes;
  int argument;
};

// What several threads or blocks loaded, once.
class PtxReads {
 public:
  bool empty() const { return reads_.empty(); }
  void clear() { reads_.clear(); }
  void add(const PtxRead& read) {
    const bool again = !reads_.empty() && read.argument == reads_.back().argument &&
                       read.address >= reads_.back().address &&
                       read.address + read.bytes <= reads_.back().address + reads_.back().bytes;
    if (!again) add_new(read);
  }
  void add(const PtxReads& others);
  // In ascending order, none beside another.
  std::vector<PtxRead> apart();

 private:
  void add_new(const PtxRead& read);
  void merge();

  std::vector<PtxRead> reads_;
  std::size_t merge_at_ = 4096;
};

// What device memory held that a kernel's launch follows from.
class PtxContents {
 public:
  PtxContents() = default;
  // `missed`: what was loaded though it is not known.
  PtxContents(std::vector<PtxRead> read, std::vector<PtxRead> missed, void** arguments);

  // Whether what was known is and is the same for a launch with these arguments, and what was not is not.
  bool hold(void** arguments) const;

 private:
  std::optional<std::uint64_t> hash(void** arguments) const;

  std::vector<PtxRead> read_, missed_;  // addresses from where the argument points
  std::optional<std::uint64_t> hash_;
};

// One `.entry` of a PTX module. Integers, predicates and branches are evaluated for every thread of a few
// blocks; floating-point values are unknown, and so are loaded ones unless they decide where the kernel goes. What is
// unknown and decides that makes the answer unknown too.
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
    PtxContents follows_from;  // empty: from the arguments alone
  };

  // Distinct bytes that the launch reads plus those it writes, over all blocks; nullopt: cannot be told.
  // Sampled blocks stand for the others, by what the first threads of many do: per pointer, the bytes of a block
  // times the blocks, but no more than the span of addresses that the sample touches. Where all threads of a block
  // take too long, those of its first and last warp stand for it.
  std::optional<Moved> moved(const PtxLaunch& launch) const;

  // What any launch may write, however little of it can be followed.
  std::vector<Written> may_write(void** arguments) const;

  // Bytes that the launch stores, `first` bytes from where a pointer argument points.
  struct Result {
    int argument;
    std::int64_t first;
    std::vector<std::byte> bytes;
    bool known;
  };
  struct Results {
    std::vector<Result> stored;  // all, apart
    PtxContents follows_from;
  };

  // What the launch stores of integers and truth values. nullopt: none of it is known, or to find it takes more than
  // `steps_left`, from which what it takes is subtracted.
  std::optional<Results> results(const PtxLaunch& launch, std::uint64_t& steps_left) const;

  // The integer arguments: with grid, block and what moved() says that it follows from, all that it depends on.
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
    kCountBits,
    kPack,     // registers into one, or one into several
    kPermute,  // bytes
    kShuffle,
    kReduce,  // over a warp
    kLoadShared,
    kStoreShared,
    kLoadMatrix,  // from shared memory, 8 rows of 16 bytes to a warp's threads
    kStoreMatrix,
    kChangeShared,  // in some other way
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

  // Whether there is a form for two numbers of 16 bits in a register.
  static constexpr bool can_be_packed(Op op) { return op == Op::kAdd || op == Op::kMin || op == Op::kMax; }

  // What else a comparison's result depends on.
  enum class Combined : std::uint8_t { kNot, kAnd, kOr, kXor };

  struct Instruction {
    Op op = Op::kUnknown;
    Type type, source_type;
    bool packed = false;  // two of `type` in a register
    char how[5] = {};     // of a comparison, a shuffle or a reduction
    Combined combined = Combined::kNot;
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
  friend class PtxBlock;

  std::vector<Parameter> parameters_;
  std::vector<Instruction> instructions_;
  std::vector<bool> stored_to_;   // by parameter: addresses of stores come from it
  bool stores_integers_ = false;  // stores something that floating-point arithmetic has no part in
  int registers_ = 0;
};

}  // namespace maya::cuda
