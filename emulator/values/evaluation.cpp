#include "values/evaluation.h"

#include <algorithm>

namespace maya::values {

Evaluation::Evaluation(const Functor& functor, const std::byte* object) : functor_(functor) {
  for (int at = 0; at < functor.source_count; ++at) {
    const Source& source = functor.sources[at];
    if (!source.tensor) lanes_[at] = load(source.type, object + source.offset);
  }
  if (functor.selects) selector_ = read_at<std::int32_t>(object, 0);
}

void Evaluation::of_each(std::span<std::array<Lane, kMost>> tensors, std::span<const ScalarType> types,
                         std::span<Lane> results) {
  std::array<std::array<Lane, kMost>, 4> scalars;
  std::array<std::span<const Lane>, 4> operands;
  std::size_t tensor = 0;
  for (int at = 0; at < functor_.source_count; ++at) {
    const Source& source = functor_.sources[at];
    std::array<Lane, kMost>& elements = source.tensor ? tensors[tensor] : scalars[at];
    if (!source.tensor) std::ranges::fill(std::span(elements).first(results.size()), lanes_[at]);
    else if (types[tensor] != source.type) {
      for (Lane& lane : std::span(elements).first(results.size())) lane = cast(types[tensor], source.type, lane);
    }
    tensor += source.tensor;
    operands[at] = elements;
  }
  apply_each(functor_, {operands.data(), static_cast<std::size_t>(functor_.source_count)}, selector_, results);
  const ScalarType wide = is_float(functor_.compute) ? ScalarType::kDouble : ScalarType::kInt64;
  const bool fits = functor_.compute == wide || functor_.op == Op::kCopy || functor_.op == Op::kAnd ||
                    functor_.op == Op::kOr;  // the type of the operands holds the result
  if (is_predicate() || (fits && functor_.compute == functor_.result)) return;
  for (Lane& lane : results) lane = cast(functor_.compute, functor_.result, cast(wide, functor_.compute, lane));
}

bool Evaluation::is_predicate() const {
  switch (functor_.op) {
    case Op::kEqual:
    case Op::kLess:
    case Op::kLogicalAnd:
    case Op::kLogicalOr:
    case Op::kLogicalXor:
    case Op::kLogicalNot:
    case Op::kIsNan:
    case Op::kIsInfinite: return true;
    default: return false;
  }
}

}  // namespace maya::values
