#include "nccl/call.h"

#include <atomic>
#include <cstdio>
#include <cstring>

#include "core/process.h"
#include "core/recorder.h"

namespace maya::nccl {

std::string_view name(Collective collective) {
  constexpr std::string_view names[] = {"all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter",
                                        "all_to_all", "send",      "recv",   "comm_split"};
  return names[static_cast<int>(collective)];
}

bool point_to_point(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kRecv;
}

bool reduces(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool parted(Collective collective) {
  return collective == Collective::kReduceScatter || collective == Collective::kAllToAll;
}

std::size_t part_bytes(const Operation& call) { return call.count * element_bytes(call.type); }

std::size_t contribution_bytes(const Communicator& comm, const Operation& call) {
  return part_bytes(call) * (parted(call.collective) ? static_cast<std::size_t>(comm.size) : 1);
}

std::size_t buffer_bytes(const Communicator& comm, const Operation& call) {
  const bool many = parted(call.collective) || call.collective == Collective::kAllGather;
  return part_bytes(call) * (many ? static_cast<std::size_t>(comm.size) : 1);
}

int relative(const Communicator& comm, int from, int to) { return (to - from + comm.size) % comm.size; }

std::string hexadecimal(std::uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

bool Placed::waits() const {
  if (call.collective == Collective::kSend) return false;
  if (call.collective == Collective::kBroadcast) return comm->rank != call.root;
  if (call.collective == Collective::kReduce) return comm->rank == call.root;
  return true;
}

ChannelKey Placed::channel() const {
  const bool sends = call.collective == Collective::kSend;
  return {static_cast<std::uint32_t>(rank_config().rank), comm->channel,
          sends ? relative(*comm, comm->rank, call.peer) : kCollectivePeer};
}

Signature Placed::signature() const {
  Signature result{static_cast<std::uint8_t>(call.collective),
                   static_cast<std::uint8_t>(call.type),
                   static_cast<std::uint8_t>(reduces(call.collective) ? call.reduction : Reduction::kSum),
                   0,
                   call.root,
                   call.count};
  if (call.collective == Collective::kRecv) result.collective = static_cast<std::uint8_t>(Collective::kSend);
  return result;
}

std::string describe(const Communicator& comm, const Signature& signature, std::uint64_t sequence) {
  const auto collective = static_cast<Collective>(signature.collective);
  std::string text(name(collective));
  text +=
      " of " + std::to_string(signature.count) + " " + std::string(dtype_name(static_cast<DataType>(signature.dtype)));
  if (reduces(collective))
    text += " (" + std::string(reduction_name(static_cast<Reduction>(signature.reduction))) + ")";
  if (signature.root >= 0) text += " with root " + std::to_string(signature.root);
  text += ", call " + std::to_string(sequence) + " on communicator " + hexadecimal(comm.id).substr(0, 8) + " of " +
          std::to_string(comm.size) + " ranks";
  return text;
}

std::string in_operator(const std::string& context) { return context.empty() ? "" : ", in " + context; }

Result fail(Communicator& comm, Result result, const std::string& message) {
  comm.last_error = message;
  std::fprintf(stderr, "maya: %s\n", message.c_str());
  return result;
}

Result mismatch(const Placed& mine, const Message& theirs) {
  const std::string text =
      "rank " + std::to_string(rank_config().rank) + ": " + describe(*mine.comm, mine.signature(), mine.sequence) +
      in_operator(context_text(current_context())) + "\nrank " + std::to_string(theirs.global_rank) + ": " +
      describe(*mine.comm, theirs.signature, mine.sequence) + in_operator(theirs.site);
  annotate("{\"mismatch\": " + json_quote(text) + "}");
  if (ControlHeader* header = control_header()) {
    std::uint64_t none = 0;
    static std::atomic_flag written = ATOMIC_FLAG_INIT;  // by this process; the count settles it among processes
    if (!written.test_and_set() && header->mismatch_count.load() == none) {
      std::strncpy(header->mismatch, text.c_str(), sizeof header->mismatch - 1);
      header->mismatch_count.compare_exchange_strong(none, 1);
    }
  }
  return fail(*mine.comm, Result::kInvalidUsage, "ranks do not agree on what they communicate:\n" + text);
}

}  // namespace maya::nccl
