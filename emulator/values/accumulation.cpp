#include "values/accumulation.h"

#include <array>
#include <string>

#include "values/mover.h"

namespace maya::values {
namespace {

struct Entry {
  std::string_view functor;
  Op op;
};

constexpr Entry kEntries[] = {{"ReduceAdd", Op::kAdd},
                              {"ReduceMean", Op::kAdd},
                              {"ReduceMultiply", Op::kMultiply},
                              {"ReduceMaximum", Op::kMaximum},
                              {"ReduceMinimum", Op::kMinimum}};

Lane applied(const Functor& functor, Lane a, Lane b) {
  const std::array<Lane, 2> operands{a, b};
  return apply(functor, operands, 0);
}

}  // namespace

Accumulation::Accumulation(Op op, ScalarType type)
    : functor_{.op = op,
               .sources = {Source{type, true}, Source{type, true}},
               .source_count = 2,
               .tensors = 2,
               .compute = type,
               .result = type} {}

bool Accumulation::put(std::byte* to, Lane value) const {
  const ScalarType type = functor_.result;
  const std::size_t bytes = size_of(type);
  const Content content = content_at(to);
  const bool of_large = is_float(type) && content != Content::kFloat;
  if (!known(to, bytes, of_large ? Content::kCountableFloat : content_of(type))) return false;
  store(type, applied(functor_, load(type, to), value), to);
  wrote(to, bytes, content);
  return true;
}

Lane Accumulation::product(Lane a, Lane b) const {
  Functor multiplied = functor_;
  multiplied.op = Op::kMultiply;
  return applied(multiplied, a, b);
}

std::optional<Accumulation> find_accumulation(std::string_view functor, std::string_view element) {
  const auto type = scalar_type(element);
  if (!type) return std::nullopt;
  for (const Entry& entry : kEntries) {
    if (functor.find(entry.functor) != std::string_view::npos) return Accumulation(entry.op, *type);
  }
  return std::nullopt;
}

bool accumulates(std::int64_t elements, ScalarType type) {
  if (computes(elements, type, Derivation::picked())) return true;
  if (Derivation::picked() && !is_float(type)) lose(std::to_string(elements) + " accumulated integers");
  return false;
}

}  // namespace maya::values
