// Decodes the kernels of PyTorch 2.6 to 2.11 that move elements to places that follow from shapes alone, and moves them
// (files under aten/src/ATen/native/cuda): cat (Shape.cu), flip (TensorTransformations.cu, a kernel of IndexKernel.cu),
// roll (TensorTransformations.cu), triu and tril (TriangularOps.cu).
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "values/geometry.h"
#include "values/mover.h"

namespace maya::values {
namespace {

// CatArrayBatchedCopy*<T, unsigned, Dims, batch, stride_size, ..>(T* output,
//   CatArrInputTensorMetadata<T, unsigned, batch, stride_size> inputs, TensorSizeStride<unsigned, 4> os,
//   int concatDim, unsigned dimStride): grid.y inputs of
//   {const T* input[batch]; unsigned offset[batch], dimSize[batch], nElements[batch]; bool isContiguous[batch];
//    TensorSizeStride {unsigned size[4], stride[4]} tensorStride[stride_size]}.
// The _vectorized variant counts in units of its alignment in bytes.
class Cat : public Executor {
 public:
  Cat(std::size_t bytes, int dims, int batch, bool strided, int per_unit)
      : bytes_(bytes), dims_(dims), batch_(static_cast<std::size_t>(batch)), strided_(strided), per_unit_(per_unit) {}

  bool run(const Launch& launch) const override {
    auto* const output = launch.argument<std::byte*>(0);
    if (!on_device(output, bytes_) || launch.grid[1] > batch_) return false;
    for (std::size_t at = 0; at < launch.grid[1]; ++at) {
      if (!append(launch, output, at)) return false;
    }
    return true;
  }

 private:
  struct Layout {
    std::array<std::uint32_t, 4> sizes, strides;
    std::int64_t offset(std::int64_t linear, int dims) const {
      std::int64_t sum = 0;
      for (int dim = dims - 1; dim > 0; --dim) {
        sum += linear % sizes[dim] * strides[dim];
        linear /= sizes[dim];
      }
      return sum + linear * strides[0];
    }
  };

  bool append(const Launch& launch, std::byte* output, std::size_t at) const {
    const std::byte* const inputs = launch.bytes(1);
    const std::size_t counts = 8 * batch_;
    const auto count = [&](std::size_t row) {
      return read_at<std::uint32_t>(inputs, counts + 4 * (row * batch_ + at));
    };
    const auto* const input = read_at<const std::byte*>(inputs, 8 * at);
    auto layout = read_at<Layout>(launch.bytes(2), 0);
    const int dim = launch.argument<std::int32_t>(3);
    const std::int64_t step = launch.argument<std::uint32_t>(4);
    if (dim < 0 || dim >= dims_ || per_unit_ <= 0) return false;
    const std::int64_t elements = count(2) / static_cast<std::uint32_t>(per_unit_);
    if (elements == 0) return true;
    layout.sizes[dim] = static_cast<std::uint32_t>(per_unit_ > 1 ? count(1) * step / per_unit_ : count(1));
    const std::int64_t first = per_unit_ > 1 ? count(0) * step / per_unit_ : count(0) * step;
    std::byte* const to = output + first * static_cast<std::int64_t>(bytes_);
    if (std::ranges::any_of(std::span(layout.sizes).first(dims_), [](auto size) { return size == 0; })) return false;
    const std::size_t flags = counts + 12 * batch_;
    const bool contiguous = !strided_ || read_at<bool>(inputs, flags + at);
    const Layout from =
        contiguous ? layout : read_at<Layout>(inputs, align_up(flags + batch_, 4) + sizeof(Layout) * at);
    if (!moves(elements, bytes_, input)) {
      forget(to, static_cast<std::size_t>(layout.offset(elements - 1, dims_) + 1) * bytes_);
      return true;
    }
    Mover mover(bytes_);
    for (std::int64_t element = 0; element < elements; ++element) {
      const std::int64_t source = contiguous ? element : from.offset(element, dims_);
      mover.move(to + layout.offset(element, dims_) * static_cast<std::int64_t>(bytes_),
                 input + source * static_cast<std::int64_t>(bytes_));
    }
    return true;
  }

  std::size_t bytes_;
  int dims_;
  std::size_t batch_;
  bool strided_;
  int per_unit_;  // elements of T in a unit
};

std::unique_ptr<Executor> make_cat(const Signature& kernel) {
  const auto& arguments = kernel.templates;
  if (arguments.size() < 5 || arguments[1] != "unsigned int") return nullptr;
  const int dims = decimal(arguments[2]), batch = decimal(arguments[3]);
  if (dims < 1 || dims > 4 || batch < 1) return nullptr;
  if (kernel.name == "CatArrayBatchedCopy_vectorized") {
    if (arguments.size() < 7) return nullptr;
    return std::make_unique<Cat>(decimal(arguments[5]), dims, batch, false, decimal(arguments[6]));
  }
  const std::size_t bytes = moved_bytes(arguments[0]);
  if (bytes == 0) return nullptr;
  return std::make_unique<Cat>(bytes, dims, batch, kernel.name == "CatArrayBatchedCopy", 1);
}

// flip_kernel_impl<T>: {OffsetCalculator<2, unsigned, signed strides>; char* out; const char* in}.
class Flip : public Executor {
 public:
  explicit Flip(std::size_t bytes) : bytes_(bytes) {}

  bool run(const Launch& launch) const override {
    Geometry geometry;
    constexpr std::size_t kUnits[] = {1, 1};
    if (!read_calculator(launch.bytes(1), 2, 0, kUnits, geometry)) return false;
    const std::size_t at = align_up(calculator_bytes(2), 8);
    auto* const out = read_at<std::byte*>(launch.bytes(1), at);
    const auto* const in = read_at<const std::byte*>(launch.bytes(1), at + 8);
    if (!on_device(out, bytes_) || !moves(geometry.numel, bytes_, in)) return false;
    Mover mover(bytes_);
    walk(geometry, 2, [&](const auto& offsets) { mover.move(out + offsets[0], in + offsets[1]); });
    return true;
  }

 private:
  std::size_t bytes_;
};

// roll_cuda_kernel<T>(const T* in, T* out, int64_t count, int64_t dim, int64_t start, int64_t size,
// int64_t stride, ..) (TensorTransformations.cu): out[i] is `start` places further in the rolled dimension.
class Roll : public Executor {
 public:
  explicit Roll(std::size_t bytes) : bytes_(bytes) {}

  bool run(const Launch& launch) const override {
    const auto* const in = launch.argument<const std::byte*>(0);
    auto* const out = launch.argument<std::byte*>(1);
    const auto count = launch.argument<std::int64_t>(2), start = launch.argument<std::int64_t>(4);
    const auto size = launch.argument<std::int64_t>(5), stride = launch.argument<std::int64_t>(6);
    if (count <= 0 || size <= 0 || stride <= 0 || !on_device(out, bytes_)) return false;
    const auto all = static_cast<std::size_t>(count) * bytes_;
    if (!moves(count, bytes_, in) || !on_device(in, all) || !known(in, all)) {
      forget(out, all);
      return true;
    }
    Mover mover(bytes_);
    for (std::int64_t at = 0; at < count; ++at) {
      const std::int64_t place = at / stride % size;
      const std::int64_t source = at + ((place + start) % size - place) * stride;
      mover.move(out + static_cast<std::size_t>(at) * bytes_, in + static_cast<std::size_t>(source) * bytes_);
    }
    return true;
  }

 private:
  std::size_t bytes_;
};

// Shares its kernel with index and index_put.
std::unique_ptr<Executor> make_flip(const Signature& kernel) {
  if (kernel.templates.size() != 3) return nullptr;
  const FunctorType functor = parse_functor(kernel.templates[2]);
  if (functor.name != "flip_kernel_impl" || functor.templates.size() != 1) return nullptr;
  const std::size_t bytes = moved_bytes(functor.templates[0]);
  return bytes == 0 ? nullptr : std::make_unique<Flip>(bytes);
}

std::unique_ptr<Executor> make_roll(const Signature& kernel) {
  if (kernel.templates.size() != 1) return nullptr;
  const std::size_t bytes = moved_bytes(kernel.templates[0]);
  return bytes == 0 ? nullptr : std::make_unique<Roll>(bytes);
}

// triu_tril_kernel<T, I, upper, ..>(TensorInfo<T, I> to, TensorInfo<const T, I> from, int64_t k, int64_t
// count, ..) (TriangularOps.cu): keeps what lies on one side of diagonal k of the last two dimensions.
class Triangle : public Executor {
 public:
  Triangle(std::size_t bytes, std::size_t index_bytes, bool upper)
      : bytes_(bytes), index_bytes_(index_bytes), upper_(upper) {}

  bool run(const Launch& launch) const override {
    TensorInfo to, from;
    if (!to.read(launch.bytes(0), index_bytes_) || !from.read(launch.bytes(1), index_bytes_) || to.dims != from.dims ||
        to.dims < 2 || !on_device(to.data, bytes_)) {
      return false;
    }
    const auto diagonal = launch.argument<std::int64_t>(2);
    Geometry geometry{.numel = 1};
    for (int dim = to.dims - 1; dim >= 0; --dim, ++geometry.dims) {
      geometry.sizes[geometry.dims] = from.sizes[dim];
      geometry.strides[0][geometry.dims] = to.strides[dim] * static_cast<std::int64_t>(bytes_);
      geometry.strides[1][geometry.dims] = from.strides[dim] * static_cast<std::int64_t>(bytes_);
      geometry.numel *= from.sizes[dim];
    }
    if (!moves(geometry.numel, bytes_, from.data)) {
      forget_operand(geometry, 0, to.data, bytes_);
      return true;
    }
    std::int64_t at = 0;
    Mover mover(bytes_);
    const std::vector<std::byte> nothing(bytes_);
    walk(geometry, 2, [&](const auto& offsets) {
      const std::int64_t column = at % from.sizes[from.dims - 1];
      const std::int64_t row = at++ / from.sizes[from.dims - 1] % from.sizes[from.dims - 2];
      const bool kept = upper_ ? column - row >= diagonal : column - row <= diagonal;
      std::byte* const element = to.data + offsets[0];
      if (kept) {
        mover.move(element, from.data + offsets[1]);
      } else {
        std::memcpy(element, nothing.data(), bytes_);
        wrote(element, bytes_);
      }
    });
    return true;
  }

 private:
  std::size_t bytes_, index_bytes_;
  bool upper_;
};

std::unique_ptr<Executor> make_triangle(const Signature& kernel) {
  if (kernel.templates.size() < 3) return nullptr;
  const std::size_t bytes = moved_bytes(kernel.templates[0]);
  const auto index = scalar_type(kernel.templates[1]);
  if (bytes == 0 || !index) return nullptr;
  return std::make_unique<Triangle>(bytes, size_of(*index), kernel.templates[2] == "true");
}

// split_with_sizes_copy_out_contiguous_no_cast_kernel(char** out, char** in, const int64_t* part_bytes, const int64_t*
// part_of_block, const int64_t* first_blocks, int64_t in_stride, int64_t rows), blocks (n, rows) (TensorShape.cu): what
// FSDP has gathered goes to its parameters, part p of row r to out[p] + r * part_bytes[p]. All tables are on the
// device.
class SplitCopy : public Executor {
 public:
  bool run(const Launch& launch) const override {
    const auto* const part_of_block = launch.argument<const std::byte*>(3);
    const auto stride = launch.argument<std::int64_t>(5), rows = launch.argument<std::int64_t>(6);
    const std::size_t blocks = launch.grid[0];
    if (!known_table(part_of_block, blocks)) return false;
    const auto parts = static_cast<std::size_t>(read_at<std::int64_t>(part_of_block, 8 * (blocks - 1))) + 1;
    for (int table = 0; table < 3; ++table) {
      if (!known_table(launch.argument<const std::byte*>(table), parts)) return false;
    }
    const auto* const outs = launch.argument<const std::byte*>(0);
    const auto* const ins = launch.argument<const std::byte*>(1);
    const auto* const part_bytes = launch.argument<const std::byte*>(2);
    for (std::size_t part = 0; part < parts; ++part) {
      const auto bytes = read_at<std::int64_t>(part_bytes, 8 * part);
      auto* const out = read_at<std::byte*>(outs, 8 * part);
      const auto* const in = read_at<const std::byte*>(ins, 8 * part);
      if (bytes <= 0 || !on_device(out, static_cast<std::size_t>(rows * bytes)) || !on_device(in, 1)) continue;
      for (std::int64_t row = 0; row < rows; ++row) {
        copy(out + row * bytes, in + row * stride, static_cast<std::size_t>(bytes));
      }
    }
    return true;
  }

 private:
  static bool known_table(const std::byte* table, std::size_t entries) {
    return entries > 0 && on_device(table, 8 * entries) && known(table, 8 * entries);
  }
};

}  // namespace

std::unique_ptr<Executor> make_rearranging(const Signature& kernel) {
  if (kernel.name.starts_with("CatArrayBatchedCopy")) return make_cat(kernel);
  if (kernel.name == "index_elementwise_kernel") return make_flip(kernel);
  if (kernel.name == "roll_cuda_kernel") return make_roll(kernel);
  if (kernel.name == "triu_tril_kernel") return make_triangle(kernel);
  if (kernel.name == "split_with_sizes_copy_out_contiguous_no_cast_kernel" && kernel.parameters.size() == 7) {
    return std::make_unique<SplitCopy>();
  }
  return nullptr;
}

}  // namespace maya::values
