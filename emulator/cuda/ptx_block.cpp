#include "cuda/ptx_block.h"

#include <algorithm>
#include <utility>

namespace maya::cuda {
namespace {

using Op = PtxKernel::Op;
using Operand = PtxKernel::Operand;

}  // namespace

PtxBlock::PtxBlock(const PtxKernel& kernel, const PtxLaunch& launch, const std::vector<std::uint32_t>& threads,
                   PtxLoads loads, PtxTraffic traffic)
    : kernel_(kernel), launch_(launch), loads_(loads), traffic_(traffic), lanes_(threads.size()) {
  registers_.resize(static_cast<std::size_t>(kernel.registers_),
                    {{std::vector<std::uint64_t>(lanes_), std::vector<std::uint8_t>(lanes_)}});
  for (std::size_t i = 0; i < kernel.parameters_.size(); ++i) {
    arguments_.push_back(kernel.parameters_[i].value(launch.arguments[i]));
  }
  const auto& [grid, size, arguments] = launch_;
  for (const std::uint32_t thread : threads) {
    specials_[0].push_back(thread % size[0]);
    specials_[1].push_back(thread / size[0] % size[1]);
    specials_[2].push_back(thread / size[0] / size[1]);
  }
  for (std::size_t i = 0; i < 3; ++i) {
    specials_[3 + i] = {0};
    specials_[6 + i] = {size[i]};
    specials_[9 + i] = {grid[i]};
  }
  at_.resize(lanes_);
  active_.resize(lanes_);
  executed_.resize(lanes_);
  result_ = {std::vector<std::uint64_t>(lanes_), std::vector<std::uint8_t>(lanes_)};
}

void PtxBlock::begin(std::uint64_t block) {
  for (Register& it : registers_) {
    it.pointer = -1;
    it.values.uniform = true;
    it.values.all_known = false;
    it.values.known.front() = 0;
  }
  std::ranges::fill(shared_known_, std::uint8_t{0});
  std::ranges::fill(active_, std::uint8_t{1});
  together_ = true;
  all_execute_ = false;
  common_ = 0;
  active_lanes_ = lanes_;
  const auto rows = static_cast<std::uint32_t>(block / launch_.grid[0]);
  specials_[3].front() = block % launch_.grid[0];
  specials_[4].front() = rows % launch_.grid[1];
  specials_[5].front() = rows / launch_.grid[1];
  footprint_.clear();
  work_ = {};
  stored_.clear();
  stores_are_placed_ = true;
  read_.clear();
  missed_.clear();
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
    if (traffic_ == PtxTraffic::kCounted) work_ += instruction.work * static_cast<double>(executed_lanes_);
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

void PtxBlock::execute_active() {
  executed_lanes_ = active_lanes_;
  if (all_execute_ && active_lanes_ == lanes_) return;
  all_execute_ = active_lanes_ == lanes_;
  for (std::size_t lane = 0; lane < lanes_; ++lane) executed_[lane] = active_[lane] ? kSurely : kNot;
}

void PtxBlock::find_executed(const Instruction& instruction) {
  doubtful_ = false;
  if (instruction.guard < 0) return execute_active();
  const Source guard = source({Operand::Kind::kRegister, instruction.guard});
  if (guard.step == 0 && guard.is_known(0) && (guard.of(0) != 0) != instruction.guard_negated) return execute_active();
  all_execute_ = false;
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
  const auto surely = [&] { return static_cast<std::size_t>(std::ranges::count(executed_, kSurely)); };
  const std::size_t leaving = doubtful_ ? surely() : executed_lanes_;
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

// To be filled by lane.
PtxBlock::Values& PtxBlock::new_result() {
  result_.uniform = result_.all_known = false;
  return result_;
}

void PtxBlock::forget_result(std::size_t lane) {
  if (result_.all_known) std::ranges::fill(result_.known, std::uint8_t{1});
  result_.all_known = false;
  result_.known[lane] = 0;
}

// Whether the result is alike in all lanes.
void PtxBlock::find_uniform() {
  if (result_.uniform || !result_.all_known) return;
  std::uint64_t differing = 0;
  for (std::size_t lane = 0; lane < lanes_; ++lane) differing |= result_.bits[lane] ^ result_.bits[0];
  result_.uniform = differing == 0;
}

// What was found goes to a register of the lanes that execute.
void PtxBlock::write(int index, std::int16_t pointer) {
  auto& [values, from] = registers_[static_cast<std::size_t>(index)];
  if (!result_.all_known && !result_.uniform)
    result_.all_known = std::ranges::find(result_.known, 0) == result_.known.end();
  if (executed_lanes_ == lanes_ && !doubtful_) {
    std::swap(values, result_);
    from = pointer;
    return;
  }
  from = std::max(from, pointer);
  const bool all_known = values.all_known && result_.all_known && !doubtful_;
  const auto spread = [](auto& of_lanes) {
    const auto first = of_lanes.front();
    std::ranges::fill(of_lanes, first);
  };
  if (values.all_known) values.known.front() = 1;
  if (values.uniform) spread(values.bits);
  if (values.uniform || values.all_known) spread(values.known);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (executed_[lane] == kNot) continue;
    const std::size_t at = result_.uniform ? 0 : lane;
    values.bits[lane] = result_.bits[at];
    values.known[lane] = executed_[lane] == kSurely && (result_.all_known || result_.known[at] != 0);
  }
  values.uniform = false;
  values.all_known = all_known;
}

// Its results from the first-th on.
void PtxBlock::write_unknown(const Instruction& instruction, std::size_t first) {
  for (std::size_t i = first; i < instruction.results.size(); ++i) {
    new_result().uniform = true;
    result_.known.front() = 0;
    write(instruction.results[i], -1);
  }
}

}  // namespace maya::cuda
