// One element-wise operation on lanes.
#pragma once

#include <array>
#include <span>

#include "values/executor.h"
#include "values/functor.h"

namespace maya::values {

class Evaluation {
 public:
  // `object`: the functor's bytes, with the scalars that it captured.
  Evaluation(const Functor& functor, const std::byte* object);

  // Of elements of each tensor operand, in order, of the types they have in memory, at most kMost at once: `tensors[i]`
  // has the i-th operand's, which are cast in place.
  static constexpr std::size_t kMost = 256;
  void of_each(std::span<std::array<Lane, kMost>> tensors, std::span<const ScalarType> types, std::span<Lane> results);

 private:
  bool is_predicate() const;

  const Functor& functor_;
  std::array<Lane, 4> lanes_{};
  int selector_ = 0;
};

}  // namespace maya::values
