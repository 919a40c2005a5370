// Appends records to the rank's trace and interns what they refer to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "core/trace_format.h"

namespace maya {

// Every interposed entry point that the trace sees holds one. The constructor charges the calling
// thread's CPU time since its previous Call ended to the next record; the destructor takes the
// emulator's own time out of the account. Nested Calls count once.
class Call {
 public:
  Call();
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 protected:
  explicit Call(bool described);
};

// From the end of a Describing until the Described that follows it, the thread works for the recorder: nobody's host
// time. A Describing that another Call follows was none.
class Describing : public Call {
 public:
  ~Describing();
};
class Described : public Call {
 public:
  Described();
};

struct RecordFields {
  std::uint64_t size = 0;
  std::uint64_t arg = 0;
  std::uint32_t sequence = 0;
  std::int32_t peer = -1;
  std::uint32_t group = 0;
  std::uint8_t flags = 0;
  // Mixed into the rolling hash beside kind, stream, op and context; communicator role and relative
  // peer go here. Addresses, times and absolute ranks must not.
  std::uint64_t role = 0;
};

// Appends one record. On a stream under capture it goes to the graph instead.
// `stream` is the CUDA handle (nullptr: the legacy default stream). A no-op before begin_rank.
void record(RecordKind kind, void* stream, std::uint32_t op, const RecordFields& fields = {});

// The id of the operation whose identity is `key` (any bytes; equal keys are equal operations).
// `describe` runs once per distinct key and returns the members of a JSON object without its braces,
// for example `"kind":"gemm","m":128,...` (see docs/trace-format.md for each kind's members).
std::uint32_t intern_operation(std::span<const std::byte> key, const std::function<std::string()>& describe);

template <class Key>
std::uint32_t intern_operation(const Key& key, const std::function<std::string()>& describe) {
  return intern_operation(std::span<const std::byte>(std::as_bytes(std::span(&key, 1))), describe);
}

// The operator context (NVTX range) that the calling thread is in; 0: none.
std::uint32_t current_context();

// `aten::addmm [[3072], [4096, 1024]]`; empty for 0.
std::string context_text(std::uint32_t id);

// Appends one JSON line to the .ops table: communicators, mismatches.
void annotate(const std::string& json_line);

// Likewise, each line once a rank.
void annotate_once(const std::string& json_line);

// Puts what a user should know there, once a rank.
void note_once(std::string_view text);

// Names a refused call once on stderr and in the .ops table, and counts it.
void refuse(std::string_view library, std::string_view function);

std::string json_quote(std::string_view text);

}  // namespace maya
