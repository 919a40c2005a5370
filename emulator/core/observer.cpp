// Operator context through PyTorch's observers: every operator makes an at::RecordFunction, which calls back before
// and after it (ATen/record_function.h). Called through PyTorch's exported functions; neither its headers nor its
// layouts are needed, and none of it has changed since 2.6.
//
// What observing costs is kept out of the script's host time: the functions below at the end stand, by the dynamic
// linker's choice, before PyTorch's own and take the time between the RecordFunction's making and the end of its
// start callbacks, where PyTorch packs the operator's inputs for us, and that of its end. The rest is alike for all
// operators: records count them, and who reads records takes it off (maya/trace/host_speed.py).
#include <dlfcn.h>

#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/process_state.h"
#include "core/recorder.h"

namespace maya {
namespace {

using Shapes = std::vector<std::vector<std::int64_t>>;

void* pytorch_symbol(const char* name) {
  void* library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
  return library ? dlsym(library, name) : nullptr;
}

template <class Function>
Function* pytorch(const char* name) {
  return reinterpret_cast<Function*>(pytorch_symbol(name));
}

// at::RecordFunctionCallback: start, end, the probability of being called, then one bool each for the scopes to
// observe and for inputs, outputs and ids wanted. How many scopes there are depends on the version; all are wanted.
struct Callback {
  void* (*start)(void* context, const void* function);
  void (*end)(const void* function, void* context);
  double sampling = 1.0;
  bool wanted[32];
};

// at::RecordFunction::name() and torch::profiler::impl::inputSizes(). The latter's result is made in `shapes`, as
// the C++ ABI hands such values back; it throws for symbolic sizes.
struct Accessors {
  const char* (*name)(const void* function);
  void (*input_sizes)(void* shapes, const void* function, bool flatten_lists);
};

const Accessors& accessors() {
  static const Accessors all{
      pytorch<const char*(const void*)>("_ZNK2at14RecordFunction4nameEv"),
      pytorch<void(void*, const void*, bool)>("_ZN5torch8profiler4impl10inputSizesERKN2at14RecordFunctionEb")};
  return all;
}

void spell(const Shapes& shapes, std::string& text) {
  text.clear();
  for (const auto& shape : shapes) {
    text += text.empty() ? "[[" : ", [";
    const std::size_t start = text.size();
    for (const std::int64_t size : shape) {
      if (text.size() > start) text += ", ";
      char digits[24];
      text.append(digits, std::to_chars(digits, digits + sizeof digits, size).ptr);
    }
    text += ']';
  }
  if (!shapes.empty()) text += ']';
}

void announce(const void* function, Shapes& shapes) noexcept {
  thread_local std::string text;
  spell(shapes, text);
  shapes.~Shapes();
  const char* name = accessors().name(function);
  push_range(name ? name : "", text, function);
  ++this_thread().ranges;
}

// Has nothing to unwind when PyTorch throws: its exceptions do not agree with this library's static runtime.
void* start(void* context, const void* function) {
  alignas(Shapes) std::byte shapes[sizeof(Shapes)];
  accessors().input_sizes(shapes, function, true);
  announce(function, *std::launder(reinterpret_cast<Shapes*>(shapes)));
  std::memset(context, 0, sizeof(void*));  // a std::unique_ptr to nothing
  return context;
}

void end(const void* function, void*) noexcept { pop_range(function); }

}  // namespace

bool observe_operators(bool wanted) {
  const auto add = pytorch<std::uint64_t(Callback)>("_ZN2at17addGlobalCallbackENS_22RecordFunctionCallbackE");
  const auto remove = pytorch<void(std::uint64_t)>("_ZN2at14removeCallbackEm");
  if (!add || !remove || !accessors().name || !accessors().input_sizes) return false;
  std::atomic<std::uint64_t>& observer = process().observer;
  if (wanted && !observing()) {
    Callback callback{&start, &end, 1.0, {}};
    std::memset(callback.wanted, 1, sizeof callback.wanted);
    observer = add(callback);
  } else if (!wanted && observing()) {
    remove(observer.exchange(0));
  }
  return true;
}

bool observing() { return process().observer.load(std::memory_order_relaxed) != 0; }

}  // namespace maya

extern "C" {

// 0, or -1 when this PyTorch cannot be asked.
int maya_observe_operators(int wanted) { return maya::observe_operators(wanted != 0) ? 0 : -1; }

// at::RecordFunction::RecordFunction(at::StepCallbacks&&)
void _ZN2at14RecordFunctionC1EONS_13StepCallbacksE(void* function, void* callbacks) noexcept {
  static const auto own = maya::pytorch<void(void*, void*)>("_ZN2at14RecordFunctionC1EONS_13StepCallbacksE");
  const maya::Describing call;
  own(function, callbacks);
}

// at::RecordFunction::runStartCallbacks(); not called when nobody observes.
void _ZN2at14RecordFunction17runStartCallbacksEv(void* function) noexcept {
  static const auto own = maya::pytorch<void(void*)>("_ZN2at14RecordFunction17runStartCallbacksEv");
  const maya::Described call;
  own(function);
}

// at::RecordFunction::end()
void _ZN2at14RecordFunction3endEv(void* function) noexcept {
  static const auto own = maya::pytorch<void(void*)>("_ZN2at14RecordFunction3endEv");
  const maya::Call call;
  own(function);
}

// at::RecordFunction::~RecordFunction()
void _ZN2at14RecordFunctionD1Ev(void* function) noexcept {
  static const auto own = maya::pytorch<void(void*)>("_ZN2at14RecordFunctionD1Ev");
  const maya::Call call;
  own(function);
}

}  // extern "C"
