// Elements that are put where others may lie already, and come to their sum, product or extreme with them.
#pragma once

#include <optional>
#include <string_view>

#include "values/executor.h"
#include "values/functor.h"

namespace maya::values {

class Accumulation {
 public:
  Accumulation(Op op, ScalarType type);

  // False: what lies at `to` is not known, and nothing was done.
  bool put(std::byte* to, Lane value) const;
  bool put(std::byte* to, const std::byte* value) const { return put(to, load(functor_.result, value)); }
  // Of two elements.
  Lane product(Lane a, Lane b) const;
  ScalarType type() const { return functor_.result; }

 private:
  Functor functor_;
};

// Of a functor of PyTorch's scatter and index kernels (ATen/native/cuda/ScatterGatherKernel.cu, Indexing.cu):
// ReduceAdd, ReduceMultiply, ReduceMean, which sums, ReduceMaximum and ReduceMinimum. Empty: none of these, or no type
// that computes.
std::optional<Accumulation> find_accumulation(std::string_view functor, std::string_view element);

// Whether so many elements are accumulated: all that are small, and countable ones. Says where integers are too many.
bool accumulates(std::int64_t elements, ScalarType type);

}  // namespace maya::values
