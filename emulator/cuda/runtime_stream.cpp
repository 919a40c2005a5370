// Streams, events and host functions.

#include <string_view>

#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/runtime_error.h"
#include "cuda/runtime_types.h"

using namespace maya;
using namespace maya::cudart;

namespace {

template <class Function>
int with_stream(void* handle, Function&& function) {
  Stream* stream = find_stream(handle);
  return stream ? result(function(stream)) : result(cudaErrorInvalidResourceHandle);
}

template <class Function>
int with_event(void* handle, Function&& function) {
  Event* event = find_event(handle);
  return event ? result(function(event)) : result(cudaErrorInvalidResourceHandle);
}

// PyTorch times buckets of DDP for statistics of its own. What scripts ask for comes by way of libtorch_python.
bool in_pytorch(const void* address) { return library_of(address).ends_with("/libtorch_cuda.so"); }

constexpr std::string_view kTimings =
    "cudaEventElapsedTime answers 1 ms for each device operation between two events: the script's own timings are not "
    "predictions";

}  // namespace

extern "C" {

int cudaStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  const Call call;
  if (flags > 1) return result(cudaErrorInvalidValue);
  *stream = create_stream(current_device(), flags, priority);
  return cudaSuccess;
}
int cudaStreamCreateWithFlags(void** stream, unsigned flags) { return cudaStreamCreateWithPriority(stream, flags, 0); }
int cudaStreamCreate(void** stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

int cudaStreamDestroy(void* stream) {
  const Call call;
  return destroy_stream(stream) ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

int cudaStreamGetPriority(void* handle, int* priority) {
  return with_stream(handle, [&](Stream* stream) { return *priority = stream->priority, 0; });
}
int cudaStreamGetFlags(void* handle, unsigned* flags) {
  return with_stream(handle, [&](Stream* stream) { return *flags = stream->flags, 0; });
}
int cudaStreamGetId(void* handle, unsigned long long* id) {
  return with_stream(handle, [&](Stream* stream) { return *id = stream->index, 0; });
}
int cudaStreamGetDevice(void* handle, int* device) {
  return with_stream(handle, [&](Stream* stream) { return *device = stream->device, 0; });
}

int cudaStreamSynchronize(void* handle) {
  const Call call;
  return with_stream(handle, synchronize_stream);
}

int cudaStreamQuery(void* handle) {
  const Call call;
  return with_stream(handle, [](Stream* stream) { return stream->capture ? cudaErrorStreamCaptureUnsupported : 0; });
}

int cudaStreamWaitEvent(void* handle, void* event_handle, unsigned flags) {
  const Call call;
  return with_stream(handle, [&](Stream* stream) {
    Event* event = find_event(event_handle);
    return event ? wait_event(stream, event, flags) : cudaErrorInvalidResourceHandle;
  });
}

int cudaEventCreateWithFlags(void** event, unsigned flags) {
  const Call call;
  *event = create_event(current_device(), flags);
  return cudaSuccess;
}
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }

int cudaEventDestroy(void* event) {
  const Call call;
  return destroy_event(event) ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}

int cudaEventRecordWithFlags(void* event_handle, void* handle, unsigned flags) {
  const Call call;
  return with_stream(handle, [&](Stream* stream) {
    Event* event = find_event(event_handle);
    return event ? record_event(event, stream, flags) : cudaErrorInvalidResourceHandle;
  });
}
int cudaEventRecord(void* event, void* stream) { return cudaEventRecordWithFlags(event, stream, 0); }

int cudaEventQuery(void* handle) {
  const Call call;
  return with_event(handle, [](Event* event) { return event->capture.expired() ? 0 : 907; });  // cudaErrorCapturedEvent
}

int cudaEventSynchronize(void* handle) {
  const Call call;
  return with_event(handle, synchronize_event);
}

int cudaEventElapsedTime(float* milliseconds, void* start_handle, void* end_handle) {
  const Call call;
  const bool asked = !in_pytorch(__builtin_return_address(0));
  return with_event(start_handle, [&](Event* start) -> int {
    Event* end = find_event(end_handle);
    if (end == nullptr) return cudaErrorInvalidResourceHandle;
    const int error = elapsed_time(milliseconds, start, end);
    if (asked && error == cudaSuccess) note_once(kTimings);
    return error;
  });
}

// An event of another process: waiting for it waits for nothing.
int cudaIpcGetEventHandle(IpcHandle* handle, void* event) {
  *handle = {};
  return find_event(event) ? cudaSuccess : result(cudaErrorInvalidResourceHandle);
}
int cudaIpcOpenEventHandle(void** event, IpcHandle) {
  annotate("{\"uncovered\": \"cudaIpcOpenEventHandle: an event shared between ranks orders nothing\"}");
  return cudaEventCreateWithFlags(event, 2);
}

int cudaLaunchHostFunc(void* handle, void (*function)(void*), void* data) {
  const Call call;
  return with_stream(handle, [&](Stream* stream) { return launch_host_function(stream, function, data); });
}

int cudaStreamAddCallback(void* handle, void (*callback)(void*, int, void*), void* data, unsigned) {
  const Call call;
  return with_stream(handle, [&](Stream* stream) {
    if (stream->capture) return static_cast<int>(cudaErrorStreamCaptureUnsupported);
    callback(handle, cudaSuccess, data);
    return 0;
  });
}

int cudaStreamAttachMemAsync(void* handle, void*, std::size_t, unsigned) {
  return with_stream(handle, [](Stream*) { return 0; });
}

}  // extern "C"
