// A kernel registered by the process: __cudaRegisterFunction, cudaLibrary*, cuModuleGetFunction.
// CUfunction, CUkernel, cudaFunction_t and cudaKernel_t are pointers to a KernelInfo.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/elementwise.h"
#include "core/parameters.h"
#include "core/tensor_lists.h"

namespace maya {

struct KernelInfo {
  std::string name;                     // demangled
  const void* host_function = nullptr;  // the host stub, or the CUfunction of a loaded module
  // Filled by maya::values at the first launch.
  mutable const void* executor = nullptr;
  mutable bool resolved = false;

  std::string mangled;
  std::uint64_t name_hash = 0;   // of the mangled name: the same in every rank
  ElementwiseShape elementwise;  // what its name says of its traffic
  TensorListType tensor_lists;
  ParameterShape parameters;
  bool user_buffers = false;  // of Transformer Engine's, by its name (nccl/user_buffers.h)
  // cudaFuncAttributes, cuFuncSetAttribute.
  int max_dynamic_shared_bytes = 49152;
  int static_shared_bytes = 0;
  int registers = 32;
  int max_threads_per_block = 1024;
};

inline constexpr std::string_view kUserBuffers = "userbuffers_";  // how their kernels' names go on behind a k, or begin

// Notes a kernel and its host stub (nullptr: a loaded module's). Never freed: handles stay good.
KernelInfo* register_kernel(std::string mangled, const void* host_function);

// The kernel behind a host stub or a handle; nullptr: unknown. Its name is demangled.
KernelInfo* find_kernel(const void* function_or_handle);

// Over all threads of a launch: instructions that are issued, and how many of them go to the units for double precision
// and to those for special functions; lines of 128 bytes that its warps ask for, each time anew.
struct KernelWork {
  double instructions = 0, doubles = 0, specials = 0, lines = 0;
  double products = 0;  // FLOP on tensor cores, as of 16-bit operands: of TF32's twice as many, of 8 bits' half

  KernelWork& operator+=(const KernelWork& other);
  KernelWork operator*(double times) const;
};

inline constexpr std::array kMembersOfWork{&KernelWork::instructions, &KernelWork::doubles, &KernelWork::specials,
                                           &KernelWork::lines, &KernelWork::products};

// Within a tenth of each other; of work, member by member.
bool alike(double a, double b);
bool alike(const KernelWork& a, const KernelWork& b);

// One launch: interns the operation, records it and lets small values compute. `bytes`: what it reads and writes where
// the caller can tell; 0: as far as the kernel's name tells. `work`: likewise; none: not known.
void record_launch(KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3], void** args,
                   std::size_t shared_bytes, void* stream, std::uint64_t bytes = 0, const KernelWork& work = {});

}  // namespace maya
