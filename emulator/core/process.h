// The one process object: what this rank is and the devices it sees.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "core/trace_format.h"

namespace maya {

// Read from the `key value` lines of the file that maya_begin_rank() or MAYA_CONFIG names.
struct RankConfig {
  std::string trace_dir;                                 // where rank-RRRRR.trace and .ops go
  std::string control;                                   // the control file; empty: a lone process
  int rank = 0, world = 1, local_rank = 0, devices = 1;  // devices: visible on this node
  // The virtual device.
  std::string device_name = "NVIDIA H100 80GB HBM3";
  int major = 9, minor = 0, multiprocessors = 132, clock_khz = 1980000;
  int memory_clock_khz = 2619000, memory_bus_bits = 5120;
  std::uint64_t memory_bytes = 85'520'809'984, context_bytes = 549'453'824, l2_bytes = 52'428'800;
  // NCCL's device memory: with the first communicator, with each, for each peer of the node that is sent to.
  std::uint64_t nccl_bytes = 0, communicator_bytes = 0, peer_bytes = 0;
  int shared_memory_per_block_optin = 232448, shared_memory_per_multiprocessor = 233472;
  int max_threads_per_multiprocessor = 2048;
  int driver_version = 13000;  // CUDA version the driver reports
};

// Path of the library in which code or data lie, as a C string, too; empty: in none.
std::string_view library_of(const void* address);

const RankConfig& rank_config();

// True between maya_begin_rank() and exit; records are dropped outside.
bool recording();

ControlHeader* control_header();  // nullptr without a control file
RankSlot* rank_slot(int rank);
std::byte* control_arena();  // the mailbox arena behind the slots
std::size_t control_arena_bytes();

}  // namespace maya

extern "C" {
// Starts this process's rank; called once by the launcher's bootstrap after fork. 0, or -1 with the
// reason on stderr.
int maya_begin_rank(const char* config_path);
}
