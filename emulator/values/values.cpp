#include "values/values.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/memory.h"
#include "core/recorder.h"
#include "values/executor.h"
#include "values/known.h"

namespace maya::values {
namespace {

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// Executors by the kernel they were made for; they live as long as the process.
class Executors {
 public:
  void resolve(const KernelInfo& kernel) {
    const std::lock_guard lock(mutex_);
    if (kernel.resolved) return;
    const std::string name = without_anonymous_namespaces(kernel.name);
    auto executor = make(parse_signature(name));
    if (!executor && std::getenv("MAYA_DEBUG_VALUES") != nullptr) {
      annotate("{\"uncovered_kernel\": " + json_quote(kernel.name) + "}");
    }
    kernel.executor = executor.get();
    if (executor) all_.push_back(std::move(executor));
    std::atomic_ref(kernel.resolved).store(true, std::memory_order_release);
  }

 private:
  static std::unique_ptr<Executor> make(const Signature& kernel) {
    for (const auto family : {make_elementwise, make_reduction, make_rearranging, make_indexing, make_scan,
                              make_compaction, make_ranking, make_foreach}) {
      if (auto executor = family(kernel)) return executor;
    }
    return make_opaque(kernel);
  }

  std::mutex mutex_;  // protects all_ and the kernels' executor slots
  std::vector<std::unique_ptr<Executor>> all_;
};

Executors& executors() {
  static Executors instance;
  return instance;
}

thread_local Assumption assumed_input = Assumption::kNone;  // of the operation that this thread is at

// What is said where the host reads it: the way that the script takes from here on may follow from it.
constexpr std::string_view kBalanced =
    "what is picked by values that nobody computes (the experts of a token) is taken to be balanced: each expert gets "
    "equally many tokens";
constexpr std::string_view kScored =
    "the script reads what follows from a product of few columns (a router's scores), which nobody computes: it is taken to be "
    "as by first weights (a loop until experts are balanced ends as it does then)";
constexpr std::string_view kUncomputed =
    "the script reads integers or truth values that nobody computes: it finds zeros, and may have taken another way than it would";

}  // namespace

bool on_device(const void* pointer, std::size_t bytes) {
  return is_device_pointer(pointer) &&
         (bytes <= 1 || is_device_pointer(static_cast<const std::byte*>(pointer) + bytes - 1));
}

Derivation::Derivation() : outer_(std::exchange(assumed_input, Assumption::kNone)) {}
Derivation::~Derivation() { assumed_input = outer_; }
bool Derivation::picked() { return assumed_input == Assumption::kPick; }
bool Derivation::scored() { return assumed_input == Assumption::kScore; }
void Derivation::follow(Assumption found) { assumed_input = std::max(assumed_input, found); }
void Derivation::pick() { assumed_input = Assumption::kPick; }

void lose(std::string_view what) {
  annotate_once("{\"uncovered\": " + json_quote(std::string(what) + ", which follows from the experts that tokens are "
                                                 "taken to pick, read as zeros") + "}");
}

void wrote(const void* pointer, std::size_t bytes, Content content) {
  known_bytes().wrote(address(pointer), bytes, content, assumed_input);
}

void forget(const void* pointer, std::size_t bytes) { known_bytes().forget(address(pointer), bytes); }

void forget_integers(const void* pointer, std::size_t bytes) {
  forget(pointer, bytes);
  if (bytes <= kSmallBytes) known_bytes().wrote(address(pointer), bytes, Content::kUncomputed, Assumption::kNone);
}

void clobber(const void* pointer) { known_bytes().clobber(address(pointer)); }

bool known(const void* pointer, std::size_t bytes, Content content) {
  return known_bytes().known(address(pointer), bytes, content, assumed_input);
}

std::vector<Part> known_parts(const void* pointer, std::size_t bytes, Content content) {
  return known_bytes().parts(address(pointer), bytes, content, assumed_input);
}

void copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes > kCountableBytes || !known(source, bytes)) {
    if (known_bytes().uncomputed(address(source))) forget_integers(destination, bytes);
    else forget(destination, bytes);
    return;
  }
  const Content content = known_bytes().content(address(source));
  std::memmove(destination, source, bytes);
  wrote(destination, bytes, content);
}

void copy_to_host(void* destination, const void* source, std::size_t bytes) {
  const bool real = bytes <= kCountableBytes && known(source, bytes);
  if (real && Derivation::picked()) note_once(kBalanced);
  if (real && Derivation::scored()) note_once(kScored);
  if (!real && known_bytes().uncomputed(address(source))) note_once(kUncomputed);
  if (real || bytes <= kSmallBytes) std::memcpy(destination, source, bytes);
  else zero(destination, bytes);
}

void launch(const KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3], void** args,
            std::size_t) {
  if (!std::atomic_ref(kernel.resolved).load(std::memory_order_acquire)) executors().resolve(kernel);
  if (kernel.executor == nullptr || args == nullptr) return;
  const Derivation computed;
  static_cast<const Executor*>(kernel.executor)->run({grid, block, args});
}

}  // namespace maya::values
