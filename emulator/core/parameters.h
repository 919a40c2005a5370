// What the parameters of kernels, most of them Transformer Engine's, say about their traffic.
#pragma once

#include <cstdint>
#include <string_view>

namespace maya {

struct ParameterShape {
  // Parameters whose product is the count of elements (-1: none more), and whether each is of 8 bytes or 4.
  int sizes[3] = {-1, -1, -1};
  bool wide = true;
  bool in_norm = false;          // rows and columns lie within the first parameter
  bool rows_in_grid = false;     // a block of the grid for each row
  double bytes_per_element = 0;  // read and written
};

// `name`: demangled, with its parameters' types (TransformerEngine, transformer_engine/common).
ParameterShape parameter_shape(std::string_view name);

// Of one launch; 0: the kernel is none of those.
std::uint64_t count_by_parameters(const ParameterShape& shape, const std::uint32_t grid[3], void* const* args);

}  // namespace maya
