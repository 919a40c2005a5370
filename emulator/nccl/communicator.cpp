#include "nccl/communicator.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <unordered_map>

#include "core/handle_pool.h"
#include "core/hash.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "nccl/device_memory.h"
#include "nccl/exchange.h"
#include "values/values.h"

extern "C" int cudaGetDevice(int* device);

namespace maya::nccl {
namespace {

// Variables of NCCL by which a cluster's collectives would go otherwise than they are estimated to.
constexpr const char* kUnheeded[] = {
    "NCCL_ALGO",        "NCCL_PROTO",        "NCCL_NTHREADS",    "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",    "NCCL_MAX_CTAS",     "NCCL_BUFFSIZE",    "NCCL_NVLS_ENABLE",   "NCCL_COLLNET_ENABLE",
    "NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL",    "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE",    "NCCL_NET_GDR_LEVEL",
    "NCCL_CROSS_NIC",   "NCCL_TUNER_PLUGIN",
};

struct State {
  HandlePool<Communicator, 1 << 16> communicators;
  std::atomic<std::uint32_t> created{0}, groups{0};
  std::mutex naming;
  std::unordered_map<std::uint64_t, Name> names;         // by unique id; guarded by `naming`, as is what follows
  std::map<std::vector<int>, Communicator*> by_members;  // of NCCL's, the last for these
  std::map<std::vector<int>, Communicator> recorded_by_members;  // for what NCCL does not do
};

State& state() {
  static State* const instance = new State;  // outlives threads that still call in at exit
  return *instance;
}

void note_unheeded() {
  std::string set;
  for (const char* variable : kUnheeded) {
    const char* value = std::getenv(variable);
    if (value) set += (set.empty() ? "" : ", ") + std::string(variable) + "=" + value;
  }
  if (set.empty()) return;
  annotate("{\"note\": " + json_quote("not heeded: " + set + "; collectives take what NCCL chooses by itself") + "}");
}

struct Group {
  int depth = 0;
  std::uint32_t ordinal = 0;
  std::vector<Placed> pending;
  std::vector<Placed> own_turns;  // broadcasts of which this rank is the root, from one buffer to another
};
thread_local Group this_group;

// Where each rank in its turn broadcasts what it has to a place of its own, as PyTorch 2.15 gathers into a list, a root
// that does not run would send what this rank sends in its own turn. What its other calls name as sent is nothing.
void send_as_in_own_turn(Placed& placed, const std::vector<Placed>& own_turns) {
  Operation& call = placed.call;
  if (call.collective != Collective::kBroadcast || call.send != call.recv) return;
  for (const Placed& own : own_turns)
    if (own.comm == placed.comm && own.call.count == call.count && own.call.type == call.type)
      call.send = own.call.send;
}

void record_call(const Placed& placed) {
  const Operation& call = placed.call;
  struct Key {
    std::uint64_t tag, bytes;
    std::uint8_t collective, dtype, reduction, padding[5];
  };
  const std::size_t bytes = buffer_bytes(*placed.comm, call);
  const Key key{0x6e63636c,
                bytes,
                static_cast<std::uint8_t>(call.collective),
                static_cast<std::uint8_t>(call.type),
                static_cast<std::uint8_t>(reduces(call.collective) ? call.reduction : Reduction::kSum),
                {}};
  const std::uint32_t op = intern_operation(key, [&] {
    const std::string reduction(reduces(call.collective) ? reduction_name(call.reduction) : "");
    return "\"kind\": \"collective\", \"collective\": " + json_quote(name(call.collective)) +
           ", \"dtype\": " + json_quote(dtype_name(call.type)) + ", \"reduction\": " + json_quote(reduction) +
           ", \"bytes\": " + std::to_string(bytes);
  });
  const int offset = call.peer >= 0 ? relative(*placed.comm, placed.comm->rank, call.peer) : -1;
  record(RecordKind::kCollective, call.stream, op,
         {.size = bytes,
          .arg = placed.comm->index,
          .sequence = static_cast<std::uint32_t>(placed.sequence),
          .peer = call.peer,
          .group = placed.group,
          .role = combine(combine(placed.comm->index, static_cast<std::uint64_t>(placed.comm->size)),
                          static_cast<std::uint64_t>(offset + 1))});
}

Placed place(Communicator& comm, const Operation& call) {
  std::uint64_t& next =
      point_to_point(call.collective) ? comm.transfers[{call.collective, call.peer}] : comm.collectives;
  const Group& group = this_group;
  return {&comm, call, next++, group.depth ? group.ordinal : 0};
}

std::string json_list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text += (text.empty() ? "[" : ", ") + std::to_string(number);
  return text + "]";
}

// Gives a communicator its name, if it has one; returns what its line in the table says of that.
std::string apply_name(Communicator& comm) {
  const std::lock_guard lock(state().naming);
  const auto found = state().names.find(comm.id);
  if (found == state().names.end() || found->second.members.size() != static_cast<std::size_t>(comm.size)) return {};
  const Name& name = found->second;
  const auto [low, high] = name.pair;
  comm.id = name.id;
  comm.members = name.members;
  comm.some_absent = !name.list_members;
  comm.channel = named_channel(name.family, name.pair);
  if (low >= 0) comm.pair = Pair{name.family, low, high, name.world};
  std::string text = ", \"family\": " + std::to_string(name.family);
  if (name.list_members) text += ", \"members\": " + json_list(name.members);
  if (low >= 0) text += ", \"pair\": [" + std::to_string(low) + ", " + std::to_string(high) + "]";
  return text;
}

// The communicator's line in the table.
void announce(const Communicator& comm, const std::string& of_name) {
  annotate("{\"communicator\": " + std::to_string(comm.index) + ", \"id\": " + json_quote(hexadecimal(comm.id)) +
           ", \"size\": " + std::to_string(comm.size) + ", \"rank\": " + std::to_string(comm.rank) + of_name + "}");
}

Communicator& communicator_of(const std::vector<int>& members, int rank) {
  const std::lock_guard lock(state().naming);
  if (const auto found = state().by_members.find(members); found != state().by_members.end()) return *found->second;
  const auto [found, made] = state().recorded_by_members.try_emplace(members);
  Communicator& comm = found->second;
  if (made) {
    comm.id = 0x75736572;
    for (const int member : members) comm.id = combine(comm.id, static_cast<std::uint64_t>(member));
    comm.size = static_cast<int>(members.size());
    comm.rank = rank;
    comm.index = comm.channel = state().created++;
    comm.members = members;
    announce(comm, ", \"members\": " + json_list(members));
  }
  return comm;
}

}  // namespace

std::uint32_t named_channel(std::uint32_t family, std::pair<int, int> pair) {
  const auto [low, high] = pair;
  return static_cast<std::uint32_t>(
      combine(combine(family, static_cast<std::uint64_t>(low + 1)), static_cast<std::uint64_t>(high + 1)));
}

void name_communicator(std::uint64_t unique_id, Name name) {
  const std::lock_guard lock(state().naming);
  state().names.insert_or_assign(unique_id, std::move(name));
}

std::string duplicate_device() {
  const RankConfig& own = rank_config();
  RankSlot* slot = rank_slot(own.rank);
  // Where a script chooses what each rank sees, their first devices are not the same.
  if (!slot || std::getenv("CUDA_VISIBLE_DEVICES")) return {};
  int device = 0;
  cudaGetDevice(&device);
  const auto mine = static_cast<std::uint32_t>(device) + 1;
  slot->nccl_device.store(mine);
  const int gpus = std::max(own.devices, 1);
  const int first = own.rank / gpus * gpus;
  for (int rank = first; rank < std::min(first + gpus, own.world); ++rank)
    if (rank != own.rank && rank_slot(rank)->nccl_device.load() == mine)
      return "Duplicate GPU detected : rank " + std::to_string(own.rank) + " and rank " + std::to_string(rank) +
             " both on CUDA device " + std::to_string(device);
  return {};
}

Communicator* create_communicator(std::uint64_t id, int size, int rank) {
  int device = 0;
  cudaGetDevice(&device);
  if (!take_for_communicator(device)) return nullptr;
  const std::uint32_t index = state().created++;
  Communicator made{.id = id, .size = size, .rank = rank, .device = device, .index = index, .channel = index};
  const std::string family = apply_name(made);
  Communicator* comm = state().communicators.create(std::move(made));
  mailbox().announce(comm->id, static_cast<std::uint32_t>(rank),
                     {static_cast<std::uint32_t>(rank_config().rank), comm->channel});
  if (index == 0) note_unheeded();
  announce(*comm, family);
  if (!comm->members.empty()) {
    const std::lock_guard lock(state().naming);
    state().by_members[comm->members] = comm;
  }
  return comm;
}

Communicator* find_communicator(const void* handle) { return state().communicators.find(handle); }

bool destroy_communicator(const void* handle) {
  const Communicator* comm = find_communicator(handle);
  if (!comm) return false;
  give_back(*comm);
  {
    const std::lock_guard lock(state().naming);
    const auto of_these = state().by_members.find(comm->members);
    if (of_these != state().by_members.end() && of_these->second == comm) state().by_members.erase(of_these);
  }
  return state().communicators.destroy(handle);
}

namespace {

// What the other ranks give in a call that was recorded.
Result exchange(const Placed& placed) {
  const values::Derivation exchanged;
  Communicator& comm = *placed.comm;
  const Operation& call = placed.call;
  const bool contributes =
      call.collective != Collective::kRecv && (call.collective != Collective::kBroadcast || comm.rank == call.root);
  if (contributes || !placed.small()) {
    const bool moves = contributes && placed.small();
    const bool announces = call.collective != Collective::kRecv;
    if (announces) {
      const Result result = post(placed, call.send, moves ? contribution_bytes(comm, call) : 0);
      if (result != Result::kSuccess) return result;
    }
  }
  if (!point_to_point(call.collective))
    if (const Result result = check_neighbours(placed); result != Result::kSuccess) return result;
  if (!placed.small()) {
    complete_large(placed);
  } else if (!placed.waits()) {
    copy_locally(placed);
    if (this_group.depth && call.collective == Collective::kBroadcast && call.send != call.recv)
      this_group.own_turns.push_back(placed);
  } else if (this_group.depth) {
    this_group.pending.push_back(placed);
  } else {
    return complete(placed);
  }
  return Result::kSuccess;
}

}  // namespace

Result submit(Communicator& comm, const Operation& call) {
  if (!take_for_peers(comm, call)) return fail(comm, Result::kUnhandledCudaError, kNoMemory);
  const Placed placed = place(comm, call);
  record_call(placed);
  // Within a group they wait for each other; a graph's nodes are computed one by one.
  if (!capturing(call.stream) || this_group.depth || point_to_point(call.collective)) return exchange(placed);
  at_each_launch(call.stream, [handle = &comm, call] {
    if (Communicator* const alive = find_communicator(handle)) (void)exchange(place(*alive, call));
  });
  return Result::kSuccess;
}

void record_exchange(const std::vector<int>& members, int rank, const Operation& call) {
  record_call(place(communicator_of(members, rank), call));
}

void group_start() {
  if (this_group.depth++ == 0) this_group.ordinal = ++state().groups;
}

// Every send of the group was posted when it was called, so waiting in order cannot lock two ranks.
Result group_end() {
  if (this_group.depth == 0) return Result::kInvalidUsage;
  if (--this_group.depth) return Result::kSuccess;
  std::vector<Placed> pending = std::exchange(this_group.pending, {});
  const std::vector<Placed> own_turns = std::exchange(this_group.own_turns, {});
  for (Placed& placed : pending) {
    send_as_in_own_turn(placed, own_turns);
    if (const Result result = complete(placed); result != Result::kSuccess) return result;
  }
  return Result::kSuccess;
}

Result exchange_split(Communicator& comm, SplitChoice mine, std::vector<SplitChoice>& all) {
  const Operation call{.collective = Collective::kSplit};
  const Placed placed = place(comm, call);
  Message header{.signature = placed.signature(), .global_rank = static_cast<std::uint32_t>(rank_config().rank)};
  const values::Part whole{0, sizeof mine};
  if (!mailbox().post(placed.channel(), placed.sequence, header, std::as_bytes(std::span(&mine, 1)), {&whole, 1}))
    return fail(comm, Result::kSystemError, "the job's store of small collective payloads is full");
  for (int member = 0; member < comm.size; ++member) {
    const Message* message = nullptr;
    if (const Result result = receive(placed, member, message); result != Result::kSuccess) return result;
    if (!message)
      return fail(comm, Result::kInvalidUsage, "ncclCommSplit: the communicator's other members do not run");
    SplitChoice choice;
    std::memcpy(&choice, message->payload().data(), sizeof choice);
    all.push_back(choice);
  }
  return Result::kSuccess;
}

}  // namespace maya::nccl
