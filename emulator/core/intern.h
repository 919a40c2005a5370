// A grow-only table from bytes to dense ids, read without a lock.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/hash.h"

namespace maya {

class InternTable {
 public:
  struct Entry {
    std::uint64_t hash;
    std::uint32_t id;
    std::vector<std::byte> key;
  };

  InternTable() { publish(1024); }
  InternTable(const InternTable&) = delete;
  InternTable& operator=(const InternTable&) = delete;

  // The entry of `key`; a new one gets the next id from 1 and, before anyone can see it, runs `created`.
  const Entry& intern(std::span<const std::byte> key, const std::function<void(const Entry&)>& created) {
    const std::uint64_t hash = hash_bytes(key);
    if (const Entry* found = find(*table_.load(std::memory_order_acquire), hash, key)) return *found;
    return insert(hash, key, created);
  }

  // The key of `id`, which intern() returned.
  std::span<const std::byte> key(std::uint32_t id) {
    std::lock_guard lock(mutex_);
    return entries_[id - 1].key;
  }

 private:
  using Slot = std::atomic<const Entry*>;
  struct Table {
    explicit Table(std::size_t size) : mask(size - 1), slots(size) {}
    std::size_t mask;
    std::vector<Slot> slots;
  };

  static const Entry* find(const Table& table, std::uint64_t hash, std::span<const std::byte> key) {
    for (std::size_t at = hash & table.mask;; at = (at + 1) & table.mask) {
      const Entry* entry = table.slots[at].load(std::memory_order_acquire);
      if (!entry) return nullptr;
      if (entry->hash == hash && entry->key.size() == key.size() &&
          (key.empty() || std::memcmp(entry->key.data(), key.data(), key.size()) == 0))
        return entry;
    }
  }

  static void place(Table& table, const Entry& entry) {
    std::size_t at = entry.hash & table.mask;
    while (table.slots[at].load(std::memory_order_relaxed)) at = (at + 1) & table.mask;
    table.slots[at].store(&entry, std::memory_order_release);
  }

  const Entry& insert(std::uint64_t hash, std::span<const std::byte> key,
                      const std::function<void(const Entry&)>& created) {
    std::lock_guard lock(mutex_);
    if (const Entry* found = find(*tables_.back(), hash, key)) return *found;
    Entry& entry =
        entries_.emplace_back(Entry{hash, static_cast<std::uint32_t>(entries_.size() + 1), {key.begin(), key.end()}});
    created(entry);
    if (entries_.size() * 2 > tables_.back()->slots.size()) publish(tables_.back()->slots.size() * 2);
    else place(*tables_.back(), entry);
    return entry;
  }

  void publish(std::size_t size) {
    tables_.push_back(std::make_unique<Table>(size));
    for (const Entry& entry : entries_) place(*tables_.back(), entry);
    table_.store(tables_.back().get(), std::memory_order_release);
  }

  std::mutex mutex_;  // guards: entries_, tables_ and insertion
  std::deque<Entry> entries_;
  std::vector<std::unique_ptr<Table>> tables_;  // readers may still hold an earlier one
  std::atomic<Table*> table_{nullptr};
};

}  // namespace maya
