// Transformer Engine's user buffers: kernels by which the ranks of a node exchange through memory that each has opened
// of the others, beside the products that need it.
#pragma once

#include "core/kernel.h"

namespace maya::nccl {

// Records the launch as the collective or the transfers that it is. False: the kernel is none of theirs.
bool launch_exchange(const KernelInfo& kernel, void** arguments, void* stream);

// A rank offers its own memory, and opens that of its node's other ranks in their order.
void offered_memory();
void opened_memory(const void* base);

}  // namespace maya::nccl
