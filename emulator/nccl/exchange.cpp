#include "nccl/exchange.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <vector>

#include "core/process.h"
#include "core/recorder.h"
#include "nccl/waiting.h"
#include "values/values.h"

namespace maya::nccl {
namespace {

constexpr std::size_t kLoneArenaBytes = std::size_t{256} << 20;
constexpr std::uint64_t kMostLater = 8;  // messages that another sender may have sent more before
constexpr int kMostStages = 64;          // of a pipeline, that are looked at for what a stage may have sent
constexpr int kYields = 50;              // before a waiting rank sleeps
// A peer that was ended posts nothing, so a waiting rank looks again by itself, ever less often.
constexpr long kFirstNapMicroseconds = 2'000, kLongestNapMicroseconds = 50'000;

// Peers without a control file are communicators of this process (ncclCommInitAll); their messages live in private
// memory.
bool alone() { return control_header() == nullptr; }

std::span<std::byte> arena() {
  if (!alone()) return {control_arena(), control_arena_bytes()};
  void* memory =
      mmap(nullptr, kLoneArenaBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), kLoneArenaBytes};
}

values::Content content_of(DataType type) {
  if (is_float(type)) return values::Content::kFloat;
  return element_bytes(type) == 1 ? values::Content::kBytes : values::Content::kInteger;
}

std::vector<values::Part> whole(std::size_t bytes) { return {{0, static_cast<std::uint32_t>(bytes)}}; }

// Which bytes say anything: of numbers that are computed with all or none, of integers that are only moved (the shape
// of a tensor, in a longer buffer) those that are known. A pickled object is sent in a buffer grown to the longest
// one's size, whose end nobody wrote: what is not known reads zero, so a byte that does not is real.
std::vector<values::Part> known_payload(const Placed& placed, const std::byte* data, std::size_t bytes) {
  const values::Content content = content_of(placed.call.type);
  if (values::known(data, bytes, content)) return whole(bytes);
  if (content == values::Content::kInteger && !reduces(placed.call.collective))
    return values::known_parts(data, bytes, content);
  if (content != values::Content::kBytes ||
      std::all_of(data, data + bytes, [](std::byte b) { return b == std::byte{}; }))
    return {};
  return whole(bytes);
}

// Who a member is: as its name tells, else as it announced itself.
std::optional<Member> member_of(const Communicator& comm, int member) {
  if (comm.members.empty()) return mailbox().member(comm.id, static_cast<std::uint32_t>(member));
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
  const auto& pair = placed.comm->pair;
  if (pair && pair->of_world) {  // who stands for one rank talks to the rank as far from it
    const int distance = static_cast<int>(channel.rank) - static_cast<int>(who->rank);
    channel.communicator = named_channel(pair->family, {pair->low + distance, pair->high + distance});
  }
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
    const Message* message = channel ? mailbox().find(*channel, placed.sequence) : nullptr;
    // The rank that stands for one that was never started may differ from it: only what fits is its answer.
    if (message && (message->signature == placed.signature() || !absent(placed, member))) return message;
  }
  return nullptr;
}

// A broadcast's root that does not run and whose representative is this very rank: what we hold is its value.
bool stands_for(const Placed& placed, int member) {
  const auto channel = channel_of(placed, member, true);
  return channel && channel->rank == static_cast<std::uint32_t>(rank_config().rank);
}

// Whose message is waited for, and where it will lie; nothing while the member has not announced itself.
std::optional<Awaited> awaited(const Placed& placed, int member) {
  const auto stand_in = channel_of(placed, member, true);
  const auto channel = stand_in ? stand_in : channel_of(placed, member, false);
  if (!channel) return std::nullopt;
  return Awaited{*channel, placed.sequence, stand_in.has_value()};
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
  return channel && mailbox().find(*channel, placed.sequence);  // one that fits was seen before
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
  if (alone()) return nullptr;
  Waiting waiting(rank_slot(rank_config().rank), wait_site(placed, member));
  const Mailbox& box = mailbox();
  for (long nap = kFirstNapMicroseconds;; nap = std::min(nap * 2, kLongestNapMicroseconds)) {
    const auto expected = awaited(placed, member);
    const bool news = expected && waiting.expect(*expected);
    if (news && placed.comm->some_absent) box.wake();  // others may find a circle closed
    const std::uint32_t ticket = box.ticket();
    if (const Message* message = look(placed, member)) return message;
    if (unanswered(placed, member) || must_do_without(box, rank_config().rank)) return look(placed, member);
    box.sleep(ticket, nap);
  }
}

// ---- small results --------------------------------------------------------------------------------------

// What one member gives this rank.
struct Given {
  std::span<const std::byte> bytes;
  std::vector<values::Part> known;

  bool all_known() const { return known.size() == 1 && known[0].begin == 0 && known[0].end == bytes.size(); }
};

// `bytes` of a message from `begin` on.
Given given(const Message& message, std::size_t begin, std::size_t bytes) {
  Given result{message.payload().subspan(begin, bytes), {}};
  const auto first = static_cast<std::uint32_t>(begin), end = static_cast<std::uint32_t>(begin + bytes);
  for (const values::Part part : message.known())
    if (part.begin < end && part.end > first)
      result.known.push_back({std::max(part.begin, first) - first, std::min(part.end, end) - first});
  return result;
}

// Puts what is real, and the zeros of values that nobody computed.
void deliver(std::byte* to, const Given& from, DataType type) {
  const values::Content content = content_of(type);
  if (from.bytes.empty()) return;
  if (!from.all_known()) {
    if (content == values::Content::kInteger) values::forget_integers(to, from.bytes.size());
    else values::forget(to, from.bytes.size());
  }
  for (const values::Part part : from.known) {
    std::memmove(to + part.begin, from.bytes.data() + part.begin, part.end - part.begin);
    values::wrote(to + part.begin, part.end - part.begin, content);
  }
}

// The first message of a channel that looks like what is to be received, from its place on: another sender may have
// sent a few more before.
const Message* like(const Placed& placed, const ChannelKey& channel) {
  for (std::uint64_t later = 0; later <= kMostLater; ++later) {
    const Message* message = mailbox().find(channel, placed.sequence + later);  // what is large leaves none
    if (message && message->signature == placed.signature()) return message;
  }
  return nullptr;
}

// The communicators on which other ranks send what `channel`'s sender does: like ones are known by one number, and
// those of two ranks of a group by these ranks' places. Of those any two neighbours' will do.
std::vector<std::uint32_t> like_communicators(const Communicator& comm, const ChannelKey& channel) {
  std::vector<std::uint32_t> result{channel.communicator};
  if (comm.pair && !comm.pair->of_world)
    for (int low = 0; low < kMostStages; ++low) result.push_back(named_channel(comm.pair->family, {low, low + 1}));
  return result;
}

// This rank first, then all that run or ran.
std::vector<std::uint32_t> started() {
  std::vector<std::uint32_t> ranks{static_cast<std::uint32_t>(rank_config().rank)};
  for (int rank = 0; const RankSlot* slot = rank_slot(rank); ++rank)
    if (!is_in(*slot, RankState::kAbsent)) ranks.push_back(static_cast<std::uint32_t>(rank));
  return ranks;
}

// What a started rank has sent to the peer as far around a like ring as this rank is from its sender, else to any; this
// rank's own first. Stages of a pipeline tell the next one the same things.
const Message* sent_alike(const Placed& placed, int member) {
  const auto asked = channel_of(placed, member, false);
  if (!asked) return nullptr;
  const std::vector<std::uint32_t> communicators = like_communicators(*placed.comm, *asked), ranks = started();
  for (int step = 0; step < placed.comm->size; ++step)
    for (const std::uint32_t rank : ranks)
      for (const std::uint32_t communicator : communicators)
        if (const Message* message = like(placed, {rank, communicator, (asked->peer + step) % placed.comm->size}))
          return message;
  return nullptr;
}

// What a member that does not run is taken to send: what this rank sends itself, or one like the member does; else
// nothing.
const Message* stand_in(const Placed& placed, int member) {
  return placed.call.collective == Collective::kRecv ? sent_alike(placed, member)
                                                     : mailbox().find(placed.channel(), placed.sequence);
}

// Zeros are delivered where a member that does not run would have sent something.
void tell_zeros(const Placed& placed, int member) {
  const std::string what = "a small " + std::string(name(placed.call.collective));
  if (!absent(placed, member)) {
    annotate("{\"uncovered\": " + json_quote(what + " whose peers do not run delivered zeros") + "}");
  } else if (content_of(placed.call.type) != values::Content::kFloat) {
    const auto rank = placed.comm->members[static_cast<std::size_t>(member)];
    annotate("{\"note\": " +
             json_quote(what + " from rank " + std::to_string(rank) + ", which was not started, delivered zeros") +
             "}");
  }
}

Result complete_from_one(const Placed& placed, int member) {
  const Operation& call = placed.call;
  const bool broadcast = call.collective == Collective::kBroadcast;
  if (broadcast && !look(placed, member) && stands_for(placed, member)) {
    copy_locally(placed);  // as that rank would have, being the root
    return post(placed, call.recv, part_bytes(call));
  }
  const Message* message = nullptr;
  if (const Result result = receive(placed, member, message); result != Result::kSuccess) return result;
  if (!message) values::forget(call.recv, part_bytes(call));
  else deliver(static_cast<std::byte*>(call.recv), given(*message, 0, message->bytes), call.type);
  // A class mate of an ended root may be asked for this value.
  return broadcast && message ? post(placed, call.recv, part_bytes(call)) : Result::kSuccess;
}

// Collects what each member sends to this rank: its whole contribution, or this rank's part of it.
Result collect(const Placed& placed, std::vector<Given>& all) {
  const std::size_t bytes = part_bytes(placed.call);
  const bool one_of_many = parted(placed.call.collective);
  for (int member = 0; member < placed.comm->size; ++member) {
    const Message* message = nullptr;
    if (const Result result = receive(placed, member, message); result != Result::kSuccess) return result;
    if (!message) all.push_back({});
    else if (one_of_many) all.push_back(given(*message, bytes * static_cast<std::size_t>(placed.comm->rank), bytes));
    else all.push_back(given(*message, 0, message->bytes));
  }
  return Result::kSuccess;
}

void reduce_all(const Placed& placed, const std::vector<Given>& all) {
  const Operation& call = placed.call;
  std::vector<std::byte> sum(part_bytes(call));
  const bool known = std::all_of(all.begin(), all.end(), [](const Given& one) { return one.all_known(); });
  if (known) {
    std::copy(all[0].bytes.begin(), all[0].bytes.end(), sum.begin());
    for (std::size_t member = 1; member < all.size(); ++member)
      accumulate(call.type, call.reduction, sum, all[member].bytes);
    // Integers are summed, then divided (nccl/src/device/reduce_kernel.h: FuncSumPostDiv).
    if (call.reduction == Reduction::kAverage && !is_float(call.type)) scale(call.type, 1.0 / placed.comm->size, sum);
  }
  deliver(static_cast<std::byte*>(call.recv), {sum, known ? whole(sum.size()) : std::vector<values::Part>{}},
          call.type);
}

}  // namespace

Mailbox& mailbox() {
  static Mailbox* const instance = new Mailbox{arena()};  // outlives threads that still call in at exit
  return *instance;
}

Result post(const Placed& placed, const void* data, std::size_t bytes) {
  Mailbox& box = mailbox();
  if (!bytes && box.used_bytes() > box.capacity_bytes() / 2) return Result::kSuccess;
  Message header{.signature = placed.signature(), .global_rank = static_cast<std::uint32_t>(rank_config().rank)};
  std::vector<values::Part> known;
  if (bytes) known = known_payload(placed, static_cast<const std::byte*>(data), bytes);
  std::strncpy(header.site, context_text(current_context()).c_str(), sizeof header.site - 1);
  std::span<const std::byte> payload(static_cast<const std::byte*>(data), bytes);
  std::vector<std::byte> scaled;
  if (!known.empty() && placed.call.factor != 1 && reduces(placed.call.collective)) {
    scaled.assign(payload.begin(), payload.end());
    scale(placed.call.type, placed.call.factor, scaled);
    payload = scaled;
  }
  if (box.post(placed.channel(), placed.sequence, header, payload, known)) return Result::kSuccess;
  return fail(*placed.comm, Result::kSystemError,
              "the job's store of small collective payloads is full (" + std::to_string(box.capacity_bytes()) +
                  " bytes) at " + describe(*placed.comm, placed.signature(), placed.sequence));
}

Result check_neighbours(const Placed& placed) {
  const Communicator& comm = *placed.comm;
  for (const int member : {(comm.rank + 1) % comm.size, (comm.rank + comm.size - 1) % comm.size}) {
    if (member == comm.rank) continue;
    const Message* theirs = look(placed, member);
    if (theirs && theirs->signature != placed.signature()) return mismatch(placed, *theirs);
  }
  return Result::kSuccess;
}

Result receive(const Placed& placed, int member, const Message*& message) {
  message = await(placed, member);
  if (!message && !alone()) message = stand_in(placed, member);
  if (!message) {
    tell_zeros(placed, member);
    return Result::kSuccess;
  }
  if (absent(placed, member)) placed.comm->stand_ins[member] = {message->global_rank, own_steps()};
  return message->signature == placed.signature() ? Result::kSuccess : mismatch(placed, *message);
}

Result complete(const Placed& placed) {
  const Operation& call = placed.call;
  if (call.collective == Collective::kRecv) return complete_from_one(placed, call.peer);
  if (call.collective == Collective::kBroadcast) return complete_from_one(placed, call.root);
  std::vector<Given> all;
  if (const Result result = collect(placed, all); result != Result::kSuccess) return result;
  if (reduces(call.collective)) {
    reduce_all(placed, all);
    return Result::kSuccess;
  }
  for (std::size_t member = 0; member < all.size(); ++member) {
    const std::size_t bytes = part_bytes(call);
    std::byte* to = static_cast<std::byte*>(call.recv) + member * bytes;
    if (all[member].bytes.empty()) values::forget(to, bytes);
    else deliver(to, all[member], call.type);
  }
  return Result::kSuccess;
}

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
  if (call.send && content != values::Content::kFloat && values::known(call.send, own, content) &&
      values::Derivation::picked()) {
    const auto* const bytes = static_cast<const std::byte*>(call.send);
    if (call.collective == Collective::kAllGather && buffer_bytes(*placed.comm, call) <= values::kCountableBytes)
      part.assign(bytes, bytes + own);
    else values::lose("a large " + std::string(name(call.collective)) + " of integers");
  }
  if (!placed.waits()) return copy_locally(placed);
  values::forget(call.recv,
                 call.collective == Collective::kReduceScatter ? part_bytes(call) : buffer_bytes(*placed.comm, call));
  for (std::size_t at = 0; !part.empty() && at < static_cast<std::size_t>(placed.comm->size); ++at)
    deliver(static_cast<std::byte*>(call.recv) + at * own, {part, whole(part.size())}, call.type);
}

}  // namespace maya::nccl
