// Device variables that the process's modules registered.
#pragma once

#include <cstddef>

namespace maya::cudart {

struct DeviceVariable {
  void* address = nullptr;  // in device memory; zero-filled
  std::size_t bytes = 0;
};

// The variable behind a host-side symbol; address nullptr: not registered.
DeviceVariable device_variable(const void* symbol);

}  // namespace maya::cudart
