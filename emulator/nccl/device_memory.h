// What NCCL itself takes of a device's memory: with each communicator, and for each peer that it sends to or receives
// from.
#pragma once

#include "nccl/communicator.h"

namespace maya::nccl {

// False: the device has not so much.
bool take_for_communicator(int device);
// Buffers for the members of its node that the call is the first to meet one by one: a ring's neighbours have theirs
// with the communicator.
bool take_for_peers(Communicator& communicator, const Operation& call);

void give_back(const Communicator& communicator);

}  // namespace maya::nccl
