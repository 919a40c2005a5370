// Communicators and what happens on them: records, messages to peers, small results.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
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

enum class Collective : std::uint8_t {
  kAllReduce, kBroadcast, kReduce, kAllGather, kReduceScatter, kAllToAll, kSend, kRecv, kSplit
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

// NCCL forbids concurrent calls on one communicator, so its members need no lock.
struct Communicator {
  std::uint64_t id;
  int size, rank, device;
  std::uint32_t index;  // local: the n-th communicator this process made
  std::uint64_t collectives = 0, derived = 0;  // made so far; communicators split or shrunk from it
  std::map<std::pair<Collective, int>, std::uint64_t> transfers{};  // point-to-point calls by direction and peer
  std::vector<ScaledSum> scaled_sums{};
  std::string last_error{};
};

// A new communicator of this process, announced to its peers. Throws std::bad_alloc.
Communicator* create_communicator(std::uint64_t id, int size, int rank);
Communicator* find_communicator(const void* handle);  // nullptr: destroyed or foreign
bool destroy_communicator(const void* handle);

// Makes the call: records it, sends what peers need, and waits for small results (at the end of the group
// when the thread is in one).
Result submit(Communicator& communicator, const Operation& operation);
void group_start();
Result group_end();

// {color, key} of every member, in rank order; for ncclCommSplit. Waits for all.
struct SplitChoice {
  int color, key;
};
Result exchange_split(Communicator& communicator, SplitChoice mine, std::vector<SplitChoice>& all);

}  // namespace maya::nccl
