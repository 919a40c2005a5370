#include "core/trace_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

namespace maya {
namespace {

constexpr std::uint64_t kHeaderBytes = 4096;
constexpr std::uint64_t kGrowBytes = 1 << 20;                    // 16,384 records
constexpr std::uint64_t kWindowBytes = std::uint64_t{64} << 30;  // address space; 1 G records

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

int create_file(const std::string& path, bool exclusive, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CREAT | O_CLOEXEC | (exclusive ? O_EXCL : O_TRUNC), 0644);
  if (fd < 0) fail(path);
  return fd;
}

}  // namespace

void TraceFile::open(const RankConfig& config, bool exclusive) {
  char name[32];
  std::snprintf(name, sizeof name, "/rank-%05d", config.rank);
  const std::string stem = config.trace_dir + name;
  trace_fd_ = create_file(stem + ".trace", exclusive, O_RDWR);
  ops_fd_ = create_file(stem + ".ops", false, O_WRONLY | O_APPEND);
  // One window over the whole file to come: records never move, pages beyond its end are never touched.
  void* window = mmap(nullptr, kWindowBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, trace_fd_, 0);
  if (window == MAP_FAILED) fail("map " + stem + ".trace");
  base_ = static_cast<std::byte*>(window);
  file_bytes_ = kHeaderBytes;
  grow();
  header_ = new (base_) TraceHeader{};
  header_->version = 3;
  header_->rank = static_cast<std::uint32_t>(config.rank);
  header_->world = static_cast<std::uint32_t>(config.world);
  header_->local_rank = static_cast<std::uint32_t>(config.local_rank);
  header_->capacity_bytes = config.memory_bytes;
  header_->context_bytes = config.context_bytes;
  std::memcpy(header_->magic, kTraceMagic, sizeof kTraceMagic);
}

void TraceFile::grow() {
  file_bytes_ += kGrowBytes;
  if (file_bytes_ > kWindowBytes) {
    errno = EFBIG;
    fail("trace");
  }
  // Blocks, not only length: on a full disk a rank then ends here, not by SIGBUS at some record.
  const auto grown = static_cast<off_t>(file_bytes_ - kGrowBytes);
  do {
    errno = posix_fallocate(trace_fd_, grown, kGrowBytes);
  } while (errno == EINTR);
  if (errno != 0) fail("grow trace");
  capacity_ = (file_bytes_ - kHeaderBytes) / sizeof(Record);
}

Record& TraceFile::next() {
  if (count_ == capacity_) grow();
  return *reinterpret_cast<Record*>(base_ + kHeaderBytes + count_ * sizeof(Record));
}

void TraceFile::write_line(std::string line) {
  line += '\n';
  const char* at = line.data();
  std::size_t left = line.size();
  while (left > 0) {
    const ssize_t written = write(ops_fd_, at, left);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("write .ops");
    at += written;
    left -= static_cast<std::size_t>(written);
  }
}

}  // namespace maya
