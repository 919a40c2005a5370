#include "core/parameters.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/elementwise.h"

namespace maya {
namespace {

// A kernel's whole-sized operands, by the parameters that point to them; one of more elements is named as often.
struct Known {
  std::string_view name;
  ParameterShape shape;
  std::string_view operands;
};

constexpr ParameterShape by_sizes(int first, int second = -1, int third = -1) {
  return {.sizes = {first, second, third}};
}

constexpr Known kKernels[] = {
    {"spin_kernel", by_sizes(0), ""},  // torch.cuda._sleep; counts cycles (ATen/cuda/Sleep.cu)
    // Bytes of a row and rows (ATen/native/cuda/TensorShape.cu).
    {"split_with_sizes_copy_out_contiguous_no_cast_kernel", {.sizes = {5, 6, -1}, .bytes_per_element = 2}, ""},
    {"cast_transpose_optimized_kernel", by_sizes(7, 8), "023"},
    {"cast_transpose_general_kernel", by_sizes(7, 8), "023"},
    {"transpose_optimized_kernel", by_sizes(3, 4), "02"},
    {"transpose_general_kernel", by_sizes(3, 4), "02"},
    {"dgated_act_cast_transpose_kernel", by_sizes(7, 8), "0112233"},
    {"amax_kernel", by_sizes(2), "0"},
    {"compute_scale_from_amax_kernel", {.rows_in_grid = true, .bytes_per_element = 4 + 4}, ""},  // of one block
    {"unary_kernel", by_sizes(7), "02"},
    {"unary_grad_kernel", by_sizes(7), "012"},
    {"gated_act_kernel", by_sizes(5, 6), "001"},
    {"dgated_act_kernel", by_sizes(6, 7), "01122"},
    {"swap_first_dims_kernel", by_sizes(2, 3, 4), "01"},
    {"swap_first_dims_untuned_kernel", by_sizes(2, 3, 4), "01"},
    {"reduce_dbias_kernel", {.sizes = {2, 3, -1}, .wide = false}, "1"},
    // The operands lie in a structure: 16 bits in, 8 bits out and transposed.
    {"cast_transpose_fusion_kernel_optimized", {.sizes = {1, 2, -1}, .bytes_per_element = 4}, ""},
    {"cast_transpose_fused_kernel_notaligned", {.sizes = {1, 2, -1}, .bytes_per_element = 4}, ""},
    {"block_scaled_cast_transpose_kernel", by_sizes(5, 6), "012"},
    {"block_scaled_1d_cast_transpose_kernel", by_sizes(5, 6), "012"},
    // The last two operands of the first are a map of one byte and a number of four.
    {"fused_topk_with_score_function_forward_kernel",
     {.sizes = {1, 2, -1}, .wide = false, .bytes_per_element = 1 + 4},
     "00"},
    {"fused_topk_with_score_function_backward_kernel", {.sizes = {3, 4, -1}, .wide = false}, "0122"},
    {"fused_score_for_moe_aux_loss_forward_kernel", {.sizes = {1, 2, -1}, .wide = false}, "0567"},
    {"fused_score_for_moe_aux_loss_backward_kernel", {.sizes = {2, 3, -1}, .wide = false}, "016"},
    {"fused_moe_aux_loss_forward_kernel", {.sizes = {4, 5, -1}, .wide = false}, "0"},
    {"fused_moe_aux_loss_backward_kernel", {.sizes = {2, 3, -1}, .wide = false}, "5"},
    {"fused_rope_forward_kernel", {.sizes = {9, 10, -1}, .wide = false, .rows_in_grid = true}, "04"},
    {"fused_rope_backward_kernel", {.sizes = {9, 10, -1}, .wide = false, .rows_in_grid = true}, "04"},
};

std::vector<std::string_view> split(std::string_view list) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for (std::size_t at = 0; at <= list.size(); ++at) {
    const char c = at < list.size() ? list[at] : ',';
    if (c == '<' || c == '(' || c == '{') ++depth;
    if (c == '>' || c == ')' || c == '}') --depth;
    if (c != ',' || depth > 0) continue;
    parts.push_back(list.substr(begin, at - begin));
    begin = at + 1 < list.size() && list[at + 1] == ' ' ? at + 2 : at + 1;
  }
  return parts;
}

// "const*" and the like after the type that a pointer leads to.
double pointed_bytes(std::string_view parameter) {
  const std::string_view type = parameter.substr(0, std::min(parameter.find(" const"), parameter.find('*')));
  const int bytes = size_of_type(type);
  return bytes > 0 ? bytes : 0;
}

// Of `void ns::name<..>(..)`: the text between the last brackets, and the name before both lists.
std::string_view last_list(std::string_view name) {
  int depth = 0;
  for (std::size_t at = name.size(); at-- > 0;) {
    if (name[at] == ')') ++depth;
    if (name[at] == '(' && --depth == 0) return name.substr(at + 1, name.size() - at - 2);
  }
  return {};
}

// Norms take a structure that begins {int, int, int rows, int columns} (normalization/common.h); Kernel_traits<
// weight, input, output, ..> tells the types. Backward reads x and dz and writes dx.
ParameterShape norm_shape(std::string_view name) {
  const auto at = name.find("Kernel_traits<");
  const bool forward = name.find("_fwd_") != std::string_view::npos;
  if (at == std::string_view::npos || (!forward && name.find("_bwd_") == std::string_view::npos)) return {};
  if (name.find("finalize") != std::string_view::npos) return {};
  const auto types = split(bracketed(name.substr(at + std::string_view("Kernel_traits").size())));
  if (types.size() < 3) return {};
  const double input = pointed_bytes(types[1]), output = pointed_bytes(types[2]);
  return {.in_norm = true, .bytes_per_element = forward ? input + output : 2 * input + output};
}

std::uint64_t integer(const void* at, bool wide) {
  std::uint64_t value = 0;
  std::memcpy(&value, at, wide ? 8 : 4);
  return value;
}

}  // namespace

ParameterShape parameter_shape(std::string_view name) {
  if (name.find("transformer_engine::normalization::") != std::string_view::npos) return norm_shape(name);
  for (const Known& known : kKernels) {
    const auto at = name.find(known.name);
    if (at == std::string_view::npos || (at > 0 && name[at - 1] != ':' && name[at - 1] != ' ')) continue;
    const auto parameters = split(last_list(name));
    ParameterShape shape = known.shape;
    for (const int size : shape.sizes) {  // a namesake's: NVFP4's have a parameter more
      if (size >= 0 && static_cast<std::size_t>(size) < parameters.size() &&
          parameters[static_cast<std::size_t>(size)].ends_with('*'))
        return {};
    }
    for (const char operand : known.operands) {
      const auto index = static_cast<std::size_t>(operand - '0');
      if (index < parameters.size()) shape.bytes_per_element += pointed_bytes(parameters[index]);
    }
    return shape;
  }
  return {};
}

std::uint64_t count_by_parameters(const ParameterShape& shape, const std::uint32_t grid[3], void* const* args) {
  if (shape.in_norm) {
    const auto* const parameters = static_cast<const std::byte*>(args[0]);
    return integer(parameters + 8, false) * integer(parameters + 12, false);
  }
  if (shape.sizes[0] < 0 && !shape.rows_in_grid) return 0;
  std::uint64_t elements = shape.rows_in_grid ? std::uint64_t{grid[0]} * grid[1] : 1;
  for (const int size : shape.sizes)
    if (size >= 0) elements *= integer(args[size], shape.wide);
  return elements;
}

}  // namespace maya
