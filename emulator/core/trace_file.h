// The rank's two output files: the mapped, append-only record file and the JSON-lines table.
#pragma once

#include <cstdint>
#include <string>

#include "core/process.h"
#include "core/trace_format.h"

namespace maya {

class TraceFile {
 public:
  TraceFile() = default;
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  // Creates both files; `exclusive`: only if they do not exist. Throws std::system_error.
  void open(const RankConfig& config, bool exclusive);
  bool is_open() const { return header_ != nullptr; }
  TraceHeader& header() { return *header_; }

  // The next record, to be filled in place and published with commit(). The caller holds the order.
  Record& next();
  void commit() { header_->records.store(++count_, std::memory_order_release); }

  void write_line(std::string line);  // one write(2): whole lines even after a kill

 private:
  void grow();

  int trace_fd_ = -1, ops_fd_ = -1;
  std::byte* base_ = nullptr;
  TraceHeader* header_ = nullptr;
  std::uint64_t count_ = 0, capacity_ = 0, file_bytes_ = 0;
};

}  // namespace maya
