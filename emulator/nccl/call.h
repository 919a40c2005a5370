// One call on a communicator: where it stands among the others, and what it looks like to peers and readers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "nccl/communicator.h"
#include "nccl/mailbox.h"
#include "values/values.h"

namespace maya::nccl {

std::string_view name(Collective collective);
bool point_to_point(Collective collective);
bool reduces(Collective collective);
bool parted(Collective collective);  // one rank's contribution holds a part for each peer

std::size_t part_bytes(const Operation& call);
std::size_t contribution_bytes(const Communicator& comm, const Operation& call);
std::size_t buffer_bytes(const Communicator& comm, const Operation& call);  // the larger of the rank's two buffers

int relative(const Communicator& comm, int from, int to);  // ranks from one member on to the other, around the ring

// A call with its place on the communicator.
struct Placed {
  Communicator* comm;
  Operation call;
  std::uint64_t sequence;
  std::uint32_t group;

  bool small() const { return contribution_bytes(*comm, call) <= values::kSmallBytes; }  // it really moves
  bool waits() const;                                                                    // needs data of others
  ChannelKey channel() const;                                                            // of this rank
  Signature signature() const;  // a receive's is that of the send that it meets
};

std::string hexadecimal(std::uint64_t value);
std::string describe(const Communicator& comm, const Signature& signature, std::uint64_t sequence);
std::string in_operator(const std::string& context);

// Keep the error for ncclGetLastError and print it; a mismatch is told to the launcher, too.
Result fail(Communicator& comm, Result result, const std::string& message);
Result mismatch(const Placed& mine, const Message& theirs);

}  // namespace maya::nccl
