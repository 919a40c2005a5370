// Stream capture and graphs. Some functions kept their name and changed their parameters in CUDA 13;
// the runtime library that the process loaded decides.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "core/device.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/runtime_error.h"
#include "cuda/runtime_types.h"

using namespace maya;
using namespace maya::cudart;

namespace {

// Fills an array as the CUDA graph queries do: without one, only the count.
int give_nodes(const std::vector<GraphNode*>& found, void** nodes, std::size_t* count) {
  if (nodes) {
    std::fill(nodes, nodes + *count, nullptr);
    *count = std::min(*count, found.size());
    std::copy_n(found.begin(), *count, nodes);
  } else {
    *count = found.size();
  }
  return cudaSuccess;
}

std::vector<GraphNode*> given_nodes(void** nodes, std::size_t count) {
  std::vector<GraphNode*> given;
  for (std::size_t index = 0; index < count; ++index) given.push_back(static_cast<GraphNode*>(nodes[index]));
  return given;
}

int give_capture_info(void* handle, int* status, unsigned long long* id, void** graph, const void** dependencies,
                      std::size_t* count) {
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  static thread_local std::vector<GraphNode*> kept;  // valid until the thread's next query
  CaptureInfo info = capture_info(stream);
  *status = static_cast<int>(info.status);
  if (info.status != CaptureStatus::kActive) return cudaSuccess;
  kept = std::move(info.dependencies);
  if (id) *id = info.id;
  if (graph) *graph = info.graph;
  if (dependencies) *dependencies = kept.data();
  if (count) *count = kept.size();
  return cudaSuccess;
}

}  // namespace

extern "C" {

int cudaStreamBeginCapture(void* handle, int mode) {
  const Call call;
  Stream* stream = find_stream(handle);
  return result(stream ? begin_capture(stream, mode) : cudaErrorInvalidResourceHandle);
}

int cudaStreamBeginCaptureToGraph(void* handle, void* graph_handle, void** dependencies, const void*, std::size_t count,
                                  int mode) {
  const Call call;
  Stream* stream = find_stream(handle);
  Graph* graph = find_graph(graph_handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  if (!graph) return result(cudaErrorInvalidValue);
  if (const int error = begin_capture(stream, mode, graph)) return result(error);
  return result(update_dependencies(stream, given_nodes(dependencies, count), true));
}

int cudaStreamEndCapture(void* handle, void** graph) {
  const Call call;
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  Graph* captured = nullptr;
  const int error = end_capture(stream, &captured);
  *graph = captured;
  return result(error);
}

int cudaStreamIsCapturing(void* handle, int* status) {
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  *status = stream->capture ? static_cast<int>(capture_info(stream).status) : 0;
  return cudaSuccess;
}

int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                const void** dependencies, std::size_t* count) {
  return give_capture_info(stream, status, id, graph, dependencies, count);
}

int cudaStreamGetCaptureInfo_v3(void* stream, int* status, unsigned long long* id, void** graph,
                                const void** dependencies, const void** edges, std::size_t* count) {
  if (edges) *edges = nullptr;
  return give_capture_info(stream, status, id, graph, dependencies, count);
}

int cudaStreamGetCaptureInfo(void* stream, int* status, unsigned long long* id, void** graph, const void** dependencies,
                             const void** edges, std::size_t* count) {
  if (runtime_major() < 13) return give_capture_info(stream, status, id, nullptr, nullptr, nullptr);
  return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}

// CUDA 12: (stream, dependencies, count, flags); CUDA 13 has edges before the count.
int cudaStreamUpdateCaptureDependencies(void* handle, void** dependencies, std::uintptr_t edges_or_count,
                                        std::size_t count_or_flags, unsigned flags) {
  const Call call;
  Stream* stream = find_stream(handle);
  if (!stream) return result(cudaErrorInvalidResourceHandle);
  const bool edges = runtime_major() >= 13;
  const std::size_t count = edges ? count_or_flags : edges_or_count;
  constexpr unsigned kSet = 1;  // cudaStreamSetCaptureDependencies; 0 adds
  const bool replace = (edges ? flags : static_cast<unsigned>(count_or_flags)) & kSet;
  return result(update_dependencies(stream, given_nodes(dependencies, count), replace));
}

int cudaThreadExchangeStreamCaptureMode(int* mode) { return result(exchange_capture_mode(mode)); }

int cudaGraphCreate(void** graph, unsigned) {
  const Call call;
  *graph = create_graph();
  return cudaSuccess;
}

int cudaGraphDestroy(void* graph) {
  const Call call;
  return destroy_graph(graph) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaGraphGetNodes(void* handle, void** nodes, std::size_t* count) {
  Graph* graph = find_graph(handle);
  if (!graph) return result(cudaErrorInvalidValue);
  std::vector<GraphNode*> visible;
  for (GraphNode& node : graph->nodes)
    if (node.visible) visible.push_back(&node);
  return give_nodes(visible, nodes, count);
}

int cudaGraphNodeGetDependencies(void* handle, void** nodes, void* edges_or_count, std::size_t* count) {
  if (runtime_major() < 13) count = static_cast<std::size_t*>(edges_or_count);
  return give_nodes(visible_dependencies(*static_cast<GraphNode*>(handle)), nodes, count);
}

int cudaGraphNodeGetType(void* handle, int* type) {
  switch (static_cast<GraphNode*>(handle)->kind) {  // cudaGraphNodeType
    case RecordKind::kMemcpy: *type = 1; break;
    case RecordKind::kMemset: *type = 2; break;
    case RecordKind::kHost: *type = 3; break;
    case RecordKind::kStreamWaitEvent: *type = 6; break;
    case RecordKind::kEventRecord: *type = 7; break;
    default: *type = 0; break;
  }
  return cudaSuccess;
}

int cudaGraphInstantiateWithFlags(void** exec, void* handle, unsigned long long) {
  const Call call;
  Graph* graph = find_graph(handle);
  if (!graph) return result(cudaErrorInvalidValue);
  *exec = instantiate(graph);
  return cudaSuccess;
}
int cudaGraphInstantiate(void** exec, void* graph, unsigned long long flags) {
  return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

int cudaGraphUpload(void* exec, void* stream) {
  return find_graph_exec(exec) && find_stream(stream) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaGraphLaunch(void* handle, void* stream_handle) {
  const Call call;
  GraphExec* exec = find_graph_exec(handle);
  Stream* stream = find_stream(stream_handle);
  if (!exec) return result(cudaErrorInvalidValue);
  return result(stream ? launch_graph(exec, stream) : cudaErrorInvalidResourceHandle);
}

int cudaGraphExecDestroy(void* exec) {
  const Call call;
  return destroy_graph_exec(exec) ? cudaSuccess : result(cudaErrorInvalidValue);
}

int cudaGraphDebugDotPrint(void* handle, const char* path, unsigned) {
  Graph* graph = find_graph(handle);
  std::FILE* file = graph ? std::fopen(path, "w") : nullptr;
  if (!file) return result(cudaErrorInvalidValue);
  std::fprintf(file, "digraph graph_%llu {\n", static_cast<unsigned long long>(graph->id));
  for (GraphNode& node : graph->nodes) {
    if (!node.visible) continue;
    std::fprintf(file, "  n%p [label=\"op %u\"];\n", static_cast<void*>(&node), node.op);
    for (const GraphNode* from : visible_dependencies(node))
      std::fprintf(file, "  n%p -> n%p;\n", static_cast<const void*>(from), static_cast<void*>(&node));
  }
  std::fprintf(file, "}\n");
  std::fclose(file);
  return cudaSuccess;
}

// User objects: a caller's resource that lives as long as whoever holds a reference.
int cudaUserObjectCreate(void** object, void* pointer, void (*destroy)(void*), unsigned references, unsigned) {
  *object = new UserObject{pointer, destroy, references};
  return cudaSuccess;
}
int cudaUserObjectRetain(void* object, unsigned count) {
  static_cast<UserObject*>(object)->references += count;
  return cudaSuccess;
}
int cudaUserObjectRelease(void* object, unsigned count) {
  release_user_object(static_cast<UserObject*>(object), count);
  return cudaSuccess;
}
int cudaGraphRetainUserObject(void* handle, void* object, unsigned count, unsigned flags) {
  constexpr unsigned kMove = 1;  // cudaGraphUserObjectMove: the caller's references become the graph's
  Graph* graph = find_graph(handle);
  if (!graph) return result(cudaErrorInvalidValue);
  auto* held = static_cast<UserObject*>(object);
  if (!(flags & kMove)) held->references += count;
  graph->objects.emplace_back(held, count);
  return cudaSuccess;
}

}  // extern "C"
