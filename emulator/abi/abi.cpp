#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>

#include "abi/stubs.h"
#include "core/recorder.h"

namespace maya {
namespace abi {
namespace {

struct Handles {
  std::mutex mutex;  // guards: live
  std::unordered_map<void*, std::string_view> live;
};

Handles& handles() {
  static Handles* const instance = new Handles;  // outlives every caller's destructor
  return *instance;
}

}  // namespace

const Symbol* lookup(std::string_view name) {
  const Symbol* end = kSymbols + kSymbolCount;
  const Symbol* found = std::lower_bound(kSymbols, end, name,
                                         [](const Symbol& symbol, std::string_view key) { return symbol.name < key; });
  return found != end && found->name == name ? found : nullptr;
}

long refused(const char* library, const char* function, long code) {
  refuse(library, function);
  return code;
}

long create(const char* library, void** handle) {
  std::lock_guard lock(handles().mutex);
  // Generous, zeroed and aligned: some headers read a version field from an opaque handle.
  void* created = ::operator new(256, std::align_val_t{64});
  std::fill_n(static_cast<std::byte*>(created), 256, std::byte{0});
  handles().live[created] = library;
  *handle = created;
  return 0;
}

long destroy(const char* library, void* handle, long bad_handle_code) {
  std::lock_guard lock(handles().mutex);
  auto found = handles().live.find(handle);
  if (found == handles().live.end() || found->second != library) return bad_handle_code;
  handles().live.erase(found);
  ::operator delete(handle, std::align_val_t{64});
  return 0;
}

}  // namespace abi

void* find_symbol(std::string_view name) {
  const abi::Symbol* symbol = abi::lookup(name);
  return symbol ? symbol->address : nullptr;
}

}  // namespace maya

extern "C" const char* maya_abi_table() { return maya::abi::kTable; }
