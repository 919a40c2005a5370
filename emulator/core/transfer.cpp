#include "core/transfer.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/memory.h"
#include "core/recorder.h"
#include "values/values.h"

namespace maya {
namespace {

struct Side {
  bool device = false;
  bool pinned = false;  // device or page-locked
  int ordinal = 0;
};

Side side_of(const void* pointer) {
  const auto allocation = find_allocation(pointer);
  if (!allocation) return {};
  const bool device = allocation->kind == MemoryKind::kDevice || allocation->kind == MemoryKind::kManaged;
  return {device, true, allocation->device};
}

enum class Direction : std::uint32_t { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kPeer };

Direction direction_of(const Side& to, const Side& from) {
  if (to.device && from.device) return to.ordinal == from.ordinal ? Direction::kDeviceToDevice : Direction::kPeer;
  if (to.device) return Direction::kHostToDevice;
  return from.device ? Direction::kDeviceToHost : Direction::kHostToHost;
}

struct CopyKey {
  std::uint32_t tag = 0x63;  // tells copies from other operations' keys
  Direction direction;
  std::uint32_t pinned;
};

std::uint32_t copy_operation(Direction direction, bool pinned) {
  return intern_operation(CopyKey{.direction = direction, .pinned = pinned}, [&] {
    constexpr const char* kNames[] = {"h2h", "h2d", "d2h", "d2d", "p2p"};
    return std::string("\"kind\": \"memcpy\", \"direction\": \"") + kNames[static_cast<int>(direction)] +
           "\", \"pinned\": " + (pinned ? "true" : "false");
  });
}

// When the host waits for the device (CUDA Runtime API, API synchronization behavior).
bool blocks(Direction direction, bool pinned, bool synchronous) {
  switch (direction) {
    case Direction::kHostToDevice: return synchronous;
    case Direction::kDeviceToHost: return synchronous || !pinned;
    case Direction::kHostToHost: return true;
    default: return false;
  }
}

// Batches of tokens, which masks of documents and losses are made of; floating-point numbers have larger exponents.
constexpr std::size_t kIntegerBytes = 1024 * 1024;
constexpr std::int32_t kMostInteger = 1 << 25;  // four truth values are less

bool holds_integers(const void* data, std::size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(data);
  for (std::size_t at = 0; at + sizeof(std::int32_t) <= bytes; at += sizeof(std::int32_t)) {
    std::int32_t word = 0;
    std::memcpy(&word, from + at, sizeof word);
    if (word >= kMostInteger || word < -kMostInteger) return false;
  }
  return true;
}

void copy_from_host(void* destination, const void* source, std::size_t bytes) {
  const bool small = bytes <= kValueBytes;
  if (!small && (bytes > kIntegerBytes || !holds_integers(source, bytes))) return values::forget(destination, bytes);
  std::memcpy(destination, source, bytes);
  values::wrote(destination, bytes, small ? values::Content::kBytes : values::Content::kInteger);
}

// Moves what a copy may move.
void move(void* destination, const void* source, std::size_t bytes, Direction direction) {
  const values::Derivation copied;
  switch (direction) {
    case Direction::kHostToHost: std::memmove(destination, source, bytes); break;
    case Direction::kHostToDevice: copy_from_host(destination, source, bytes); break;
    case Direction::kDeviceToHost: values::copy_to_host(destination, source, bytes); break;
    default: values::copy(destination, source, bytes); break;
  }
}

}  // namespace

int copy_rows(void* destination, std::size_t destination_pitch, const void* source, std::size_t source_pitch,
              std::size_t bytes, std::size_t rows, Stream* stream, bool synchronous) {
  if (bytes == 0 || rows == 0) return 0;
  if (!destination || !source) return 1;  // cudaErrorInvalidValue
  const Side to = side_of(destination), from = side_of(source);
  const Direction direction = direction_of(to, from);
  const bool pinned = to.pinned && from.pinned;
  const bool captured = stream->capture != nullptr;
  if (captured && synchronous) return 906;  // cudaErrorStreamCaptureImplicit
  const auto move_rows = [=] {
    auto* into = static_cast<std::byte*>(destination);
    auto* out_of = static_cast<const std::byte*>(source);
    const bool large = rows > 1 && bytes * rows > kValueBytes && direction == Direction::kHostToDevice;
    for (std::size_t row = 0; row < rows; ++row) {
      if (large) values::forget(into + row * destination_pitch, bytes);
      else move(into + row * destination_pitch, out_of + row * source_pitch, bytes, direction);
    }
  };
  if (!captured) move_rows();
  RecordFields fields{.size = bytes * rows};
  if (blocks(direction, pinned, synchronous)) fields.flags = kBlocking;
  record(RecordKind::kMemcpy, stream, copy_operation(direction, pinned), fields);
  if (captured) at_each_launch(stream, move_rows);
  return 0;
}

int copy(void* destination, const void* source, std::size_t bytes, Stream* stream, bool synchronous) {
  return copy_rows(destination, bytes, source, bytes, bytes, 1, stream, synchronous);
}

int fill(void* destination, unsigned value, std::size_t element_bytes, std::size_t count, Stream* stream, bool) {
  const std::size_t bytes = element_bytes * count;
  if (bytes == 0) return 0;
  if (!destination) return 1;
  const auto write = [=] {
    if (bytes > kValueBytes) {
      values::forget(destination, bytes);  // reads zero from here on
      if (value == 0) values::wrote(destination, bytes, values::Content::kCountable);
      return;
    }
    auto* at = static_cast<std::byte*>(destination);
    for (std::size_t index = 0; index < count; ++index) std::memcpy(at + index * element_bytes, &value, element_bytes);
    values::wrote(destination, bytes);
  };
  const bool captured = stream->capture != nullptr;
  if (!captured) write();
  const std::uint32_t op =
      intern_operation(std::uint64_t{0x6d656d736574}, [] { return std::string("\"kind\": \"memset\""); });
  record(RecordKind::kMemset, stream, op, {.size = bytes});
  if (captured) at_each_launch(stream, write);
  return 0;
}

}  // namespace maya
