// A library's kernel that is bound by memory, whatever its own shape: what it moves says what it takes.
#pragma once

#include <cstdint>
#include <string>

namespace maya::math {

// Records it on `stream`, of `blocks` blocks of `threads`, which read and write `bytes` in all.
void record_memory_bound(const std::string& name, std::int64_t blocks, int threads, std::int64_t bytes, void* stream);

}  // namespace maya::math
