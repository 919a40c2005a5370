#include "core/elementwise.h"

#include <algorithm>
#include <array>
#include <utility>

namespace maya {
namespace {

using Size = std::pair<std::string_view, int>;
constexpr std::array kSizes{Size{"c10::complex<double>", 16},
                            Size{"c10::complex<float>", 8},
                            Size{"c10::complex<c10::Half>", 4},
                            Size{"c10::BFloat16", 2},
                            Size{"c10::Half", 2},
                            Size{"c10::Float8_e4m3fn", 1},
                            Size{"c10::Float8_e5m2", 1},
                            Size{"c10::Float8_e8m0fnu", 1},
                            Size{"unsigned char", 1},
                            Size{"unsigned int", 4},
                            Size{"unsigned long", 8},
                            Size{"double", 8},
                            Size{"float", 4},
                            Size{"long", 8},
                            Size{"int", 4},
                            Size{"short", 2},
                            Size{"signed char", 1},
                            Size{"bool", 1},
                            Size{"__nv_bfloat16", 2},
                            Size{"__half", 2},
                            Size{"__nv_fp8_e4m3", 1},
                            Size{"__nv_fp8_e5m2", 1},
                            Size{"unsigned long long", 8},
                            Size{"uint4", 16},
                            Size{"uint2", 8},
                            Size{"unsigned short", 2}};

}  // namespace

int size_of_type(std::string_view type) {
  while (type.starts_with(' ')) type.remove_prefix(1);
  for (const std::string_view qualifier : {" const&", "&", "*"})
    if (type.ends_with(qualifier)) type.remove_suffix(qualifier.size());
  for (const auto& [name, bytes] : kSizes)
    if (type == name) return bytes;
  return -1;
}

std::string_view bracketed(std::string_view text) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '<' || text[at] == '(' || text[at] == '{') ++depth;
    if (text[at] == '>' || text[at] == ')' || text[at] == '}')
      if (--depth == 0) return text.substr(1, at - 1);
  }
  return {};
}

namespace {

// Sum of the sizes of a comma-separated list of types; -1: one of them is not a plain number.
int sum_of_types(std::string_view list) {
  int sum = 0;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    if (at < list.size() && list[at] == '<') ++depth;
    if (at < list.size() && list[at] == '>') --depth;
    if (at < list.size() && (list[at] != ',' || depth > 0)) continue;
    const int bytes = size_of_type(list.substr(start, at - start));
    if (bytes < 0) return -1;
    sum += bytes;
    start = at + 1;
  }
  return sum;
}

// Functors that name their types: inputs first or result last, every one a template parameter.
// at::native::BinaryFunctor<a, b, result, op>, AUnaryFunctor and BUnaryFunctor<a, b, result, op>
// (Loops.cuh); one operand of the latter two is a constant.
int functor_bytes(std::string_view name) {
  const auto types = [&](std::string_view functor) -> std::string_view {
    const auto at = name.find(functor);
    return at == std::string_view::npos ? std::string_view{} : bracketed(name.substr(at + functor.size() - 1));
  };
  const auto nth = [](std::string_view list, int wanted) {
    int depth = 0, index = 0;
    std::size_t start = 0;
    for (std::size_t at = 0; at <= list.size(); ++at) {
      if (at < list.size() && (list[at] == '<' || list[at] == '(')) ++depth;
      if (at < list.size() && (list[at] == '>' || list[at] == ')')) --depth;
      if (at < list.size() && (list[at] != ',' || depth > 0)) continue;
      if (index++ == wanted) return size_of_type(list.substr(start, at - start));
      start = at + 1;
    }
    return -1;
  };
  const auto total = [&](std::string_view list, std::initializer_list<int> places) {
    int sum = 0;
    for (const int place : places) {
      const int bytes = nth(list, place);
      if (bytes < 0) return -1;
      sum += bytes;
    }
    return sum;
  };
  if (const auto list = types("BinaryFunctor<"); !list.empty()) return total(list, {0, 1, 2});
  if (const auto list = types("AUnaryFunctor<"); !list.empty()) return total(list, {1, 2});
  if (const auto list = types("BUnaryFunctor<"); !list.empty()) return total(list, {0, 2});
  if (const auto list = types("FillFunctor<"); !list.empty()) return total(list, {0});
  if (const auto list = types("converting_copy_kernel_cuda<"); !list.empty()) return total(list, {0, 1});  // 2.15
  if (const auto list = types("CUDAFunctor_add<"); !list.empty()) {
    const int bytes = nth(list, 0);
    return bytes < 0 ? -1 : 3 * bytes;
  }
  return -1;
}

// Lambdas carry the types they take: `{lambda(float)#1}`. The result has the first one's type, but for
// copies, whose name has it, and for predicates, which give a bool.
int lambda_bytes(std::string_view name) {
  const auto at = name.rfind("lambda(");
  if (at == std::string_view::npos) return -1;
  const std::string_view list = bracketed(name.substr(at + 6));
  const int inputs = list.empty() ? -1 : sum_of_types(list);
  if (inputs < 0) return -1;
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (has("float16_copy_kernel")) return inputs + 2;  // bfloat16 as well
  if (has("float8")) return -1;
  if (has("logical") || has("isnan") || has("isinf") || has("isfinite") || has("signbit")) return inputs + 1;
  return inputs + sum_of_types(list.substr(0, list.find(',')));
}

}  // namespace

ElementwiseShape elementwise_shape(std::string_view name) {
  const auto has = [&](std::string_view part) { return name.find(part) != std::string_view::npos; };
  if (!has("at::native") || !has("elementwise_kernel<")) return {};
  ElementwiseShape shape{0, -1};
  // The strided variant may broadcast: its operands need not have as many elements as its result.
  if (!has("vectorized_elementwise_kernel<")) return shape;
  shape.bytes_per_element = functor_bytes(name);
  if (shape.bytes_per_element < 0) shape.bytes_per_element = lambda_bytes(name);
  return shape;
}

}  // namespace maya
