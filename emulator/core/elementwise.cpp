#include "core/elementwise.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <utility>

namespace maya {
namespace {

using Size = std::pair<std::string_view, int>;
constexpr std::array kSizes{
    Size{"c10::complex<double>", 16}, Size{"c10::complex<float>", 8}, Size{"c10::BFloat16", 2}, Size{"c10::Half", 2},
    Size{"c10::Float8_e4m3fn", 1}, Size{"c10::Float8_e5m2", 1}, Size{"unsigned char", 1}, Size{"unsigned int", 4},
    Size{"unsigned long", 8}, Size{"double", 8}, Size{"float", 4}, Size{"long", 8}, Size{"int", 4}, Size{"short", 2},
    Size{"signed char", 1}, Size{"bool", 1}};

int size_of(std::string_view type) {
  while (type.starts_with(' ')) type.remove_prefix(1);
  for (const std::string_view qualifier : {" const&", "&", "*"})
    if (type.ends_with(qualifier)) type.remove_suffix(qualifier.size());
  for (const auto& [name, bytes] : kSizes)
    if (type == name) return bytes;
  return -1;
}

// The text between the bracket that `text` begins with and its partner.
std::string_view bracketed(std::string_view text) {
  int depth = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '<' || text[at] == '(' || text[at] == '{') ++depth;
    if (text[at] == '>' || text[at] == ')' || text[at] == '}')
      if (--depth == 0) return text.substr(1, at - 1);
  }
  return {};
}

// Sum of the sizes of a comma-separated list of types; -1: one of them is not a plain number.
int sum_of_types(std::string_view list) {
  int sum = 0;
  int depth = 0;
  std::size_t start = 0;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    if (at < list.size() && list[at] == '<') ++depth;
    if (at < list.size() && list[at] == '>') --depth;
    if (at < list.size() && (list[at] != ',' || depth > 0)) continue;
    const int bytes = size_of(list.substr(start, at - start));
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
      if (index++ == wanted) return size_of(list.substr(start, at - start));
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

// multi_tensor_apply_kernel's first parameter (ATen/native/cuda/MultiTensorApply.cuh): addresses of
// `depth` lists of M tensors, then M element counts, then for TensorListScalarListMetadata M scalars and
// for FusedOptimizerTensorListMetadata M pointers to step counts, then each block's tensor and chunk.
struct ListMetadata {
  std::size_t numel, block_to_tensor, block_to_chunk;  // offsets in bytes
};

constexpr std::size_t kMaxBlocks = 320;
constexpr std::int64_t kChunk = 65536;  // elements

ListMetadata list_metadata(int depth, std::size_t scalar_bytes, bool steps) {
  constexpr std::size_t kTensors[] = {110, 64, 48, 36, 30}, kScalarTensors[] = {96, 64, 48, 36, 30};
  const auto row = static_cast<std::size_t>(depth - 1);
  const std::size_t tensors = scalar_bytes ? kScalarTensors[row] : kTensors[row];
  ListMetadata at{};
  at.numel = 8 * static_cast<std::size_t>(depth) * tensors;
  at.block_to_tensor = at.numel + 8 * tensors + scalar_bytes * tensors + (steps ? 8 * kScalarTensors[row] : 0);
  at.block_to_chunk = (at.block_to_tensor + kMaxBlocks + 3) / 4 * 4;
  return at;
}

template <class Value>
Value read_at(const void* base, std::size_t offset) {
  Value value;
  std::memcpy(&value, static_cast<const std::byte*>(base) + offset, sizeof value);
  return value;
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

MultiTensorShape multi_tensor_shape(std::string_view name) {
  constexpr std::string_view kKernel = "multi_tensor_apply_kernel<";
  const auto at = name.find(kKernel);
  if (at == std::string_view::npos) return {};
  std::string_view metadata = name.substr(at + kKernel.size());
  const auto open = metadata.find('<');
  if (open == std::string_view::npos) return {};
  const std::string_view type = metadata.substr(0, open);
  const std::string_view list = bracketed(metadata.substr(open));
  MultiTensorShape shape;
  shape.steps = type.ends_with("FusedOptimizerTensorListMetadata");
  std::string_view depth = list;
  if (type.ends_with("TensorListScalarListMetadata")) {
    const auto comma = list.rfind(',');
    if (comma == std::string_view::npos) return {};
    shape.scalar_bytes = size_of(list.substr(0, comma));
    depth = list.substr(comma + 2);
  } else if (!shape.steps && !type.ends_with("TensorListMetadata")) {
    return {};
  }
  std::from_chars(depth.data(), depth.data() + depth.size(), shape.depth);
  if (shape.depth < 1 || shape.depth > 5 || shape.scalar_bytes < 0) return {};
  return shape;
}

std::uint64_t multi_tensor_elements(const MultiTensorShape& shape, const void* metadata, std::uint32_t blocks) {
  const ListMetadata at = list_metadata(shape.depth, static_cast<std::size_t>(shape.scalar_bytes), shape.steps);
  std::int64_t elements = 0;
  for (std::size_t block = 0; block < blocks && block < kMaxBlocks; ++block) {
    const auto tensor = read_at<std::uint8_t>(metadata, at.block_to_tensor + block);
    const auto chunk = read_at<std::int32_t>(metadata, at.block_to_chunk + 4 * block);
    const auto numel = read_at<std::int64_t>(metadata, at.numel + 8 * tensor);
    elements += std::clamp<std::int64_t>(numel - chunk * kChunk, 0, kChunk);
  }
  return static_cast<std::uint64_t>(elements);
}

}  // namespace maya
