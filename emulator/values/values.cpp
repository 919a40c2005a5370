#include "values/values.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/context.h"
#include "core/memory.h"
#include "core/recorder.h"
#include "values/executor.h"
#include "values/formula.h"
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

const Executor* executor_of(const KernelInfo& kernel) {
  if (!std::atomic_ref(kernel.resolved).load(std::memory_order_acquire)) executors().resolve(kernel);
  return static_cast<const Executor*>(kernel.executor);
}

// A launch whose arguments are kept. A structure's size is not known: it ends where the next argument begins, or after
// the most that a kernel may have; what of that is not mapped is left out.
class KeptLaunch {
 public:
  KeptLaunch(const std::uint32_t* grid, const std::uint32_t* block, void** args,
             const std::vector<std::string_view>& parameters) {
    std::copy_n(grid, 3, grid_.begin());
    std::copy_n(block, 3, block_.begin());
    for (std::size_t at = 0; at < parameters.size(); ++at) keep(args, at, parameters);
    for (const std::size_t offset : offsets_) pointers_.push_back(bytes_.data() + offset);
  }

  Launch again() { return {grid_.data(), block_.data(), pointers_.data()}; }

 private:
  static constexpr std::size_t kMostBytes = 4096;  // CUDA C++ Programming Guide, function parameters

  void keep(void** args, std::size_t at, const std::vector<std::string_view>& parameters) {
    std::size_t size = parameters[at].ends_with('*') || scalar_type(parameters[at]) ? 8 : kMostBytes;
    for (std::size_t other = 0; other < parameters.size(); ++other) {
      const std::uintptr_t here = address(args[at]), there = address(args[other]);
      if (there > here) size = std::min<std::size_t>(size, there - here);
    }
    offsets_.push_back(bytes_.size());
    bytes_.resize(align_up(bytes_.size() + size, alignof(std::max_align_t)));
    const iovec to{bytes_.data() + offsets_.back(), size}, from{args[at], size};
    (void)process_vm_readv(getpid(), &to, 1, &from, 1, 0);
  }

  std::array<std::uint32_t, 3> grid_, block_;
  std::vector<std::size_t> offsets_;
  std::vector<std::byte> bytes_;
  std::vector<void*> pointers_;
};

thread_local Assumption assumed_input = Assumption::kNone;  // of the operation that this thread is at
thread_local bool missed = false;                           // by that operation: Derivation::miss
thread_local int printing = 0;                              // tensors, one of another: maya_print

std::atomic<bool> anything_lost = false;

// What is said where the host reads it: the way that the script takes from here on may follow from it.
constexpr std::string_view kBalanced =
    "what is picked by values that nobody computes (a token's experts, a predicted class) is taken to be balanced: "
    "each is picked equally often";
constexpr std::string_view kScored =
    "the script reads what follows from a product of few columns (a router's scores), which nobody computes: it is "
    "taken to be "
    "as by first weights (a loop until experts are balanced ends as it does then)";
constexpr std::string_view kUncomputed =
    "the script reads integers or truth values that nobody computes: it finds zeros, and may have taken another way "
    "than it would";

// Elements of a formula that follow from picks, where stored bytes are asked for.
void look_for_picks(const void* pointer) {
  Assumption found = Assumption::kNone;
  if (known_bytes().formula(address(pointer), 1, found).formula && found == Assumption::kPick) Derivation::miss();
}

constexpr std::size_t kMostToHost = std::size_t{1} << 26;  // of a formula, which takes a second

}  // namespace

bool on_device(const void* pointer, std::size_t bytes) {
  return is_device_pointer(pointer) &&
         (bytes <= 1 || is_device_pointer(static_cast<const std::byte*>(pointer) + bytes - 1));
}

Derivation::Derivation()
    : outer_(std::exchange(assumed_input, Assumption::kNone)), outer_missed_(std::exchange(missed, false)) {}
Derivation::~Derivation() {
  if (missed) lose("integers or truth values too many to be stored");
  assumed_input = outer_;
  missed = outer_missed_;
}
bool Derivation::picked() { return assumed_input == Assumption::kPick; }
bool Derivation::scored() { return assumed_input == Assumption::kScore; }
void Derivation::follow(Assumption found) { assumed_input = std::max(assumed_input, found); }
void Derivation::pick() { assumed_input = Assumption::kPick; }
void Derivation::miss() { missed = true; }
bool Derivation::settle() { return std::exchange(missed, false); }

void lose(std::string_view what) {
  anything_lost = true;
  annotate_once("{\"uncovered\": " +
                json_quote(std::string(what) + ", which follows from the experts that tokens are "
                                               "taken to pick, read as zeros") +
                "}");
}

void note_way(std::string_view text) {
  if (printing == 0) note_once(text);
}

bool lost_any() { return anything_lost; }

void wrote(const void* pointer, std::size_t bytes, Content content) {
  known_bytes().wrote(address(pointer), bytes, content, assumed_input);
}

void forget(const void* pointer, std::size_t bytes) { known_bytes().forget(address(pointer), bytes); }

void forget_integers(const void* pointer, std::size_t bytes) {
  forget(pointer, bytes);
  if (bytes <= kSmallBytes) known_bytes().wrote(address(pointer), bytes, Content::kUncomputed, Assumption::kNone);
}

void forget_alike(const void* pointer, std::size_t bytes, bool value) {
  forget(pointer, bytes);
  known_bytes().wrote(address(pointer), bytes, value ? Content::kAllTrue : Content::kAllFalse, Assumption::kNone);
}

std::optional<bool> alike(const void* pointer, std::size_t bytes) {
  switch (known_bytes().throughout(address(pointer), bytes)) {
    case Content::kAllFalse: return false;
    case Content::kAllTrue: return true;
    default: return std::nullopt;
  }
}

void forget_as(const FormulaPart& part, const void* pointer, std::size_t bytes) {
  forget(pointer, bytes);
  known_bytes().follows(address(pointer), bytes, part, assumed_input);
}

FormulaPart formula_at(const void* pointer, std::size_t bytes) {
  FormulaPart part = known_bytes().formula(address(pointer), bytes, assumed_input);
  if (part.formula) Derivation::settle();
  return part;
}

void store_formula(const void* pointer, std::size_t bytes) {
  const auto [formula, first] = formula_at(pointer, bytes);
  if (!formula || bytes > kCountableBytes) return;
  auto* const data = static_cast<std::byte*>(const_cast<void*>(pointer));
  formula->store(first, {data, bytes});
  wrote(data, bytes, content_of(formula->type()));
}

void clobber(const void* pointer) { known_bytes().clobber(address(pointer)); }

bool known(const void* pointer, std::size_t bytes, Content content) {
  if (known_bytes().known(address(pointer), bytes, content, assumed_input)) return true;
  if (content != Content::kFloat) look_for_picks(pointer);
  return false;
}

bool unknown(const void* pointer, std::size_t bytes) {
  if (!known_bytes().unknown(address(pointer), bytes)) return false;
  look_for_picks(pointer);
  return true;
}

std::vector<Part> known_parts(const void* pointer, std::size_t bytes, Content content) {
  return known_bytes().parts(address(pointer), bytes, content, assumed_input);
}

std::span<const std::byte> known_around(const void* pointer) {
  const auto [begin, range] = known_bytes().range(address(pointer));
  if (begin == range.end) look_for_picks(pointer);
  Derivation::follow(range.assumed);
  return {reinterpret_cast<const std::byte*>(begin), range.end - begin};
}

namespace {

// all() and any() of one truth value are its copy (allany_impl, ATen/native/ReduceOps.cpp). What they are of one that
// nobody computed (reduction.cpp); nullopt: it is another copy, or where operators are not observed, such as were
// observed were not all alike.
std::optional<bool> asked_of_one() {
  constexpr unsigned kAll = 1, kAny = 2, kNeither = 4;
  static std::atomic<unsigned> seen{0};
  unsigned here = seen;
  if (observing()) {
    here = in_range("aten::all") ? kAll : in_range("aten::any") ? kAny : kNeither;
    seen |= here;
  }
  if (here == kAll) return true;
  if (here == kAny) return false;
  return std::nullopt;
}

void copy_uncomputed(void* destination, std::size_t bytes) {
  const auto value = bytes == 1 ? asked_of_one() : std::nullopt;
  if (!value) return forget_integers(destination, bytes);
  *static_cast<bool*>(destination) = *value;
  wrote(destination, bytes, Content::kInteger);
}

}  // namespace

void copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes > kCountableBytes || !known(source, bytes)) {
    if (const auto value = alike(source, bytes)) forget_alike(destination, bytes, *value);
    else if (const auto part = formula_at(source, bytes); part.formula) forget_as(part, destination, bytes);
    else if (known_bytes().uncomputed(address(source))) copy_uncomputed(destination, bytes);
    else forget(destination, bytes);
    return;
  }
  const Content content = known_bytes().content(address(source));
  std::memmove(destination, source, bytes);
  wrote(destination, bytes, content);
}

void copy_to_host(void* destination, const void* source, std::size_t bytes) {
  const bool real = bytes <= kCountableBytes && known(source, bytes);
  const auto [formula, first] = formula_at(source, bytes);
  if ((real || formula) && Derivation::picked()) note_way(kBalanced);
  if (real && Derivation::scored()) note_way(kScored);
  if (formula && bytes <= kMostToHost) return formula->store(first, {static_cast<std::byte*>(destination), bytes});
  if (!real && (formula || known_bytes().uncomputed(address(source)))) note_way(kUncomputed);
  if (alike(source, bytes) == true) std::memset(destination, 1, bytes);
  else if (real || bytes <= kSmallBytes) std::memcpy(destination, source, bytes);
  else zero(destination, bytes);
}

void launch(const KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3], void** args) {
  const Executor* executor = executor_of(kernel);
  if (executor == nullptr || args == nullptr) return;
  const Derivation computed;
  executor->run({grid, block, args});
}

std::function<void()> launch_later(const KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3],
                                   void** args) {
  const Executor* executor = executor_of(kernel);
  if (executor == nullptr || args == nullptr) return {};
  const std::string name = without_anonymous_namespaces(kernel.name);
  const auto launch = std::make_shared<KeptLaunch>(grid, block, args, parse_signature(name).parameters);
  return [executor, launch] {
    const Derivation computed;
    executor->run(launch->again());
  };
}

}  // namespace maya::values

// This thread begins to print a tensor, or ends (maya/launch/printed.py).
extern "C" void maya_print(int begins) { maya::values::printing += begins != 0 ? 1 : -1; }
