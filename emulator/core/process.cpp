#include "core/process.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <stdexcept>
#include <system_error>

#include "core/context.h"
#include "core/process_state.h"
#include "core/recorder.h"

namespace maya {

Process& process() {
  static Process* const instance = new Process;  // outlives threads that still call in at exit
  return *instance;
}

std::string_view library_of(const void* address) {
  Dl_info info;
  return dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : std::string_view();
}

const RankConfig& rank_config() { return process().config; }
bool recording() { return process().recording.load(std::memory_order_relaxed); }

namespace {

using Setter = std::function<void(RankConfig&, const std::string&)>;

template <class Number>
Setter number(Number RankConfig::* member) {
  return [member](RankConfig& config, const std::string& value) {
    config.*member = static_cast<Number>(std::stoull(value));
  };
}

Setter text(std::string RankConfig::* member) {
  return [member](RankConfig& config, const std::string& value) { config.*member = value; };
}

const std::map<std::string, Setter>& setters() {
  static const std::map<std::string, Setter> all = {
      {"trace_dir", text(&RankConfig::trace_dir)},
      {"control", text(&RankConfig::control)},
      {"rank", number(&RankConfig::rank)},
      {"world", number(&RankConfig::world)},
      {"local_rank", number(&RankConfig::local_rank)},
      {"devices", number(&RankConfig::devices)},
      {"device_name", text(&RankConfig::device_name)},
      {"major", number(&RankConfig::major)},
      {"minor", number(&RankConfig::minor)},
      {"multiprocessors", number(&RankConfig::multiprocessors)},
      {"clock_khz", number(&RankConfig::clock_khz)},
      {"memory_clock_khz", number(&RankConfig::memory_clock_khz)},
      {"memory_bus_bits", number(&RankConfig::memory_bus_bits)},
      {"memory_bytes", number(&RankConfig::memory_bytes)},
      {"context_bytes", number(&RankConfig::context_bytes)},
      {"nccl_bytes", number(&RankConfig::nccl_bytes)},
      {"communicator_bytes", number(&RankConfig::communicator_bytes)},
      {"peer_bytes", number(&RankConfig::peer_bytes)},
      {"l2_bytes", number(&RankConfig::l2_bytes)},
      {"shared_memory_per_block_optin", number(&RankConfig::shared_memory_per_block_optin)},
      {"shared_memory_per_multiprocessor", number(&RankConfig::shared_memory_per_multiprocessor)},
      {"max_threads_per_multiprocessor", number(&RankConfig::max_threads_per_multiprocessor)},
      {"driver_version", number(&RankConfig::driver_version)},
  };
  return all;
}

RankConfig read_config(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  RankConfig config;
  for (std::string line; std::getline(file, line);) {
    const auto space = line.find(' ');
    const std::string key = line.substr(0, space);
    if (key.empty() || key[0] == '#') continue;
    const auto setter = setters().find(key);
    if (setter == setters().end()) throw std::runtime_error(path + ": unknown key '" + key + "'");
    try {
      setter->second(config, space == std::string::npos ? "" : line.substr(space + 1));
    } catch (const std::logic_error&) {
      throw std::runtime_error(path + ": '" + line + "' wants a number");
    }
  }
  if (config.trace_dir.empty()) throw std::runtime_error(path + ": trace_dir is missing");
  return config;
}

void map_control(Process& self) {
  const std::string& path = self.config.control;
  if (path.empty()) return;
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat status{};
  if (fd < 0 || fstat(fd, &status) != 0) throw std::system_error(errno, std::generic_category(), path);
  const auto bytes = static_cast<std::size_t>(status.st_size);
  const std::size_t needed = 4096 + static_cast<std::size_t>(self.config.world) * sizeof(RankSlot);
  void* mapped = bytes >= needed ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
  close(fd);
  if (mapped == MAP_FAILED) throw std::runtime_error(path + ": cannot be mapped as the control file");
  if (std::memcmp(mapped, kControlMagic, sizeof kControlMagic) != 0)
    throw std::runtime_error(path + ": not a control file");
  self.control = static_cast<std::byte*>(mapped);
  self.control_bytes = bytes;
}

// A process that the rank forks is not the rank: the trace and the control file, mapped in both, are its parent's.
void leave_rank_in_forks() {
  static std::once_flag installed;
  std::call_once(installed, [] {
    pthread_atfork(nullptr, nullptr, [] {
      process().recording.store(false, std::memory_order_relaxed);
      process().control = nullptr;
    });
  });
}

void begin(const std::string& path, bool exclusive) {
  Process& self = process();
  if (recording()) throw std::runtime_error("this process is rank " + std::to_string(self.config.rank) + " already");
  self.config = read_config(path);
  map_control(self);
  self.trace.open(self.config, exclusive);
  {
    std::lock_guard lock(self.refusals_mutex);  // what the parent refused before the fork counts here too
    for (const auto& [library, function] : self.refusals) {
      self.trace.write_line("{\"unsupported\": " + json_quote(function) + ", \"library\": " + json_quote(library) +
                            "}");
      ++self.trace.header().unsupported_count;
    }
  }
  restart_thread_clock();
  leave_rank_in_forks();
  self.recording.store(true, std::memory_order_release);
}

}  // namespace

ControlHeader* control_header() { return reinterpret_cast<ControlHeader*>(process().control); }

RankSlot* rank_slot(int rank) {
  Process& self = process();
  if (!self.control || rank < 0 || rank >= self.config.world) return nullptr;
  return reinterpret_cast<RankSlot*>(self.control + 4096) + rank;
}

std::byte* control_arena() {
  Process& self = process();
  return self.control ? self.control + 4096 + static_cast<std::size_t>(self.config.world) * sizeof(RankSlot) : nullptr;
}

std::size_t control_arena_bytes() {
  Process& self = process();
  return self.control ? self.control_bytes - static_cast<std::size_t>(control_arena() - self.control) : 0;
}

constexpr long kLongestPauseNanoseconds = 50'000'000;

void publish_step(std::uint64_t steps, std::uint64_t hash) {
  RankSlot* slot = rank_slot(rank_config().rank);
  if (!slot) return;
  slot->segment_hash[(steps - 1) % kSegmentRing].store(hash, std::memory_order_relaxed);
  slot->steps.store(steps, std::memory_order_release);
  const std::atomic<std::uint64_t>& limit = control_header()->step_limit;
  if (steps < limit.load(std::memory_order_acquire)) return;
  slot->state.store(static_cast<std::uint32_t>(RankState::kPaused), std::memory_order_release);
  // The launcher raises the limit or kills the process. Many ranks may wait here: they look ever less often.
  timespec nap{0, 500'000};
  while (steps >= limit.load(std::memory_order_acquire)) {
    nanosleep(&nap, nullptr);
    nap.tv_nsec = std::min(nap.tv_nsec * 2, kLongestPauseNanoseconds);
  }
  // A rank that was ended while it waited stays so: its peers listen to its representative now.
  auto paused = static_cast<std::uint32_t>(RankState::kPaused);
  if (!slot->state.compare_exchange_strong(paused, static_cast<std::uint32_t>(RankState::kRunning)))
    for (;;) nanosleep(&nap, nullptr);  // until the launcher's SIGKILL
  const std::uint64_t silent_from = control_header()->silent_from.load(std::memory_order_relaxed);
  if (silent_from != 0 && steps >= silent_from) observe_operators(false);
}

void begin_from_environment() {
  static const bool once = [] {
    const char* path = std::getenv("MAYA_CONFIG");
    if (!path || recording()) return false;
    try {
      begin(path, true);  // exclusive: a child process of the rank that also loads CUDA is not the rank
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::file_exists) std::fprintf(stderr, "maya: %s\n", error.what());
    } catch (const std::exception& error) {
      std::fprintf(stderr, "maya: %s\n", error.what());
    }
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace maya

extern "C" int maya_begin_rank(const char* config_path) {
  try {
    maya::begin(config_path, false);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "maya: %s\n", error.what());
    return -1;
  }
}

// Steps that this rank has taken (`control.py`); 0 in a process that is none.
extern "C" std::uint64_t maya_steps() {
  const maya::RankSlot* slot = maya::rank_slot(maya::rank_config().rank);
  return slot ? slot->steps.load(std::memory_order_relaxed) : 0;
}
