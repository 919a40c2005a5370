// Kernels whose result nobody computes, but whose outputs their parameter types tell: those passed by
// pointer to non-const. Of an output's extent nothing is said, so what is known from its first byte to the
// end of the range written there before is forgotten.
#include <algorithm>
#include <vector>

#include "values/executor.h"

namespace maya::values {
namespace {

bool is_mutable(std::string_view type) { return !type.ends_with(" const") && !type.starts_with("const "); }

// Pointers, and the structs that begin with one: TensorInfo<T, I>, GenericPackedTensorAccessor<.., T, ..>
// and the std::array<char*, k> of element-wise kernels, whose first is the output.
bool is_output(std::string_view parameter) {
  if (parameter.ends_with('*')) return is_mutable(parameter.substr(0, parameter.size() - 1));
  const FunctorType type = parse_functor(parameter);
  if (type.templates.empty()) return false;
  if (type.name == "TensorInfo") return is_mutable(type.templates[0]);
  if (type.name == "GenericPackedTensorAccessor") {
    return std::ranges::none_of(type.templates, [](auto part) { return part.ends_with(" const"); });
  }
  return type.name == "array" && type.templates[0] == "char*";
}

class Opaque : public Executor {
 public:
  explicit Opaque(std::vector<int> outputs) : outputs_(std::move(outputs)) {}

  bool run(const Launch& launch) const override {
    for (const int index : outputs_) clobber(launch.argument<void*>(index));
    return true;
  }

 private:
  std::vector<int> outputs_;
};

}  // namespace

std::unique_ptr<Executor> make_opaque(const Signature& kernel) {
  std::vector<int> outputs;
  for (std::size_t at = 0; at < kernel.parameters.size(); ++at) {
    if (is_output(kernel.parameters[at])) outputs.push_back(static_cast<int>(at));
  }
  return outputs.empty() ? nullptr : std::make_unique<Opaque>(std::move(outputs));
}

}  // namespace maya::values
