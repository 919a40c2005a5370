// Ranges of two sources: PyTorch's operators (core/observer.cpp), and what a program names itself through NVTX. The
// NVTX headers inside each library call InitializeInjectionNvtx2 of the library that NVTX_INJECTION64_PATH names; it
// fills their callback tables (nvtx3/nvtxDetail/nvtxTypes.h).
#include "core/context.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/process_state.h"
#include "core/recorder.h"
#include "core/stream.h"

namespace maya {
namespace {

constexpr std::string_view kStepPrefix = "Optimizer.step#";

struct Range {
  std::string_view name, sizes;
};

// `aten::addmm, seq = 7, op_id = 96, sizes = [[3072]], input_op_ids = [...]`: the name ends at the
// first attribute; sequence numbers and ids differ from call to call.
Range parse(std::string_view message) {
  Range range{message, {}};
  for (const std::string_view attribute : {", seq = ", ", op_id = ", ", sizes = "})
    range.name = range.name.substr(0, range.name.find(attribute));
  constexpr std::string_view kSizes = ", sizes = ";
  const auto at = message.find(kSizes);
  if (at == std::string_view::npos) return range;
  range.sizes = message.substr(at + kSizes.size());
  range.sizes = range.sizes.substr(0, range.sizes.find(", input_op_ids"));
  return range;
}

// PyTorch's `nccl:send 5->1` and `nccl:recv 1<-5` name ranks, and would tell ranks of equal work apart.
std::string_view without_ranks(std::string_view name) {
  for (const std::string_view transfer : {"nccl:send", "nccl:recv"})
    if (name.starts_with(transfer)) return transfer;
  return name;
}

std::uint32_t intern_range(std::string_view name, std::string_view sizes) {
  thread_local std::string key;
  name = without_ranks(name);
  key.assign(name).append(1, '\0').append(sizes);
  return intern_context(key, [&] { return "\"operator\": " + json_quote(name) + ", \"sizes\": " + json_quote(sizes); });
}

constexpr std::uint32_t kDeepest = ThreadState::kDeepest;
constexpr char kNvtx = 0;        // its address owns NVTX's ranges
constexpr char kUnobserved = 0;  // and this one's those of steps that nobody observes

int push(std::string_view message) {
  const Call call;
  const Range range = parse(message);
  return push_range(range.name, range.sizes, &kNvtx);
}

int pop() {
  const Call call;
  return pop_range(&kNvtx);
}

std::string narrow(const wchar_t* message) {
  std::string text;
  for (; message && *message; ++message) text += *message < 128 ? static_cast<char>(*message) : '?';
  return text;
}

// The level from 0 that the thread is at then.
std::uint32_t enter(ThreadState& thread, std::uint32_t context, const void* owner) {
  const std::uint32_t level = thread.contexts_depth++;
  if (level < kDeepest) {
    thread.owners[level] = owner;
    thread.contexts[level] = context;
  }
  return level;
}

// nvtxEventAttributes_v2, as far as its message.
struct EventAttributes {
  std::uint16_t version, size;
  std::uint32_t category;
  std::int32_t color_type;
  std::uint32_t color;
  std::int32_t payload_type, reserved;
  std::uint64_t payload;
  std::int32_t message_type;  // 1: ASCII, 2: wide, 3: registered
  const void* message;
};

int push_attributes(const EventAttributes* attributes) {
  if (attributes && attributes->message_type == 1 && attributes->message)
    return push(static_cast<const char*>(attributes->message));
  if (attributes && attributes->message_type == 2)
    return push(narrow(static_cast<const wchar_t*>(attributes->message)));
  const Call call;  // a registered name, which is not known here: what is done in it is the operator's around it
  return push_same_range(&kNvtx);
}

int push_ascii(const char* message) { return push(message ? message : ""); }
int push_wide(const wchar_t* message) { return push(narrow(message)); }
int domain_push(void*, const EventAttributes* attributes) { return push_attributes(attributes); }
int domain_pop(void*) { return pop(); }

// nvtxTypes.h: modules and the callbacks' places in their tables.
enum Module : std::int32_t { kCore = 1, kCore2 = 5 };
enum CoreCallback : std::uint32_t { kRangePushEx = 8, kRangePushA = 9, kRangePushW = 10, kRangePop = 11 };
enum Core2Callback : std::uint32_t { kDomainRangePushEx = 4, kDomainRangePop = 5 };

using Function = void (*)();
using FunctionTable = Function**;

struct ExportTableCallbacks {
  std::size_t struct_size;
  int (*module_function_table)(std::int32_t module, FunctionTable* table, unsigned* size);
};

template <class Callback>
void install(FunctionTable table, unsigned size, std::uint32_t place, Callback* callback) {
  if (place < size && table[place]) *table[place] = reinterpret_cast<Function>(callback);
}

// Whether an optimizer's first step is there to have its state made, as DeepSpeed and PyTorch's distributed checkpoints
// take one of gradients that are zero: no backward pass, which PyTorch runs on a thread of its own, was before it.
bool prepares(std::uint32_t optimizer) {
  Process& self = process();
  if (self.several_threads || optimizer >= 64) return false;
  const std::uint64_t bit = std::uint64_t{1} << optimizer;
  return (self.prepared.fetch_or(bit) & bit) == 0;
}

}  // namespace

int push_range(std::string_view name, std::string_view sizes, const void* owner) {
  ThreadState& thread = this_thread();
  const bool named = recording() && thread.contexts_depth < kDeepest;
  const std::uint32_t level = enter(thread, named ? intern_range(name, sizes) : 0, owner);
  // The outermost: a step may be announced twice, to us and to a script's own emit_nvtx().
  if (level < kDeepest && thread.steps_mask == 0 && name.starts_with(kStepPrefix))
    thread.steps_mask = std::uint64_t{1} << level;
  return static_cast<int>(level);
}

int push_same_range(const void* owner) { return static_cast<int>(enter(this_thread(), current_context(), owner)); }

int pop_range(const void* owner) {
  ThreadState& thread = this_thread();
  if (thread.contexts_depth > kDeepest) return static_cast<int>(--thread.contexts_depth);
  std::uint32_t level = thread.contexts_depth;
  while (level > 0 && thread.owners[level - 1] != owner) --level;
  if (level-- == 0) return -1;
  thread.owners[level] = nullptr;  // two observers of one operator leave it in the order in which they entered
  while (thread.contexts_depth > 0 && !thread.owners[thread.contexts_depth - 1]) --thread.contexts_depth;
  if (thread.steps_mask & (std::uint64_t{1} << level)) {
    thread.steps_mask = 0;
    const std::uint32_t optimizer = std::exchange(thread.optimizer, 0);
    const RecordFields fields{.size = optimizer};
    const bool recorded = recording() && optimizer != ThreadState::kContinues;
    if (recorded && !capture_step(fields) && !prepares(optimizer)) record(RecordKind::kStep, nullptr, 0, fields);
  }
  return static_cast<int>(level);
}

bool in_range(std::string_view name) {
  const ThreadState& thread = this_thread();
  const std::span ranges(thread.contexts, std::min(thread.contexts_depth, kDeepest));
  return std::ranges::any_of(ranges, [&](std::uint32_t context) {
    if (context == 0) return false;
    const std::span<const std::byte> key = process().contexts.key(context);
    return std::string_view(reinterpret_cast<const char*>(key.data())) == name;
  });
}

}  // namespace maya

// The calling thread takes a step of this optimizer, from 1, or continues one (maya/launch/optimizers.py): the
// outermost one's, if it steps others. Where operators are not observed nothing else announces it.
extern "C" void maya_enter_step(std::uint32_t optimizer) {
  const maya::Call call;
  if (!maya::observing()) maya::push_range(maya::kStepPrefix, {}, &maya::kUnobserved);
  maya::ThreadState& thread = maya::this_thread();
  if (thread.steps_mask != 0 && thread.optimizer == 0) thread.optimizer = optimizer;
}

extern "C" void maya_leave_step() {
  const maya::Call call;
  if (!maya::observing()) maya::pop_range(&maya::kUnobserved);
}

extern "C" int InitializeInjectionNvtx2(const void* (*get_export_table)(std::uint32_t)) {
  using namespace maya;
  constexpr std::uint32_t kCallbacks = 1;  // NVTX_ETID_CALLBACKS
  const auto* exports = static_cast<const ExportTableCallbacks*>(get_export_table(kCallbacks));
  if (!exports) return 0;
  FunctionTable table = nullptr;
  unsigned size = 0;
  if (exports->module_function_table(kCore, &table, &size)) {
    install(table, size, kRangePushEx, &push_attributes);
    install(table, size, kRangePushA, &push_ascii);
    install(table, size, kRangePushW, &push_wide);
    install(table, size, kRangePop, &pop);
  }
  if (exports->module_function_table(kCore2, &table, &size)) {
    install(table, size, kDomainRangePushEx, &domain_push);
    install(table, size, kDomainRangePop, &domain_pop);
  }
  return 1;
}
