#include "core/kernel.h"

#include <cxxabi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "core/elementwise.h"
#include "core/hash.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "core/unrecorded.h"
#include "values/values.h"

namespace maya {
namespace {

struct Kernels {
  std::mutex mutex;  // guards: everything below
  std::deque<KernelInfo> all;
  std::unordered_map<const void*, KernelInfo*> by_address;  // host stubs and handles
  // Kernels by a hash of an address that they were launched by, so that most launches take no lock. Written with
  // the mutex held.
  std::array<std::atomic<KernelInfo*>, 1024> recent{};

  std::atomic<KernelInfo*>& recent_at(const void* address) {
    return recent[(reinterpret_cast<std::uintptr_t>(address) >> 4) % recent.size()];
  }
};

Kernels& kernels() {
  static Kernels* const instance = new Kernels;
  return *instance;
}

std::string demangle(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status),
                                                    std::free);
  return status == 0 ? name.get() : mangled;
}

// What makes two launches the same operation: no address, no rank.
struct LaunchKey {
  std::uint64_t name;
  std::uint64_t elements, bytes, shared_bytes;
  std::uint32_t grid[3], block[3];
  KernelWork work;
};
static_assert(sizeof(LaunchKey) == 96);

std::string triple(const std::uint32_t (&values)[3]) {
  return "[" + std::to_string(values[0]) + ", " + std::to_string(values[1]) + ", " + std::to_string(values[2]) + "]";
}

std::string list(const KernelWork& work) {
  const auto whole = [](double value) { return std::to_string(std::llround(value)); };
  return "[" + whole(work.instructions) + ", " + whole(work.doubles) + ", " + whole(work.specials) + ", " +
         whole(work.lines) + ", " + whole(work.products) + "]";
}

std::string describe(const KernelInfo& kernel, const LaunchKey& key) {
  std::string text = "\"kind\": \"kernel\", \"kernel\": " + json_quote(kernel.name) +
                     ", \"grid\": " + triple(key.grid) + ", \"block\": " + triple(key.block) +
                     ", \"shared_bytes\": " + std::to_string(key.shared_bytes);
  if (key.elements) text += ", \"elements\": " + std::to_string(key.elements);
  if (key.bytes) text += ", \"bytes\": " + std::to_string(key.bytes);
  if (key.work.instructions > 0) text += ", \"work\": " + list(key.work);
  return text;
}

KernelInfo* find_registered(Kernels& self, const void* function_or_handle) {
  // Most registered kernels are never launched, so names are demangled at the first look.
  std::unique_lock lock(self.mutex);
  const auto found = self.by_address.find(function_or_handle);
  if (found == self.by_address.end()) return nullptr;
  KernelInfo* kernel = found->second;
  if (kernel->name.empty()) {
    std::string name = demangle(kernel->mangled);
    kernel->elementwise = elementwise_shape(name);
    kernel->tensor_lists = tensor_list_type_of_kernel(name);
    kernel->parameters = parameter_shape(name);
    kernel->user_buffers = name.find(kUserBuffers) != std::string::npos;
    kernel->name = std::move(name);
  }
  self.recent_at(function_or_handle).store(kernel, std::memory_order_release);
  return kernel;
}

void count_elements(const KernelInfo& kernel, const std::uint32_t grid[3], void** args, LaunchKey& key) {
  const auto [argument, bytes_per_element] = kernel.elementwise;
  if (argument >= 0) {
    key.elements = static_cast<std::uint64_t>(*static_cast<const std::int32_t*>(args[argument]));
    if (bytes_per_element > 0) key.bytes = key.elements * static_cast<std::uint64_t>(bytes_per_element);
  } else if (kernel.tensor_lists.depth > 0) {
    key.elements = TensorLists(kernel.tensor_lists, args, grid[0]).elements();
  } else if (const auto elements = count_by_parameters(kernel.parameters, grid, args)) {
    key.elements = elements;
    key.bytes = static_cast<std::uint64_t>(static_cast<double>(elements) * kernel.parameters.bytes_per_element);
  }
}

}  // namespace

KernelInfo* register_kernel(std::string mangled, const void* host_function) {
  Kernels& self = kernels();
  std::unique_lock lock(self.mutex);
  KernelInfo& kernel = self.all.emplace_back();
  kernel.name_hash = hash_bytes(mangled);
  kernel.mangled = std::move(mangled);
  kernel.host_function = host_function ? host_function : &kernel;
  self.by_address[kernel.host_function] = &kernel;
  self.by_address[&kernel] = &kernel;
  self.recent_at(kernel.host_function).store(nullptr, std::memory_order_release);
  return &kernel;
}

bool alike(double a, double b) { return std::abs(a - b) <= 0.1 * std::max(a, b); }

bool alike(const KernelWork& a, const KernelWork& b) {
  return std::ranges::all_of(kMembersOfWork, [&](double KernelWork::* member) { return alike(a.*member, b.*member); });
}

KernelWork& KernelWork::operator+=(const KernelWork& other) {
  instructions += other.instructions, doubles += other.doubles, specials += other.specials, lines += other.lines;
  products += other.products;
  return *this;
}

KernelWork KernelWork::operator*(double times) const {
  return {instructions * times, doubles * times, specials * times, lines * times, products * times};
}

KernelInfo* find_kernel(const void* function_or_handle) {
  Kernels& self = kernels();
  KernelInfo* recent = self.recent_at(function_or_handle).load(std::memory_order_acquire);
  if (recent && (recent->host_function == function_or_handle || recent == function_or_handle)) return recent;
  return find_registered(self, function_or_handle);
}

void record_launch(KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3], void** args,
                   std::size_t shared_bytes, void* stream, std::uint64_t bytes, const KernelWork& work) {
  if (!recording()) return tell_unrecorded();
  LaunchKey key{};
  key.name = kernel.name_hash;
  key.shared_bytes = shared_bytes;
  key.bytes = bytes;
  key.work = work;
  std::copy_n(grid, 3, key.grid);
  std::copy_n(block, 3, key.block);
  if (args) count_elements(kernel, grid, args, key);
  record(RecordKind::kKernel, stream, intern_operation(key, [&] { return describe(kernel, key); }));
  if (!capturing(stream)) values::launch(kernel, grid, block, args);
  else if (auto later = values::launch_later(kernel, grid, block, args)) at_each_launch(stream, std::move(later));
}

}  // namespace maya
