#include "core/device.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <climits>
#include <map>

#include "core/process.h"

namespace maya {
namespace {

constexpr int kSharedPerBlock = 48 * 1024;  // without opting in
constexpr int kReservedShared = 1024;       // by the system, per block, from compute capability 8.0

// Compute capability 10.x ... limits (CUDA C++ Programming Guide, Technical Specifications).
int blocks_limit(const RankConfig& config) {
  if (config.major == 7 && config.minor == 5) return 16;
  if (config.major == 8 && config.minor == 9) return 24;
  if (config.major == 8 && config.minor != 0) return 16;
  return 32;
}

// Attributes that no configured device changes, by their number in cudaDeviceAttr.
const std::map<int, int>& fixed_attributes() {
  // clang-format off
  static const std::map<int, int> values = {
      {1, 1024}, {2, 1024}, {3, 1024}, {4, 64},              // threads a block; block dimensions
      {5, INT_MAX}, {6, 65535}, {7, 65535},                  // grid dimensions
      {8, kSharedPerBlock}, {9, 65536}, {10, 32},            // shared, constant memory; warp
      {11, INT_MAX}, {12, 65536}, {14, 512}, {15, 1},        // pitch, registers, texture alignment, overlap
      {17, 0}, {18, 0}, {19, 1}, {20, 0},                    // timeout, integrated, maps host memory, mode
      {21, 131072}, {22, 131072}, {23, 65536}, {24, 16384}, {25, 16384}, {26, 16384},  // textures
      {27, 32768}, {28, 32768}, {29, 2048}, {30, 512}, {31, 1}, {32, 1},               // surfaces, concurrency, ECC
      {34, 0}, {35, 0}, {40, 3}, {41, 1}, {42, 32768}, {43, 2048}, {45, 32768}, {46, 32768},
      {47, 8192}, {48, 8192}, {49, 32768}, {50, 0}, {51, 32}, {52, 32768}, {53, 32768}, {54, 2046},
      {55, 32768}, {56, 131072}, {57, 65536}, {58, 16384}, {59, 16384}, {60, 16384}, {61, 32768}, {62, 2048},
      {63, 32768}, {64, 32768}, {65, 2048}, {66, 32768}, {67, 32768}, {68, 2046}, {69, 268435456},
      {70, 131072}, {71, 65000}, {72, 2097120}, {73, 32768}, {74, 32768}, {77, 32768},
      {78, 1}, {79, 1}, {80, 1}, {82, 65536}, {83, 1}, {84, 0}, {86, 0}, {87, 2}, {88, 0}, {89, 1}, {90, 1},
      {91, 1}, {92, 0}, {93, 0}, {94, 0}, {95, 1}, {96, 0}, {98, 0}, {99, 1}, {100, 0}, {101, 0},
      {102, 1},                                              // virtual memory management
      {103, 1}, {104, 0}, {105, 0},                          // handle types: POSIX file descriptor only
      {107, 0}, {108, 0}, {109, 0}, {110, 0}, {112, 0}, {113, 1}, {114, 0}, {115, 1},
      {116, 0}, {117, 0}, {118, 0}, {119, 1}, {121, 0}, {122, 0}, {123, 0}, {124, 0},
      {125, 1}, {126, 1}, {127, 0}, {128, 0}, {129, 0}, {130, 0}, {131, -1}, {132, 0}, {133, 0}, {134, -1},
      {135, 0}, {136, 0}, {137, 0}, {138, 0}, {139, 0}, {140, 0}, {141, 0}, {142, 0}, {143, 0}, {144, 0}, {145, 0},
      {147, 0},
  };
  // clang-format on
  return values;
}

}  // namespace

std::optional<int> device_attribute(int attribute, int device) {
  const RankConfig& config = rank_config();
  switch (attribute) {
    case 13: return config.clock_khz;
    case 16: return config.multiprocessors;
    case 33: return 0x10 + device;  // PCI bus
    case 36: return config.memory_clock_khz;
    case 37: return config.memory_bus_bits;
    case 38: return static_cast<int>(config.l2_bytes);
    case 39: return config.max_threads_per_multiprocessor;
    case 75: return config.major;
    case 76: return config.minor;
    case 81: return config.shared_memory_per_multiprocessor;
    case 97: return config.shared_memory_per_block_optin;
    case 106: return blocks_limit(config);
    case 111: return config.major >= 8 ? kReservedShared : 0;
    case 120: return config.major >= 9 ? 1 : 0;  // clusters
    default: break;
  }
  const auto found = fixed_attributes().find(attribute);
  if (found == fixed_attributes().end()) return std::nullopt;
  return found->second;
}

void device_uuid(int device, unsigned char (&uuid)[16]) {
  constexpr char kName[] = "maya-virtual-";
  std::copy_n(kName, 13, uuid);
  uuid[13] = 0;
  uuid[14] = static_cast<unsigned char>(device >> 8);
  uuid[15] = static_cast<unsigned char>(device);
}

int blocks_per_multiprocessor(const KernelInfo& kernel, int block_size, std::size_t dynamic_shared_bytes) {
  const RankConfig& config = rank_config();
  if (block_size <= 0 || block_size > kernel.max_threads_per_block) return 0;
  const int threads = (block_size + 31) / 32 * 32;
  const int reserved = config.major >= 8 ? kReservedShared : 0;
  const auto shared = static_cast<long>(dynamic_shared_bytes) + kernel.static_shared_bytes + reserved;
  const int by_threads = config.max_threads_per_multiprocessor / threads;
  const int by_registers = 65536 / (threads * ((kernel.registers + 7) / 8 * 8));
  const int by_shared = shared > 0 ? static_cast<int>(config.shared_memory_per_multiprocessor / shared) : INT_MAX;
  return std::min({by_threads, by_registers, by_shared, blocks_limit(config)});
}

int runtime_major() {
  static const int major = [] {
    for (const auto& [name, version] : {std::pair{"libcudart.so.13", 13}, std::pair{"libcudart.so.12", 12}})
      if (void* handle = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) {
        dlclose(handle);
        return version;
      }
    return 13;
  }();
  return major;
}

}  // namespace maya
