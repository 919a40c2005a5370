#include "nccl/waiting.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "core/process.h"

namespace maya::nccl {
namespace {

constexpr std::size_t kLongestCircle = 1024;  // more ranks than are ever started beside absent ones

struct Link {
  int rank;
  std::uint32_t version;
  Awaited awaited;
  bool operator==(const Link& other) const { return rank == other.rank && version == other.version; }
};

// What `rank` waits for and has not been sent; nothing when it works, rests, or is about to wake.
std::optional<Link> blocked(const Mailbox& mailbox, int rank) {
  const RankSlot* slot = rank_slot(rank);
  if (!slot || slot->state.load() != static_cast<std::uint32_t>(RankState::kWaiting)) return std::nullopt;
  const AwaitedMessage& told = slot->awaited;
  const std::uint32_t version = told.version.load();
  const Awaited awaited{
      {told.rank.load(), told.communicator.load(), told.peer.load()}, told.sequence.load(), told.stands_in.load() != 0};
  if (version % 2 == 0 || told.version.load() != version) return std::nullopt;
  if (mailbox.find(awaited.channel, awaited.sequence)) return std::nullopt;
  return Link{rank, version, awaited};
}

// The ranks from `rank` along what each waits for, back to `rank`; empty when that does not lead back.
std::vector<Link> circle(const Mailbox& mailbox, int rank) {
  std::vector<Link> links;
  for (int at = rank; links.size() < kLongestCircle;) {
    const auto link = blocked(mailbox, at);
    if (!link) return {};
    links.push_back(*link);
    at = static_cast<int>(link->awaited.channel.rank);
    if (at == rank) return links;
  }
  return {};
}

}  // namespace

Waiting::Waiting(RankSlot* slot, const std::string& site) : slot_(slot) {
  if (!slot_) return;
  std::memset(slot_->wait_site, 0, sizeof slot_->wait_site);
  std::strncpy(slot_->wait_site, site.c_str(), sizeof slot_->wait_site - 1);
  change(RankState::kRunning, RankState::kWaiting);
}

Waiting::~Waiting() {
  if (!slot_) return;
  if (expects_) slot_->awaited.version.fetch_add(1);
  change(RankState::kWaiting, RankState::kRunning);
}

// The version is odd while what lies beside it holds (a sequence lock: readers take none).
bool Waiting::expect(const Awaited& awaited) {
  if (!slot_ || (expects_ && expected_ == awaited)) return false;
  AwaitedMessage& told = slot_->awaited;
  if (expects_) told.version.fetch_add(1);
  told.rank.store(awaited.channel.rank);
  told.communicator.store(awaited.channel.communicator);
  told.peer.store(awaited.channel.peer);
  told.sequence.store(awaited.sequence);
  told.stands_in.store(awaited.stands_in);
  told.version.fetch_add(1);
  expects_ = true;
  expected_ = awaited;
  return true;
}

void Waiting::change(RankState from, RankState to) {  // the launcher may have ended us meanwhile
  auto expected = static_cast<std::uint32_t>(from);
  slot_->state.compare_exchange_strong(expected, static_cast<std::uint32_t>(to));
}

// Each rank is seen at another moment. Seen twice with nothing changed, all were blocked in between: none can
// have sent what another waits for.
bool must_do_without(const Mailbox& mailbox, int rank) {
  const std::vector<Link> links = circle(mailbox, rank);
  if (links.empty() || circle(mailbox, rank) != links) return false;
  int lowest = -1;
  for (const Link& link : links)
    if (link.awaited.stands_in && (lowest < 0 || link.rank < lowest)) lowest = link.rank;
  return lowest == rank;
}

}  // namespace maya::nccl
