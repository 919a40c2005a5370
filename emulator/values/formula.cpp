#include "values/formula.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "values/evaluation.h"

namespace maya::values {

Formula::Formula(const Functor& functor, const std::byte* object, const Geometry& geometry, ScalarType type,
                 std::vector<Input> inputs)
    : functor_(functor),
      object_(object, object + functor.size),
      geometry_(geometry),
      type_(type),
      inputs_(std::move(inputs)) {
  hash_ = combine(combine(geometry.hash(), hash_bytes(object_)), static_cast<std::uint64_t>(type));
  hash_ = combine(hash_, hash_bytes(std::as_bytes(std::span(&functor_.op, 1))));
  for (const Input& input : inputs_) {
    operations_ += input.formula ? input.formula->operations() : 0;
    const std::uint64_t elements = input.formula ? input.formula->hash() : hash_bytes(input.stored);
    hash_ = combine(combine(hash_, elements), static_cast<std::uint64_t>(input.first));
  }
}

void Formula::compute(std::int64_t first, std::span<Lane> elements) const {
  for (std::size_t at = 0; at < elements.size();) {
    const std::int64_t next = first + static_cast<std::int64_t>(at);
    const std::int64_t row = geometry_.dims > 0 ? geometry_.sizes[0] - next % geometry_.sizes[0] : 1;
    const std::size_t count = std::min({elements.size() - at, static_cast<std::size_t>(row), Evaluation::kMost});
    compute_chunk(next, elements.subspan(at, count));
    at += count;
  }
}

// Within one row.
void Formula::compute_chunk(std::int64_t first, std::span<Lane> elements) const {
  std::array<std::array<Lane, Evaluation::kMost>, kMaxOperands - 1> operands;
  std::array<ScalarType, kMaxOperands - 1> types;
  for (std::size_t at = 0; at < inputs_.size(); ++at) {
    std::int64_t offset = 0, rest = first;
    for (int dim = 0; dim < geometry_.dims; ++dim) {
      offset += rest % geometry_.sizes[dim] * geometry_.strides[at + 1][dim];
      rest /= geometry_.sizes[dim];
    }
    const std::int64_t stride = geometry_.dims > 0 ? geometry_.strides[at + 1][0] : 0;
    read(inputs_[at], offset, stride, std::span(operands[at]).first(elements.size()));
    types[at] = inputs_[at].type;
  }
  Evaluation(functor_, object_.data())
      .of_each({operands.data(), inputs_.size()}, {types.data(), inputs_.size()}, elements);
  if (functor_.result == type_) return;
  for (Lane& lane : elements) lane = cast(functor_.result, type_, lane);
}

void Formula::read(const Input& input, std::int64_t offset, std::int64_t stride, std::span<Lane> elements) const {
  if (!input.formula) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      elements[i] = load(input.type, input.stored.data() + offset + static_cast<std::int64_t>(i) * stride);
    }
    return;
  }
  const auto size = static_cast<std::int64_t>(size_of(input.type)), first = (input.first + offset) / size;
  if (stride == size) return input.formula->compute(first, elements);
  const std::size_t apart = stride == 0 ? 1 : elements.size();
  for (std::size_t i = 0; i < apart; ++i) {
    input.formula->compute(first + static_cast<std::int64_t>(i) * (stride / size), elements.subspan(i, 1));
  }
  if (stride == 0) std::ranges::fill(elements, elements.front());
}

std::int64_t Formula::count_nonzero(std::int64_t first, std::int64_t elements) const {
  FormulaReader reader(*this);
  const std::int64_t begin = first / static_cast<std::int64_t>(size_of(type_));
  std::int64_t count = 0;
  for (std::int64_t at = begin; at < begin + elements; ++at) count += reader.at(at).i != 0;
  return count;
}

void Formula::store(std::int64_t first, std::span<std::byte> to) const {
  const std::size_t size = size_of(type_);
  FormulaReader elements(*this);
  for (std::size_t at = 0; at + size <= to.size(); at += size) {
    maya::values::store(type_, elements.at((first + static_cast<std::int64_t>(at)) / static_cast<std::int64_t>(size)),
                        to.data() + at);
  }
}

Lane FormulaReader::at(std::int64_t element) {
  if (element < first_ || element >= first_ + count_) {
    const auto elements = static_cast<std::int64_t>(formula_.bytes() / size_of(formula_.type()));
    first_ = element;
    count_ = std::min(static_cast<std::int64_t>(lanes_.size()), elements - element);
    formula_.compute(first_, std::span(lanes_).first(static_cast<std::size_t>(count_)));
  }
  return lanes_[static_cast<std::size_t>(element - first_)];
}

}  // namespace maya::values
