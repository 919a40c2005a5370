#include "math/memory_bound.h"

#include <span>

#include "core/recorder.h"

namespace maya::math {

void record_memory_bound(const std::string& name, std::int64_t blocks, int threads, std::int64_t bytes, void* stream) {
  const std::string description = R"("kind":"kernel","kernel":)" + json_quote(name) + R"(,"grid":[)" +
                                  std::to_string(blocks) + R"(,1,1],"block":[)" + std::to_string(threads) +
                                  R"(,1,1],"shared_bytes":0,"bytes":)" + std::to_string(bytes);
  const auto key = std::as_bytes(std::span(description));
  record(RecordKind::kKernel, stream, intern_operation(key, [&] { return description; }));
}

}  // namespace maya::math
