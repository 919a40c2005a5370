// Integers and truth values too many to be stored, each of which follows element by element from known ones: the mask
// of an attention, that its blocks are counted from. They are computed when they are asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "values/functor.h"
#include "values/geometry.h"

namespace maya::values {

class Formula {
 public:
  static constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 30;  // operations: seconds

  // A tensor operand: bytes of its own, or another formula's elements.
  struct Input {
    ScalarType type;
    std::vector<std::byte> stored;
    std::shared_ptr<const Formula> formula;
    std::int64_t first = 0;  // bytes from the formula's first element
  };

  // Elements of `type`, dense in the order of `geometry`, whose operands are the result, then the inputs.
  Formula(const Functor& functor, const std::byte* object, const Geometry& geometry, ScalarType type,
          std::vector<Input> inputs);

  ScalarType type() const { return type_; }
  std::size_t bytes() const { return static_cast<std::size_t>(geometry_.numel) * size_of(type_); }
  // Of all that its elements follow from: equal ones have equal elements.
  std::uint64_t hash() const { return hash_; }
  // Operations that one element takes.
  std::int64_t operations() const { return operations_; }

  // The elements from `first` on.
  void compute(std::int64_t first, std::span<Lane> elements) const;

  // How many of the elements that begin `first` bytes from the first one are not zero.
  std::int64_t count_nonzero(std::int64_t first, std::int64_t elements) const;

  // Their bytes from `first` on, of whole elements.
  void store(std::int64_t first, std::span<std::byte> to) const;

 private:
  void compute_chunk(std::int64_t first, std::span<Lane> elements) const;
  void read(const Input& input, std::int64_t offset, std::int64_t stride, std::span<Lane> elements) const;

  Functor functor_;
  std::vector<std::byte> object_;
  Geometry geometry_;
  ScalarType type_;
  std::vector<Input> inputs_;
  std::int64_t operations_ = 1;
  std::uint64_t hash_ = 0;
};

// The elements [first, first + count) of a formula, at hand for one that asks for them one by one.
class FormulaReader {
 public:
  explicit FormulaReader(const Formula& formula) : formula_(formula) {}
  Lane at(std::int64_t element);

 private:
  const Formula& formula_;
  std::int64_t first_ = 0, count_ = 0;
  std::array<Lane, 256> lanes_;
};

}  // namespace maya::values
