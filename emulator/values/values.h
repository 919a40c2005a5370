// Small tensors that really compute: the values a framework steers by.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/kernel.h"

namespace maya::values {

// A launch, called by the CUDA runtime and driver entry points before they return, in program order.
// `args[i]` points to the i-th by-value parameter. Costs one branch where the kernel has no executor.
void launch(const KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3],
            void** args, std::size_t shared_bytes);

}  // namespace maya::values
