// Operator context through NVTX: PyTorch's emit_nvtx names each operator with its shapes. The NVTX
// headers inside each library call InitializeInjectionNvtx2 of the library that NVTX_INJECTION64_PATH
// names; it fills their callback tables (nvtx3/nvtxDetail/nvtxTypes.h).
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/process_state.h"
#include "core/recorder.h"

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

std::uint32_t intern_range(const Range& range) {
  thread_local std::string key;
  key.assign(range.name).append(1, '\0').append(range.sizes);
  return intern_context(key, [&] {
    return "\"operator\": " + json_quote(range.name) + ", \"sizes\": " + json_quote(range.sizes);
  });
}

constexpr std::uint32_t kDeepest = 64;

int push(std::string_view message) {
  const Call call;
  ThreadState& thread = this_thread();
  const std::uint32_t level = thread.contexts_depth++;
  if (level >= kDeepest || !recording()) return static_cast<int>(level);
  const Range range = parse(message);
  thread.contexts[level] = intern_range(range);
  const std::uint64_t bit = std::uint64_t{1} << level;
  if (range.name.starts_with(kStepPrefix)) thread.steps_mask |= bit;
  else thread.steps_mask &= ~bit;
  return static_cast<int>(level);
}

int pop() {
  const Call call;
  ThreadState& thread = this_thread();
  if (thread.contexts_depth == 0) return -1;
  const std::uint32_t level = --thread.contexts_depth;
  if (level >= kDeepest || !recording()) return static_cast<int>(level);
  const std::uint64_t bit = std::uint64_t{1} << level;
  if (thread.steps_mask & bit) {
    thread.steps_mask &= ~bit;
    record(RecordKind::kStep, nullptr, 0);
  }
  return static_cast<int>(level);
}

std::string narrow(const wchar_t* message) {
  std::string text;
  for (; message && *message; ++message) text += *message < 128 ? static_cast<char>(*message) : '?';
  return text;
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
  if (attributes && attributes->message_type == 2) return push(narrow(static_cast<const wchar_t*>(attributes->message)));
  return push("nvtx");
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

}  // namespace

std::uint32_t current_context() {
  const ThreadState& thread = this_thread();
  if (thread.contexts_depth == 0) return 0;
  return thread.contexts[std::min(thread.contexts_depth, kDeepest) - 1];
}

}  // namespace maya

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
