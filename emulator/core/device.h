// What the virtual device says about itself; cudaDeviceAttr and CUdevice_attribute share their numbers.
#pragma once

#include <cstddef>
#include <optional>

#include "core/kernel.h"

namespace maya {

// The value of attribute `attribute` (cudaDeviceAttr); nullopt: no such attribute.
std::optional<int> device_attribute(int attribute, int device);

// 16 bytes that tell this job's devices apart (cudaDeviceProp::uuid, cuDeviceGetUuid).
void device_uuid(int device, unsigned char (&uuid)[16]);

// Resident blocks of `kernel` on one multiprocessor: the tightest of threads, blocks, registers and
// shared memory (CUDA C++ Programming Guide, Hardware Multithreading).
int blocks_per_multiprocessor(const KernelInfo& kernel, int block_size, std::size_t dynamic_shared_bytes);

// The CUDA major version of the runtime library this process has loaded, 13 if it has none: some
// functions kept their name and changed their parameters.
int runtime_major();

}  // namespace maya
