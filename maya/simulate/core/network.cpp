#include "network.h"

#include <algorithm>
#include <limits>

namespace maya::simulate {

Network::Network(const Program& program, EventQueue& queue, std::uint32_t first_entity)
    : program_(program),
      queue_(queue),
      first_entity_(first_entity),
      links_(program.links),
      flow_of_(program.links > 0 ? program.transfer_duration.size() : 0, kNone) {
  hops_.reserve(program.flow_link.size());
  for (std::size_t at = 0; at < program.flow_link.size(); ++at)
    hops_.push_back({program.flow_link[at], program.flow_use[at], program.flow_share[at]});
}

// The common case: none of the transfer's links is full, and nobody's rate changes.
void Network::start(std::uint32_t transfer, Nanoseconds now) {
  const Nanoseconds duration = program_.transfer_duration[transfer];
  if (!is_flow(transfer)) {
    queue_.push(now + duration, first_entity_ + transfer);
    return;
  }
  const std::uint32_t index = make_flow(transfer, now);
  for (const Hop& hop : hops(flows_[index].pattern)) {
    Link& link = links_[hop.link];
    link.load += hop.use;
    link.flows.push_back(index);
    if (link.load > kOne) add_link(hop.link);
  }
  if (!shared_.empty()) share_out(now);
  if (flows_[index].rate == kOne) queue_.push(flows_[index].due, first_entity_ + transfer);
}

bool Network::is_flow(std::uint32_t transfer) const {
  return !flow_of_.empty() && program_.flow_of[transfer] >= 0 && program_.transfer_duration[transfer] > 0;
}

std::uint32_t Network::make_flow(std::uint32_t transfer, Nanoseconds now) {
  if (unused_.empty()) {
    unused_.push_back(static_cast<std::uint32_t>(flows_.size()));
    flows_.emplace_back();
  }
  const std::uint32_t index = unused_.back();
  unused_.pop_back();
  const Nanoseconds duration = program_.transfer_duration[transfer];
  flows_[index] = {duration * kOne,
                   now,
                   now + duration,
                   kOne,
                   kOne,
                   transfer,
                   static_cast<std::uint32_t>(program_.flow_of[transfer]),
                   false};
  flow_of_[transfer] = index;
  return index;
}

bool Network::is_due(std::uint32_t transfer, Nanoseconds now) const {
  if (!is_flow(transfer)) return true;
  return flow_of_[transfer] != kNone && flows_[flow_of_[transfer]].due == now;
}

void Network::end(std::uint32_t transfer, Nanoseconds now) {
  if (!is_flow(transfer)) return;
  const std::uint32_t index = flow_of_[transfer];
  flow_of_[transfer] = kNone;
  unused_.push_back(index);
  for (const Hop& hop : hops(flows_[index].pattern)) {
    Link& link = links_[hop.link];
    if (link.load > kOne) add_link(hop.link);
    link.load -= hop.use;
    *std::find(link.flows.begin(), link.flows.end(), index) = link.flows.back();
    link.flows.pop_back();
  }
  if (!shared_.empty()) share_out(now);
}

// --- max-min fair rates ------------------------------------------------------------------------

// Settles the rates of all flows that a change on the links in `shared_` can reach: a link that is not full
// passes nothing on. Progressive filling (Bertsekas, Gallager: Data Networks, 6.5.2), where each flow grows
// in proportion to what it takes of the link that it uses most.
void Network::share_out(Nanoseconds now) {
  collect();
  const std::vector<std::uint32_t> reached = open_;
  fill();
  for (const std::uint32_t index : reached)
    if (flows_[index].next_rate != flows_[index].rate) change_rate(flows_[index], now);
  for (const std::uint32_t index : shared_) links_[index].shared = false;
  shared_.clear();
}

void Network::add_link(std::uint32_t index) {
  Link& link = links_[index];
  if (link.shared) return;
  link.shared = true;
  link.spare = kOne * kOne;
  link.demand = 0;
  shared_.push_back(index);
}

void Network::collect() {
  for (std::size_t next = 0; next < shared_.size(); ++next) {
    for (const std::uint32_t index : links_[shared_[next]].flows) {
      Flow& flow = flows_[index];
      if (flow.open) continue;
      flow.open = true;
      open_.push_back(index);
      for (const Hop& hop : hops(flow.pattern))
        if (links_[hop.link].load > kOne) add_link(hop.link);
    }
  }
  for (const std::uint32_t index : open_)
    for (const Hop& hop : hops(flows_[index].pattern)) links_[hop.link].demand += hop.share;
}

// Raises all open flows together until a link is full or a flow has all that it can use.
void Network::fill() {
  while (!open_.empty()) {
    std::int64_t level = std::numeric_limits<std::int64_t>::max(), least = level;
    for (const std::uint32_t index : shared_) level = std::min(level, links_[index].level());
    for (const std::uint32_t index : open_)
      least = std::min<std::int64_t>(least, program_.flow_peak[flows_[index].pattern]);
    const bool satisfied = least <= level;
    const auto chosen = std::partition(open_.begin(), open_.end(), [&](std::uint32_t index) {
      const Flow& flow = flows_[index];
      return !(satisfied ? program_.flow_peak[flow.pattern] <= level : held_at(flow, level));
    });
    for (auto index = chosen; index != open_.end(); ++index) {
      const std::int64_t peak = program_.flow_peak[flows_[*index].pattern];
      freeze(flows_[*index], satisfied ? kOne : std::max<std::int64_t>(1, level * kOne / peak));
    }
    open_.erase(chosen, open_.end());
  }
}

// How far its open flows can grow: what each may take of the link that it uses most.
std::int64_t Network::Link::level() const {
  if (demand <= 0) return std::numeric_limits<std::int64_t>::max();
  return std::max<std::int64_t>(spare, 0) / demand;
}

bool Network::held_at(const Flow& flow, std::int64_t level) const {
  return std::ranges::any_of(
      hops(flow.pattern), [&](const Hop& hop) { return links_[hop.link].shared && links_[hop.link].level() == level; });
}

void Network::freeze(Flow& flow, std::int64_t rate) {
  flow.open = false;
  flow.next_rate = rate;
  for (const Hop& hop : hops(flow.pattern)) {
    links_[hop.link].spare -= rate * hop.use;
    links_[hop.link].demand -= hop.share;
  }
}

void Network::change_rate(Flow& flow, Nanoseconds now) {
  flow.left -= flow.rate * (now - flow.since);
  flow.since = now;
  flow.rate = flow.next_rate;
  flow.due = now + std::max<std::int64_t>(0, (flow.left + flow.rate - 1) / flow.rate);
  queue_.push(flow.due, first_entity_ + flow.transfer);
}

}  // namespace maya::simulate
