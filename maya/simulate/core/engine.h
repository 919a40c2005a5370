// The discrete-event engine: host threads, streams, events and rendezvous (docs/simulation.md).
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "event_queue.h"
#include "network.h"
#include "program.h"

namespace maya::simulate {

// Who still waits when nothing can happen any more.
struct Stuck {
  std::uint32_t rank;
  std::uint32_t call;   // of the whole program
  std::int64_t stream;  // index into streams; -1: the host thread
};

class Engine {
 public:
  Engine(const Program& program, const Results& results);

  // Runs to the end and returns who is stuck: nobody, unless the job deadlocks.
  std::vector<Stuck> run();

  // The last iteration from its end to its begin: each step ends when the one before it begins. Needs a
  // timeline; empty when the iteration did not end.
  std::vector<PathStep> critical_path() const;

  // Calls issued, pieces of stream work ended and transfers ended so far.
  std::uint64_t events() const { return events_; }

 private:
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();
  static constexpr Nanoseconds kNever = -1;
  static constexpr Nanoseconds kLongAgo = std::numeric_limits<Nanoseconds>::min() / 2;

  struct Call {
    Nanoseconds host, duration;
    std::uint32_t stream;
    std::int32_t link;
    std::int32_t count;
    Action action;
    std::uint8_t flags;
    std::uint16_t demand;
  };

  // A call in a stream's queue.
  struct Item {
    Nanoseconds ready;  // earliest start
    std::uint32_t call;
    std::uint32_t iteration;
  };

  enum class StreamState : std::uint8_t {
    kIdle,       // its head, if any, has not been looked at
    kScheduled,  // its head starts at a known time
    kWaitsEvent,
    kWaitsDefault,  // for work of the legacy default stream, or that for others'
    kRunning,
  };

  // A call of an iteration: 1 + its position in the timeline; 0: none. Not kept without a timeline.
  using Place = std::uint32_t;

  struct Stream {
    std::uint32_t rank;
    std::uint32_t ring, mask;  // queue storage: items_[ring + (n & mask)]
    std::uint32_t enqueued = 0, completed = 0;
    std::uint32_t pending = 0;          // transfers of the running communication kernel
    Nanoseconds due = kNever;           // when the running work ends, as things stand
    Nanoseconds since = 0;              // `left` is that of this moment
    std::int64_t left = 0;              // of the running work: ns on an undisturbed device, times kOne
    std::uint32_t next_waiter = kNone;  // of the same event
    Place before = 0;                   // the last call that ended on it
    Nanoseconds ended = kLongAgo;       // and when
    Place woken_by = 0;                 // the end that released its head; 0: nothing held it
    StreamState state = StreamState::kIdle;
    std::uint8_t flags = 0;
  };

  // The host's place within its current call.
  enum class Phase : std::uint8_t { kBetween, kIssued, kQueued };

  // What work on the device is bound by.
  enum Need { kMultiprocessors, kMemory };

  struct Rank {
    Nanoseconds host_time = 0;
    Nanoseconds touched = 0;  // activity is accounted for up to here
    Nanoseconds activity[kActivities] = {};
    std::uint32_t call = 0, iteration = 0, steps_ended = 0;
    std::uint32_t computing = 0, communicating = 0, moving = 0;  // pieces of work under way
    // What communication takes of the device, of kOne: multiprocessors by its kernels, waiting or not, and
    // memory bandwidth by its transfers under way. By Need.
    std::int64_t taken[2] = {};
    std::int64_t demanded[2] = {};                            // by work under way, likewise; may exceed kOne
    std::uint32_t waits_stream = kNone, waits_completed = 0;  // until that many have completed
    std::uint32_t waits_event = kNone, waits_recorded = 0;    // until it was recorded that often
    Phase phase = Phase::kBetween;
    bool default_stream_synchronises = false;
  };

  // Where a message is. One that was delivered and not received is kBuffered alone.
  enum Message : std::uint8_t {
    kWaitsForRoom = 1,  // its sender does, or for its receiver
    kAwaited = 2,       // its receiver has come
    kUnderWay = 4,
    kBuffered = 8,  // it takes room in its lane
  };

  // Messages of a communicator from one rank to another.
  struct Lane {
    std::int64_t taken = 0;  // bytes of those under way or delivered that were not awaited when they were sent
    std::vector<std::uint32_t> waiting;  // senders, in order
  };

  struct Event {
    std::uint32_t recorded = 0;
    std::uint32_t waiters = kNone;  // streams, chained by next_waiter
    struct Record {
      Nanoseconds at = kLongAgo;
      Place by = 0;
    } last, before;
  };

  void copy_calls(const Program& program);
  void make_streams(const Program& program);
  void dispatch(EventQueue::Event event);
  void reach(std::uint32_t stream);
  void settle();

  void run_host(std::uint32_t rank);
  bool step_host(std::uint32_t rank_index, Rank& rank);
  bool put_into_stream(Rank& rank, const Call& call);
  bool synchronise_event(Rank& rank, const Call& call);
  bool synchronise_stream(Rank& rank, std::uint32_t stream, std::uint32_t completed);
  bool synchronise_device(std::uint32_t rank_index, Rank& rank);
  static bool has_completed(const Stream& stream, std::uint32_t count) {
    return static_cast<std::int32_t>(stream.completed - count) >= 0;
  }
  bool wait_for(Rank& rank, std::uint32_t stream, std::uint32_t completed);
  void hear(Rank& rank, Nanoseconds at, Place by);
  void resume_host(std::uint32_t rank, Place by);

  void poke(std::uint32_t stream) { poked_.push_back(stream); }
  void advance(std::uint32_t stream);
  bool blocked(std::uint32_t stream_index, Stream& stream, const Item& item, const Call& call);
  bool behind_default_stream(const Stream& stream, const Item& item) const;
  void begin(std::uint32_t stream_index, Stream& stream, const Call& call);
  void finish(std::uint32_t stream);
  void compute(std::uint32_t stream_index, Stream& stream, const Rank& rank);
  void take(std::uint32_t rank_index, Need need, std::int64_t change);
  void demand(std::uint32_t rank_index, const Call& call, std::int64_t sign);
  void go_on(std::uint32_t rank_index, Need need, std::int64_t before);
  void wake_default(std::uint32_t rank, Place by);
  void record_event(std::uint32_t event, std::uint32_t rank, Place by);
  void arrive(std::uint32_t transfer, Place by);
  void end_transfer(std::uint32_t transfer);
  void move(std::uint32_t stream, std::uint32_t transfer, Place by);
  void moved(std::uint32_t stream, std::uint32_t transfer);

  void send(std::uint32_t transfer, Place by);
  void receive(std::uint32_t transfer, Place by);
  void exchange(std::uint32_t transfer, Place by);
  void deliver(std::uint32_t transfer);
  void free_room(std::uint32_t transfer, Place by);
  void fill(Lane& lane, Place by);
  std::uint32_t sender(std::uint32_t transfer) const { return program_.party_stream[program_.party_begin[transfer]]; }
  std::uint32_t receiver(std::uint32_t transfer) const {
    return program_.party_stream[program_.party_begin[transfer] + 1];
  }

  void touch(Rank& rank);
  void piece_ended(std::uint32_t iteration, Place by);
  std::vector<Stuck> stuck() const;

  const Item& head(const Stream& stream) const { return items_[stream.ring + (stream.completed & stream.mask)]; }
  static Need need_of(const Call& call) { return call.flags & kMemoryBound ? kMemory : kMultiprocessors; }
  // All work has what communication leaves, at least a half (shares of two are max-min fair), and shares it in
  // proportion to what each takes alone.
  static std::int64_t rate(const Rank& rank, Need need) {
    const std::int64_t left = std::max(kOne - rank.taken[need], kOne / 2);
    return rank.demanded[need] <= left ? kOne : left * kOne / rank.demanded[need];
  }
  std::int64_t occupied_by(const Call& call) const {
    return call.flags & kPointToPoint ? program_.transfer_occupies : program_.collective_occupies;
  }
  bool holds(const Stream& stream) const { return stream.enqueued != stream.completed; }
  // Position of a call of an iteration in the timeline.
  std::size_t place(std::uint32_t rank, std::uint32_t call, std::uint32_t iteration) const {
    const std::size_t first = program_.rank_begin[rank];
    const std::size_t calls = program_.rank_begin[rank + 1] - first;
    return first * program_.iterations + iteration * calls + (call - first);
  }

  // Why things happened when they did, per place, for the critical path.
  struct Causes {
    std::vector<Place> start;            // whose end let the device start it; 0: it was only just launched
    std::vector<Place> resumed;          // whose end the host waited for in it; 0: it did not wait
    std::vector<Place> last;             // of a communication kernel: the party that the others waited for
    std::vector<Place> iteration;        // [iterations] what ended it; 0: a host's step
    std::vector<std::uint32_t> stepped;  // [iterations] the rank whose host ended it
  };
  class PathWalk;
  friend class PathWalk;

  Place placed(std::uint32_t rank, std::uint32_t call, std::uint32_t iteration) const {
    return timeline_ ? static_cast<Place>(place(rank, call, iteration) + 1) : 0;
  }
  void note_start(Stream& stream, const Item& item);

  const Program program_;
  const Results results_;
  const bool timeline_;
  std::vector<Call> calls_;
  std::vector<Rank> ranks_;
  std::vector<Stream> streams_;
  std::vector<Item> items_;
  std::vector<Event> events_state_;
  std::vector<std::uint32_t> arrived_;  // [rendezvous] parties so far
  std::vector<std::uint8_t> messages_;  // [rendezvous] Message; empty without lanes
  std::vector<Lane> lanes_;
  Causes causes_;
  std::vector<std::uint64_t> pieces_;  // [iterations] work and steps that have not ended
  std::vector<std::uint32_t> poked_;   // streams whose head may be able to start
  EventQueue queue_;
  Network network_;
  Nanoseconds now_ = 0;
  std::uint64_t events_ = 0;
};

}  // namespace maya::simulate
