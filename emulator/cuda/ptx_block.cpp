#include "cuda/ptx_block.h"

#include <algorithm>
#include <utility>

namespace maya::cuda {
namespace {

using Op = PtxKernel::Op;
using Operand = PtxKernel::Operand;

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
