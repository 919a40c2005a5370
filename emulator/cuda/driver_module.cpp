// The driver API's modules, libraries, functions, launches and occupancy. A CUfunction and a CUkernel are
// KernelInfos, as in the runtime. Prototypes: cuda.h of CUDA 12 and 13.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/device.h"
#include "core/handle_pool.h"
#include "core/kernel.h"
#include "core/memory.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/driver.h"
#include "cuda/image.h"
#include "cuda/ptx.h"
#include "values/values.h"

namespace maya::cuda {
namespace {

// CUmodule and CUlibrary alike.
struct Module {
  ModuleImage image;
  std::mutex mutex;  // guards: functions
  std::unordered_map<std::string, KernelInfo*> functions;
};

HandlePool<Module, 1 << 16>& modules() { return handle_pool<Module, 1 << 16>(); }

// What a loaded function has beyond its KernelInfo. Never freed, like the KernelInfo.
struct Function {
  Module* module = nullptr;
  KernelImage image;
  std::optional<PtxKernel> ptx;
  bool multiplies = false;  // matrices: on tensor cores, or as a template of PyTorch's compiler
  std::once_flag told;      // that it does
  std::mutex mutex;         // guards what follows
  struct Outcomes {
    std::vector<PtxKernel::Moved> moved;
    std::vector<PtxKernel::Results> results;
  };
  std::unordered_map<std::string, Outcomes> outcomes;  // by grid, block and scalar arguments
  int runs = 0, in_vain = 0;                           // to find out what is moved
};

struct Functions {
  std::mutex mutex;  // guards: loaded
  std::unordered_map<const KernelInfo*, std::unique_ptr<Function>> loaded;
};

Functions& functions() {
  static auto* const instance = new Functions;
  return *instance;
}

// nullptr: registered through the runtime, which has no image to read.
Function* find_function(const KernelInfo* kernel) {
  Functions& all = functions();
  const std::lock_guard lock(all.mutex);
  const auto at = all.loaded.find(kernel);
  return at == all.loaded.end() ? nullptr : at->second.get();
}

Result load(Module** out, std::span<const std::byte> image) {
  Module* module = modules().create();
  module->image = parse_image(image);
  *out = module;
  return Result::kSuccess;
}

Result load_data(Module** out, const void* data) {
  if (out == nullptr || data == nullptr) return Result::kInvalidValue;
  const Call call;
  const std::size_t bytes = is_known_image(data) ? image_bytes(data) : 0;
  if (bytes == 0) return Result::kInvalidImage;
  return load(out, {static_cast<const std::byte*>(data), bytes});
}

Result load_file(Module** out, const char* path) {
  if (out == nullptr || path == nullptr) return Result::kInvalidValue;
  const Call call;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Result::kFileNotFound;
  std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.size() < sizeof(std::uint32_t) || !is_known_image(bytes.c_str())) return Result::kInvalidImage;
  return load(out, std::as_bytes(std::span(bytes)));
}

// Of products in fp32 without tensor cores the name alone tells.
bool multiplies(std::string_view ptx, std::string_view name) {
  if (name.starts_with("triton_tem_")) return true;
  constexpr std::array<std::string_view, 4> kInstructions{"wgmma.mma_async", "mma.sync", "mma.sp", "tcgen05.mma"};
  return std::ranges::any_of(kInstructions,
                             [&](std::string_view it) { return ptx.find(it) != std::string_view::npos; });
}

// Of matrix products that cannot be counted: at best, the kernel comes out as if it but moved its bytes.
void tell_products(Function& function) {
  std::call_once(function.told, [&] {
    const std::string what = "matrix products in Triton's kernel " + function.image.name;
    annotate("{\"uncovered\": " + json_quote(what + ": its PTX alone does not tell how many") + "}");
  });
}

KernelInfo* add_function(Module& module, const KernelImage& image) {
  KernelInfo* kernel = register_kernel(image.name, nullptr);
  kernel->registers = image.registers > 0 ? image.registers : kernel->registers;
  kernel->static_shared_bytes = image.static_shared_bytes;
  kernel->max_threads_per_block = image.max_threads;
  Functions& all = functions();
  const std::lock_guard lock(all.mutex);
  auto& function = all.loaded[kernel] = std::make_unique<Function>();
  function->module = &module;
  function->image = image;
  function->ptx = PtxKernel::parse(module.image.ptx, image.name);
  function->multiplies = multiplies(module.image.ptx, image.name);
  return kernel;
}

Result get_function(KernelInfo** out, const void* handle, const char* name) {
  if (out == nullptr || name == nullptr) return Result::kInvalidValue;
  const Call call;
  Module* module = modules().find(handle);
  if (module == nullptr) return Result::kInvalidHandle;
  const std::lock_guard lock(module->mutex);
  if (const auto known = module->functions.find(name); known != module->functions.end()) {
    *out = known->second;
    return Result::kSuccess;
  }
  const auto image = std::ranges::find(module->image.kernels, name, &KernelImage::name);
  if (image == module->image.kernels.end() && module->image.complete) return Result::kNotFound;
  KernelImage unknown;
  unknown.name = name;
  *out = add_function(*module, image == module->image.kernels.end() ? unknown : *image);
  module->functions[name] = *out;
  return Result::kSuccess;
}

// Unloading keeps the KernelInfos: the trace and a late launch may still refer to them.
Result unload(const void* handle) { return modules().destroy(handle) ? Result::kSuccess : Result::kInvalidHandle; }

// CUfunction_attribute.
enum Attribute : int {
  kMaxThreads = 0,
  kSharedBytes = 1,
  kConstantBytes = 2,
  kLocalBytes = 3,
  kRegisters = 4,
  kPtxVersion = 5,
  kBinaryVersion = 6,
  kMaxDynamicSharedBytes = 8,
  kAttributeCount = 16,
};

Result get_attribute(int* value, int attribute, const void* handle) {
  const KernelInfo* kernel = find_kernel(handle);
  if (kernel == nullptr) return Result::kInvalidHandle;
  if (value == nullptr || attribute < 0 || attribute >= kAttributeCount) return Result::kInvalidValue;
  const Function* function = find_function(kernel);
  switch (attribute) {
    case kMaxThreads: *value = kernel->max_threads_per_block; break;
    case kSharedBytes: *value = kernel->static_shared_bytes; break;
    case kConstantBytes: *value = function == nullptr ? 0 : function->image.constant_bytes; break;
    case kLocalBytes: *value = function == nullptr ? 0 : function->image.local_bytes; break;
    case kRegisters: *value = kernel->registers; break;
    case kPtxVersion:
    case kBinaryVersion: *value = rank_config().major * 10 + rank_config().minor; break;
    case kMaxDynamicSharedBytes: *value = kernel->max_dynamic_shared_bytes; break;
    default: *value = 0; break;  // cluster dimensions and carve-out: nothing required
  }
  return Result::kSuccess;
}

Result set_attribute(const void* handle, int attribute, int value) {
  KernelInfo* kernel = find_kernel(handle);
  if (kernel == nullptr) return Result::kInvalidHandle;
  if (attribute < 0 || attribute >= kAttributeCount) return Result::kInvalidValue;
  if (attribute == kMaxDynamicSharedBytes) {
    const int most = rank_config().shared_memory_per_block_optin - kernel->static_shared_bytes;
    if (value < 0 || value > most) return Result::kInvalidValue;
    kernel->max_dynamic_shared_bytes = value;
  }
  return Result::kSuccess;
}

struct Dimensions {
  std::uint32_t x, y, z;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

// Limits of every device since compute capability 3.0 (CUDA programming guide, technical specifications).
Result check_launch(const KernelInfo& kernel, const Dimensions& grid, const Dimensions& block,
                    std::size_t shared_bytes) {
  if (grid.count() == 0 || block.count() == 0) return Result::kInvalidValue;
  if (grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535) return Result::kInvalidValue;
  if (block.count() > 1024 || block.z > 64) return Result::kInvalidValue;
  if (static_cast<int>(block.count()) > kernel.max_threads_per_block) return Result::kLaunchOutOfResources;
  const auto most = static_cast<std::size_t>(std::max(kernel.max_dynamic_shared_bytes, 0));
  return shared_bytes > most ? Result::kInvalidValue : Result::kSuccess;
}

// The packed form of a launch's arguments: {1, buffer, 2, &size, 0} (CU_LAUNCH_PARAM_*).
std::vector<void*> unpack_arguments(const Function* function, void** extra) {
  std::vector<void*> arguments;
  if (function == nullptr || extra == nullptr) return arguments;
  std::byte* buffer = nullptr;
  for (; *extra != nullptr; extra += 2) {
    if (extra[0] == reinterpret_cast<void*>(1)) buffer = static_cast<std::byte*>(extra[1]);
  }
  if (buffer == nullptr) return arguments;
  for (const KernelParameter& parameter : function->image.parameters) {
    arguments.push_back(buffer + parameter.offset);
  }
  return arguments;
}

// All that an outcome depends on besides the contents of memory.
std::string shape_of(const PtxKernel& kernel, const PtxLaunch& launch) {
  std::string key(reinterpret_cast<const char*>(launch.grid), sizeof launch.grid + sizeof launch.block);
  for (const std::uint64_t scalar : kernel.scalars(launch.arguments)) {
    key.append(reinterpret_cast<const char*>(&scalar), sizeof scalar);
  }
  return key;
}

template <class Outcome>
const Outcome* find_outcome(const std::vector<Outcome>& outcomes, const PtxLaunch& launch) {
  const auto at = std::ranges::find_if(
      outcomes, [&](const Outcome& outcome) { return outcome.follows_from.hold(launch.arguments); });
  return at == outcomes.end() ? nullptr : &*at;
}

// What launches of this one's shape came to so far; nullptr: there is no PTX to run.
Function::Outcomes* outcomes_of(Function* function, const PtxLaunch& launch) {
  if (function == nullptr || !function->ptx || launch.arguments == nullptr || !recording()) return nullptr;
  const std::string shape = shape_of(*function->ptx, launch);
  const std::lock_guard lock(function->mutex);
  return &function->outcomes[shape];
}

// What follows from data differs from launch to launch; by so little, it is the same operation.
bool alike(const PtxKernel::Moved& a, const PtxKernel::Moved& b) {
  return maya::alike(static_cast<double>(a.bytes), static_cast<double>(b.bytes)) && maya::alike(a.work, b.work);
}

// What the launch moves through global memory, found once per shape and contents.
std::optional<PtxKernel::Moved> moved_by(Function& function, Function::Outcomes& outcomes, const PtxLaunch& launch) {
  const std::lock_guard lock(function.mutex);
  if (const auto* known = find_outcome(outcomes.moved, launch)) return *known;
  // A kernel whose integers change with every launch is not worth running again for each.
  constexpr int kMostRuns = 256, kMostInVain = 16, kMostOfAShape = 32;
  const auto like_the_first = [&](const PtxKernel::Moved& other) { return alike(other, outcomes.moved.front()); };
  if (outcomes.moved.size() >= kMostOfAShape && std::ranges::all_of(outcomes.moved, like_the_first)) {
    PtxKernel::Moved moved = outcomes.moved.front();
    moved.written = function.ptx->may_write(launch.arguments);
    return moved;
  }
  if (function.runs >= kMostRuns || function.in_vain >= kMostInVain) return std::nullopt;
  ++function.runs;
  auto moved = function.ptx->moved(launch);
  if (!moved) {
    ++function.in_vain;
    return std::nullopt;
  }
  const auto same = std::ranges::find_if(outcomes.moved, [&](const auto& other) { return alike(other, *moved); });
  if (same != outcomes.moved.end()) {
    moved->bytes = same->bytes;
    moved->work = same->work;
  }
  outcomes.moved.push_back(*moved);
  return moved;
}

// What a module's kernel writes reads zero where nobody computes it.
void forget_results(const std::vector<PtxKernel::Written>& all_written, void** arguments, void* stream) {
  std::vector<std::pair<std::byte*, std::size_t>> results;  // 0 bytes: nobody knows how many
  for (const PtxKernel::Written& written : all_written) {
    auto* const to = reinterpret_cast<std::byte*>(address_argument(arguments, written.argument));
    if (is_device_pointer(to)) results.emplace_back(written.bytes == 0 ? to : to + written.first, written.bytes);
  }
  const auto forget = [results = std::move(results)] {
    for (const auto& [to, bytes] : results) {
      if (bytes == 0) values::clobber(to);
      else values::forget(to, bytes);
    }
  };
  if (capturing(stream)) at_each_launch(stream, forget);
  else forget();
}

// Integers and truth values that follow from known ones, found once per shape and contents.
std::optional<PtxKernel::Results> results_of(Function& function, Function::Outcomes& outcomes,
                                             const PtxLaunch& launch) {
  constexpr std::uint64_t kMostSteps = 30'000'000'000, kMostStepsOfAll = 150'000'000'000;
  constexpr std::size_t kMostKept = 8;
  static std::atomic<std::uint64_t> all_steps{0};
  const std::lock_guard lock(function.mutex);
  std::vector<PtxKernel::Results>& kept = outcomes.results;
  if (const auto* known = find_outcome(kept, launch)) return *known;
  if (all_steps > kMostStepsOfAll) return std::nullopt;
  std::uint64_t steps_left = kMostSteps;
  auto results = function.ptx->results(launch, steps_left);
  all_steps += kMostSteps - steps_left;
  if (results && kept.size() < kMostKept) kept.push_back(*results);
  return results;
}

void write_results(const PtxKernel::Results& results, void** arguments) {
  for (const auto& [argument, first, bytes, known] : results.stored) {
    auto* const to = reinterpret_cast<std::byte*>(address_argument(arguments, argument)) + first;
    if (!is_device_pointer(to) || !is_device_pointer(to + bytes.size() - 1)) continue;
    if (known) {
      std::ranges::copy(bytes, to);
      values::wrote(to, bytes.size());
    } else {
      values::forget(to, bytes.size());
    }
  }
}

Result launch(const void* handle, Dimensions grid, Dimensions block, std::size_t shared_bytes, void* stream,
              void** arguments, void** extra) {
  const Call call;
  KernelInfo* kernel = find_kernel(handle);
  if (kernel == nullptr || find_stream(stream) == nullptr) return Result::kInvalidHandle;
  const Result status = check_launch(*kernel, grid, block, shared_bytes);
  if (status != Result::kSuccess) return status;
  Function* function = find_function(kernel);
  std::vector<void*> unpacked;
  if (arguments == nullptr && extra != nullptr) {
    unpacked = unpack_arguments(function, extra);
    if (!unpacked.empty()) arguments = unpacked.data();
  }
  const PtxLaunch shape{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, arguments};
  Function::Outcomes* const outcomes = outcomes_of(function, shape);
  const auto moved = outcomes == nullptr ? std::nullopt : moved_by(*function, *outcomes, shape);
  if (function != nullptr && function->multiplies && !moved && recording()) tell_products(*function);
  const PtxKernel::Moved known = moved.value_or(PtxKernel::Moved{});
  record_launch(*kernel, shape.grid, shape.block, arguments, shared_bytes, stream, known.bytes, known.work);
  if (outcomes == nullptr) return Result::kSuccess;
  const values::Derivation computed;
  const auto results = capturing(stream) ? std::nullopt : results_of(*function, *outcomes, shape);
  if (results) write_results(*results, arguments);
  else forget_results(moved ? moved->written : function->ptx->may_write(arguments), arguments, stream);
  return Result::kSuccess;
}

// CUlaunchConfig, alike in CUDA 12 and 13.
struct LaunchConfig {
  std::uint32_t grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes;
  void* stream;
  void* attributes;
  std::uint32_t attribute_count;
};
static_assert(sizeof(LaunchConfig) == 56);

}  // namespace
}  // namespace maya::cuda

using maya::KernelInfo;
using maya::cuda::LaunchConfig;
using maya::cuda::Module;
using maya::cuda::Result;
namespace cuda = maya::cuda;

extern "C" {

// ---- modules and libraries ----

Result cuModuleLoad(Module** module, const char* path) { return cuda::load_file(module, path); }

Result cuModuleLoadData(Module** module, const void* image) { return cuda::load_data(module, image); }

Result cuModuleLoadDataEx(Module** module, const void* image, unsigned, void*, void*) {
  return cuda::load_data(module, image);
}

Result cuModuleLoadFatBinary(Module** module, const void* image) { return cuda::load_data(module, image); }

Result cuModuleUnload(Module* module) { return cuda::unload(module); }

Result cuModuleGetLoadingMode(int* mode) {
  if (mode == nullptr) return Result::kInvalidValue;
  *mode = 2;  // CU_MODULE_LAZY_LOADING
  return Result::kSuccess;
}

Result cuModuleGetFunction(KernelInfo** function, Module* module, const char* name) {
  return cuda::get_function(function, module, name);
}

Result cuModuleGetFunctionCount(unsigned* count, Module* module) {
  const Module* found = cuda::modules().find(module);
  if (count == nullptr) return Result::kInvalidValue;
  if (found == nullptr) return Result::kInvalidHandle;
  *count = static_cast<unsigned>(found->image.kernels.size());
  return Result::kSuccess;
}

Result cuLibraryLoadData(Module** library, const void* code, void*, void*, unsigned, void*, void*, unsigned) {
  return cuda::load_data(library, code);
}

Result cuLibraryLoadFromFile(Module** library, const char* path, void*, void*, unsigned, void*, void*, unsigned) {
  return cuda::load_file(library, path);
}

Result cuLibraryUnload(Module* library) { return cuda::unload(library); }

Result cuLibraryGetKernel(KernelInfo** kernel, Module* library, const char* name) {
  return cuda::get_function(kernel, library, name);
}

Result cuLibraryGetModule(Module** module, Module* library) {
  if (module == nullptr) return Result::kInvalidValue;
  if (cuda::modules().find(library) == nullptr) return Result::kInvalidHandle;
  *module = library;
  return Result::kSuccess;
}

Result cuLibraryGetKernelCount(unsigned* count, Module* library) { return cuModuleGetFunctionCount(count, library); }

// ---- functions and kernels ----

Result cuKernelGetFunction(KernelInfo** function, KernelInfo* kernel) {
  if (function == nullptr) return Result::kInvalidValue;
  *function = maya::find_kernel(kernel);
  return *function == nullptr ? Result::kInvalidHandle : Result::kSuccess;
}

Result cuFuncGetAttribute(int* value, int attribute, KernelInfo* function) {
  return cuda::get_attribute(value, attribute, function);
}

Result cuKernelGetAttribute(int* value, int attribute, KernelInfo* kernel, int) {
  return cuda::get_attribute(value, attribute, kernel);
}

Result cuFuncSetAttribute(KernelInfo* function, int attribute, int value) {
  return cuda::set_attribute(function, attribute, value);
}

Result cuKernelSetAttribute(int attribute, int value, KernelInfo* kernel, int) {
  return cuda::set_attribute(kernel, attribute, value);
}

Result cuFuncGetName(const char** name, KernelInfo* function) {
  const KernelInfo* kernel = maya::find_kernel(function);
  if (name == nullptr) return Result::kInvalidValue;
  if (kernel == nullptr) return Result::kInvalidHandle;
  *name = kernel->mangled.c_str();
  return Result::kSuccess;
}

Result cuKernelGetName(const char** name, KernelInfo* kernel) { return cuFuncGetName(name, kernel); }

Result cuFuncGetModule(Module** module, KernelInfo* function) {
  const cuda::Function* found = cuda::find_function(function);
  if (module == nullptr) return Result::kInvalidValue;
  if (found == nullptr) return Result::kInvalidHandle;
  *module = found->module;
  return Result::kSuccess;
}

Result cuFuncGetParamInfo(KernelInfo* function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  const cuda::Function* found = cuda::find_function(function);
  if (found == nullptr) return Result::kInvalidHandle;
  if (offset == nullptr || index >= found->image.parameters.size()) return Result::kInvalidValue;
  *offset = found->image.parameters[index].offset;
  if (bytes != nullptr) *bytes = found->image.parameters[index].bytes;
  return Result::kSuccess;
}

Result cuKernelGetParamInfo(KernelInfo* kernel, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  return cuFuncGetParamInfo(kernel, index, offset, bytes);
}

// ---- launches ----

Result cuLaunchKernel(KernelInfo* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                      unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** arguments,
                      void** extra) {
  return cuda::launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, arguments,
                      extra);
}

Result cuLaunchCooperativeKernel(KernelInfo* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                                 void* stream, void** arguments) {
  return cuda::launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, stream, arguments,
                      nullptr);
}

Result cuLaunchKernelEx(const LaunchConfig* config, KernelInfo* function, void** arguments, void** extra) {
  if (config == nullptr) return Result::kInvalidValue;
  return cuda::launch(function, {config->grid_x, config->grid_y, config->grid_z},
                      {config->block_x, config->block_y, config->block_z}, config->shared_bytes, config->stream,
                      arguments, extra);
}

// ---- occupancy ----

Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, KernelInfo* function, int threads,
                                                   std::size_t shared_bytes) {
  const KernelInfo* kernel = maya::find_kernel(function);
  if (blocks == nullptr || threads <= 0) return Result::kInvalidValue;
  if (kernel == nullptr) return Result::kInvalidHandle;
  *blocks = maya::blocks_per_multiprocessor(*kernel, threads, shared_bytes);
  return Result::kSuccess;
}

Result cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, KernelInfo* function, int threads,
                                                            std::size_t shared_bytes, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, shared_bytes);
}

Result cuOccupancyMaxPotentialBlockSize(int* min_grid, int* block, KernelInfo* function, std::size_t (*shared_of)(int),
                                        std::size_t shared_bytes, int limit) {
  const KernelInfo* kernel = maya::find_kernel(function);
  if (min_grid == nullptr || block == nullptr) return Result::kInvalidValue;
  if (kernel == nullptr) return Result::kInvalidHandle;
  const int most = std::min(limit > 0 ? limit : 1024, kernel->max_threads_per_block);
  int best = 0;
  for (int threads = most / 32 * 32; threads > 0; threads -= 32) {
    const std::size_t shared = shared_of == nullptr ? shared_bytes : shared_of(threads);
    const int blocks = maya::blocks_per_multiprocessor(*kernel, threads, shared);
    if (blocks * threads <= best) continue;
    best = blocks * threads;
    *block = threads;
    *min_grid = blocks * maya::rank_config().multiprocessors;
  }
  return best > 0 ? Result::kSuccess : Result::kInvalidValue;
}

// A cluster's blocks run on multiprocessors of one GPC; nothing here limits them beyond occupancy.
Result cuOccupancyMaxActiveClusters(int* clusters, KernelInfo* function, const LaunchConfig* config) {
  if (clusters == nullptr || config == nullptr) return Result::kInvalidValue;
  int blocks = 0;
  const int threads = static_cast<int>(config->block_x * config->block_y * config->block_z);
  const Result status = cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, function, threads, config->shared_bytes);
  *clusters = blocks * maya::rank_config().multiprocessors;
  return status;
}

Result cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, KernelInfo* function, int blocks, int) {
  const KernelInfo* kernel = maya::find_kernel(function);
  if (bytes == nullptr || blocks <= 0) return Result::kInvalidValue;
  if (kernel == nullptr) return Result::kInvalidHandle;
  const int share = maya::rank_config().shared_memory_per_multiprocessor / blocks - 1024;
  *bytes = static_cast<std::size_t>(std::max(share - kernel->static_shared_bytes, 0));
  return Result::kSuccess;
}

}  // extern "C"
