// Runs the threads of one block of a PTX kernel, side by side: what they touch, how much they do and, of integers and
// truth values, what they store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cuda/ptx.h"

namespace maya::cuda {

constexpr std::uint32_t kWarp = 32;  // threads

struct Interval {
  std::uint64_t begin, bytes;
};

// What one block touches behind one pointer, in one direction.
struct Touched {
  std::vector<Interval> intervals;
  std::uint64_t unplaced_bytes = 0;  // accesses at addresses that depend on unknown values
};
using Footprint = std::map<std::pair<int, bool>, Touched>;  // by (pointer parameter, written)

// Whether a run counts what it moves and does, or only finds values.
enum class PtxTraffic : std::uint8_t { kCounted, kIgnored };

// Integers, predicates and branches are evaluated for each thread; floating-point values are unknown. Threads at the
// same instruction run it together, those that are behind first, so that ways that part meet again. A thread is a lane
// here, and 32 lanes are a warp. What is alike in all lanes, as a block's number and most truth values are, is
// evaluated once.
class PtxBlock {
 public:
  // What one thread stored.
  struct Stored {
    std::uint64_t address, bits;
    std::int16_t pointer;  // the parameter that the address came from
    std::uint8_t bytes;
    bool known;
  };

  // `threads`: which of the block's, in ascending order: whole warps, or one thread.
  PtxBlock(const PtxKernel& kernel, const PtxLaunch& launch, const std::vector<std::uint32_t>& threads, PtxLoads loads,
           PtxTraffic traffic = PtxTraffic::kCounted);

  // False: the run depends on values that are not known, or is over the budget (no steps are left). A step is one
  // instruction of one thread. What an earlier run left is gone.
  bool run(std::uint64_t block, std::uint64_t& steps_left);

  // Of the last run; of one whose traffic is ignored, nothing.
  Footprint& footprint() { return footprint_; }
  const KernelWork& work() const { return work_; }

  // Of the last run.
  std::span<const Stored> stored() const { return stored_; }  // in order
  // Whether that is all: no address of a store is unknown, or follows from no argument.
  bool stores_are_placed() const { return stores_are_placed_; }
  const PtxReads& read() const { return read_; }      // known device memory that was loaded
  const PtxReads& missed() const { return missed_; }  // what was loaded of that which is not known

 private:
  using Instruction = PtxKernel::Instruction;
  using Type = PtxKernel::Type;

  // By lane.
  struct Values {
    std::vector<std::uint64_t> bits;
    std::vector<std::uint8_t> known;
    bool uniform = false;    // alike in all lanes, and only the first one's are kept
    bool all_known = false;  // in all lanes, and `known` is not kept
  };

  struct Register {
    Values values;
    std::int16_t pointer = -1;  // the parameter that an address came from
  };

  // An operand, over all lanes.
  struct Source {
    const std::uint64_t* bits = nullptr;
    const std::uint8_t* known = nullptr;
    std::size_t step = 0;        // 0: alike in all lanes
    std::size_t known_step = 0;  // likewise
    std::uint64_t plus = 0;      // the offset of an address
    std::int16_t pointer = -1;
    bool all_known = false;

    std::uint64_t of(std::size_t lane) const { return bits[lane * step] + plus; }
    bool is_known(std::size_t lane) const { return known[lane * known_step] != 0; }
  };
  using Sources = std::array<Source, 3>;
  enum Executed : std::uint8_t { kNot, kSurely, kPerhaps };

  void begin(std::uint64_t block);
  std::size_t next();
  void find_executed(const Instruction& instruction);
  void execute_active();
  bool leave(const Instruction& instruction, std::size_t at);
  bool skips_arithmetic_only(const Instruction& branch, std::size_t next) const;

  Source source(const PtxKernel::Operand& operand) const;
  void execute(const Instruction& instruction);
  void compute(const Instruction& instruction);
  bool compute(const Instruction& instruction, const Sources& in);
  bool compare(const Instruction& instruction, const Sources& in);
  bool permute(const Sources& in);
  bool select(const Sources& in);
  void pack(const Instruction& instruction);
  void shuffle(const Instruction& instruction);
  void reduce(const Instruction& instruction);

  void touch(const Instruction& instruction, const Source& address);
  void add(Touched& touched, const Source& address, int bytes);
  void count_lines(const Source& address, std::uint64_t bytes);
  void load(const Instruction& instruction, const Source& address);
  bool load_close(Type type, const Source& address, std::uint64_t offset);
  void store(const Instruction& instruction, const Source& address);
  const std::byte* known_bytes(std::uint64_t address, std::size_t bytes) {
    if (address < known_.begin || address + bytes > known_.end) return find_known_bytes(address, bytes);
    return reinterpret_cast<const std::byte*>(address);
  }
  const std::byte* find_known_bytes(std::uint64_t address, std::size_t bytes);
  void load_shared(const Instruction& instruction, const Source& address);
  void store_shared(const Instruction& instruction, const Source& address);
  void load_matrices(const Instruction& instruction, const Source& rows);
  void store_matrices(const Instruction& instruction, const Source& rows);
  void read_shared(std::size_t lane, std::uint64_t address, Type type, bool address_known);
  void write_shared(std::uint64_t address, std::size_t bytes, std::uint64_t bits, bool known, std::int16_t pointer);
  void forget_shared(const Source& address, int bytes);
  void forget_shared();

  Values& new_result();
  std::size_t distinct_lanes() const { return result_.uniform ? 1 : lanes_; }  // of the result
  void forget_result(std::size_t lane);
  void find_uniform();
  template <class Function>
  bool map(const Sources& in, Function function);
  void write(int index, std::int16_t pointer);
  void write_unknown(const Instruction& instruction, std::size_t first = 0);  // its results from the first-th on

  const PtxKernel& kernel_;
  const PtxLaunch& launch_;
  const PtxLoads loads_;
  const PtxTraffic traffic_;
  const std::size_t lanes_;

  std::vector<Register> registers_;
  std::array<std::vector<std::uint64_t>, 12> specials_;  // by Operand::index, then lane, or one for all
  std::vector<std::uint64_t> arguments_;                 // by parameter

  std::size_t common_ = 0;       // the instruction of the active lanes
  std::vector<std::size_t> at_;  // where they are not together: each lane's; behind the last one: it is done
  bool together_ = true;         // all lanes that are not done are at the same one
  std::vector<std::uint8_t> active_;
  std::vector<Executed> executed_;
  std::size_t active_lanes_ = 0, executed_lanes_ = 0;
  bool doubtful_ = false;     // some lanes execute perhaps
  bool all_execute_ = false;  // surely

  Values result_;  // before it is written to a register
  std::vector<std::uint64_t> warp_lines_;
  std::vector<std::byte> shared_;
  std::vector<std::uint8_t> shared_known_;
  std::vector<std::int16_t> shared_pointers_;  // by word of 4 bytes: the parameter that an address in it came from
  struct {
    std::uint64_t begin = 0, end = 0;
  } known_;  // device memory, found last

  Footprint footprint_;
  KernelWork work_;
  std::vector<Stored> stored_;
  bool stores_are_placed_ = true;
  PtxReads read_, missed_;
};

}  // namespace maya::cuda
