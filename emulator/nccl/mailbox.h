// Messages between ranks that outlive their sender: NCCL's small payloads, kept in the job control file.
//
// A *channel* is one sender's sequence of messages: (global rank, local communicator index, relative
// peer). Its messages are numbered densely from 0, so a rank that runs later, or one whose peer was merged
// into a class, finds message n where the sender put it. Nothing is taken back before the job ends;
// a full arena is one clear error.
//
// Arena: Top, Entry[kDirectoryEntries], then messages and channel chunks from a bump allocator. Everything
// starts as zeros (a sparse file) and becomes visible with one release store, so a killed writer leaves no
// half-written message.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

#include "values/values.h"

namespace maya::nccl {

inline constexpr std::size_t kDirectoryEntries = 1 << 17;  // 2 MiB: channels and members of the whole job
inline constexpr std::int32_t kCollectivePeer = -1;

// What a call says of itself; two ranks that meet at one sequence number must say the same.
struct Signature {
  std::uint8_t collective = 0, dtype = 0, reduction = 0, reserved = 0;
  std::int32_t root = -1;
  std::uint64_t count = 0;
  bool operator==(const Signature&) const = default;
};

struct Message {
  Signature signature;
  std::uint32_t global_rank = 0;
  std::uint32_t parts = 0;  // of the payload that are real; 0: nobody computed it (zeros, of which none are stored)
  std::uint64_t bytes = 0;  // of payload; 0 when only the signature was sent
  char site[104] = {};      // operator that made the call, for mismatch reports

  std::span<const std::byte> payload() const;
  std::span<const values::Part> known() const;  // in order; what lies between them reads zero
};
static_assert(sizeof(Message) == 136 && alignof(Message) == 8);

struct ChannelKey {
  std::uint32_t rank = 0;               // global rank of the sender
  std::uint32_t communicator = 0;       // the sender's local index
  std::int32_t peer = kCollectivePeer;  // p2p: (receiver - sender) mod size, the same for every class mate
  bool operator==(const ChannelKey&) const = default;
};

// Who a communicator's member is.
struct Member {
  std::uint32_t rank = 0;          // global
  std::uint32_t communicator = 0;  // that rank's local index of the communicator
};

class Mailbox {
 public:
  // `arena` must be zeroed when its first user attaches; ranks attach in any order.
  explicit Mailbox(std::span<std::byte> arena) : arena_(arena) {}

  // Stores message `sequence` of a channel, of at most values::kSmallBytes, and which parts of it are known. False when
  // the arena is full.
  bool post(const ChannelKey& channel, std::uint64_t sequence, const Message& header,
            std::span<const std::byte> payload, std::span<const values::Part> known);

  // The message, or nullptr when it has not been posted.
  const Message* find(const ChannelKey& channel, std::uint64_t sequence) const;

  bool announce(std::uint64_t communicator_id, std::uint32_t member, Member who);
  std::optional<Member> member(std::uint64_t communicator_id, std::uint32_t member) const;

  // Sleeps until anything is posted after `ticket` was taken, at most `microseconds`.
  std::uint32_t ticket() const;
  void sleep(std::uint32_t ticket, long microseconds) const;
  void wake() const;  // everyone who sleeps

  std::size_t used_bytes() const;
  std::size_t capacity_bytes() const { return arena_.size(); }

 private:
  static constexpr std::size_t kChunk = 126;  // messages of one channel that a chunk of 1 KiB locates

  struct Top {
    std::atomic<std::uint64_t> used;   // bytes behind the directory
    std::atomic<std::uint32_t> posts;  // futex word
    mutable std::atomic<std::uint32_t> sleepers;
  };
  struct Entry {
    std::atomic<std::uint64_t> key, value;  // 0: empty, not yet written
  };
  struct Chunk {
    std::uint64_t first;  // sequence number of messages[0]
    std::atomic<std::uint64_t> next;
    std::atomic<std::uint64_t> messages[kChunk];
  };

  Top& top() const { return *reinterpret_cast<Top*>(arena_.data()); }
  std::span<Entry> directory() const;
  std::uint64_t allocate(std::size_t bytes);  // an offset, 0 when full
  Entry* claim(std::uint64_t key);
  const Entry* look_up(std::uint64_t key) const;
  std::uint64_t new_chunk(std::uint64_t first);
  Chunk* chunk_at(std::uint64_t offset) const;
  Chunk* chunk_for(const ChannelKey& channel, std::uint64_t sequence);
  Chunk* linked(std::atomic<std::uint64_t>& link, std::uint64_t first);
  template <typename First, typename Next>
  Chunk* walk(std::uint64_t key, std::uint64_t sequence, First first, Next next) const;

  std::span<std::byte> arena_;
  // By channel, the chunk that this process last used: a channel of a million messages is not walked from its start.
  mutable std::mutex guard_;
  mutable std::unordered_map<std::uint64_t, Chunk*> last_;
};

}  // namespace maya::nccl
