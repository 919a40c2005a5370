#include "nccl/user_buffers.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/memory.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "core/transfer.h"
#include "nccl/communicator.h"

namespace maya::nccl {
namespace {

constexpr std::size_t kLine = 16;   // bytes of an int4, in which the kernels count
constexpr std::size_t kSignal = 4;  // what tells a peer that its data have come

struct State {
  std::mutex mutex;                                // guards what follows
  std::unordered_map<std::uintptr_t, int> opened;  // where it begins, its place among the node's other ranks
  int since_offered = 0, others = 0;
};

State& state() {
  static State* const instance = new State;
  return *instance;
}

template <class Value>
Value argument(void** arguments, int index) {
  return *static_cast<const Value*>(arguments[index]);
}

// `count` ranks of the node in which this one has a place.
std::vector<int> members(int place, int first, int step, int count) {
  std::vector<int> ranks;
  for (int i = 0; i < count; ++i) ranks.push_back(rank_config().rank - place + first + i * step);
  return ranks;
}

// The node's ranks that share memory: as many as opened each other's, and neighbours.
struct Node {
  int size, place;  // of this rank
};

Node this_node() {
  const int size = state().others + 1;
  return {size, rank_config().rank % size};
}

// The place of the other rank in whose memory an address lies.
std::optional<int> owner(const Node& node, const void* address) {
  const auto memory = find_allocation(address);
  const std::lock_guard lock(state().mutex);
  const auto opened = memory ? state().opened.find(memory->base) : state().opened.end();
  if (opened == state().opened.end()) return std::nullopt;
  return opened->second < node.place ? opened->second : opened->second + 1;
}

// userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<4>(op, flagoffset, firstrank, myrank, gpustep, mylineoffset, lines, ..)
// and the like: lines of a rank's part.
bool collective(std::string_view kernel, void** arguments, void* stream) {
  const auto has = [&](std::string_view kind) { return kernel.find(kind) != std::string_view::npos; };
  const std::size_t ranks_at = kernel.find('<');
  if (has("atomic") || !(has("_rs") || has("_ag")) || ranks_at == std::string_view::npos) return false;
  const int ranks = std::atoi(kernel.data() + ranks_at + 1);
  const int first = argument<int>(arguments, 2), mine = argument<int>(arguments, 3), step = argument<int>(arguments, 4);
  Operation call{.collective = has("_rs") ? Collective::kReduceScatter : Collective::kAllGather,
                 .type = has("_rs") && !has("_fp8") ? DataType::kBfloat16 : DataType::kUint8,
                 .stream = stream};
  call.count = static_cast<std::size_t>(argument<int>(arguments, 6)) * kLine / element_bytes(call.type);
  record_exchange(members(mine * step + first, first, step, ranks), mine, call);
  return true;
}

void transfer(const Node& node, Collective direction, int peer, void* stream) {
  record_exchange(
      members(node.place, 0, 1, node.size), node.place,
      {.collective = direction, .count = kSignal, .type = DataType::kUint8, .peer = peer, .stream = stream});
}

// kuserbuffers_pushsend(send_id, flagptr, srcptr, dstptr, lines, ..), whose lines the copy engines have not brought
// there.
bool push(const Node& node, void** arguments, void* stream) {
  const auto peer = owner(node, argument<void*>(arguments, 1));
  if (!peer) return false;
  const auto bytes = static_cast<std::size_t>(argument<int>(arguments, 4)) * kLine;
  if (bytes > 0) copy(argument<void*>(arguments, 3), argument<void*>(arguments, 2), bytes, find_stream(stream), false);
  transfer(node, Collective::kSend, *peer, stream);
  return true;
}

bool exchange(std::string_view kernel, void** arguments, void* stream) {
  const Node node = this_node();
  if (kernel.starts_with("userbuffers_fp16_sum_inplace_gpu_")) return collective(kernel, arguments, stream);
  if (kernel.starts_with("userbuffers_pushsend(")) return push(node, arguments, stream);
  if (kernel.starts_with("userbuffers_pushrecv(")) {
    transfer(node, Collective::kRecv, argument<int>(arguments, 3), stream);
    return true;
  }
  if (!kernel.starts_with("userbuffers_pushsendrecv(")) return false;
  group_start();
  const bool sent = push(node, arguments, stream);
  if (sent) transfer(node, Collective::kRecv, argument<int>(arguments, 12), stream);
  return group_end() == Result::kSuccess && sent;
}

}  // namespace

bool launch_exchange(const KernelInfo& kernel, void** arguments, void* stream) {
  if (!kernel.user_buffers || arguments == nullptr) return false;
  const std::string_view name = std::string_view(kernel.name).substr(kernel.name.find(kUserBuffers));
  if (name.starts_with("userbuffers_inc(") || name.starts_with("userbuffers_dec(")) return false;
  note_once("Transformer Engine's user buffers exchange at the rates of NCCL's collectives: theirs were not measured");
  if (exchange(name, arguments, stream)) return true;
  annotate_once("{\"uncovered\": " + json_quote("Transformer Engine's user buffers: " + kernel.name) + "}");
  return false;
}

void offered_memory() {
  const std::lock_guard lock(state().mutex);
  state().since_offered = 0;
}

void opened_memory(const void* base) {
  const std::lock_guard lock(state().mutex);
  State& self = state();
  self.opened[reinterpret_cast<std::uintptr_t>(base)] = self.since_offered;
  self.others = std::max(self.others, ++self.since_offered);
}

}  // namespace maya::nccl
