// The binary rank trace and the job control file: the emulator writes them, `maya.launch` and
// `maya.trace` read them (maya/trace/format.py mirrors every field). Little-endian, no padding.
// Prose: docs/trace-format.md.
#pragma once

#include <atomic>
#include <cstdint>

namespace maya {

inline constexpr char kTraceMagic[8] = {'M', 'A', 'Y', 'A', 'T', 'R', 'C', '1'};
inline constexpr char kControlMagic[8] = {'M', 'A', 'Y', 'A', 'C', 'T', 'L', '1'};

enum class RecordKind : std::uint8_t {
  kKernel = 0,             // op: kernel, gemm, convolution; size: FLOP-free, 0
  kMemcpy = 1,             // op: direction; size: bytes
  kMemset = 2,             // size: bytes
  kCollective = 3,         // op: collective; arg: local communicator; size: payload bytes
  kEventRecord = 4,        // arg: event
  kStreamWaitEvent = 5,    // arg: event
  kEventSynchronize = 6,   // arg: event; the host blocks
  kStreamSynchronize = 7,  // the host blocks
  kDeviceSynchronize = 8,  // the host blocks
  kAllocate = 9,           // size: bytes of device memory taken from the driver
  kFree = 10,              // size: bytes given back
  kStep = 11,              // an optimizer step ended; arg: its ordinal from 1; size: which optimizer, from 1, 0: not
                           // known; hash: of the segment
  kHost = 12,              // host time with no device call behind it (flushes before a wait)
};

enum RecordFlags : std::uint8_t {
  kBlocking = 1,  // the call returns only when the device work is done (synchronous copies, CUDA_LAUNCH_BLOCKING)
  kGraph = 2,     // replayed from a CUDA graph: no host time of its own
  kStepping = 4,  // within an optimizer's step
};

// One device call. 64 bytes.
struct Record {
  std::uint8_t kind;
  std::uint8_t flags;
  std::uint16_t thread;    // dense index of the calling thread
  std::uint32_t stream;    // dense index; 0 is the legacy default stream
  std::uint32_t op;        // operation id in the .ops table, 0: none
  std::uint32_t context;   // operator context id in the .ops table, 0: none
  std::uint64_t host_ns;   // CPU time of the calling thread since its previous call returned
  std::uint64_t size;      // bytes, see RecordKind
  std::uint64_t arg;       // see RecordKind
  std::uint32_t sequence;  // collectives: ordinal on the communicator, from 0; p2p: from 0 per peer and direction
  std::int32_t peer;       // p2p: communicator rank of the peer; else -1
  std::uint32_t group;     // ordinal of the NCCL group it was launched in, 0: none
  std::uint32_t ranges;    // operators observed on the thread since its previous record
  std::uint64_t hash;      // rolling hash of this segment (since the last kStep), after this record
};
static_assert(sizeof(Record) == 64);

// First page of `rank-RRRRR.trace`; records follow at byte 4096.
struct TraceHeader {
  char magic[8];
  std::uint32_t version;  // 3
  std::uint32_t rank, world, local_rank;
  std::atomic<std::uint64_t> records;
  std::uint64_t capacity_bytes;                                               // device memory, datasheet
  std::uint64_t context_bytes;                                                // taken by the CUDA context itself
  std::atomic<std::uint64_t> reserved_bytes, peak_reserved_bytes;             // by the process, without context
  std::atomic<std::uint64_t> oom_count, oom_requested_bytes, oom_free_bytes;  // the last refusal
  std::atomic<std::uint64_t> steps;                                           // kStep records so far
  std::atomic<std::uint64_t> unsupported_count;                               // calls refused; named in the .ops table
};
static_assert(sizeof(TraceHeader) <= 4096);

// The control file: one per job, mapped by the launcher and every rank.
// Byte 0: ControlHeader; byte 4096: RankSlot[world]; then the mailbox arena (emulator/nccl/mailbox.h).
struct ControlHeader {
  char magic[8];
  std::uint32_t version, world;               // 1
  std::atomic<std::uint64_t> step_limit;      // a rank whose step count reaches it waits
  std::atomic<std::uint64_t> silent_from;     // steps from which on operators are not observed; 0: they always are
  std::atomic<std::uint64_t> mismatch_count;  // the launcher stops the job when it is not 0
  char mismatch[2048];                        // both call sites, NUL-terminated, first one wins
};
static_assert(sizeof(ControlHeader) <= 4096);

enum class RankState : std::uint32_t {
  kAbsent = 0,  // never started
  kRunning = 1,
  kPaused = 2,   // at step_limit
  kWaiting = 3,  // for a peer's message
  kEnded = 4,    // told to end: `representative` answers for it
  kExited = 5,   // the script returned or raised
};

inline constexpr int kSegmentRing = 64;

// Which message a waiting rank waits for (emulator/nccl/waiting.h).
struct AwaitedMessage {
  std::atomic<std::uint32_t> version;  // odd while the rest holds
  std::atomic<std::uint32_t> rank, communicator;
  std::atomic<std::int32_t> peer;
  std::atomic<std::uint64_t> sequence;
  std::atomic<std::uint32_t> stands_in;  // the rank does so for one that does not run, and may not send it
};

struct RankSlot {
  std::atomic<std::uint32_t> state;
  std::atomic<std::uint32_t> representative;  // itself unless kEnded/kAbsent
  std::atomic<std::uint64_t> steps;
  std::atomic<std::uint64_t> segment_hash[kSegmentRing];  // of step s at [(s - 1) % kSegmentRing]
  char wait_site[256];                                    // what it waits for, for hang reports
  AwaitedMessage awaited;
  std::atomic<std::uint32_t> nccl_device;  // ordinal + 1 of the device that its communicator of all ranks is on
  char pad[204];
};
static_assert(sizeof(RankSlot) == 1024);

}  // namespace maya
