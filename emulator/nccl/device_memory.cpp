#include "nccl/device_memory.h"

#include <algorithm>
#include <mutex>
#include <set>

#include "core/memory.h"
#include "core/process.h"
#include "nccl/call.h"

namespace maya::nccl {
namespace {

struct Started {
  std::mutex mutex;
  std::set<int> devices;  // those that NCCL has been on; guarded by `mutex`
};

Started& started() {
  static Started* const instance = new Started;
  return *instance;
}

// Between nodes NCCL has fewer channels to a peer, and buffers that peers share.
bool within_a_node(const Communicator& comm) {
  const int gpus = std::max(rank_config().devices, 1);
  const auto node = [&](int rank) { return rank / gpus; };
  return !comm.members.empty() &&
         std::ranges::all_of(comm.members, [&](int rank) { return node(rank) == node(comm.members.front()); });
}

bool take_for_peer(Communicator& comm, int peer) {
  if (peer == comm.rank || comm.peers.contains(peer)) return true;
  if (!charge(rank_config().peer_bytes, comm.device)) return false;
  comm.peers.insert(peer);
  return true;
}

}  // namespace

bool take_for_communicator(int device) {
  const std::lock_guard lock(started().mutex);
  const bool first = !started().devices.contains(device);
  const std::size_t bytes = rank_config().communicator_bytes + (first ? rank_config().nccl_bytes : 0);
  if (bytes > 0 && !charge(bytes, device)) return false;
  started().devices.insert(device);
  return true;
}

bool take_for_peers(Communicator& comm, const Operation& call) {
  const bool everyone = call.collective == Collective::kAllToAll;
  if (rank_config().peer_bytes == 0 || (!everyone && !point_to_point(call.collective)) || !within_a_node(comm))
    return true;
  if (!everyone) return take_for_peer(comm, call.peer);
  for (int peer = 0; peer < comm.size; ++peer)
    if (!take_for_peer(comm, peer)) return false;
  return true;
}

void give_back(const Communicator& comm) {
  const std::size_t bytes = rank_config().communicator_bytes + comm.peers.size() * rank_config().peer_bytes;
  if (bytes > 0) refund(bytes, comm.device);
}

}  // namespace maya::nccl
