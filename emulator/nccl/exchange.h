// What ranks tell each other in their calls: messages, and the results that come of them.
#pragma once

#include <cstddef>

#include "nccl/call.h"
#include "nccl/mailbox.h"

namespace maya::nccl {

Mailbox& mailbox();

// Leaves the rank's contribution for its peers; for a call too large to move, only its signature.
Result post(const Placed& placed, const void* data, std::size_t bytes);

// One peer's message, waited for and checked against this call; nullptr: nobody will send it.
Result receive(const Placed& placed, int member, const Message*& message);

// Every second of two neighbours sees the other's call, so a disagreement is found even where nobody waits.
Result check_neighbours(const Placed& placed);

Result complete(const Placed& placed);    // a small call that waits: its result, once all have sent
void copy_locally(const Placed& placed);  // a broadcast's root, a reduce's non-root: nothing arrives from others
void complete_large(const Placed& placed);

}  // namespace maya::nccl
