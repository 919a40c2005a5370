// A rank that waits for another's message: told to the launcher, and to the ranks that wait for it.
#pragma once

#include <cstdint>
#include <string>

#include "core/trace_format.h"
#include "nccl/mailbox.h"

namespace maya::nccl {

// A message that a rank cannot go on without.
struct Awaited {
  ChannelKey channel;  // of the rank that is taken to send it
  std::uint64_t sequence;
  bool stands_in;  // that rank does so for one that was ended or never started, and may not send it
  bool operator==(const Awaited&) const = default;
};

// Shows in this rank's slot that it waits, from construction to destruction.
class Waiting {
 public:
  // `slot` may be nullptr: a lone process shows nobody.
  Waiting(RankSlot* slot, const std::string& site);
  ~Waiting();
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  // Says what it waits for now; true when that is news.
  bool expect(const Awaited& awaited);

 private:
  void change(RankState from, RankState to);

  RankSlot* slot_;
  Awaited expected_{};
  bool expects_ = false;
};

// Whether `rank` and others wait in a circle that ends when `rank` does without its message. Ranks that stand for
// others meet so: each is asked for a message that it would send only further on. Of those in the circle that
// wait for a rank that does not run, the lowest does without: all of them find the same one. A circle may be one rank:
// it stands for the neighbour that it receives from.
bool must_do_without(const Mailbox& mailbox, int rank);

}  // namespace maya::nccl
