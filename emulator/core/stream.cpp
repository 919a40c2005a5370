#include "core/stream.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <unordered_set>

#include "core/handle_pool.h"
#include "core/process_state.h"

namespace maya {
namespace {

// CUDA result codes, alike in cudaError_t and CUresult.
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kInvalidHandle = 400,
  kNotReady = 600,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureUnmatched = 903,
  kCaptureUnjoined = 904,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
  kCaptureWrongThread = 908,
};

struct Streams {
  HandlePool<Stream, 1 << 16> streams;
  HandlePool<Event, 1 << 22> events;
  HandlePool<Graph, 1 << 16> graphs;
  HandlePool<GraphExec, 1 << 16> execs;
  Stream legacy;
  std::atomic<std::uint32_t> next_stream{1};
  std::atomic<std::uint32_t> next_event{1};
  std::atomic<std::uint64_t> next_capture{1};
  std::atomic<std::uint64_t> next_graph{1};
  std::atomic<int> global_captures{0};  // begun in cudaStreamCaptureModeGlobal
};

Streams& streams() {
  static Streams* const instance = new Streams;
  return *instance;
}

thread_local Stream* own_stream = nullptr;
thread_local int device_of_thread = 0;
enum CaptureMode : int { kModeGlobal = 0, kModeThreadLocal = 1, kModeRelaxed = 2 };
thread_local int capture_mode_of_thread = kModeGlobal;
thread_local int own_captures = 0;                 // begun by this thread and not relaxed
thread_local std::weak_ptr<Capture> last_capture;  // begun by this thread

// A streams's place in its capture; the capture's mutex is held.
Capture::Branch* branch_of(Capture& capture, const Stream* stream) {
  for (Capture::Branch& branch : capture.branches)
    if (branch.stream == stream) return &branch;
  return nullptr;
}

GraphNode& append_node(Capture& capture, Capture::Branch& branch, RecordKind kind) {
  GraphNode& node = capture.graph->nodes.emplace_back();
  node.kind = kind;
  node.stream = branch.virtual_index;
  node.context = current_context();
  node.dependencies = branch.tails;
  return node;
}

// The nodes a new one would depend on, seen through events, which are not nodes of CUDA's graphs.
void add_visible(std::vector<GraphNode*>& found, GraphNode* node) {
  if (node->visible) {
    if (std::find(found.begin(), found.end(), node) == found.end()) found.push_back(node);
    return;
  }
  for (GraphNode* dependency : node->dependencies) add_visible(found, dependency);
}

// Every node that these, and what they depend on, are.
std::unordered_set<const GraphNode*> reached_from(const std::vector<GraphNode*>& tails) {
  std::unordered_set<const GraphNode*> reached;
  std::vector<const GraphNode*> left(tails.begin(), tails.end());
  while (!left.empty()) {
    const GraphNode* const node = left.back();
    left.pop_back();
    if (reached.insert(node).second) left.insert(left.end(), node->dependencies.begin(), node->dependencies.end());
  }
  return reached;
}

// Whether the origin waits, in the end, for all that other streams were given; the capture's mutex is held.
bool all_joined(const Capture& capture) {
  const auto reached = reached_from(capture.branches.front().tails);
  std::vector<GraphNode*> ends;
  for (const Capture::Branch& branch : capture.branches)
    for (GraphNode* tail : branch.tails) add_visible(ends, tail);
  return std::all_of(ends.begin(), ends.end(), [&](const GraphNode* end) { return reached.contains(end); });
}

void note_recorded(Event& event) {
  event.capture.reset();
  event.recorded = true;
  event.operations = process().device_operations.load(std::memory_order_relaxed);
}

// A record or a wait that meets an event outside the graph, and is a node of it.
int capture_external(Stream* stream, Event* event, RecordKind kind) {
  Capture& capture = *stream->capture;
  std::lock_guard lock(capture.mutex);
  Capture::Branch* branch = branch_of(capture, stream);
  if (!branch || capture.status != CaptureStatus::kActive) return kCaptureInvalidated;
  GraphNode& node = append_node(capture, *branch, kind);
  node.event = event;
  node.fields.arg = event->index;
  branch->tails = {&node};
  return kSuccess;
}

// At a launch of the graph. False: the event is gone, or nobody recorded what would be waited for.
bool meet_event(const GraphNode& node) {
  Event* event = find_event(node.event);
  if (!event || event->index != node.fields.arg) return false;
  if (node.kind == RecordKind::kEventRecord) note_recorded(*event);
  return event->recorded;
}

int invalidate(const std::shared_ptr<Capture>& capture, int result) {
  std::lock_guard lock(capture->mutex);
  capture->status = CaptureStatus::kInvalidated;
  return result;
}

// CUDA_DEVICE_MAX_CONNECTIONS (CUDA Programming Guide, environment variables): streams share so many queues to the
// device.
void note_few_connections() {
  constexpr int kDefault = 8;
  const char* const value = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  if (!value || std::atoi(value) >= kDefault) return;
  note_once("not heeded: CUDA_DEVICE_MAX_CONNECTIONS=" + std::string(value) +
            "; no stream waits behind another's work");
}

}  // namespace

int current_device() { return device_of_thread; }
void set_current_device(int device) { device_of_thread = device; }
int device_count() {
  begin_from_environment();
  return rank_config().devices;
}

Stream* find_stream(void* handle) {
  Streams& self = streams();
  if (!handle || handle == kStreamLegacyHandle) return &self.legacy;
  if (handle == kStreamPerThreadHandle) {
    if (!own_stream) own_stream = create_stream(current_device(), 0, 0);
    return own_stream;
  }
  if (handle == &self.legacy) return &self.legacy;
  return self.streams.find(handle);
}

Stream* create_stream(int device, unsigned flags, int priority) {
  note_few_connections();
  Stream* stream = streams().streams.create();
  stream->index = streams().next_stream++;
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  constexpr unsigned kNonBlocking = 1;
  if (!(flags & kNonBlocking))  // it waits for the legacy default stream, and that for it
    annotate("{\"stream\": " + std::to_string(stream->index) + ", \"blocking\": true}");
  return stream;
}

bool destroy_stream(void* handle) { return streams().streams.destroy(handle); }

Event* find_event(void* handle) { return streams().events.find(handle); }

Event* create_event(int device, unsigned flags) {
  Event* event = streams().events.create();
  event->index = streams().next_event++;
  event->device = device;
  event->flags = flags;
  return event;
}

bool destroy_event(void* handle) { return streams().events.destroy(handle); }

int record_event(Event* event, Stream* stream, unsigned flags) {
  if (stream->capture && (flags & kExternalEvent)) return capture_external(stream, event, RecordKind::kEventRecord);
  if (const std::shared_ptr<Capture> capture = stream->capture) {
    std::lock_guard lock(capture->mutex);
    Capture::Branch* branch = branch_of(*capture, stream);
    if (!branch || capture->status != CaptureStatus::kActive) return kCaptureInvalidated;
    event->captured_index = streams().next_event++;
    event->capture = capture;
    GraphNode& node = append_node(*capture, *branch, RecordKind::kEventRecord);
    node.visible = false;
    node.fields.arg = event->captured_index;
    event->captured_node = &node;
    branch->tails = {&node};
    return kSuccess;
  }
  note_recorded(*event);
  if (recording()) append_record(RecordKind::kEventRecord, stream->index, 0, current_context(), {.arg = event->index});
  return kSuccess;
}

int wait_event(Stream* stream, Event* event, unsigned flags) {
  if (stream->capture && (flags & kExternalEvent)) return capture_external(stream, event, RecordKind::kStreamWaitEvent);
  const std::shared_ptr<Capture> capture = event->capture.lock();
  const std::shared_ptr<Capture> mine = stream->capture;
  if (mine && !capture) return event->recorded ? invalidate(mine, kCaptureIsolation) : kSuccess;
  if (capture) {
    if (mine && mine != capture) return invalidate(mine, 902);  // cudaErrorStreamCaptureMerge
    std::lock_guard lock(capture->mutex);
    if (capture->status != CaptureStatus::kActive) return kCapturedEvent;
    Capture::Branch* branch = branch_of(*capture, stream);
    if (!branch) {  // the wait draws this stream into the capture
      capture->branches.push_back({stream, streams().next_stream++, {}});
      branch = &capture->branches.back();
      stream->capture = capture;
    }
    GraphNode& node = append_node(*capture, *branch, RecordKind::kStreamWaitEvent);
    node.visible = false;
    node.fields.arg = event->captured_index;
    node.dependencies.push_back(event->captured_node);
    branch->tails = {&node};
    return kSuccess;
  }
  // Waiting for an event that was never recorded is a no-op (CUDA Runtime API, cudaStreamWaitEvent).
  if (event->recorded && recording())
    append_record(RecordKind::kStreamWaitEvent, stream->index, 0, current_context(), {.arg = event->index});
  return kSuccess;
}

int synchronize_event(Event* event) {
  if (const auto capture = event->capture.lock()) return invalidate(capture, kCapturedEvent);
  if (event->recorded && recording())
    append_record(RecordKind::kEventSynchronize, 0, 0, current_context(), {.arg = event->index, .flags = kBlocking});
  return kSuccess;
}

int synchronize_stream(Stream* stream) {
  if (stream->capture) return invalidate(stream->capture, kCaptureUnsupported);
  if (recording())
    append_record(RecordKind::kStreamSynchronize, stream->index, 0, current_context(), {.flags = kBlocking});
  return kSuccess;
}

int synchronize_device(int) {
  if (const int result = check_capture_unsafe_call()) return result;
  if (recording()) append_record(RecordKind::kDeviceSynchronize, 0, 0, current_context(), {.flags = kBlocking});
  return kSuccess;
}

int elapsed_time(float* milliseconds, Event* start, Event* end) {
  constexpr unsigned kDisableTiming = 2;
  if (!start->recorded || !end->recorded || ((start->flags | end->flags) & kDisableTiming)) return kInvalidHandle;
  const auto count = static_cast<std::int64_t>(end->operations - start->operations);
  *milliseconds = count == 0 ? 0.0005F : static_cast<float>(count);  // 0.5 us is the documented resolution
  return kSuccess;
}

bool capture_step(const RecordFields& fields) {
  const std::shared_ptr<Capture> capture = last_capture.lock();
  if (!capture) return false;
  std::lock_guard lock(capture->mutex);
  if (capture->status != CaptureStatus::kActive) return false;
  GraphNode& node = append_node(*capture, capture->branches.front(), RecordKind::kStep);
  node.visible = false;
  node.fields = fields;
  return true;
}

bool capture_record(Stream& stream, RecordKind kind, std::uint32_t op, const RecordFields& fields) {
  const std::shared_ptr<Capture> capture = stream.capture;
  if (!capture) return false;
  std::lock_guard lock(capture->mutex);
  Capture::Branch* branch = branch_of(*capture, &stream);
  if (!branch) return false;
  GraphNode& node = append_node(*capture, *branch, kind);
  node.op = op;
  node.fields = fields;
  branch->tails = {&node};
  return true;
}

int begin_capture(Stream* stream, int mode, Graph* graph) {
  if (stream == &streams().legacy) return kCaptureUnsupported;
  if (stream->capture) return kInvalidValue;
  auto capture = std::make_shared<Capture>();
  capture->id = streams().next_capture++;
  capture->mode = mode;
  capture->origin = stream;
  capture->graph = graph ? graph : create_graph();
  capture->owns_graph = graph == nullptr;
  capture->graph->origin = stream->index;
  capture->branches.push_back({stream, stream->index, {}});
  last_capture = capture;
  stream->capture = std::move(capture);
  if (mode == kModeGlobal) ++streams().global_captures;
  if (mode != kModeRelaxed) ++own_captures;
  return kSuccess;
}

int end_capture(Stream* stream, Graph** graph) {
  const std::shared_ptr<Capture> capture = stream->capture;
  *graph = nullptr;
  if (!capture) return kInvalidValue;
  std::lock_guard lock(capture->mutex);
  if (capture->origin != stream) return kCaptureUnmatched;
  int result = kSuccess;
  if (capture->status == CaptureStatus::kInvalidated) result = kCaptureInvalidated;
  else if (!all_joined(*capture)) result = kCaptureUnjoined;
  for (const Capture::Branch& branch : capture->branches) {
    if (branch.stream == find_stream(branch.stream)) branch.stream->capture.reset();  // else destroyed meanwhile
  }
  capture->status = CaptureStatus::kInvalidated;  // events that it recorded cannot be waited for any more
  if (capture->mode == kModeGlobal) --streams().global_captures;
  if (capture->mode != kModeRelaxed) --own_captures;
  if (result == kSuccess) *graph = capture->graph;
  else if (capture->owns_graph) destroy_graph(capture->graph);
  return result;
}

CaptureInfo capture_info(Stream* stream) {
  CaptureInfo info;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return info;
  std::lock_guard lock(capture->mutex);
  info.status = capture->status;
  info.id = capture->id;
  info.graph = capture->graph;
  if (const Capture::Branch* branch = branch_of(*capture, stream))
    for (GraphNode* tail : branch->tails) add_visible(info.dependencies, tail);
  return info;
}

int update_dependencies(Stream* stream, const std::vector<GraphNode*>& dependencies, bool replace) {
  const std::shared_ptr<Capture> capture = stream->capture;
  if (!capture) return kInvalidValue;
  std::lock_guard lock(capture->mutex);
  Capture::Branch* branch = branch_of(*capture, stream);
  if (!branch || capture->status != CaptureStatus::kActive) return kCaptureInvalidated;
  if (replace) branch->tails.clear();
  branch->tails.insert(branch->tails.end(), dependencies.begin(), dependencies.end());
  return kSuccess;
}

void at_each_launch(void* stream_handle, std::function<void()> compute) {
  const Stream* stream = find_stream(stream_handle);
  const std::shared_ptr<Capture> capture = stream ? stream->capture : nullptr;
  if (!capture) return;
  const std::lock_guard lock(capture->mutex);
  const Capture::Branch* branch = branch_of(*capture, stream);
  if (branch != nullptr && !branch->tails.empty()) branch->tails.back()->compute = std::move(compute);
}

bool capturing(void* stream_handle) {
  const Stream* stream = find_stream(stream_handle);
  return stream && stream->capture;
}

int exchange_capture_mode(int* mode) {
  if (*mode < 0 || *mode > 2) return kInvalidValue;
  std::swap(*mode, capture_mode_of_thread);
  return kSuccess;
}

int check_capture_unsafe_call() {
  // CUDA Runtime API, cudaThreadExchangeStreamCaptureMode.
  const bool unsafe = capture_mode_of_thread != kModeRelaxed &&
                      (own_captures > 0 || (capture_mode_of_thread == kModeGlobal && streams().global_captures > 0));
  return unsafe ? kCaptureUnsupported : kSuccess;
}

std::vector<GraphNode*> visible_dependencies(const GraphNode& node) {
  std::vector<GraphNode*> found;
  for (GraphNode* dependency : node.dependencies) add_visible(found, dependency);
  return found;
}

void release_user_object(UserObject* object, unsigned count) {
  if (object->references.fetch_sub(count) > count) return;
  object->destroy(object->pointer);
  delete object;
}

Graph::~Graph() {
  for (const auto& [object, count] : objects) release_user_object(object, count);
}

Graph* create_graph() {
  Graph* graph = streams().graphs.create();
  graph->id = streams().next_graph++;
  return graph;
}
Graph* find_graph(void* handle) { return streams().graphs.find(handle); }
bool destroy_graph(void* handle) { return streams().graphs.destroy(handle); }

GraphExec* instantiate(Graph* graph) {
  GraphExec* exec = streams().execs.create();
  exec->graph.id = graph->id;
  exec->graph.origin = graph->origin;
  for (const GraphNode& node : graph->nodes) {
    exec->graph.nodes.push_back(node);
    exec->graph.nodes.back().dependencies.clear();  // replay needs the order only
  }
  for (const auto& [object, count] : graph->objects) {
    ++object->references;
    exec->graph.objects.emplace_back(object, 1);
  }
  return exec;
}
GraphExec* find_graph_exec(void* handle) { return streams().execs.find(handle); }
bool destroy_graph_exec(void* handle) { return streams().execs.destroy(handle); }

int launch_graph(GraphExec* exec, Stream* stream) {
  for (const GraphNode& node : exec->graph.nodes) {
    if (node.event && !meet_event(node)) continue;
    const std::uint32_t index = node.stream == exec->graph.origin ? stream->index : node.stream;
    if (node.host_function) node.host_function(node.host_data);
    if (node.compute) node.compute();
    RecordFields fields = node.fields;
    fields.flags |= kGraph;
    if (recording()) append_record(node.kind, index, node.op, node.context, fields);
  }
  return kSuccess;
}

int launch_host_function(Stream* stream, void (*function)(void*), void* data) {
  if (const std::shared_ptr<Capture> capture = stream->capture) {
    std::lock_guard lock(capture->mutex);
    if (Capture::Branch* branch = branch_of(*capture, stream)) {
      GraphNode& node = append_node(*capture, *branch, RecordKind::kHost);
      node.host_function = function;
      node.host_data = data;
      branch->tails = {&node};
    }
    return kSuccess;
  }
  function(data);  // everything before it on the stream has, as far as values go, happened
  return kSuccess;
}

}  // namespace maya
