// NCCL's interface (nccl.h 2.28) over communicator.h. Types are NCCL's own, spelled with plain integers:
// ncclResult_t, ncclDataType_t and ncclRedOp_t are enums of int size, handles are pointers.
#include <sys/random.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "core/handle_pool.h"
#include "core/hash.h"
#include "core/process.h"
#include "core/recorder.h"
#include "nccl/communicator.h"

extern "C" {
int cudaMalloc(void** pointer, std::size_t bytes);
int cudaFree(void* pointer);
}

namespace {

using namespace maya::nccl;
using maya::Call;

constexpr int kVersion = 22809;  // 2.28.9, whose interface this is
constexpr int kReductions = 5;   // ncclNumOps: operations from here on were created
constexpr int kNoColor = -1;     // NCCL_SPLIT_NOCOLOR

struct UniqueId {
  char internal[128];
};

struct Registration {
  void* buffer;
  std::size_t bytes;
};

maya::HandlePool<Registration, 1 << 16>& registrations() { return maya::handle_pool<Registration, 1 << 16>(); }

thread_local std::string creation_error;  // of the thread's last communicator that could not be created

// The result of a call that made a communicator, or did not.
Result hand_over(Communicator* made, void** handle) {
  *handle = made;
  creation_error = made ? "" : kNoMemory;
  return made ? Result::kSuccess : Result::kUnhandledCudaError;
}

int code(Result result) { return static_cast<int>(result); }

std::uint64_t id_of(const UniqueId& id) { return maya::hash_bytes(std::string_view(id.internal, sizeof id.internal)); }

// Runs `body(communicator)` for a live handle; no exception leaves the interface.
template <class Body>
int with(const void* handle, Body&& body) {
  const Call call;
  try {
    Communicator* comm = find_communicator(handle);
    return comm ? code(body(*comm)) : code(Result::kInvalidArgument);
  } catch (const std::exception&) {
    return code(Result::kSystemError);
  }
}

int create(void** handle, std::uint64_t id, int size, int rank) {
  const Call call;
  if (!handle || size < 1 || rank < 0 || rank >= size) return code(Result::kInvalidArgument);
  try {
    if (size == maya::rank_config().world) creation_error = duplicate_device();
    else creation_error.clear();
    if (!creation_error.empty()) return code(Result::kInvalidUsage);
    return code(hand_over(create_communicator(id, size, rank), handle));
  } catch (const std::exception&) {
    return code(Result::kSystemError);
  }
}

// Resolves a created operation to its factor. False: no such operation or type.
bool set_reduction(const Communicator& comm, int type, int reduction, Operation& call) {
  if (type < 0 || type >= kDataTypes || reduction < 0) return false;
  call.type = static_cast<DataType>(type);
  if (reduction < kReductions) {
    call.reduction = static_cast<Reduction>(reduction);
    if (call.reduction == Reduction::kAverage && is_float(call.type)) call.factor = 1.0 / comm.size;
    return true;
  }
  const auto index = static_cast<std::size_t>(reduction - kReductions);
  if (index >= comm.scaled_sums.size() || !comm.scaled_sums[index].alive) return false;
  const ScaledSum& scaled = comm.scaled_sums[index];
  call.reduction = Reduction::kPreMulSum;
  call.factor = scaled.device_scalar ? to_double(scaled.type, scaled.device_scalar) : scaled.factor;
  return true;
}

int collective(void* handle, Operation call, int type, int reduction = 0) {
  return with(handle, [&](Communicator& comm) {
    if (!set_reduction(comm, type, reduction, call)) return Result::kInvalidArgument;
    if (call.root >= comm.size || call.peer >= comm.size) return Result::kInvalidArgument;
    if (call.count && !call.send && !call.recv) return Result::kInvalidArgument;
    return submit(comm, call);
  });
}

bool rooted(const Communicator& comm, int root) { return root >= 0 && root < comm.size; }

// The split's members of one color, by key, then by parent rank (ncclCommSplit).
Result split(Communicator& parent, SplitChoice mine, void** handle) {
  std::vector<SplitChoice> all;
  if (const Result result = exchange_split(parent, mine, all); result != Result::kSuccess) return result;
  const std::uint64_t id =
      maya::combine(maya::combine(parent.id, ++parent.derived), static_cast<std::uint32_t>(mine.color));
  *handle = nullptr;
  if (mine.color == kNoColor) return Result::kSuccess;
  int size = 0, rank = 0;
  for (int member = 0; member < parent.size; ++member) {
    const SplitChoice& other = all[static_cast<std::size_t>(member)];
    if (other.color != mine.color) continue;
    ++size;
    rank += std::pair(other.key, member) < std::pair(mine.key, parent.rank);
  }
  return hand_over(create_communicator(id, size, rank), handle);
}

Result shrink(Communicator& parent, const int* excluded, int count, void** handle) {
  const auto out = [&](int rank) { return std::find(excluded, excluded + count, rank) != excluded + count; };
  std::uint64_t id = maya::combine(parent.id, ++parent.derived);
  int rank = 0, size = 0;
  for (int member = 0; member < parent.size; ++member) {
    if (out(member)) continue;
    rank += member < parent.rank;
    ++size;
    id = maya::combine(id, static_cast<std::uint64_t>(member));
  }
  if (out(parent.rank)) return Result::kInvalidArgument;
  return hand_over(create_communicator(id, size, rank), handle);
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  if (!version) return code(Result::kInvalidArgument);
  *version = kVersion;
  return 0;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case 0: return "no error";
    case 1: return "unhandled cuda error";
    case 2: return "unhandled system error";
    case 3: return "internal error";
    case 4: return "invalid argument";
    case 5: return "invalid usage";
    case 6: return "remote process exited or there was a network error";
    case 7: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(void* comm) {
  const Communicator* found = find_communicator(comm);
  return found ? found->last_error.c_str() : creation_error.c_str();
}

int ncclGetUniqueId(UniqueId* id) {
  const Call call;
  if (!id) return code(Result::kInvalidArgument);
  return getrandom(id->internal, sizeof id->internal, 0) == sizeof id->internal ? 0 : code(Result::kSystemError);
}

// The launcher's bootstrap: `unique_id` is or will be the id of this communicator. `list_members`: in the trace, too,
// where the launcher does not know the groups of the world.
void maya_name_communicator(const UniqueId* unique_id, std::uint64_t id, std::uint32_t family, int low, int high,
                            int world, const int* members, int size, int list_members) {
  name_communicator(
      id_of(*unique_id),
      {id, family, {low, high}, world != 0, std::vector<int>(members, members + size), list_members != 0});
}

int ncclCommInitRank(void** comm, int size, UniqueId id, int rank) { return create(comm, id_of(id), size, rank); }

int ncclCommInitRankConfig(void** comm, int size, UniqueId id, int rank, void*) {
  return create(comm, id_of(id), size, rank);
}

// Every rank passes the same list of ids.
int ncclCommInitRankScalable(void** comm, int size, int rank, int ids, UniqueId* id, void*) {
  return ids > 0 && id ? create(comm, id_of(*id), size, rank) : code(Result::kInvalidArgument);
}

int ncclCommInitAll(void** comms, int size, const int*) {
  UniqueId id;
  if (const int result = ncclGetUniqueId(&id)) return result;
  for (int rank = 0; rank < size; ++rank)
    if (const int result = create(comms + rank, id_of(id), size, rank)) return result;
  return 0;
}

int ncclCommSplit(void* comm, int color, int key, void** result, void*) {
  return with(comm, [&](Communicator& parent) {
    return result ? split(parent, {color, key}, result) : Result::kInvalidArgument;
  });
}

int ncclCommShrink(void* comm, int* excluded, int count, void** result, void*, int) {
  return with(comm, [&](Communicator& parent) {
    return result && count >= 0 ? shrink(parent, excluded, count, result) : Result::kInvalidArgument;
  });
}

int ncclCommFinalize(void* comm) {
  return with(comm, [](Communicator&) { return Result::kSuccess; });
}

int ncclCommDestroy(void* comm) {
  const Call call;
  return !comm || destroy_communicator(comm) ? 0 : code(Result::kInvalidArgument);
}

int ncclCommAbort(void* comm) { return ncclCommDestroy(comm); }

int ncclCommGetAsyncError(void* comm, int* error) {
  if (!error) return code(Result::kInvalidArgument);
  *error = 0;
  return find_communicator(comm) ? 0 : code(Result::kInvalidArgument);
}

int ncclCommCount(const void* comm, int* count) {
  return with(comm, [&](Communicator& found) {
    *count = found.size;
    return Result::kSuccess;
  });
}

int ncclCommUserRank(const void* comm, int* rank) {
  return with(comm, [&](Communicator& found) {
    *rank = found.rank;
    return Result::kSuccess;
  });
}

int ncclCommCuDevice(const void* comm, int* device) {
  return with(comm, [&](Communicator& found) {
    *device = found.device;
    return Result::kSuccess;
  });
}

int ncclCommRegister(const void* comm, void* buffer, std::size_t bytes, void** handle) {
  return with(comm, [&](Communicator&) {
    *handle = registrations().create(Registration{buffer, bytes});
    return Result::kSuccess;
  });
}

int ncclCommDeregister(const void* comm, void* handle) {
  return with(comm, [&](Communicator&) {
    return registrations().destroy(handle) ? Result::kSuccess : Result::kInvalidArgument;
  });
}

int ncclMemAlloc(void** pointer, std::size_t bytes) {
  return cudaMalloc(pointer, bytes) ? code(Result::kUnhandledCudaError) : 0;
}

int ncclMemFree(void* pointer) { return cudaFree(pointer) ? code(Result::kUnhandledCudaError) : 0; }

int ncclRedOpCreatePreMulSum(int* op, void* scalar, int type, int residence, void* comm) {
  return with(comm, [&](Communicator& found) {
    if (!op || !scalar || type < 0 || type >= kDataTypes) return Result::kInvalidArgument;
    const auto dtype = static_cast<DataType>(type);
    const auto* bytes = static_cast<const std::byte*>(scalar);
    const bool on_device = residence == 0;  // ncclScalarDevice: read when the collective runs
    found.scaled_sums.push_back({dtype, on_device ? 1 : to_double(dtype, bytes), on_device ? bytes : nullptr, true});
    *op = kReductions + static_cast<int>(found.scaled_sums.size()) - 1;
    return Result::kSuccess;
  });
}

int ncclRedOpDestroy(int op, void* comm) {
  return with(comm, [&](Communicator& found) {
    const auto index = static_cast<std::size_t>(op - kReductions);
    if (op < kReductions || index >= found.scaled_sums.size()) return Result::kInvalidArgument;
    found.scaled_sums[index].alive = false;
    return Result::kSuccess;
  });
}

int ncclAllReduce(const void* send, void* recv, std::size_t count, int type, int op, void* comm, void* stream) {
  return collective(
      comm, {.collective = Collective::kAllReduce, .send = send, .recv = recv, .count = count, .stream = stream}, type,
      op);
}

int ncclReduce(const void* send, void* recv, std::size_t count, int type, int op, int root, void* comm, void* stream) {
  return collective(
      comm,
      {.collective = Collective::kReduce, .send = send, .recv = recv, .count = count, .root = root, .stream = stream},
      type, op);
}

int ncclBroadcast(const void* send, void* recv, std::size_t count, int type, int root, void* comm, void* stream) {
  return collective(comm,
                    {.collective = Collective::kBroadcast,
                     .send = send,
                     .recv = recv,
                     .count = count,
                     .root = root,
                     .stream = stream},
                    type);
}

int ncclBcast(void* buffer, std::size_t count, int type, int root, void* comm, void* stream) {
  return ncclBroadcast(buffer, buffer, count, type, root, comm, stream);
}

int ncclAllGather(const void* send, void* recv, std::size_t count, int type, void* comm, void* stream) {
  return collective(
      comm, {.collective = Collective::kAllGather, .send = send, .recv = recv, .count = count, .stream = stream}, type);
}

int ncclReduceScatter(const void* send, void* recv, std::size_t count, int type, int op, void* comm, void* stream) {
  return collective(
      comm, {.collective = Collective::kReduceScatter, .send = send, .recv = recv, .count = count, .stream = stream},
      type, op);
}

int ncclAlltoAll(const void* send, void* recv, std::size_t count, int type, void* comm, void* stream) {
  return collective(
      comm, {.collective = Collective::kAllToAll, .send = send, .recv = recv, .count = count, .stream = stream}, type);
}

int ncclSend(const void* send, std::size_t count, int type, int peer, void* comm, void* stream) {
  if (peer < 0) return code(Result::kInvalidArgument);
  return collective(
      comm, {.collective = Collective::kSend, .send = send, .count = count, .peer = peer, .stream = stream}, type);
}

int ncclRecv(void* recv, std::size_t count, int type, int peer, void* comm, void* stream) {
  if (peer < 0) return code(Result::kInvalidArgument);
  return collective(
      comm, {.collective = Collective::kRecv, .recv = recv, .count = count, .peer = peer, .stream = stream}, type);
}

int ncclGroupStart() {
  const Call call;
  group_start();
  return 0;
}

int ncclGroupEnd() {
  const Call call;
  try {
    return code(group_end());
  } catch (const std::exception&) {
    return code(Result::kSystemError);
  }
}

// NCCL makes gather and scatter of sends and receives in one group (nccl/src/enqueue.cc).
int ncclGather(const void* send, void* recv, std::size_t count, int type, int root, void* comm, void* stream) {
  return with(comm, [&](Communicator& found) {
    if (!rooted(found, root) || type < 0 || type >= kDataTypes) return Result::kInvalidArgument;
    const auto dtype = static_cast<DataType>(type);
    group_start();
    Result result = submit(
        found,
        {.collective = Collective::kSend, .send = send, .count = count, .type = dtype, .peer = root, .stream = stream});
    for (int peer = 0; found.rank == root && peer < found.size && result == Result::kSuccess; ++peer)
      result = submit(
          found, {.collective = Collective::kRecv,
                  .recv = static_cast<std::byte*>(recv) + static_cast<std::size_t>(peer) * count * element_bytes(dtype),
                  .count = count,
                  .type = dtype,
                  .peer = peer,
                  .stream = stream});
    const Result ended = group_end();
    return result == Result::kSuccess ? ended : result;
  });
}

int ncclScatter(const void* send, void* recv, std::size_t count, int type, int root, void* comm, void* stream) {
  return with(comm, [&](Communicator& found) {
    if (!rooted(found, root) || type < 0 || type >= kDataTypes) return Result::kInvalidArgument;
    const auto dtype = static_cast<DataType>(type);
    group_start();
    Result result = Result::kSuccess;
    for (int peer = 0; found.rank == root && peer < found.size && result == Result::kSuccess; ++peer)
      result = submit(found, {.collective = Collective::kSend,
                              .send = static_cast<const std::byte*>(send) +
                                      static_cast<std::size_t>(peer) * count * element_bytes(dtype),
                              .count = count,
                              .type = dtype,
                              .peer = peer,
                              .stream = stream});
    if (result == Result::kSuccess)
      result = submit(found, {.collective = Collective::kRecv,
                              .recv = recv,
                              .count = count,
                              .type = dtype,
                              .peer = root,
                              .stream = stream});
    const Result ended = group_end();
    return result == Result::kSuccess ? ended : result;
  });
}

}  // extern "C"
