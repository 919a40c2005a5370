// NVML, as far as PyTorch, pynvml and Megatron ask it: which devices there are and what they are. What a
// virtual device does not have is answered NVML_ERROR_NOT_SUPPORTED where boards are without it, too (links, fans);
// sensors that every board has (power, temperature) read zero. Prototypes: nvml.h, API version 12.
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

#include "core/device.h"
#include "core/memory.h"
#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "cuda/driver.h"

extern "C" int cudaDeviceGetPCIBusId(char* id, int bytes, int device);

namespace maya::nvml {
namespace {

// nvmlReturn_t.
enum class Return : std::int32_t {
  kSuccess = 0,
  kUninitialized = 1,
  kInvalidArgument = 2,
  kNotSupported = 3,
  kNotFound = 6,
  kInsufficientSize = 7,
  kArgumentVersionMismatch = 25,
};

struct Device {
  int index;
};

constexpr int kMaxDevices = 64;

const std::array<Device, kMaxDevices>& devices() {
  static constexpr auto kDevices = [] {
    std::array<Device, kMaxDevices> all{};
    for (int i = 0; i < kMaxDevices; ++i) all[static_cast<std::size_t>(i)].index = i;
    return all;
  }();
  return kDevices;
}

std::atomic<int>& initializations() {
  static std::atomic<int> count{0};
  return count;
}

bool valid(const Device* device) {
  const auto& all = devices();
  return device >= all.data() && device < all.data() + device_count() && device->index < kMaxDevices;
}

// Runs `act` once the library is initialised and `device` is one of its own.
template <class Act>
Return with_device(const Device* device, Act&& act) {
  if (initializations() <= 0) return Return::kUninitialized;
  return valid(device) ? act(device->index) : Return::kInvalidArgument;
}

template <class T>
Return write(T* out, T value) {
  if (initializations() <= 0) return Return::kUninitialized;
  if (out == nullptr) return Return::kInvalidArgument;
  *out = value;
  return Return::kSuccess;
}

Return write_text(char* out, unsigned bytes, std::string_view text) {
  if (initializations() <= 0) return Return::kUninitialized;
  if (out == nullptr) return Return::kInvalidArgument;
  if (text.size() + 1 > bytes) return Return::kInsufficientSize;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return Return::kSuccess;
}

// What a script logs beside its loss: it would fail of a sensor that every real board has.
template <class T>
Return sense(const Device* device, T* reading) {
  return with_device(device, [&](int) {
    note_once("the script reads the power or the temperature of its devices: virtual ones have none, it finds zeros");
    return write(reading, T{0});
  });
}

// nvmlPciInfo_t; nvmlPciInfo_v2_t ends before bus_id.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};
static_assert(sizeof(PciInfo) == 68);

PciInfo pci_info(int index) {
  PciInfo info{};
  char text[32] = {};
  cudaDeviceGetPCIBusId(text, sizeof text, index);
  std::sscanf(text, "%x:%x:%x", &info.domain, &info.bus, &info.device);
  std::snprintf(info.legacy_bus_id, sizeof info.legacy_bus_id, "%04X:%02X:%02X.0", info.domain & 0xffff,
                info.bus & 0xff, info.device & 0xff);
  std::snprintf(info.bus_id, sizeof info.bus_id, "%08X:%02X:%02X.0", info.domain, info.bus & 0xff, info.device & 0xff);
  return info;
}

std::string uuid_text(int index) {
  unsigned char bytes[16];
  device_uuid(index, bytes);
  std::string text = "GPU-";
  for (std::size_t i = 0; i < sizeof bytes; ++i) {
    char digits[4];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i]);
    text += digits;
    if (i == 3 || i == 5 || i == 7 || i == 9) text += '-';
  }
  return text;
}

struct Memory {
  unsigned long long total, free, used;
};

struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

Memory memory(int index) {
  const MemoryInfo info = memory_info(index);
  return {info.total_bytes, info.free_bytes, info.total_bytes - info.free_bytes};
}

struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

struct ProcessInfoV1 {
  unsigned pid;
  unsigned long long used_bytes;
};

// This process, on the device it works on. `*count` comes in as the room in `infos`.
template <class Info>
Return running_processes(const Device* device, unsigned* count, Info* infos) {
  return with_device(device, [&](int index) {
    if (count == nullptr) return Return::kInvalidArgument;
    const unsigned room = *count;
    *count = cuda::device_in_use(index) ? 1 : 0;
    if (*count == 0) return Return::kSuccess;
    if (room == 0 || infos == nullptr) return Return::kInsufficientSize;
    infos[0] = Info{};
    infos[0].pid = static_cast<unsigned>(getpid());
    infos[0].used_bytes = memory(index).used;
    return Return::kSuccess;
  });
}

constexpr std::string_view kDriverVersion = "580.65.06";

}  // namespace
}  // namespace maya::nvml

using maya::nvml::Device;
using maya::nvml::Memory;
using maya::nvml::MemoryV2;
using maya::nvml::PciInfo;
using maya::nvml::ProcessInfo;
using maya::nvml::ProcessInfoV1;
using maya::nvml::Return;
namespace nvml = maya::nvml;

extern "C" {

// ---- library ----

Return nvmlInit_v2() {
  ++nvml::initializations();
  return Return::kSuccess;
}

Return nvmlInit() { return nvmlInit_v2(); }

Return nvmlInitWithFlags(unsigned) { return nvmlInit_v2(); }

Return nvmlShutdown() {
  if (nvml::initializations() <= 0) return Return::kUninitialized;
  --nvml::initializations();
  return Return::kSuccess;
}

const char* nvmlErrorString(Return code) {
  switch (code) {
    case Return::kSuccess: return "Success";
    case Return::kUninitialized: return "Uninitialized";
    case Return::kInvalidArgument: return "Invalid Argument";
    case Return::kNotSupported: return "Not Supported";
    case Return::kNotFound: return "Not Found";
    case Return::kInsufficientSize: return "Insufficient Size";
    case Return::kArgumentVersionMismatch: return "Argument version mismatch";
  }
  return "Unknown Error";
}

Return nvmlSystemGetDriverVersion(char* version, unsigned bytes) {
  return nvml::write_text(version, bytes, nvml::kDriverVersion);
}

Return nvmlSystemGetNVMLVersion(char* version, unsigned bytes) {
  return nvml::write_text(version, bytes, "13." + std::string(nvml::kDriverVersion));
}

Return nvmlSystemGetCudaDriverVersion(int* version) { return nvml::write(version, maya::rank_config().driver_version); }

Return nvmlSystemGetCudaDriverVersion_v2(int* version) { return nvmlSystemGetCudaDriverVersion(version); }

// ---- handles ----

Return nvmlDeviceGetCount_v2(unsigned* count) {
  return nvml::write(count, static_cast<unsigned>(maya::device_count()));
}

Return nvmlDeviceGetCount(unsigned* count) { return nvmlDeviceGetCount_v2(count); }

Return nvmlDeviceGetHandleByIndex_v2(unsigned index, const Device** device) {
  if (index >= static_cast<unsigned>(maya::device_count())) return Return::kInvalidArgument;
  return nvml::write(device, &nvml::devices()[index]);
}

Return nvmlDeviceGetHandleByIndex(unsigned index, const Device** device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

Return nvmlDeviceGetHandleByUUID(const char* uuid, const Device** device) {
  if (uuid == nullptr) return Return::kInvalidArgument;
  for (int index = 0; index < maya::device_count(); ++index) {
    if (nvml::uuid_text(index) == uuid) return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned>(index), device);
  }
  return Return::kNotFound;
}

Return nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, const Device** device) {
  PciInfo wanted{};
  if (bus_id == nullptr || std::sscanf(bus_id, "%x:%x:%x", &wanted.domain, &wanted.bus, &wanted.device) != 3) {
    return Return::kInvalidArgument;
  }
  for (int index = 0; index < maya::device_count(); ++index) {
    const PciInfo info = nvml::pci_info(index);
    const bool same = info.domain == wanted.domain && info.bus == wanted.bus && info.device == wanted.device;
    if (same) return nvmlDeviceGetHandleByIndex_v2(static_cast<unsigned>(index), device);
  }
  return Return::kNotFound;
}

Return nvmlDeviceGetHandleByPciBusId(const char* bus_id, const Device** device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

// ---- what a device is ----

Return nvmlDeviceGetIndex(const Device* device, unsigned* index) {
  return nvml::with_device(device, [&](int i) { return nvml::write(index, static_cast<unsigned>(i)); });
}

Return nvmlDeviceGetMinorNumber(const Device* device, unsigned* minor) { return nvmlDeviceGetIndex(device, minor); }

Return nvmlDeviceGetName(const Device* device, char* name, unsigned bytes) {
  return nvml::with_device(device, [&](int) { return nvml::write_text(name, bytes, maya::rank_config().device_name); });
}

Return nvmlDeviceGetUUID(const Device* device, char* uuid, unsigned bytes) {
  return nvml::with_device(device, [&](int i) { return nvml::write_text(uuid, bytes, nvml::uuid_text(i)); });
}

Return nvmlDeviceGetPciInfo_v3(const Device* device, PciInfo* info) {
  return nvml::with_device(device, [&](int i) { return nvml::write(info, nvml::pci_info(i)); });
}

Return nvmlDeviceGetCudaComputeCapability(const Device* device, int* major, int* minor) {
  return nvml::with_device(device, [&](int) {
    const Return status = nvml::write(major, maya::rank_config().major);
    return status == Return::kSuccess ? nvml::write(minor, maya::rank_config().minor) : status;
  });
}

Return nvmlDeviceGetMemoryBusWidth(const Device* device, unsigned* bits) {
  return nvml::with_device(
      device, [&](int) { return nvml::write(bits, static_cast<unsigned>(maya::rank_config().memory_bus_bits)); });
}

Return nvmlDeviceGetMaxClockInfo(const Device* device, int type, unsigned* mhz) {
  constexpr int kGraphics = 0, kStreaming = 1, kMemory = 2;
  return nvml::with_device(device, [&](int) {
    const maya::RankConfig& config = maya::rank_config();
    if (type == kMemory) return nvml::write(mhz, static_cast<unsigned>(config.memory_clock_khz / 1000));
    if (type != kGraphics && type != kStreaming) return Return::kInvalidArgument;
    return nvml::write(mhz, static_cast<unsigned>(config.clock_khz / 1000));
  });
}

Return nvmlDeviceGetClockInfo(const Device* device, int type, unsigned* mhz) {
  return nvmlDeviceGetMaxClockInfo(device, type, mhz);
}

Return nvmlDeviceGetComputeMode(const Device* device, int* mode) {
  return nvml::with_device(device, [&](int) { return nvml::write(mode, 0); });  // default: shared
}

Return nvmlDeviceGetPersistenceMode(const Device* device, int* mode) {
  return nvml::with_device(device, [&](int) { return nvml::write(mode, 1); });
}

Return nvmlDeviceGetMigMode(const Device* device, unsigned* current, unsigned* pending) {
  return nvml::with_device(device, [&](int) {
    const Return status = nvml::write(current, 0U);
    return status == Return::kSuccess ? nvml::write(pending, 0U) : status;
  });
}

// ---- what a device does ----

Return nvmlDeviceGetMemoryInfo(const Device* device, Memory* memory) {
  return nvml::with_device(device, [&](int i) { return nvml::write(memory, nvml::memory(i)); });
}

Return nvmlDeviceGetMemoryInfo_v2(const Device* device, MemoryV2* memory) {
  constexpr unsigned kVersion = static_cast<unsigned>(sizeof(MemoryV2)) | 2U << 24U;  // NVML_STRUCT_VERSION
  return nvml::with_device(device, [&](int i) {
    if (memory == nullptr) return Return::kInvalidArgument;
    if (memory->version != kVersion) return Return::kArgumentVersionMismatch;
    const Memory now = nvml::memory(i);
    const unsigned long long context = maya::rank_config().context_bytes;
    *memory = {kVersion, now.total, context, now.free, now.used - context};
    return Return::kSuccess;
  });
}

// Nothing runs: the device is idle while the trace is made.
Return nvmlDeviceGetUtilizationRates(const Device* device, std::array<unsigned, 2>* gpu_and_memory) {
  return nvml::with_device(device, [&](int) { return nvml::write(gpu_and_memory, std::array<unsigned, 2>{0, 0}); });
}

Return nvmlDeviceGetComputeRunningProcesses(const Device* device, unsigned* count, ProcessInfoV1* infos) {
  return nvml::running_processes(device, count, infos);
}

Return nvmlDeviceGetComputeRunningProcesses_v2(const Device* device, unsigned* count, ProcessInfo* infos) {
  return nvml::running_processes(device, count, infos);
}

Return nvmlDeviceGetComputeRunningProcesses_v3(const Device* device, unsigned* count, ProcessInfo* infos) {
  return nvml::running_processes(device, count, infos);
}

// ---- between devices ----

Return nvmlDeviceGetP2PStatus(const Device* device, const Device* peer, int, int* status) {
  constexpr int kOk = 0;  // NVML_P2P_STATUS_OK
  return nvml::with_device(device,
                           [&](int) { return nvml::with_device(peer, [&](int) { return nvml::write(status, kOk); }); });
}

Return nvmlDeviceGetNvLinkState(const Device* device, unsigned, int*) {
  return nvml::with_device(device, [](int) { return Return::kNotSupported; });
}

Return nvmlDeviceGetNvLinkCapability(const Device* device, unsigned, int, unsigned*) {
  return nvml::with_device(device, [](int) { return Return::kNotSupported; });
}

Return nvmlDeviceGetNvLinkRemotePciInfo_v2(const Device* device, unsigned, PciInfo*) {
  return nvml::with_device(device, [](int) { return Return::kNotSupported; });
}

Return nvmlDeviceGetNvLinkRemoteDeviceType(const Device* device, unsigned, int*) {
  return nvml::with_device(device, [](int) { return Return::kNotSupported; });
}

// nvmlGpuFabricInfoV_t of every version begins so. No node's NVLink reaches another's: no fabric handles.
struct FabricInfo {
  unsigned version;
  unsigned char cluster_uuid[16];
  nvml::Return status;
  unsigned clique;
  unsigned char state;
};

Return nvmlDeviceGetGpuFabricInfoV(const Device* device, FabricInfo* info) {
  return nvml::with_device(device, [&](int) {
    constexpr unsigned char kNotSupported = 0;  // NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    if (info == nullptr) return Return::kInvalidArgument;
    info->status = Return::kSuccess;
    info->clique = 0;
    info->state = kNotSupported;
    return Return::kSuccess;
  });
}

// ---- sensors ----

Return nvmlDeviceGetTemperature(const Device* device, int, unsigned* celsius) { return nvml::sense(device, celsius); }

Return nvmlDeviceGetPowerUsage(const Device* device, unsigned* milliwatts) { return nvml::sense(device, milliwatts); }

Return nvmlDeviceGetTotalEnergyConsumption(const Device* device, unsigned long long* millijoules) {
  return nvml::sense(device, millijoules);
}

Return nvmlDeviceGetFanSpeed(const Device* device, unsigned*) {
  return nvml::with_device(device, [](int) { return Return::kNotSupported; });
}

}  // extern "C"
