#include "core/recorder.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

#include "core/clock.h"
#include "core/process_state.h"
#include "core/stream.h"

namespace maya {
namespace {

// The thread CPU clock is a system call (540 ns here), the monotonic clock is not. Below this
// many ns the monotonic clock is believed: a thread that is switched off the core stays off longer. The
// CPU clock is read at each longer gap, and corrects whatever was believed wrongly before.
constexpr std::int64_t kTrusted = 20'000;

std::int64_t thread_cpu() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

bool main_thread() { return gettid() == getpid(); }

void meet(ThreadState& thread) {
  thread.known = true;
  thread.index = process().threads.fetch_add(1);
  thread.cpu_base = thread_cpu();
  // A thread that began with the rank worked for the rank from its start.
  if (recording() && !main_thread()) thread.host_ns = thread.cpu_base;
  thread.left = monotonic_ns();
}

// Leaves `own` ns that just passed out of the account. False: that took a while.
bool excuse(ThreadState& thread, std::int64_t own) {
  if (own < kTrusted) {
    thread.credited += own;
    return true;
  }
  thread.cpu_base = thread_cpu();
  thread.credited = 0;
  return false;
}

void enter(ThreadState& thread, bool described) {
  if (thread.depth++ > 0) return;
  if (!thread.known) meet(thread);
  thread.entered = monotonic_ns();
  const std::int64_t gap = thread.entered - thread.left;
  if (std::exchange(thread.describing, false) && described) {
    excuse(thread, gap);
    return;
  }
  if (gap < kTrusted) {
    thread.host_ns += gap;
    thread.credited += gap;
    return;
  }
  const std::int64_t cpu = thread_cpu();
  const std::int64_t worked = cpu - thread.cpu_base - thread.credited;
  thread.cpu_base = cpu;
  thread.credited = worked < 0 ? -worked : 0;  // believed too much so far: the next gap pays
  if (worked > 0) thread.host_ns += worked;
  thread.entered = monotonic_ns();
}

void leave(ThreadState& thread) {
  if (--thread.depth > 0) return;
  thread.left = monotonic_ns();
  if (!excuse(thread, thread.left - thread.entered)) thread.left = monotonic_ns();
}

struct HostTime {
  std::uint64_t ns;
  std::uint32_t ranges;
};

// The account for a new record.
HostTime take_host_time(ThreadState& thread) {
  return {static_cast<std::uint64_t>(std::exchange(thread.host_ns, 0)), std::exchange(thread.ranges, 0)};
}

// Stable storage for content hashes by id, read without a lock.
class HashTable {
 public:
  void set(std::uint32_t id, std::uint64_t hash) {
    std::unique_ptr<Chunk>& chunk = chunks_[(id / kChunk) % kChunks];
    if (!chunk) chunk = std::make_unique<Chunk>();
    chunk->hashes[id % kChunk] = hash;
  }
  std::uint64_t get(std::uint32_t id) const { return id ? chunks_[(id / kChunk) % kChunks]->hashes[id % kChunk] : 0; }

 private:
  static constexpr std::uint32_t kChunk = 4096, kChunks = 16384;  // 64 M operations
  struct Chunk {
    std::uint64_t hashes[kChunk];
  };
  std::unique_ptr<Chunk> chunks_[kChunks];  // an id reaches a reader only after set()
};

struct Hashes {
  HashTable operations, contexts;
};

Hashes& hashes() {
  static Hashes* const instance = new Hashes;
  return *instance;
}

bool hashed(RecordKind kind) {
  // When the caching allocator goes to the driver depends on what came before, not on the iteration.
  return kind != RecordKind::kAllocate && kind != RecordKind::kFree && kind != RecordKind::kHost &&
         kind != RecordKind::kStep;
}

bool device_work(RecordKind kind) { return kind <= RecordKind::kCollective; }

bool launches_kernel(RecordKind kind) { return kind == RecordKind::kKernel || kind == RecordKind::kCollective; }

// CUDA_LAUNCH_BLOCKING (CUDA Programming Guide, asynchronous concurrent execution): launches return when the kernel has
// ended. Read at the first launch, since scripts set it for themselves; CUDA reads it when it is initialised.
bool launch_blocking() {
  static const bool blocking = [] {
    const char* const value = std::getenv("CUDA_LAUNCH_BLOCKING");
    if (!value || std::atoi(value) == 0) return false;
    annotate("{\"note\": \"CUDA_LAUNCH_BLOCKING is set: the host waits for each kernel to end\"}");
    return true;
  }();
  return blocking;
}

}  // namespace

ThreadState& this_thread() {
  static thread_local ThreadState state;
  return state;
}

std::uint32_t current_context() {
  const ThreadState& thread = this_thread();
  if (thread.contexts_depth == 0) return 0;
  return thread.contexts[std::min(thread.contexts_depth, ThreadState::kDeepest) - 1];
}

void restart_thread_clock() {
  ThreadState& thread = this_thread();
  const int depth = thread.depth;
  rate_counter();
  thread = ThreadState{};
  process().threads = 0;
  meet(thread);
  thread.depth = depth;
  thread.entered = thread.left;
  thread.host_ns = 0;
}

std::uint64_t operation_hash(std::uint32_t id) { return hashes().operations.get(id); }
std::uint64_t context_hash(std::uint32_t id) { return hashes().contexts.get(id); }

Call::Call() : Call(false) {}
Call::Call(bool described) { enter(this_thread(), described); }
Call::~Call() { leave(this_thread()); }
Describing::~Describing() { this_thread().describing = true; }
Described::Described() : Call(true) {}

void append_record(RecordKind kind, std::uint32_t stream, std::uint32_t op, std::uint32_t context,
                   const RecordFields& fields) {
  Process& self = process();
  ThreadState& thread = this_thread();
  std::uint64_t steps = 0, segment = 0;
  {
    std::lock_guard lock(self.order);
    if (hashed(kind)) {
      const std::uint64_t place =
          (static_cast<std::uint64_t>(self.streams.place(stream)) << 8) | static_cast<std::uint8_t>(kind);
      self.segment_hash =
          combine(combine(self.segment_hash, place ^ fields.role), operation_hash(op) ^ (context_hash(context) << 1));
    }
    if (device_work(kind)) {
      self.device_operations.fetch_add(1, std::memory_order_relaxed);
      if (self.first_thread == Process::kNoThread) self.first_thread = thread.index;
      else if (self.first_thread != thread.index) self.several_threads.store(true, std::memory_order_relaxed);
    }
    std::uint64_t arg = fields.arg;
    if (kind == RecordKind::kStep) {
      arg = steps = ++self.steps;
      // Two optimizers of as many like parameters step in one iteration, though the same is done before either step.
      self.segment_hash = combine(self.segment_hash, fields.size);
    }
    const HostTime host = fields.flags & kGraph ? HostTime{} : take_host_time(thread);
    const std::uint8_t flags = thread.steps_mask ? fields.flags | kStepping : fields.flags;
    Record& slot = self.trace.next();
    slot = Record{static_cast<std::uint8_t>(kind),
                  flags,
                  static_cast<std::uint16_t>(thread.index),
                  stream,
                  op,
                  context,
                  host.ns,
                  fields.size,
                  arg,
                  fields.sequence,
                  fields.peer,
                  fields.group,
                  host.ranges,
                  self.segment_hash};
    self.trace.commit();
    segment = self.segment_hash;
    if (kind == RecordKind::kStep) {
      self.trace.header().steps = steps;
      self.segment_hash = 0;
      self.streams.next_segment();
    }
  }
  if (kind == RecordKind::kStep) publish_step(steps, segment);
}

void record(RecordKind kind, void* stream_handle, std::uint32_t op, const RecordFields& fields) {
  if (!recording()) return;
  Stream* stream = find_stream(stream_handle);
  if (stream && stream->capture && capture_record(*stream, kind, op, fields)) return;
  RecordFields launched = fields;
  if (launches_kernel(kind) && launch_blocking()) launched.flags |= kBlocking;
  append_record(kind, stream ? stream->index : 0, op, current_context(), launched);
}

std::uint32_t intern_operation(std::span<const std::byte> key, const std::function<std::string()>& describe) {
  if (!recording()) return 0;
  return process()
      .operations
      .intern(key,
              [&](const InternTable::Entry& entry) {
                hashes().operations.set(entry.id, entry.hash);
                annotate("{\"op\": " + std::to_string(entry.id) + ", " + describe() + "}");
              })
      .id;
}

std::uint32_t intern_context(std::string_view key, const std::function<std::string()>& describe) {
  if (!recording()) return 0;
  return process()
      .contexts
      .intern(std::as_bytes(std::span(key.data(), key.size())),
              [&](const InternTable::Entry& entry) {
                hashes().contexts.set(entry.id, entry.hash);
                annotate("{\"context\": " + std::to_string(entry.id) + ", " + describe() + "}");
              })
      .id;
}

std::string context_text(std::uint32_t id) {
  if (!id) return {};
  const std::span<const std::byte> key = process().contexts.key(id);
  std::string text(reinterpret_cast<const char*>(key.data()), key.size());
  std::replace(text.begin(), text.end(), '\0', ' ');  // between name and sizes
  return text;
}

void annotate(const std::string& json_line) {
  if (recording()) process().trace.write_line(json_line);
}

void annotate_once(const std::string& json_line) {
  static std::mutex mutex;  // protects lines
  static std::set<std::string> lines;
  const std::lock_guard lock(mutex);
  if (recording() && lines.insert(json_line).second) annotate(json_line);
}

void note_once(std::string_view text) { annotate_once("{\"note\": " + json_quote(text) + "}"); }

void refuse(std::string_view library, std::string_view function) {
  Process& self = process();
  std::lock_guard lock(self.refusals_mutex);
  if (recording()) ++self.trace.header().unsupported_count;
  if (!self.refusals.emplace(library, function).second) return;
  std::fprintf(stderr, "maya: %.*s (%.*s) is not emulated and was refused; a prediction will be INCOMPLETE\n",
               static_cast<int>(function.size()), function.data(), static_cast<int>(library.size()), library.data());
  annotate("{\"unsupported\": " + json_quote(function) + ", \"library\": " + json_quote(library) + "}");
}

std::string json_quote(std::string_view text) {
  std::string quoted = "\"";
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += character;
    } else if (byte < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", byte);
      quoted += escaped;
    } else {
      quoted += character;
    }
  }
  return quoted + '"';
}

}  // namespace maya

// Puts what a user should know into the rank's table, for what runs inside the rank and is no part of the script.
extern "C" void maya_note(const char* text) { maya::annotate("{\"note\": " + maya::json_quote(text) + "}"); }
