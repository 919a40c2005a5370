// What cuDNN's two APIs share: handles and element types.
#pragma once

#include <cstdint>
#include <string_view>

namespace maya::math::cudnn {

struct Handle {
  void* stream = nullptr;
};

Handle* find_handle(const void* handle);  // nullptr: destroyed or foreign

// docs/trace-format.md's name of a cudnnDataType_t; empty: no such name there.
std::string_view dtype(std::int32_t type);
std::int64_t dtype_bytes(std::int32_t type);

}  // namespace maya::math::cudnn
