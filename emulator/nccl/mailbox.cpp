#include "nccl/mailbox.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "core/hash.h"

namespace maya::nccl {
namespace {

constexpr std::size_t kDirectoryOffset = 4096;

std::uint64_t nonzero(std::uint64_t key) { return key ? key : 1; }

std::uint64_t key_of(const ChannelKey& channel) {
  const std::uint64_t place = std::uint64_t{channel.rank} << 32 | channel.communicator;
  return nonzero(combine(combine(0xc4a77e1, place), static_cast<std::uint32_t>(channel.peer)));
}

std::uint64_t key_of(std::uint64_t communicator_id, std::uint32_t member) {
  return nonzero(combine(combine(0x3e3be5, communicator_id), member));
}

}  // namespace

std::span<Mailbox::Entry> Mailbox::directory() const {
  return {reinterpret_cast<Entry*>(arena_.data() + kDirectoryOffset), kDirectoryEntries};
}

std::uint64_t Mailbox::allocate(std::size_t bytes) {
  const std::uint64_t base = kDirectoryOffset + kDirectoryEntries * sizeof(Entry);
  const std::uint64_t rounded = (bytes + 63) & ~std::uint64_t{63};
  const std::uint64_t offset = base + top().used.fetch_add(rounded);
  if (offset + rounded <= arena_.size()) return offset;
  top().used.fetch_sub(rounded);
  return 0;
}

// Linear probing; an entry is taken by writing its key, once and for good.
Mailbox::Entry* Mailbox::claim(std::uint64_t key) {
  for (std::size_t probe = 0; probe < kDirectoryEntries; ++probe) {
    Entry& entry = directory()[(key + probe) % kDirectoryEntries];
    std::uint64_t found = 0;
    if (entry.key.compare_exchange_strong(found, key) || found == key) return &entry;
  }
  return nullptr;
}

const Mailbox::Entry* Mailbox::look_up(std::uint64_t key) const {
  for (std::size_t probe = 0; probe < kDirectoryEntries; ++probe) {
    const Entry& entry = directory()[(key + probe) % kDirectoryEntries];
    const std::uint64_t found = entry.key.load(std::memory_order_acquire);
    if (found == key) return &entry;
    if (!found) return nullptr;
  }
  return nullptr;
}

std::uint64_t Mailbox::new_chunk(std::uint64_t first) {
  const std::uint64_t offset = allocate(sizeof(Chunk));
  if (offset) (new (arena_.data() + offset) Chunk{})->first = first;
  return offset;
}

Mailbox::Chunk* Mailbox::chunk_at(std::uint64_t offset) const {
  return offset ? reinterpret_cast<Chunk*>(arena_.data() + offset) : nullptr;
}

// The chunk that a link leads to, made where there is none.
Mailbox::Chunk* Mailbox::linked(std::atomic<std::uint64_t>& link, std::uint64_t first) {
  std::uint64_t offset = link.load(std::memory_order_acquire);
  if (!offset) {
    offset = new_chunk(first);
    link.store(offset, std::memory_order_release);
  }
  return chunk_at(offset);
}

// The chunk that holds message `sequence`, from the one last used on; `first` and `next` yield a channel's chunks.
template <typename First, typename Next>
Mailbox::Chunk* Mailbox::walk(std::uint64_t key, std::uint64_t sequence, First first, Next next) const {
  const std::lock_guard lock(guard_);
  Chunk*& last = last_[key];
  Chunk* chunk = last && last->first <= sequence ? last : first();
  while (chunk && sequence >= chunk->first + kChunk) chunk = next(*chunk);
  if (chunk) last = chunk;
  return chunk;
}

// Only the sender extends its channel (one process, calls on a communicator are not concurrent).
Mailbox::Chunk* Mailbox::chunk_for(const ChannelKey& channel, std::uint64_t sequence) {
  const std::uint64_t key = key_of(channel);
  const auto first = [&] {
    Entry* entry = claim(key);
    return entry ? linked(entry->value, 0) : nullptr;
  };
  return walk(key, sequence, first, [&](Chunk& chunk) { return linked(chunk.next, chunk.first + kChunk); });
}

bool Mailbox::post(const ChannelKey& channel, std::uint64_t sequence, const Message& header,
                   std::span<const std::byte> payload, std::span<const values::Part> known) {
  const std::size_t stored = known.empty() ? 0 : known.size_bytes() + payload.size();
  Chunk* chunk = payload.size() <= values::kSmallBytes ? chunk_for(channel, sequence) : nullptr;
  const std::uint64_t offset = chunk ? allocate(sizeof(Message) + stored) : 0;
  if (!offset) return false;
  auto* message = new (arena_.data() + offset) Message(header);
  message->bytes = payload.size();
  message->parts = static_cast<std::uint32_t>(known.size());
  if (stored) {
    auto* const behind = reinterpret_cast<std::byte*>(message + 1);
    std::memcpy(behind, known.data(), known.size_bytes());
    std::memcpy(behind + known.size_bytes(), payload.data(), payload.size());
  }
  chunk->messages[sequence - chunk->first].store(offset, std::memory_order_seq_cst);
  wake();
  return true;
}

std::span<const std::byte> Message::payload() const {
  static const std::byte zeros[values::kSmallBytes] = {};
  return {parts ? reinterpret_cast<const std::byte*>(known().data() + parts) : zeros, static_cast<std::size_t>(bytes)};
}

std::span<const values::Part> Message::known() const {
  return {reinterpret_cast<const values::Part*>(this + 1), parts};
}

const Message* Mailbox::find(const ChannelKey& channel, std::uint64_t sequence) const {
  const std::uint64_t key = key_of(channel);
  const auto first = [&] {
    const Entry* entry = look_up(key);
    return entry ? chunk_at(entry->value.load(std::memory_order_acquire)) : nullptr;
  };
  const auto next = [&](const Chunk& chunk) { return chunk_at(chunk.next.load(std::memory_order_acquire)); };
  const Chunk* chunk = walk(key, sequence, first, next);
  if (!chunk) return nullptr;
  const std::uint64_t offset = chunk->messages[sequence - chunk->first].load(std::memory_order_seq_cst);
  return offset ? reinterpret_cast<const Message*>(arena_.data() + offset) : nullptr;
}

bool Mailbox::announce(std::uint64_t communicator_id, std::uint32_t member, Member who) {
  Entry* entry = claim(key_of(communicator_id, member));
  if (!entry) return false;
  entry->value.store((std::uint64_t{who.rank} + 1) << 32 | who.communicator, std::memory_order_release);
  wake();
  return true;
}

std::optional<Member> Mailbox::member(std::uint64_t communicator_id, std::uint32_t member) const {
  const Entry* entry = look_up(key_of(communicator_id, member));
  const std::uint64_t value = entry ? entry->value.load(std::memory_order_acquire) : 0;
  if (!value) return std::nullopt;
  return Member{static_cast<std::uint32_t>(value >> 32) - 1, static_cast<std::uint32_t>(value)};
}

std::uint32_t Mailbox::ticket() const { return top().posts.load(std::memory_order_seq_cst); }

// A shared futex (futex(2)): the word lies in a file that many processes map.
void Mailbox::sleep(std::uint32_t ticket, long microseconds) const {
  const timespec limit{microseconds / 1'000'000, microseconds % 1'000'000 * 1000};
  top().sleepers.fetch_add(1);
  syscall(SYS_futex, &top().posts, FUTEX_WAIT, ticket, &limit, nullptr, 0);
  top().sleepers.fetch_sub(1);
}

void Mailbox::wake() const {
  top().posts.fetch_add(1);
  if (top().sleepers.load()) syscall(SYS_futex, &top().posts, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
}

std::size_t Mailbox::used_bytes() const { return top().used.load(); }

}  // namespace maya::nccl
