// Copies and fills, shared by the runtime and the driver API; results are CUDA error codes.
#pragma once

#include <cstddef>

#include "core/stream.h"

namespace maya {

// Copies `bytes`: really, up to kValueBytes; beyond, host-to-device copies move nothing, and the others what is known
// (values/values.h), else zeros.
// `synchronous`: a cudaMemcpy without Async.
int copy(void* destination, const void* source, std::size_t bytes, Stream* stream, bool synchronous);

// `rows` rows of `bytes` each.
int copy_rows(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
              std::size_t bytes, std::size_t rows, Stream* stream, bool synchronous);

// `count` elements of `element_bytes` (1, 2 or 4), each set to the low bytes of `value`.
int fill(void* destination, unsigned value, std::size_t element_bytes, std::size_t count, Stream* stream,
         bool synchronous);

}  // namespace maya
