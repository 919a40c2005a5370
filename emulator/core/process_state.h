// The one process object. Everything mutable that the recorder owns hangs from here.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "core/hash.h"
#include "core/intern.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/trace_file.h"

namespace maya {

// Streams by the order of their first use in a segment. Which of its pool's a script gets may change from iteration to
// iteration (c10::cuda::getStreamFromPool goes around; a future's callback takes one), and nothing else with it.
class StreamOrder {
 public:
  std::uint32_t place(std::uint32_t stream) {
    if (stream == 0) return 0;  // the legacy default stream waits for others
    if (stream >= seen_.size()) seen_.resize(stream + 1);
    Seen& seen = seen_[stream];
    if (seen.segment != segment_) seen = {segment_, ++used_};
    return seen.place;
  }
  void next_segment() { ++segment_, used_ = 0; }

 private:
  struct Seen {
    std::uint64_t segment = 0;
    std::uint32_t place = 0;
  };
  std::vector<Seen> seen_;  // by stream
  std::uint64_t segment_ = 1;
  std::uint32_t used_ = 0;
};

struct Process {
  RankConfig config;  // written by begin_rank, before any other thread records
  std::atomic<bool> recording{false};

  std::mutex order;  // guards: trace, segment_hash, streams, steps, first_thread; it is the order of the records
  TraceFile trace;
  std::uint64_t segment_hash = 0;
  StreamOrder streams;
  std::uint64_t steps = 0;
  static constexpr std::uint32_t kNoThread = ~std::uint32_t{0};
  std::uint32_t first_thread = kNoThread;  // that had the device do something
  std::atomic<bool> several_threads{false};
  std::atomic<std::uint64_t> prepared{0};  // bits of optimizers that stepped when only one had: see core/context.cpp
  std::atomic<std::uint64_t> device_operations{0};
  std::atomic<std::uint32_t> threads{0};
  std::atomic<std::uint64_t> observer{0};  // PyTorch's handle of core/observer.cpp; 0: not observing

  InternTable operations, contexts;

  std::mutex refusals_mutex;  // guards: refusals
  std::set<std::pair<std::string, std::string>> refusals;

  std::byte* control = nullptr;
  std::size_t control_bytes = 0;
};

Process& process();

// The content hash of an interned id; 0 for id 0.
std::uint64_t operation_hash(std::uint32_t id);
std::uint64_t context_hash(std::uint32_t id);

// The calling thread's account of CPU time and its operator context.
struct ThreadState {
  std::uint32_t index = 0;
  int depth = 0;  // of nested Calls
  bool known = false;
  std::int64_t left = 0;      // monotonic ns when the last Call ended
  std::int64_t entered = 0;   // monotonic ns when this Call began
  std::int64_t cpu_base = 0;  // thread CPU clock at the last synchronisation
  std::int64_t credited = 0;  // ns taken as CPU time since
  std::int64_t host_ns = 0;   // for the next record
  static constexpr std::uint32_t kDeepest = 64;
  std::uint32_t contexts_depth = 0;
  std::uint32_t contexts[kDeepest] = {};  // operator ranges; deeper ones share the last slot
  const void* owners[kDeepest] = {};      // who leaves them: see core/context.h
  std::uint64_t steps_mask = 0;           // which of them is an optimizer step
  static constexpr std::uint32_t kContinues = ~std::uint32_t{0};
  std::uint32_t optimizer = 0;  // whose, from 1; 0: not known; kContinues: it goes on with that which was recorded
  bool describing = false;      // an operator for us, if a Described follows
  std::uint32_t ranges = 0;     // operators observed that no record has counted yet
};

ThreadState& this_thread();

// Appends to the trace itself, with the stream's dense index; record() decides between it and a graph.
void append_record(RecordKind kind, std::uint32_t stream, std::uint32_t op, std::uint32_t context,
                   const RecordFields& fields);

// As intern_operation(), for operator contexts.
std::uint32_t intern_context(std::string_view key, const std::function<std::string()>& describe);
void restart_thread_clock();  // begin_rank: what the thread did before is not the rank's

// Reads MAYA_CONFIG once; called by the first device query of a process.
void begin_from_environment();

// Waits while the rank has made as many steps as the job allows. Called with no lock held.
void publish_step(std::uint64_t steps, std::uint64_t hash);

}  // namespace maya
