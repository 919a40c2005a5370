// Communicators and what happens on them: records, messages to peers, small results.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "nccl/mailbox.h"
#include "nccl/reduce.h"

namespace maya::nccl {

// Results a caller sees (ncclResult_t).
enum class Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
};

inline constexpr const char* kNoMemory = "Cuda failure 2 'out of memory'";  // the last error then

enum class Collective : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kSend,
  kRecv,
  kSplit
};

// One call. `count` is elements as the NCCL function takes them (per peer for all_to_all and all_gather, per
// result for reduce_scatter).
struct Operation {
  Collective collective;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  DataType type = DataType::kUint8;
  Reduction reduction = Reduction::kSum;
  double factor = 1;  // kPreMulSum, kAverage: each contribution is multiplied by it
  int root = -1;
  int peer = -1;
  void* stream = nullptr;
};

// ncclRedOpCreatePreMulSum's operation; the scalar lies in device memory until the call, or was given.
struct ScaledSum {
  DataType type;
  double factor;
  const std::byte* device_scalar;
  bool alive;
};

// What the launcher's bootstrap tells of a communicator before NCCL makes it, in a world of which only some
// ranks are started: who its members are, so that those that do not run can be answered for.
struct Name {
  std::uint64_t id;                  // equal on all members, whichever of them run
  std::uint32_t family;              // equal for like groups of other ranks
  std::pair<int, int> pair{-1, -1};  // of two members of a group, for transfers between these two only
  bool world;                        // the group is the world: its members' places are global ranks
  std::vector<int> members;          // global ranks
  bool list_members;                 // in the trace: all of them are started, though some may have ended
};
void name_communicator(std::uint64_t unique_id, Name name);

// Who sent in the place of a member that was never started, when this rank had made so many optimizer steps. It is
// asked again until the next step: an object must fit the size that was told before it.
struct StandIn {
  std::uint32_t rank;
  std::uint64_t steps;
};

// Two ranks' places in the group of like ones that they are of; of the world's these are global ranks.
struct Pair {
  std::uint32_t family;
  int low, high;
  bool of_world;
};

// NCCL forbids concurrent calls on one communicator, so its members need no lock.
struct Communicator {
  std::uint64_t id;
  int size, rank, device;
  std::uint32_t index;         // local: the n-th communicator this process made
  std::uint32_t channel;       // where its messages are found: the index, or what the family and the pair are known by
  std::vector<int> members{};  // global ranks, when it was named
  bool some_absent = false;    // members may be ranks that are never started
  std::optional<Pair> pair{};  // where two ranks have it for themselves
  std::unordered_map<int, StandIn> stand_ins{};  // by member
  std::uint64_t collectives = 0, derived = 0;    // made so far; communicators split or shrunk from it
  std::map<std::pair<Collective, int>, std::uint64_t> transfers{};  // point-to-point calls by direction and peer
  std::set<int> peers{};  // members with buffers of their own (device_memory.h)
  std::vector<ScaledSum> scaled_sums{};
  std::string last_error{};
};

// Where the messages of a named communicator are found.
std::uint32_t named_channel(std::uint32_t family, std::pair<int, int> pair);

// What NCCL says where another rank of the node has the same device in a communicator of all ranks; empty: none has.
std::string duplicate_device();

// A new communicator of this process, announced to its peers. nullptr: the device has no memory for it. Throws
// std::bad_alloc.
Communicator* create_communicator(std::uint64_t id, int size, int rank);
Communicator* find_communicator(const void* handle);  // nullptr: destroyed or foreign
bool destroy_communicator(const void* handle);

// Makes the call: records it, sends what peers need, and waits for small results (at the end of the group
// when the thread is in one).
Result submit(Communicator& communicator, const Operation& operation);
void group_start();
Result group_end();

// Records a call that kernels of the script's own make, among ranks (of the world) of which this one is `rank`: on the
// communicator that NCCL has for them, if it has one. Nothing is exchanged.
void record_exchange(const std::vector<int>& members, int rank, const Operation& call);

// {color, key} of every member, in rank order; for ncclCommSplit. Waits for all.
struct SplitChoice {
  int color, key;
};
Result exchange_split(Communicator& communicator, SplitChoice mine, std::vector<SplitChoice>& all);

}  // namespace maya::nccl
