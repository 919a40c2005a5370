// The pending events in total order: by time, then by the order in which they were scheduled.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <vector>

#include "program.h"

namespace maya::simulate {

// A 4-ary heap of 16-byte keys. The root popped last leaves a hole that the next push fills, so the
// commonest step (an end that starts the stream's next piece of work) sifts once.
class EventQueue {
 public:
  struct Event {
    Nanoseconds time;
    std::uint32_t entity;
  };

  bool empty() const { return keys_.size() == (hole_ ? 1u : 0u); }

  void push(Nanoseconds time, std::uint32_t entity) {
    if (++sequence_ == 0) throw std::overflow_error("more than 2^32 events");
    const Key key = Key{static_cast<std::uint64_t>(time)} << 64 | Key{sequence_} << 32 | entity;
    if (hole_) {
      hole_ = false;
      sift_down(key);
    } else {
      keys_.push_back(key);
      sift_up(key);
    }
  }

  Event pop() {
    if (hole_) {
      const Key last = keys_.back();
      keys_.pop_back();
      sift_down(last);
    }
    hole_ = true;
    const Key key = keys_.front();
    return {static_cast<Nanoseconds>(key >> 64), static_cast<std::uint32_t>(key)};
  }

 private:
  __extension__ using Key = unsigned __int128;  // time, sequence, entity

  void sift_up(Key key) {
    std::size_t at = keys_.size() - 1;
    while (at > 0 && key < keys_[(at - 1) / 4]) {
      keys_[at] = keys_[(at - 1) / 4];
      at = (at - 1) / 4;
    }
    keys_[at] = key;
  }

  void sift_down(Key key) {
    const std::size_t size = keys_.size();
    std::size_t at = 0;
    for (std::size_t child = 1; child < size; child = 4 * at + 1) {
      const std::size_t last = child + 4 < size ? child + 4 : size;
      std::size_t least = child;
      for (std::size_t next = child + 1; next < last; ++next) least = keys_[next] < keys_[least] ? next : least;
      if (key < keys_[least]) break;
      keys_[at] = keys_[least];
      at = least;
    }
    keys_[at] = key;
  }

  std::vector<Key> keys_;
  std::uint32_t sequence_ = 0;
  bool hole_ = false;
};

}  // namespace maya::simulate
