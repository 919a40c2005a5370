#include "nccl/communicator.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <unordered_map>

#include "core/handle_pool.h"
#include "core/hash.h"
#include "core/process.h"
#include "core/recorder.h"
#include "nccl/waiting.h"
#include "values/values.h"

extern "C" int cudaGetDevice(int* device);

namespace maya::nccl {
namespace {

constexpr std::size_t kSmallBytes = values::kSmallBytes;  // of one rank's contribution: it really moves
constexpr std::size_t kLoneArenaBytes = std::size_t{256} << 20;
constexpr int kYields = 50;            // before a waiting rank sleeps
// A peer that was ended posts nothing, so a waiting rank looks again by itself, ever less often.
constexpr long kFirstNapMicroseconds = 2'000, kLongestNapMicroseconds = 50'000;

// Variables of NCCL by which a cluster's collectives would go otherwise than they are estimated to.
constexpr const char* kUnheeded[] = {
    "NCCL_ALGO",          "NCCL_PROTO",       "NCCL_NTHREADS",       "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",      "NCCL_MAX_CTAS",    "NCCL_BUFFSIZE",       "NCCL_NVLS_ENABLE",   "NCCL_COLLNET_ENABLE",
    "NCCL_P2P_DISABLE",   "NCCL_P2P_LEVEL",   "NCCL_SHM_DISABLE",    "NCCL_IB_DISABLE",    "NCCL_NET_GDR_LEVEL",
    "NCCL_CROSS_NIC",     "NCCL_TUNER_PLUGIN",
};

// What the process knows of NCCL. Peers without a control file are communicators of this process
// (ncclCommInitAll); their messages live in private memory.
struct State {
  HandlePool<Communicator, 1 << 16> communicators;
  std::atomic<std::uint32_t> created{0}, groups{0};
  std::mutex naming;
  std::unordered_map<std::uint64_t, Name> names;  // by unique id; guarded by `naming`
  Mailbox mailbox{arena()};
  bool alone = control_header() == nullptr;

  static std::span<std::byte> arena() {
    if (control_header()) return {control_arena(), control_arena_bytes()};
    void* memory = mmap(nullptr, kLoneArenaBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return {static_cast<std::byte*>(memory), kLoneArenaBytes};
  }
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

std::string_view name(Collective collective) {
  constexpr std::string_view names[] = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter",
                                        "all_to_all", "send", "recv", "comm_split"};
  return names[static_cast<int>(collective)];
}

bool point_to_point(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kRecv;
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

// Whether one rank's contribution holds a part for each peer.
bool parted(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllToAll;
}

std::size_t part_bytes(const Operation& call) { return call.count * element_bytes(call.type); }

std::size_t contribution_bytes(const Communicator& comm, const Operation& call) {
  return part_bytes(call) * (parted(call.collective) ? static_cast<std::size_t>(comm.size) : 1);
}

// The larger of the rank's two buffers.
std::size_t buffer_bytes(const Communicator& comm, const Operation& call) {
  const bool many = parted(call.collective) || call.collective == Collective::kAllGather;
  return part_bytes(call) * (many ? static_cast<std::size_t>(comm.size) : 1);
}

int relative(const Communicator& comm, int from, int to) { return (to - from + comm.size) % comm.size; }

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// A call with its place on the communicator.
struct Placed {
  Communicator* comm;
  Operation call;
  std::uint64_t sequence;
  std::uint32_t group;

  bool small() const { return contribution_bytes(*comm, call) <= kSmallBytes; }
  bool waits() const {  // needs data of others
    if (call.collective == Collective::kSend) return false;
    if (call.collective == Collective::kBroadcast) return comm->rank != call.root;
    if (call.collective == Collective::kReduce) return comm->rank == call.root;
    return true;
  }
  ChannelKey channel() const {  // of this rank
    const bool sends = call.collective == Collective::kSend;
    return {static_cast<std::uint32_t>(rank_config().rank), comm->channel,
            sends ? relative(*comm, comm->rank, call.peer) : kCollectivePeer};
  }
  Signature signature() const {
    Signature result{static_cast<std::uint8_t>(call.collective), static_cast<std::uint8_t>(call.type),
                     static_cast<std::uint8_t>(reduces(call.collective) ? call.reduction : Reduction::kSum), 0,
                     call.root, call.count};
    if (call.collective == Collective::kRecv) result.collective = static_cast<std::uint8_t>(Collective::kSend);
    return result;
  }
};

struct Group {
  int depth = 0;
  std::uint32_t ordinal = 0;
  std::vector<Placed> pending;
};
thread_local Group this_group;

// ---- what a call looks like to a reader ------------------------------------------------------------

std::string describe(const Communicator& comm, const Signature& signature, std::uint64_t sequence) {
  const auto collective = static_cast<Collective>(signature.collective);
  std::string text(name(collective));
  text += " of " + std::to_string(signature.count) + " " + std::string(dtype_name(static_cast<DataType>(signature.dtype)));
  if (reduces(collective)) text += " (" + std::string(reduction_name(static_cast<Reduction>(signature.reduction))) + ")";
  if (signature.root >= 0) text += " with root " + std::to_string(signature.root);
  text += ", call " + std::to_string(sequence) + " on communicator " + hexadecimal(comm.id).substr(0, 8) + " of " +
          std::to_string(comm.size) + " ranks";
  return text;
}

std::string in_operator(const std::string& context) { return context.empty() ? "" : ", in " + context; }

Result fail(Communicator& comm, Result result, const std::string& message) {
  comm.last_error = message;
  std::fprintf(stderr, "maya: %s\n", message.c_str());
  return result;
}

Result mismatch(const Placed& mine, const Message& theirs) {
  const std::string text =
      "rank " + std::to_string(rank_config().rank) + ": " + describe(*mine.comm, mine.signature(), mine.sequence) +
      in_operator(context_text(current_context())) + "\nrank " + std::to_string(theirs.global_rank) + ": " +
      describe(*mine.comm, theirs.signature, mine.sequence) + in_operator(theirs.site);
  annotate("{\"mismatch\": " + json_quote(text) + "}");
  if (ControlHeader* header = control_header()) {
    std::uint64_t none = 0;
    static std::atomic_flag written = ATOMIC_FLAG_INIT;  // by this process; the count settles it among processes
    if (!written.test_and_set() && header->mismatch_count.load() == none) {
      std::strncpy(header->mismatch, text.c_str(), sizeof header->mismatch - 1);
      header->mismatch_count.compare_exchange_strong(none, 1);
    }
  }
  return fail(*mine.comm, Result::kInvalidUsage, "ranks do not agree on what they communicate:\n" + text);
}

// ---- recording ----------------------------------------------------------------------------------------

void record_call(const Placed& placed) {
  const Operation& call = placed.call;
  struct Key {
    std::uint64_t tag, bytes;
    std::uint8_t collective, dtype, reduction, padding[5];
  };
  const std::size_t bytes = buffer_bytes(*placed.comm, call);
  const Key key{0x6e63636c, bytes, static_cast<std::uint8_t>(call.collective), static_cast<std::uint8_t>(call.type),
                static_cast<std::uint8_t>(reduces(call.collective) ? call.reduction : Reduction::kSum), {}};
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

// ---- messages -------------------------------------------------------------------------------------------

values::Content content_of(DataType type) {
  if (is_float(type)) return values::Content::kFloat;
  return element_bytes(type) == 1 ? values::Content::kBytes : values::Content::kInteger;
}

// Whether the bytes say anything. A pickled object is sent in a buffer grown to the longest one's size, whose
// end nobody wrote: what is not known reads zero, so a byte that does not is real.
bool known_payload(const Placed& placed, const std::byte* data, std::size_t bytes) {
  const values::Content content = content_of(placed.call.type);
  if (values::known(data, bytes, content)) return true;
  return content == values::Content::kBytes && std::any_of(data, data + bytes, [](std::byte b) { return b != std::byte{}; });
}

// Payload or, for a call too large to move, only its signature.
Result post(const Placed& placed, const void* data, std::size_t bytes) {
  Mailbox& mailbox = state().mailbox;
  if (!bytes && mailbox.used_bytes() > mailbox.capacity_bytes() / 2) return Result::kSuccess;
  Message header{.signature = placed.signature(), .global_rank = static_cast<std::uint32_t>(rank_config().rank)};
  header.known = bytes && known_payload(placed, static_cast<const std::byte*>(data), bytes);
  std::strncpy(header.site, context_text(current_context()).c_str(), sizeof header.site - 1);
  std::vector<std::byte> payload(static_cast<const std::byte*>(data), static_cast<const std::byte*>(data) + bytes);
  if (placed.call.factor != 1 && reduces(placed.call.collective)) scale(placed.call.type, placed.call.factor, payload);
  if (mailbox.post(placed.channel(), placed.sequence, header, payload)) return Result::kSuccess;
  return fail(*placed.comm, Result::kSystemError,
              "the job's store of small collective payloads is full (" + std::to_string(mailbox.capacity_bytes()) +
                  " bytes) at " + describe(*placed.comm, placed.signature(), placed.sequence));
}

// Who a member is: as its name tells, else as it announced itself.
std::optional<Member> member_of(const Communicator& comm, int member) {
  if (comm.members.empty()) return state().mailbox.member(comm.id, static_cast<std::uint32_t>(member));
  return Member{static_cast<std::uint32_t>(comm.members[static_cast<std::size_t>(member)]), comm.channel};
}

bool is_in(const RankSlot& slot, RankState state) {
  return slot.state.load(std::memory_order_acquire) == static_cast<std::uint32_t>(state);
}

std::uint64_t own_steps() {
  const RankSlot* slot = rank_slot(rank_config().rank);
  return slot ? slot->steps.load(std::memory_order_relaxed) : 0;
}

// Who answers for a member that was ended or never started.
std::uint32_t representative(const Placed& placed, int member, const RankSlot& slot) {
  const auto chosen = placed.comm->stand_ins.find(member);
  if (is_in(slot, RankState::kAbsent) && chosen != placed.comm->stand_ins.end() && chosen->second.steps == own_steps())
    return chosen->second.rank;
  return slot.representative.load(std::memory_order_acquire);
}

// Where member `member` of the call's communicator leaves what this call receives from it; the
// representative's place when that rank was ended or never started.
std::optional<ChannelKey> channel_of(const Placed& placed, int member, bool of_representative) {
  const auto who = member_of(*placed.comm, member);
  if (!who) return std::nullopt;
  const bool receives = placed.call.collective == Collective::kRecv;
  ChannelKey channel{who->rank, who->communicator,
                     receives ? relative(*placed.comm, member, placed.comm->rank) : kCollectivePeer};
  if (!of_representative) return channel;
  const RankSlot* slot = rank_slot(static_cast<int>(who->rank));
  if (!slot || !(is_in(*slot, RankState::kEnded) || is_in(*slot, RankState::kAbsent))) return std::nullopt;
  channel.rank = representative(placed, member, *slot);
  return channel;
}

// The slot of a member that was never started; nullptr for all others.
const RankSlot* absent(const Placed& placed, int member) {
  if (!placed.comm->some_absent) return nullptr;
  const RankSlot* slot = rank_slot(placed.comm->members[static_cast<std::size_t>(member)]);
  return slot && is_in(*slot, RankState::kAbsent) ? slot : nullptr;
}

const Message* look(const Placed& placed, int member) {
  for (const bool of_representative : {false, true}) {
    const auto channel = channel_of(placed, member, of_representative);
    const Message* message = channel ? state().mailbox.find(*channel, placed.sequence) : nullptr;
    // The rank that stands for one that was never started may differ from it: only what fits is its answer.
    if (message && (message->signature == placed.signature() || !absent(placed, member))) return message;
  }
  return nullptr;
}

// A broadcast's root that was ended and whose representative is this very rank: what we hold is its value.
bool stands_for(const Placed& placed, int member) {
  const auto channel = channel_of(placed, member, true);
  return channel && channel->rank == static_cast<std::uint32_t>(rank_config().rank);
}

// Whose message is waited for, and where it will lie; nothing while the member has not announced itself.
std::optional<Awaited> awaited(const Placed& placed, int member) {
  auto channel = channel_of(placed, member, true);
  if (!channel) channel = channel_of(placed, member, false);
  if (!channel) return std::nullopt;
  return Awaited{*channel, placed.sequence, absent(placed, member) != nullptr};
}

// Whether nobody will send what a member that was never started would: its representative is this rank, has come
// to a stop, or sent something else.
bool unanswered(const Placed& placed, int member) {
  const RankSlot* slot = absent(placed, member);
  if (!slot) return false;
  const auto other = static_cast<int>(representative(placed, member, *slot));
  const RankSlot* standing = other == rank_config().rank ? nullptr : rank_slot(other);
  if (!standing || !(is_in(*standing, RankState::kRunning) || is_in(*standing, RankState::kWaiting))) return true;
  const auto channel = channel_of(placed, member, true);
  return channel && state().mailbox.find(*channel, placed.sequence);  // one that fits was seen before
}

std::string wait_site(const Placed& placed, int member) {
  return "rank " + std::to_string(member) + " of the communicator at " +
         describe(*placed.comm, placed.signature(), placed.sequence) + in_operator(context_text(current_context()));
}

// The member's message, waited for; nullptr: nobody will send it.
const Message* await(const Placed& placed, int member) {
  for (int turn = 0; turn < kYields; ++turn) {
    if (const Message* message = look(placed, member)) return message;
    if (unanswered(placed, member)) return look(placed, member);  // sent before its sender came to a stop?
    sched_yield();
  }
  if (state().alone) return nullptr;
  Waiting waiting(rank_slot(rank_config().rank), wait_site(placed, member));
  const Mailbox& mailbox = state().mailbox;
  for (long nap = kFirstNapMicroseconds;; nap = std::min(nap * 2, kLongestNapMicroseconds)) {
    const auto expected = awaited(placed, member);
    const bool news = expected && waiting.expect(*expected);
    if (news && placed.comm->some_absent) mailbox.wake();  // others may find a circle closed
    const std::uint32_t ticket = mailbox.ticket();
    if (const Message* message = look(placed, member)) return message;
    if (unanswered(placed, member) || must_do_without(mailbox, rank_config().rank)) return look(placed, member);
    mailbox.sleep(ticket, nap);
  }
}

// Every second of two neighbours sees the other's call, so a disagreement is found even where nobody waits.
Result check_neighbours(const Placed& placed) {
  const Communicator& comm = *placed.comm;
  for (const int member : {(comm.rank + 1) % comm.size, (comm.rank + comm.size - 1) % comm.size}) {
    if (member == comm.rank) continue;
    const Message* theirs = look(placed, member);
    if (theirs && theirs->signature != placed.signature()) return mismatch(placed, *theirs);
  }
  return Result::kSuccess;
}

// ---- small results --------------------------------------------------------------------------------------

// Puts `bytes` real bytes, or the zeros of a value that nobody computed.
void deliver(void* to, std::span<const std::byte> bytes, bool known, DataType type) {
  if (bytes.empty()) return;
  if (!known && content_of(type) == values::Content::kInteger) return values::forget_integers(to, bytes.size());
  if (!known) return values::forget(to, bytes.size());
  std::memmove(to, bytes.data(), bytes.size());
  values::wrote(to, bytes.size(), content_of(type));
}

// What a member that was never started is taken to send: what this rank sends itself, or nothing.
Result stand_in(const Placed& placed, int member, const Message*& message) {
  message = state().mailbox.find(placed.channel(), placed.sequence);
  const bool own = placed.call.collective != Collective::kRecv && message;
  if (own) {
    placed.comm->stand_ins[member] = {message->global_rank, own_steps()};
    return Result::kSuccess;
  }
  message = nullptr;
  if (content_of(placed.call.type) != values::Content::kFloat)
    annotate("{\"note\": " + json_quote("a small " + std::string(name(placed.call.collective)) + " from rank " +
                                          std::to_string(placed.comm->members[static_cast<std::size_t>(member)]) +
                                          ", which was not started, delivered zeros") + "}");
  return Result::kSuccess;
}

// One peer's message, checked against this call.
Result receive(const Placed& placed, int member, const Message*& message) {
  message = await(placed, member);
  if (absent(placed, member)) {
    if (!message) return stand_in(placed, member, message);
    placed.comm->stand_ins[member] = {message->global_rank, own_steps()};
  }
  if (!message) {
    annotate("{\"uncovered\": " + json_quote("a small " + std::string(name(placed.call.collective)) +
                                             " whose peers do not run delivered zeros") + "}");
    return Result::kSuccess;
  }
  return message->signature == placed.signature() ? Result::kSuccess : mismatch(placed, *message);
}

Result complete_from_one(const Placed& placed, int member) {
  const Operation& call = placed.call;
  const bool broadcast = call.collective == Collective::kBroadcast;
  if (broadcast && !look(placed, member) && stands_for(placed, member))
    return post(placed, call.recv, part_bytes(call));
  const Message* message = nullptr;
  if (const Result result = receive(placed, member, message); result != Result::kSuccess) return result;
  if (!message) values::forget(call.recv, part_bytes(call));
  else deliver(call.recv, message->payload(), message->known, call.type);
  // A class mate of an ended root may be asked for this value.
  return broadcast && message ? post(placed, call.recv, part_bytes(call)) : Result::kSuccess;
}

// Collects what each member sends to this rank: its whole contribution, or this rank's part of it.
Result collect(const Placed& placed, std::vector<std::span<const std::byte>>& parts, std::vector<bool>& known) {
  const std::size_t bytes = part_bytes(placed.call);
  for (int member = 0; member < placed.comm->size; ++member) {
    const Message* message = nullptr;
    if (const Result result = receive(placed, member, message); result != Result::kSuccess) return result;
    std::span<const std::byte> part = message ? message->payload() : std::span<const std::byte>{};
    if (message && parted(placed.call.collective)) part = part.subspan(bytes * static_cast<std::size_t>(placed.comm->rank), bytes);
    parts.push_back(part);
    known.push_back(message && message->known);
  }
  return Result::kSuccess;
}

void reduce_parts(const Placed& placed, const std::vector<std::span<const std::byte>>& parts, bool known) {
  const Operation& call = placed.call;
  std::vector<std::byte> sum(part_bytes(call));
  if (known) {
    std::copy(parts[0].begin(), parts[0].end(), sum.begin());
    for (std::size_t member = 1; member < parts.size(); ++member) accumulate(call.type, call.reduction, sum, parts[member]);
    // Integers are summed, then divided (nccl/src/device/reduce_kernel.h: FuncSumPostDiv).
    if (call.reduction == Reduction::kAverage && !is_float(call.type)) scale(call.type, 1.0 / placed.comm->size, sum);
  }
  deliver(call.recv, sum, known, call.type);
}

Result complete(const Placed& placed) {
  const Operation& call = placed.call;
  if (call.collective == Collective::kRecv) return complete_from_one(placed, call.peer);
  if (call.collective == Collective::kBroadcast) return complete_from_one(placed, call.root);
  std::vector<std::span<const std::byte>> parts;
  std::vector<bool> known;
  if (const Result result = collect(placed, parts, known); result != Result::kSuccess) return result;
  if (reduces(call.collective)) {
    reduce_parts(placed, parts, std::find(known.begin(), known.end(), false) == known.end());
    return Result::kSuccess;
  }
  for (std::size_t member = 0; member < parts.size(); ++member) {
    const std::size_t bytes = part_bytes(call);
    std::byte* to = static_cast<std::byte*>(call.recv) + member * bytes;
    if (parts[member].empty()) values::forget(to, bytes);
    else deliver(to, parts[member], known[member], call.type);
  }
  return Result::kSuccess;
}

// Root of a broadcast, or a reduce's non-root: nothing arrives from others.
void copy_locally(const Placed& placed) {
  const Operation& call = placed.call;
  if (call.collective == Collective::kBroadcast && call.send != call.recv)
    values::copy(call.recv, call.send, part_bytes(call));
}

// Large results read zero, but that each rank's assumed integers (which experts its tokens go to) are taken to be the
// same as this rank's: all ranks make the same assumption.
void complete_large(const Placed& placed) {
  const Operation& call = placed.call;
  const std::size_t own = contribution_bytes(*placed.comm, call);
  const values::Content content = content_of(call.type);
  std::vector<std::byte> part;
  if (call.send && content != values::Content::kFloat && values::known(call.send, own, content) && values::Derivation::assumed()) {
    const auto* const bytes = static_cast<const std::byte*>(call.send);
    if (call.collective == Collective::kAllGather && buffer_bytes(*placed.comm, call) <= values::kCountableBytes) part.assign(bytes, bytes + own);
    else values::lose("a large " + std::string(name(call.collective)) + " of integers");
  }
  if (!placed.waits()) return copy_locally(placed);
  values::forget(call.recv, call.collective == Collective::kReduceScatter ? part_bytes(call) : buffer_bytes(*placed.comm, call));
  for (std::size_t at = 0; !part.empty() && at < static_cast<std::size_t>(placed.comm->size); ++at)
    deliver(static_cast<std::byte*>(call.recv) + at * own, part, true, call.type);
}

Placed place(Communicator& comm, const Operation& call) {
  std::uint64_t& next = point_to_point(call.collective) ? comm.transfers[{call.collective, call.peer}] : comm.collectives;
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
  comm.channel = static_cast<std::uint32_t>(
      combine(combine(name.family, static_cast<std::uint64_t>(low + 1)), static_cast<std::uint64_t>(high + 1)));
  if (name.list_members) return ", \"members\": " + json_list(name.members);
  std::string text = ", \"family\": " + std::to_string(name.family);
  if (low >= 0) text += ", \"pair\": [" + std::to_string(low) + ", " + std::to_string(high) + "]";
  return text;
}

}  // namespace

void name_communicator(std::uint64_t unique_id, Name name) {
  const std::lock_guard lock(state().naming);
  state().names.insert_or_assign(unique_id, std::move(name));
}

Communicator* create_communicator(std::uint64_t id, int size, int rank) {
  int device = 0;
  cudaGetDevice(&device);
  const std::uint32_t index = state().created++;
  Communicator made{.id = id, .size = size, .rank = rank, .device = device, .index = index, .channel = index};
  const std::string family = apply_name(made);
  Communicator* comm = state().communicators.create(std::move(made));
  state().mailbox.announce(comm->id, static_cast<std::uint32_t>(rank),
                           {static_cast<std::uint32_t>(rank_config().rank), comm->channel});
  if (index == 0) note_unheeded();
  annotate("{\"communicator\": " + std::to_string(index) + ", \"id\": " + json_quote(hexadecimal(comm->id)) +
           ", \"size\": " + std::to_string(size) + ", \"rank\": " + std::to_string(rank) + family + "}");
  return comm;
}

Communicator* find_communicator(const void* handle) { return state().communicators.find(handle); }
bool destroy_communicator(const void* handle) { return state().communicators.destroy(handle); }

Result submit(Communicator& comm, const Operation& call) {
  const values::Derivation exchanged;
  const Placed placed = place(comm, call);
  record_call(placed);
  const bool contributes = call.collective != Collective::kRecv &&
                           (call.collective != Collective::kBroadcast || comm.rank == call.root);
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
  } else if (this_group.depth) {
    this_group.pending.push_back(placed);
  } else {
    return complete(placed);
  }
  return Result::kSuccess;
}

void group_start() {
  if (this_group.depth++ == 0) this_group.ordinal = ++state().groups;
}

// Every send of the group was posted when it was called, so waiting in order cannot lock two ranks.
Result group_end() {
  if (this_group.depth == 0) return Result::kInvalidUsage;
  if (--this_group.depth) return Result::kSuccess;
  const std::vector<Placed> pending = std::move(this_group.pending);
  this_group.pending.clear();
  for (const Placed& placed : pending)
    if (const Result result = complete(placed); result != Result::kSuccess) return result;
  return Result::kSuccess;
}

Result exchange_split(Communicator& comm, SplitChoice mine, std::vector<SplitChoice>& all) {
  const Operation call{.collective = Collective::kSplit};
  const Placed placed = place(comm, call);
  Message header{.signature = placed.signature(), .global_rank = static_cast<std::uint32_t>(rank_config().rank)};
  if (!state().mailbox.post(placed.channel(), placed.sequence, header, std::as_bytes(std::span(&mine, 1))))
    return fail(comm, Result::kSystemError, "the job's store of small collective payloads is full");
  for (int member = 0; member < comm.size; ++member) {
    const Message* message = nullptr;
    if (const Result result = receive(placed, member, message); result != Result::kSuccess) return result;
    if (!message) return fail(comm, Result::kInvalidUsage, "ncclCommSplit: the communicator's other members do not run");
    SplitChoice choice;
    std::memcpy(&choice, message->payload().data(), sizeof choice);
    all.push_back(choice);
  }
  return Result::kSuccess;
}

}  // namespace maya::nccl
