// What a module image (cubin, PTX) says about its kernels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace maya::cuda {

struct KernelParameter {
  std::uint32_t offset = 0, bytes = 0;
};

struct KernelImage {
  std::string name;  // as in the symbol table: mangled where C++ wrote it
  int registers = 0;
  int static_shared_bytes = 0, local_bytes = 0, constant_bytes = 0;
  int max_threads = 1024;
  std::vector<KernelParameter> parameters;  // by ordinal; empty when the image does not tell
};

struct ModuleImage {
  std::vector<KernelImage> kernels;
  std::string ptx;  // the source that a cubin carries for debuggers (Triton's do), or a PTX image itself
  // False for containers that are not opened (fat binaries): any kernel name may be in them.
  bool complete = false;
};

// The length in bytes of the image at `data`, which carries it in its own header; 0: none known.
std::size_t image_bytes(const void* data);

// Empty and incomplete when `image` is none of the known formats.
ModuleImage parse_image(std::span<const std::byte> image);

bool is_known_image(const void* data);

}  // namespace maya::cuda
