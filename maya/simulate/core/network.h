// Links that transfers share, max-min fair (docs/network.md). All arithmetic is on integers, so that the
// outcome depends on which transfers are under way and not on the order in which they are looked at.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "event_queue.h"
#include "program.h"

namespace maya::simulate {

class Network {
 public:
  // Ends of transfers are pushed into `queue` under `first_entity` + the transfer's number.
  Network(const Program& program, EventQueue& queue, std::uint32_t first_entity);

  void start(std::uint32_t transfer, Nanoseconds now);
  // Whether an end that was scheduled is still the transfer's: a change of rate leaves old ones behind.
  bool is_due(std::uint32_t transfer, Nanoseconds now) const;
  void end(std::uint32_t transfer, Nanoseconds now);

 private:
  static constexpr std::uint32_t kNone = ~std::uint32_t{0};

  struct Flow {
    std::int64_t left = 0;  // ns at the full rate, times kOne; as of `since`
    Nanoseconds since = 0, due = 0;
    std::int64_t rate = kOne, next_rate = kOne;  // the latter while `share_out` works on it
    std::uint32_t transfer = 0, pattern = 0;
    bool open = false;  // share_out has yet to settle its rate
  };

  struct Link {
    std::int64_t load = 0;  // sum of what its flows use at their full rates
    std::vector<std::uint32_t> flows;
    bool shared = false;                 // share_out works on it
    std::int64_t spare = 0, demand = 0;  // then: capacity left (times kOne), shares of its open flows
    std::int64_t level() const;
  };

  // One link of a flow, and what the flow takes of it.
  struct Hop {
    std::uint32_t link;
    std::int64_t use, share;
  };

  std::span<const Hop> hops(std::uint32_t pattern) const {
    return std::span(hops_).subspan(program_.flow_begin[pattern],
                                    program_.flow_begin[pattern + 1] - program_.flow_begin[pattern]);
  }
  bool is_flow(std::uint32_t transfer) const;
  std::uint32_t make_flow(std::uint32_t transfer, Nanoseconds now);
  void share_out(Nanoseconds now);
  void add_link(std::uint32_t link);
  void collect();
  void fill();
  bool held_at(const Flow& flow, std::int64_t level) const;
  void freeze(Flow& flow, std::int64_t rate);
  void change_rate(Flow& flow, Nanoseconds now);

  const Program& program_;
  EventQueue& queue_;
  const std::uint32_t first_entity_;
  std::vector<Hop> hops_;
  std::vector<Link> links_;
  std::vector<Flow> flows_;
  std::vector<std::uint32_t> unused_;         // entries of flows_
  std::vector<std::uint32_t> flow_of_;        // [transfers] under way, else kNone; empty without a network
  std::vector<std::uint32_t> shared_, open_;  // links and flows that share_out works on
};

}  // namespace maya::simulate
