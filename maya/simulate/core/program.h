// What the engine executes: a job's calls in flat arrays. Built by maya/simulate/program.py.
#pragma once

#include <cstdint>
#include <span>

namespace maya::simulate {

using Nanoseconds = std::int64_t;

enum class Action : std::uint8_t {
  kWork = 0,              // kernel, copy, fill: occupies its stream for its duration
  kTransfer = 1,          // a communication kernel: its rendezvous are `link .. link + count`
  kEventRecord = 2,       // link: event
  kStreamWaitEvent = 3,   // link: event
  kEventSynchronize = 4,  // link: event
  kStreamSynchronize = 5,
  kDeviceSynchronize = 6,
  kHost = 7,  // host time only
};

enum CallFlags : std::uint8_t {
  kBlocking = 1,           // the host waits for this call's work
  kNoLaunch = 2,           // replayed from a CUDA graph: no launch call of its own
  kPreviousIteration = 4,  // waits for the event as the iteration before recorded it
  kPointToPoint = 8,       // a communication kernel that only sends and receives
  kMemoryBound = 16,       // work that needs memory bandwidth, not multiprocessors
};

// In `transfers`: this party is the sender.
inline constexpr std::uint32_t kSends = std::uint32_t{1} << 31;

enum StreamFlags : std::uint8_t {
  kOrdinary = 0,
  kLegacyDefault = 1,
  kSynchronisesWithDefault = 2,  // made without cudaStreamNonBlocking
};

// A whole: the capacity of a link, the full rate of a transfer, a device all of whose multiprocessors compute.
inline constexpr std::int64_t kOne = 1 << 20;
inline constexpr std::int64_t kDemandUnit = kOne >> 15;  // what Program::demand counts in

// Arrays of one length share a dimension: calls, streams, ranks, rendezvous.
struct Program {
  std::span<const std::uint8_t> action, flags;     // [calls]
  std::span<const std::uint32_t> stream;           // [calls] index into streams
  std::span<const std::int32_t> link, count;       // [calls]
  std::span<const Nanoseconds> host, duration;     // [calls]
  std::span<const std::uint16_t> demand;           // [calls] share that work takes of what it needs, alone
  std::span<const std::uint32_t> rank_begin;       // [ranks + 1] first call
  std::span<const std::uint32_t> stream_begin;     // [ranks + 1] first stream
  std::span<const std::uint8_t> stream_flags;      // [streams]
  std::span<const std::uint32_t> transfers;        // rendezvous of each communication kernel; kSends beside
  std::span<const std::uint32_t> party_begin;      // [rendezvous + 1]
  std::span<const std::uint32_t> party_stream;     // the stream of each party; of a message its sender's first
  std::span<const Nanoseconds> transfer_duration;  // [rendezvous]
  std::span<const std::int32_t> lane_of;           // [rendezvous] of a message; -1: a collective. May be empty
  std::span<const std::int64_t> message;           // [rendezvous] its bytes
  std::span<const std::int32_t> flow_of;           // [rendezvous] its flow pattern; -1: shares no link
  std::span<const std::int64_t> flow_peak;         // [patterns] what it uses most of any link, alone
  std::span<const std::uint32_t> flow_begin;       // [patterns + 1] first hop
  std::span<const std::uint32_t> flow_link;        // [hops]
  std::span<const std::int64_t> flow_use;          // [hops] of the link, by all that the rank class stands for
  std::span<const std::int64_t> flow_share;        // [hops] sum over these of use / peak
  std::span<const std::int64_t> draws;             // [rendezvous] of each party's memory bandwidth; may be empty
  std::uint32_t links = 0;                         // 0: transfers share nothing
  std::uint32_t lanes = 0;
  std::int64_t lane_bytes = 0;  // of messages in a lane that nobody receives yet
  std::uint32_t events = 0;
  std::uint32_t iterations = 1;
  std::uint32_t queue_depth = 1024;                             // calls a stream holds before the host blocks
  Nanoseconds launch_call = 0;                                  // host time of a call that puts work into a stream
  std::int64_t collective_occupies = 0, transfer_occupies = 0;  // of a device's multiprocessors, while they run
  Nanoseconds launch_latency = 0;                               // from that call to the work's start on an idle stream
  Nanoseconds completion_latency = 0;  // from the end of work until the host that waits for it goes on
};

// What a rank does at a moment.
enum Activity { kCompute, kMoving, kWaiting, kOverlapped, kIdle, kActivities };

// What a stretch of the critical path is spent on.
enum class Stretch : std::uint8_t { kDevice, kLaunch, kHost, kCompletion };

// A stretch of time that ended when it did because `call` took until then.
struct PathStep {
  Nanoseconds begin, end;
  std::uint32_t call;  // of the whole program
  Stretch stretch;
};

// Where the engine writes. The timeline spans may be empty: then it is not kept.
struct Results {
  std::span<Nanoseconds> issued, start, end;  // per rank [iterations, calls of the rank]
  std::span<Nanoseconds> iteration_end;       // [iterations]
  std::span<Nanoseconds> activity;            // [iterations, ranks, kActivities]
};

}  // namespace maya::simulate
