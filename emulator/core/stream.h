// Streams, events and graphs, shared by the runtime and the driver API: CUstream and cudaStream_t are
// the same pointer, to a Stream.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "core/recorder.h"

namespace maya {

struct Graph;
struct GraphNode;
struct Capture;

inline void* const kStreamLegacyHandle = reinterpret_cast<void*>(1);     // cudaStreamLegacy
inline void* const kStreamPerThreadHandle = reinterpret_cast<void*>(2);  // cudaStreamPerThread

struct Stream {
  std::uint32_t index = 0;  // dense, in creation order; 0 is the legacy default stream
  int device = 0;
  int priority = 0;
  unsigned flags = 0;                // 1: cudaStreamNonBlocking
  std::shared_ptr<Capture> capture;  // under its capture's mutex once set
};

struct Event {
  std::uint32_t index = 0;
  int device = 0;
  unsigned flags = 0;  // 2: cudaEventDisableTiming
  bool recorded = false;
  std::uint64_t operations = 0;      // device operations recorded before it
  std::weak_ptr<Capture> capture;    // the capture it was last recorded in
  std::uint32_t captured_index = 0;  // a fresh event id for that record
  GraphNode* captured_node = nullptr;
};

struct GraphNode {
  RecordKind kind;
  std::uint32_t stream = 0, op = 0, context = 0;
  RecordFields fields;
  std::vector<GraphNode*> dependencies;
  bool visible = true;  // event records and waits are edges in CUDA's graph, not nodes; optimizer steps are neither
  void (*host_function)(void*) = nullptr;
  void* host_data = nullptr;
  std::function<void()> compute;  // what it does to values, if anything
  Event* event = nullptr;         // outside the graph; it may be destroyed before
};

// cudaUserObject_t: freed when the last reference goes.
struct UserObject {
  void* pointer;
  void (*destroy)(void*);
  std::atomic<unsigned> references;
};
void release_user_object(UserObject* object, unsigned count);

struct Graph {
  Graph() = default;
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  std::uint64_t id = 0;
  std::uint32_t origin = 0;  // dense index of the stream the capture began on
  std::deque<GraphNode> nodes;
  std::vector<std::pair<UserObject*, unsigned>> objects;  // and the references this graph holds
};

// An instantiated graph: replays its records on the launch stream.
struct GraphExec {
  Graph graph;
};

// cudaStreamCaptureStatus.
enum class CaptureStatus { kNone = 0, kActive = 1, kInvalidated = 2 };

struct Capture {
  std::mutex mutex;  // guards: everything below
  CaptureStatus status = CaptureStatus::kActive;
  std::uint64_t id = 0;
  int mode = 0;  // cudaStreamCaptureMode
  Stream* origin = nullptr;
  Graph* graph = nullptr;
  bool owns_graph = true;  // false: cudaStreamBeginCaptureToGraph
  struct Branch {
    Stream* stream;
    std::uint32_t virtual_index;    // the stream index its records replay on
    std::vector<GraphNode*> tails;  // what the next node depends on
  };
  std::vector<Branch> branches;  // the origin's first
};

// Resolves any handle: nullptr and 1 are the legacy default stream, 2 the calling thread's own.
// nullptr: destroyed or foreign.
Stream* find_stream(void* handle);
Stream* create_stream(int device, unsigned flags, int priority);
bool destroy_stream(void* handle);

Event* find_event(void* handle);
Event* create_event(int device, unsigned flags);
bool destroy_event(void* handle);

// cudaEventRecord and cudaStreamWaitEvent, with capture propagation. The results are CUDA error codes,
// alike in the runtime and the driver API.
inline constexpr unsigned kExternalEvent = 1;  // cudaEventRecordExternal, cudaEventWaitExternal
int record_event(Event* event, Stream* stream, unsigned flags);
int wait_event(Stream* stream, Event* event, unsigned flags);
int synchronize_event(Event* event);
int synchronize_stream(Stream* stream);
int synchronize_device(int device);
// Milliseconds between two events. Nobody has timed anything yet, so it counts: each device operation
// recorded between them is 1 ms. Deterministic, so that autotuners choose alike on every rank.
int elapsed_time(float* milliseconds, Event* start, Event* end);

// Called by record(): appends to the graph that the stream is captured into. False: no longer captured.
bool capture_record(Stream& stream, RecordKind kind, std::uint32_t op, const RecordFields& fields);

// While `stream` is captured: what its last record does to values, which is done at each launch of the graph.
void at_each_launch(void* stream_handle, std::function<void()> compute);

// An optimizer step that ends while the calling thread captures is one at each launch of the graph. False: it does not.
bool capture_step(const RecordFields& fields);

// Capture and graphs; results are CUDA error codes.
int begin_capture(Stream* stream, int mode, Graph* graph = nullptr);
int end_capture(Stream* stream, Graph** graph);
struct CaptureInfo {
  CaptureStatus status = CaptureStatus::kNone;
  std::uint64_t id = 0;
  Graph* graph = nullptr;
  std::vector<GraphNode*> dependencies;
};
CaptureInfo capture_info(Stream* stream);
// The nodes a node waits for, seen through events, which are edges in CUDA's graphs.
std::vector<GraphNode*> visible_dependencies(const GraphNode& node);
// What the next node captured from `stream` waits for; `replace`: only for these.
int update_dependencies(Stream* stream, const std::vector<GraphNode*>& dependencies, bool replace);
bool capturing(void* stream_handle);
int exchange_capture_mode(int* mode);  // per thread
// Under a thread's strict mode, calls such as cudaMalloc while any capture is active are errors; 0 or
// cudaErrorStreamCaptureUnsupported (900).
int check_capture_unsafe_call();

Graph* create_graph();
Graph* find_graph(void* handle);
bool destroy_graph(void* handle);
GraphExec* instantiate(Graph* graph);
GraphExec* find_graph_exec(void* handle);
bool destroy_graph_exec(void* handle);
int launch_graph(GraphExec* exec, Stream* stream);

// cudaLaunchHostFunc: runs the function now, in stream order; under capture at each graph launch.
int launch_host_function(Stream* stream, void (*function)(void*), void* data);

// The device that the calling thread works on; runtime (cudaSetDevice) and driver (current context).
int current_device();
void set_current_device(int device);
int device_count();

}  // namespace maya
