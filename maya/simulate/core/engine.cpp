#include "engine.h"

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

namespace maya::simulate {

namespace {
bool occupies_stream(Action action) { return action <= Action::kStreamWaitEvent; }
}  // namespace

Engine::Engine(const Program& program, const Results& results)
    : program_(program),
      results_(results),
      timeline_(!results.issued.empty()),
      ranks_(program.rank_begin.size() - 1),
      events_state_(program.events),
      arrived_(program.transfer_duration.size()),
      messages_(program.lane_of.size()),
      lanes_(program.lanes),
      network_(program_, queue_, static_cast<std::uint32_t>(program.stream_flags.size())) {
  copy_calls(program);
  make_streams(program);
  if (results.start.size() >= std::numeric_limits<Place>::max())
    throw std::length_error("a timeline of more than 2^32 calls; simulate fewer iterations");
  for (auto* places : {&causes_.start, &causes_.resumed, &causes_.last}) places->resize(results.start.size());
  causes_.iteration.resize(program.iterations);
  causes_.stepped.resize(program.iterations);
}

// One cache line holds all that the engine asks of a call.
void Engine::copy_calls(const Program& program) {
  calls_.reserve(program.action.size());
  std::uint64_t pieces = ranks_.size();  // each rank's step ends the iteration too
  for (std::size_t i = 0; i < program.action.size(); ++i) {
    calls_.push_back({program.host[i], program.duration[i], program.stream[i], program.link[i], program.count[i],
                      static_cast<Action>(program.action[i]), program.flags[i], program.demand[i]});
    pieces += occupies_stream(calls_.back().action);
  }
  pieces_.assign(program.iterations, pieces);
}

void Engine::make_streams(const Program& program) {
  streams_.resize(program.stream_flags.size());
  std::vector<std::uint64_t> calls(streams_.size());
  for (const Call& call : calls_) calls[call.stream] += occupies_stream(call.action);
  std::uint32_t ring = 0;
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].call = program.rank_begin[rank];
    for (std::uint32_t s = program.stream_begin[rank]; s < program.stream_begin[rank + 1]; ++s) {
      const std::uint64_t most = calls[s] * program.iterations;
      const auto capacity =
          static_cast<std::uint32_t>(std::bit_ceil(std::clamp<std::uint64_t>(most, 1, program.queue_depth)));
      streams_[s].rank = rank;
      streams_[s].ring = ring;
      streams_[s].mask = capacity - 1;
      streams_[s].flags = program.stream_flags[s];
      ring += capacity;
      if (program.stream_flags[s] == kSynchronisesWithDefault) ranks_[rank].default_stream_synchronises = true;
    }
  }
  items_.resize(ring);
}

std::vector<Stuck> Engine::run() {
  for (std::uint32_t rank = 0; rank < ranks_.size(); ++rank) run_host(rank);
  settle();
  while (!queue_.empty()) {
    dispatch(queue_.pop());
    settle();
  }
  return stuck();
}

// Entities are streams, then transfers, then ranks (whose host reached the end of an iteration).
void Engine::dispatch(EventQueue::Event event) {
  now_ = event.time;
  const auto streams = static_cast<std::uint32_t>(streams_.size());
  const auto transfers = static_cast<std::uint32_t>(arrived_.size());
  if (event.entity < streams) {
    reach(event.entity);
  } else if (event.entity < streams + transfers) {
    if (network_.is_due(event.entity - streams, now_)) end_transfer(event.entity - streams);
  } else {
    const std::uint32_t rank = event.entity - streams - transfers;
    causes_.stepped[ranks_[rank].steps_ended] = rank;
    piece_ended(ranks_[rank].steps_ended++, 0);
  }
}

// The head of a stream can start, or its running work ends: unless that was said before a change of rate.
void Engine::reach(std::uint32_t index) {
  Stream& stream = streams_[index];
  if (stream.state == StreamState::kRunning && stream.due == now_) {
    finish(index);
  } else if (stream.state == StreamState::kScheduled) {
    stream.state = StreamState::kIdle;
  } else {
    return;
  }
  poke(index);
}

void Engine::settle() {
  while (!poked_.empty()) {
    const std::uint32_t stream = poked_.back();
    poked_.pop_back();
    advance(stream);
  }
}

// --- host threads ----------------------------------------------------------------------------

// The host runs ahead of the clock: only what blocks it can change what it does, and every blocking
// call is answered when the work it waits for has ended.
void Engine::run_host(std::uint32_t rank_index) {
  Rank& rank = ranks_[rank_index];
  while (rank.iteration < program_.iterations) {
    if (rank.call == program_.rank_begin[rank_index + 1]) {
      queue_.push(rank.host_time, static_cast<std::uint32_t>(streams_.size() + arrived_.size() + rank_index));
      rank.call = program_.rank_begin[rank_index];
      ++rank.iteration;
    } else if (!step_host(rank_index, rank)) {
      return;
    }
  }
}

// Executes the current call, or as much of it as can be; false when the host blocks in it.
bool Engine::step_host(std::uint32_t rank_index, Rank& rank) {
  const Call& call = calls_[rank.call];
  if (rank.phase == Phase::kBetween) {
    ++events_;
    rank.host_time += call.host;
    rank.phase = Phase::kIssued;
    if (timeline_) {
      const std::size_t at = place(rank_index, rank.call, rank.iteration);
      results_.issued[at] = results_.start[at] = rank.host_time;
    }
  }
  bool done = true;
  switch (call.action) {
    case Action::kEventSynchronize: done = synchronise_event(rank, call); break;
    case Action::kStreamSynchronize:
      done = synchronise_stream(rank, call.stream, streams_[call.stream].enqueued);
      break;
    case Action::kDeviceSynchronize: done = synchronise_device(rank_index, rank); break;
    case Action::kHost: break;
    default: done = put_into_stream(rank, call);
  }
  if (!done) return false;
  if (timeline_ && !occupies_stream(call.action))
    results_.end[place(rank_index, rank.call, rank.iteration)] = rank.host_time;
  rank.phase = Phase::kBetween;
  ++rank.call;
  return true;
}

bool Engine::put_into_stream(Rank& rank, const Call& call) {
  Stream& stream = streams_[call.stream];
  if (rank.phase == Phase::kIssued) {
    if (stream.enqueued - stream.completed >= program_.queue_depth)
      return wait_for(rank, call.stream, stream.enqueued - program_.queue_depth + 1);
    items_[stream.ring + (stream.enqueued++ & stream.mask)] = {rank.host_time + program_.launch_latency, rank.call,
                                                               rank.iteration};
    if (!(call.flags & kNoLaunch)) rank.host_time += program_.launch_call;
    rank.phase = Phase::kQueued;
    if (stream.state == StreamState::kIdle && stream.enqueued - stream.completed == 1) poke(call.stream);
  }
  return !(call.flags & kBlocking) || synchronise_stream(rank, call.stream, stream.enqueued);
}

bool Engine::synchronise_event(Rank& rank, const Call& call) {
  const std::uint32_t needed = rank.iteration + (call.flags & kPreviousIteration ? 0 : 1);
  const Event& event = events_state_[call.link];
  if (event.recorded >= needed) {
    const Event::Record& record = event.recorded == needed ? event.last : event.before;
    hear(rank, record.at + program_.completion_latency, record.by);
    return true;
  }
  rank.waits_event = static_cast<std::uint32_t>(call.link);
  rank.waits_recorded = needed;
  return false;
}

bool Engine::synchronise_stream(Rank& rank, std::uint32_t stream, std::uint32_t completed) {
  const Stream& of = streams_[stream];
  if (!has_completed(of, completed)) return wait_for(rank, stream, completed);
  hear(rank, of.ended + program_.completion_latency, of.before);
  return true;
}

bool Engine::wait_for(Rank& rank, std::uint32_t stream, std::uint32_t completed) {
  rank.waits_stream = stream;
  rank.waits_completed = completed;
  return false;
}

bool Engine::synchronise_device(std::uint32_t rank_index, Rank& rank) {
  for (std::uint32_t s = program_.stream_begin[rank_index]; s < program_.stream_begin[rank_index + 1]; ++s)
    if (!synchronise_stream(rank, s, streams_[s].enqueued)) return false;
  return true;
}

// The host, in its current call, waits until `at` at the least, for that end.
void Engine::hear(Rank& rank, Nanoseconds at, Place by) {
  if (rank.host_time >= at) return;
  rank.host_time = at;
  if (timeline_)
    causes_.resumed[place(static_cast<std::uint32_t>(&rank - ranks_.data()), rank.call, rank.iteration)] = by;
}

void Engine::resume_host(std::uint32_t rank_index, Place by) {
  Rank& rank = ranks_[rank_index];
  hear(rank, now_, by);
  rank.waits_stream = rank.waits_event = kNone;
  run_host(rank_index);
}

// --- streams ---------------------------------------------------------------------------------

// Starts what the stream's head allows; events are recorded and waited for in no time.
void Engine::advance(std::uint32_t index) {
  Stream& stream = streams_[index];
  while (holds(stream) && stream.state == StreamState::kIdle) {
    const Item item = head(stream);
    const Call& call = calls_[item.call];
    if (item.ready > now_) {
      stream.state = StreamState::kScheduled;
      queue_.push(item.ready, index);
      return;
    }
    if (blocked(index, stream, item, call)) return;
    if (timeline_) note_start(stream, item);
    if (call.action <= Action::kTransfer) {
      begin(index, stream, call);
      return;
    }
    finish(index);
  }
}

void Engine::note_start(Stream& stream, const Item& item) {
  const std::size_t at = place(stream.rank, item.call, item.iteration);
  results_.start[at] = now_;
  causes_.start[at] = stream.woken_by != 0 ? stream.woken_by : item.ready < now_ ? stream.before : 0;
  stream.woken_by = 0;
}

bool Engine::blocked(std::uint32_t index, Stream& stream, const Item& item, const Call& call) {
  if (stream.flags != kOrdinary && behind_default_stream(stream, item)) {
    stream.state = StreamState::kWaitsDefault;
    return true;
  }
  if (call.action != Action::kStreamWaitEvent) return false;
  Event& event = events_state_[call.link];
  if (event.recorded >= item.iteration + (call.flags & kPreviousIteration ? 0 : 1)) return false;
  stream.state = StreamState::kWaitsEvent;
  stream.next_waiter = event.waiters;
  event.waiters = index;
  return true;
}

// Legacy default stream (CUDA Runtime API, stream synchronization behavior): its work starts when all
// earlier work of the streams that synchronise with it has ended, and theirs when its earlier has.
bool Engine::behind_default_stream(const Stream& stream, const Item& item) const {
  const std::uint8_t other = stream.flags == kLegacyDefault ? kSynchronisesWithDefault : kLegacyDefault;
  for (std::uint32_t s = program_.stream_begin[stream.rank]; s < program_.stream_begin[stream.rank + 1]; ++s) {
    if (streams_[s].flags != other || !holds(streams_[s])) continue;
    const Item& first = head(streams_[s]);
    if (std::pair(first.iteration, first.call) < std::pair(item.iteration, item.call)) return true;
  }
  return false;
}

void Engine::begin(std::uint32_t index, Stream& stream, const Call& call) {
  stream.state = StreamState::kRunning;
  Rank& rank = ranks_[stream.rank];
  touch(rank);
  if (call.action == Action::kWork) {
    stream.due = kNever;
    demand(stream.rank, call, 1);
    ++rank.computing;
    stream.left = call.duration * kOne;
    compute(index, stream, rank);
    return;
  }
  ++rank.communicating;
  take(stream.rank, kMultiprocessors, occupied_by(call));
  stream.due = kNever;
  stream.pending = static_cast<std::uint32_t>(call.count);
  const Place self = placed(stream.rank, head(stream).call, head(stream).iteration);
  for (std::int32_t i = 0; i < call.count; ++i) {
    const std::uint32_t entry = program_.transfers[call.link + i], transfer = entry & ~kSends;
    if (messages_.empty() || program_.lane_of[transfer] < 0) {
      arrive(transfer, self);
    } else if (entry & kSends) {
      send(transfer, self);
    } else {
      receive(transfer, self);
    }
  }
  if (stream.pending > 0) return;
  finish(index);  // all that it receives had been delivered
  poke(index);
}

// Work ends `left` from now at the rank's present rate.
void Engine::compute(std::uint32_t index, Stream& stream, const Rank& rank) {
  const std::int64_t needed = std::max<std::int64_t>(0, stream.left);
  const std::int64_t now = rate(rank, need_of(calls_[head(stream).call]));
  stream.since = now_;
  stream.due = now_ + (needed + now - 1) / (now == kOne ? kOne : now);
  queue_.push(stream.due, index);
}

// Communication takes more of the device, or gives it back.
void Engine::take(std::uint32_t rank_index, Need need, std::int64_t change) {
  Rank& rank = ranks_[rank_index];
  const std::int64_t before = rate(rank, need);
  rank.taken[need] += change;
  go_on(rank_index, need, before);
}

// Work begins, or has ended.
void Engine::demand(std::uint32_t rank_index, const Call& call, std::int64_t sign) {
  Rank& rank = ranks_[rank_index];
  const Need need = need_of(call);
  const std::int64_t before = rate(rank, need);
  rank.demanded[need] += sign * call.demand * kDemandUnit;
  go_on(rank_index, need, before);
}

// Work of that need that was under way at rate `before` goes on at the present one.
void Engine::go_on(std::uint32_t rank_index, Need need, std::int64_t before) {
  const Rank& rank = ranks_[rank_index];
  if (rank.computing == 0 || rate(rank, need) == before) return;
  for (std::uint32_t s = program_.stream_begin[rank_index]; s < program_.stream_begin[rank_index + 1]; ++s) {
    Stream& stream = streams_[s];
    if (stream.state != StreamState::kRunning || stream.due == kNever) continue;
    if (need_of(calls_[head(stream).call]) != need) continue;
    stream.left -= before * (now_ - stream.since);
    compute(s, stream, rank);
  }
}

void Engine::finish(std::uint32_t index) {
  Stream& stream = streams_[index];
  const Item item = head(stream);
  const Call& call = calls_[item.call];
  Rank& rank = ranks_[stream.rank];
  const Place self = placed(stream.rank, item.call, item.iteration);
  if (timeline_) results_.end[self - 1] = now_;
  stream.before = self;
  stream.ended = now_;
  if (call.action == Action::kWork) {
    touch(rank);
    --rank.computing;
    stream.due = kNever;
    demand(stream.rank, call, -1);
  } else if (call.action == Action::kTransfer) {
    touch(rank);
    --rank.communicating;
    take(stream.rank, kMultiprocessors, -occupied_by(call));
  }
  ++events_;
  ++stream.completed;
  stream.state = StreamState::kIdle;
  piece_ended(item.iteration, self);
  if (call.action == Action::kEventRecord) record_event(static_cast<std::uint32_t>(call.link), stream.rank, self);
  if (rank.waits_stream == index && has_completed(stream, rank.waits_completed)) resume_host(stream.rank, self);
  if (rank.default_stream_synchronises && stream.flags != kOrdinary) wake_default(stream.rank, self);
}

void Engine::wake_default(std::uint32_t rank, Place by) {
  for (std::uint32_t s = program_.stream_begin[rank]; s < program_.stream_begin[rank + 1]; ++s) {
    if (streams_[s].state != StreamState::kWaitsDefault) continue;
    streams_[s].state = StreamState::kIdle;
    streams_[s].woken_by = by;
    poke(s);
  }
}

void Engine::record_event(std::uint32_t index, std::uint32_t rank_index, Place by) {
  Event& event = events_state_[index];
  ++event.recorded;
  event.before = std::exchange(event.last, {now_, by});
  std::uint32_t stream = event.waiters;
  event.waiters = kNone;
  while (stream != kNone) {
    streams_[stream].state = StreamState::kIdle;
    streams_[stream].woken_by = by;
    poke(stream);
    stream = streams_[stream].next_waiter;
  }
  const Rank& rank = ranks_[rank_index];
  if (rank.waits_event == index && event.recorded >= rank.waits_recorded) resume_host(rank_index, by);
}

// --- rendezvous ------------------------------------------------------------------------------

void Engine::arrive(std::uint32_t transfer, Place by) {
  const std::uint32_t first = program_.party_begin[transfer], last = program_.party_begin[transfer + 1];
  if (++arrived_[transfer] < last - first) return;
  arrived_[transfer] = 0;
  for (std::uint32_t party = first; party < last; ++party) move(program_.party_stream[party], transfer, by);
  network_.start(transfer, now_);
}

void Engine::end_transfer(std::uint32_t transfer) {
  ++events_;
  network_.end(transfer, now_);
  if (!messages_.empty() && program_.lane_of[transfer] >= 0) return deliver(transfer);
  for (std::uint32_t party = program_.party_begin[transfer]; party < program_.party_begin[transfer + 1]; ++party)
    moved(program_.party_stream[party], transfer);
}

// A party's part of a transfer is under way: it had waited for `by`.
void Engine::move(std::uint32_t index, std::uint32_t transfer, Place by) {
  const Stream& stream = streams_[index];
  Rank& rank = ranks_[stream.rank];
  touch(rank);
  ++rank.moving;
  if (!program_.draws.empty()) take(stream.rank, kMemory, program_.draws[transfer]);
  if (timeline_) causes_.last[place(stream.rank, head(stream).call, head(stream).iteration)] = by;
}

void Engine::moved(std::uint32_t index, std::uint32_t transfer) {
  Rank& rank = ranks_[streams_[index].rank];
  touch(rank);
  --rank.moving;
  if (!program_.draws.empty()) take(streams_[index].rank, kMemory, -program_.draws[transfer]);
  if (--streams_[index].pending > 0) return;
  finish(index);
  poke(index);
}

// --- messages --------------------------------------------------------------------------------

// A sender goes on without its receiver while the lane has room (NCCL's buffers).
void Engine::send(std::uint32_t transfer, Place by) {
  Lane& lane = lanes_[program_.lane_of[transfer]];
  std::uint8_t& message = messages_[transfer];
  if (message == kAwaited) return exchange(transfer, by);
  message |= kWaitsForRoom;
  lane.waiting.push_back(transfer);
  fill(lane, by);
}

void Engine::receive(std::uint32_t transfer, Place by) {
  std::uint8_t& message = messages_[transfer];
  const std::uint32_t index = receiver(transfer);
  if (message & kUnderWay) {
    message |= kAwaited;
    const Stream& from = streams_[sender(transfer)];
    move(index, transfer, placed(from.rank, head(from).call, head(from).iteration));
  } else if (message & kBuffered) {
    message &= ~kBuffered;
    if (timeline_) causes_.last[by - 1] = by;
    --streams_[index].pending;
    free_room(transfer, by);
  } else if (message & kWaitsForRoom) {
    Lane& lane = lanes_[program_.lane_of[transfer]];
    std::erase(lane.waiting, transfer);
    exchange(transfer, by);
    fill(lane, by);
  } else {
    message = kAwaited;
  }
}

// Both sides are there.
void Engine::exchange(std::uint32_t transfer, Place by) {
  messages_[transfer] = kAwaited | kUnderWay;
  for (const std::uint32_t party : {sender(transfer), receiver(transfer)}) move(party, transfer, by);
  network_.start(transfer, now_);
}

void Engine::deliver(std::uint32_t transfer) {
  const std::uint8_t was = messages_[transfer];
  messages_[transfer] = was & kAwaited ? 0 : kBuffered;
  moved(sender(transfer), transfer);
  if (!(was & kAwaited)) return;
  const Stream& to = streams_[receiver(transfer)];
  const Place by = placed(to.rank, head(to).call, head(to).iteration);
  moved(receiver(transfer), transfer);
  if (was & kBuffered) free_room(transfer, by);
}

void Engine::free_room(std::uint32_t transfer, Place by) {
  Lane& lane = lanes_[program_.lane_of[transfer]];
  lane.taken -= program_.message[transfer];
  fill(lane, by);
}

// Starts what waits for room, in order, as long as there is some. A message that is sent again, in the next iteration,
// is received first.
void Engine::fill(Lane& lane, Place by) {
  while (!lane.waiting.empty()) {
    const std::uint32_t transfer = lane.waiting.front();
    const std::int64_t bytes = program_.message[transfer];
    if (messages_[transfer] != kWaitsForRoom || lane.taken + bytes > program_.lane_bytes) return;
    lane.waiting.erase(lane.waiting.begin());
    lane.taken += bytes;
    messages_[transfer] = kBuffered | kUnderWay;
    move(sender(transfer), transfer, by);
    network_.start(transfer, now_);
  }
}

// --- accounts --------------------------------------------------------------------------------

void Engine::touch(Rank& rank) {
  const Activity activity = rank.computing > 0       ? (rank.communicating > 0 ? kOverlapped : kCompute)
                            : rank.moving > 0        ? kMoving
                            : rank.communicating > 0 ? kWaiting
                                                     : kIdle;
  rank.activity[activity] += now_ - rank.touched;
  rank.touched = now_;
}

// When the last piece of an iteration has ended, so has the iteration.
void Engine::piece_ended(std::uint32_t iteration, Place by) {
  if (--pieces_[iteration] > 0) return;
  causes_.iteration[iteration] = by;
  results_.iteration_end[iteration] = now_;
  auto out = results_.activity.begin() + static_cast<std::ptrdiff_t>(iteration * ranks_.size() * kActivities);
  for (Rank& rank : ranks_) {
    touch(rank);
    out = std::copy(std::begin(rank.activity), std::end(rank.activity), out);
    std::fill(std::begin(rank.activity), std::end(rank.activity), 0);
  }
}

std::vector<Stuck> Engine::stuck() const {
  std::vector<Stuck> result;
  for (std::uint32_t r = 0; r < ranks_.size(); ++r)
    if (ranks_[r].iteration < program_.iterations) result.push_back({r, ranks_[r].call, -1});
  for (std::uint32_t s = 0; s < streams_.size(); ++s)
    if (holds(streams_[s])) result.push_back({streams_[s].rank, head(streams_[s]).call, s});
  return result;
}

}  // namespace maya::simulate
