// Walks back from the end of the last iteration: from each moment to what it waited for.
#include <algorithm>

#include "engine.h"

namespace maya::simulate {

class Engine::PathWalk {
 public:
  PathWalk(const Engine& engine, std::uint32_t iteration)
      : engine_(engine),
        begin_(iteration > 0 ? engine.results_.iteration_end[iteration - 1] : 0),
        now_(engine.results_.iteration_end[iteration]) {}

  std::vector<PathStep> from_device(Place last) {
    at(last);
    return walk(true);
  }
  std::vector<PathStep> from_host(std::uint32_t rank, std::uint32_t iteration) {
    rank_ = rank;
    call_ = engine_.program_.rank_begin[rank + 1];
    iteration_ = iteration;
    return walk(false);
  }

 private:
  // A device step ends at now_ and is looked at; or the host has just finished what is before (rank, call).
  std::vector<PathStep> walk(bool device) {
    while (now_ > begin_) {
      if (device) {
        device = step_device();
      } else if (!step_host(device)) {
        break;
      }
    }
    return std::move(path_);
  }

  // Work and communication back to their start; then what let them start, or else the launch.
  bool step_device() {
    const Call& call = engine_.calls_[call_];
    if (call.action == Action::kTransfer) at(engine_.causes_.last[here()]);  // the others waited for this one
    add(engine_.results_.start[here()], Stretch::kDevice);
    if (const Place cause = engine_.causes_.start[here()]) {
      at(cause);
      return true;
    }
    add(now_ - engine_.program_.launch_latency, Stretch::kLaunch);
    const bool of_itself = engine_.causes_.resumed[here()] == here() + 1;  // a launch that blocked, and comes later
    if (!of_itself && waited_in_call()) return true;
    add(engine_.results_.issued[here()] - call.host, Stretch::kHost);
    return false;
  }

  // The call before the current one: what the host waited for in it, or its own time. False at the very first.
  bool step_host(bool& device) {
    const std::uint32_t first = engine_.program_.rank_begin[rank_];
    if (call_ == first) {
      if (iteration_ == 0) return false;
      --iteration_;
      call_ = engine_.program_.rank_begin[rank_ + 1];
    }
    --call_;
    if ((device = waited_in_call())) return true;
    const Call& call = engine_.calls_[call_];
    if (call.action <= Action::kStreamWaitEvent && !(call.flags & kNoLaunch)) {
      add(now_ - engine_.program_.launch_call, Stretch::kHost);
      if ((device = waited_in_call())) return true;
    }
    add(engine_.results_.issued[here()] - call.host, Stretch::kHost);
    return true;
  }

  // Goes to the work whose end the host waited for in the current call, and hears of right now.
  bool waited_in_call() {
    const Place by = engine_.causes_.resumed[here()];
    if (by == 0) return false;
    const Nanoseconds ended = engine_.results_.end[by - 1];
    if (ended != now_ && ended + engine_.program_.completion_latency != now_) return false;
    add(ended, Stretch::kCompletion);
    at(by);
    return true;
  }

  void add(Nanoseconds since, Stretch stretch) {
    since = std::max(since, begin_);
    if (since >= now_) return;
    if (stretch == Stretch::kHost && !path_.empty() && path_.back().stretch == stretch && path_.back().begin == now_)
      path_.back().begin = since;
    else path_.push_back({since, now_, call_, stretch});
    now_ = since;
  }

  std::size_t here() const { return engine_.place(rank_, call_, iteration_); }

  // From a place to the call: ranks lie one after the other, each with all of its iterations.
  void at(Place place) {
    const std::size_t position = place - 1;
    const auto& begin = engine_.program_.rank_begin;
    const auto next = std::upper_bound(begin.begin(), begin.end(), position / engine_.program_.iterations);
    rank_ = static_cast<std::uint32_t>(next - begin.begin()) - 1;
    const std::size_t calls = begin[rank_ + 1] - begin[rank_];
    const std::size_t own = position - std::size_t{begin[rank_]} * engine_.program_.iterations;
    iteration_ = static_cast<std::uint32_t>(own / calls);
    call_ = begin[rank_] + static_cast<std::uint32_t>(own % calls);
  }

  const Engine& engine_;
  const Nanoseconds begin_;
  Nanoseconds now_;
  std::uint32_t rank_ = 0, call_ = 0, iteration_ = 0;
  std::vector<PathStep> path_;
};

std::vector<PathStep> Engine::critical_path() const {
  const std::uint32_t last = program_.iterations - 1;
  if (!timeline_ || pieces_[last] > 0) return {};
  PathWalk walk(*this, last);
  if (const Place device = causes_.iteration[last]) return walk.from_device(device);
  return walk.from_host(causes_.stepped[last], last);
}

}  // namespace maya::simulate
