// Decodes the kernels of PyTorch 2.6 to 2.11 that move elements by position, and moves them (files under
// aten/src/ATen/native/cuda): cat (Shape.cu), index and index_put (IndexKernel.cu), gather and scatter
// (ScatterGatherKernel.cu), index_select and embedding (Indexing.cu, IndexKernelUtils.cu), cumsum and
// cumprod (ScanUtils.cuh, cub's DeviceScan).
#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "values/geometry.h"
#include "values/known.h"

namespace maya::values {
namespace {

int number(std::string_view text) {
  int value = 0;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

// Of an element that is only moved: a scalar type, or OpaqueType<8>, OpaqueType<8u>.
std::size_t moved_bytes(std::string_view type) {
  if (const auto scalar = scalar_type(type)) return size_of(*scalar);
  const FunctorType opaque = parse_functor(type);
  if (opaque.name != "OpaqueType" || opaque.templates.size() != 1) return 0;
  return static_cast<std::size_t>(number(opaque.templates[0]));
}

bool small(std::int64_t elements, std::size_t bytes) {
  return elements * static_cast<std::int64_t>(bytes) <= static_cast<std::int64_t>(kSmallBytes);
}

Content content_at(const std::byte* data) { return known_bytes().content(reinterpret_cast<std::uintptr_t>(data)); }

// Whether so many elements are moved from around `source`: all that are small, and countable ones.
bool moves(std::int64_t elements, std::size_t bytes, const std::byte* source) {
  if (small(elements, bytes)) return true;
  if (!on_device(source, bytes) || !known(source, bytes) || content_at(source) == Content::kFloat) return false;
  if (elements * static_cast<std::int64_t>(bytes) <= static_cast<std::int64_t>(kCountableBytes)) return true;
  if (Derivation::assumed()) lose(std::to_string(elements) + " indexed elements");
  return false;
}

// Moves elements of a size and what is known of each. `into`: a tensor of which only some elements are written.
class Mover {
 public:
  explicit Mover(std::size_t bytes, const std::byte* into = nullptr)
      : bytes_(bytes), countable_(into != nullptr && content_at(into) == Content::kCountableFloat) {}
  ~Mover() { flush(); }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  void move(std::byte* to, const std::byte* from) {
    if (!holds(from)) look_up(from);
    if (holds(from)) {
      std::memcpy(to, from, bytes_);
      extend(to);
      return;
    }
    flush();
    if (on_device(from, bytes_) && known(from, bytes_)) copy(to, from, bytes_);  // of several ranges
    else forget(to, bytes_);
  }

 private:
  bool holds(const std::byte* from) const {
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    return address >= source_ && address + bytes_ <= range_.end;
  }
  void look_up(const std::byte* from) {
    flush();
    std::tie(source_, range_) = known_bytes().range(reinterpret_cast<std::uintptr_t>(from));
    if (holds(from) && range_.assumed) Derivation::assume();
  }
  void extend(std::byte* to) {
    if (to != end_) flush();
    if (begin_ == nullptr) begin_ = to;
    end_ = to + bytes_;
  }
  void flush() {
    const bool countable = countable_ && range_.content == Content::kFloat;
    if (begin_ != nullptr) {
      wrote(begin_, static_cast<std::size_t>(end_ - begin_), countable ? Content::kCountableFloat : range_.content);
    }
    begin_ = end_ = nullptr;
  }

  std::size_t bytes_;
  bool countable_;
  std::uintptr_t source_ = 0;  // the known range last read from, [source_, range_.end)
  KnownBytes::Range range_{};
  std::byte *begin_ = nullptr, *end_ = nullptr;  // written, and not yet said so
};

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
    const auto count = [&](std::size_t row) { return read_at<std::uint32_t>(inputs, counts + 4 * (row * batch_ + at)); };
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
    const Layout from = contiguous ? layout : read_at<Layout>(inputs, align_up(flags + batch_, 4) + sizeof(Layout) * at);
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
  const int dims = number(arguments[2]), batch = number(arguments[3]);
  if (dims < 1 || dims > 4 || batch < 1) return nullptr;
  if (kernel.name == "CatArrayBatchedCopy_vectorized") {
    if (arguments.size() < 7) return nullptr;
    return std::make_unique<Cat>(number(arguments[5]), dims, batch, false, number(arguments[6]));
  }
  const std::size_t bytes = moved_bytes(arguments[0]);
  if (bytes == 0) return nullptr;
  return std::make_unique<Cat>(bytes, dims, batch, kernel.name == "CatArrayBatchedCopy", 1);
}

// index_elementwise_kernel<nt, vt, gpu_index_kernel<F>(..)::{lambda(int)#1}>(N, lambda), the lambda
// {OffsetCalculator<3>; char *out, *in; uint64_t indices; char* index[25]; int64_t size[25], stride[25]}.
// F of index: *out = in[offset]; of index_put: out[offset] = *in.
class Index : public Executor {
 public:
  Index(std::size_t bytes, bool put) : bytes_(bytes), put_(put) {}

  bool run(const Launch& launch) const override {
    const std::byte* const lambda = launch.bytes(1);
    Geometry geometry;
    constexpr std::size_t kUnits[] = {1, 1, 1};
    if (!read_calculator(lambda, 3, 0, kUnits, geometry)) return false;
    const std::size_t at = align_up(calculator_bytes(3), 8);
    auto* const out = read_at<std::byte*>(lambda, at);
    const auto* const in = read_at<const std::byte*>(lambda, at + 8);
    const auto indices = read_at<std::uint64_t>(lambda, at + 16);
    if (indices > kMaxDims || !on_device(out, bytes_)) return false;
    const std::byte* const tables = lambda + at + 24;
    if (!indices_known(geometry, tables, indices) || !(small(geometry.numel, 8) || moves(geometry.numel, bytes_, in))) {
      if (put_) clobber(out);
      else forget_operand(geometry, 0, out, bytes_);
      return true;
    }
    Mover mover(bytes_, put_ ? out : nullptr);
    walk(geometry, 3, [&](const auto& offsets) {
      const std::int64_t offset = indexed_offset(tables, indices, offsets[2]);
      if (put_) mover.move(out + offsets[0] + offset, in + offsets[1]);
      else mover.move(out + offsets[0], in + offsets[1] + offset);
    });
    return true;
  }

 private:
  static bool indices_known(const Geometry& geometry, const std::byte* tables, std::uint64_t indices) {
    for (std::uint64_t which = 0; which < indices; ++which) {
      auto* const index = read_at<std::byte*>(tables, 8 * which);
      if (!on_device(index, 8) || !known_operand(geometry, 2, {index, ScalarType::kInt64})) return false;
    }
    return true;
  }

  static std::int64_t indexed_offset(const std::byte* tables, std::uint64_t indices, std::int64_t at) {
    constexpr std::size_t kSizes = 8 * kMaxDims, kStrides = 2 * kSizes;
    std::int64_t offset = 0;
    for (std::uint64_t which = 0; which < indices; ++which) {
      auto index = read_at<std::int64_t>(read_at<const std::byte*>(tables, 8 * which), static_cast<std::size_t>(at));
      const auto size = read_at<std::int64_t>(tables, kSizes + 8 * which);
      if (index < 0) index += size;
      index = std::clamp<std::int64_t>(index, 0, size - 1);  // the GPU would assert
      offset += index * read_at<std::int64_t>(tables, kStrides + 8 * which);
    }
    return offset;
  }

  std::size_t bytes_;
  bool put_;
};

// indexing_backward_kernel_stride_1<T>(const int64_t* positions, const int64_t* order, const T* in, T* out, int64_t count,
//   int64_t stride, int64_t stride_before, int64_t outer, bool accumulate) (Indexing.cu), index_put where algorithms must
// be deterministic: out[positions[i]] = in[order[i]].
class SortedPut : public Executor {
 public:
  explicit SortedPut(std::size_t bytes) : bytes_(bytes) {}

  bool run(const Launch& launch) const override {
    const auto *const positions = launch.argument<const std::byte*>(0), *const order = launch.argument<const std::byte*>(1);
    const auto* const in = launch.argument<const std::byte*>(2);
    auto* const out = launch.argument<std::byte*>(3);
    const auto count = launch.argument<std::int64_t>(4);
    if (count <= 0 || !on_device(out, bytes_)) return false;
    const auto known_indices = [&](const std::byte* data) {
      const auto all = static_cast<std::size_t>(count) * 8;
      return on_device(data, all) && known(data, all, Content::kInteger);
    };
    if (launch.argument<std::int64_t>(7) != 1 || launch.argument<bool>(8) || count > kCountableElements ||
        !known_indices(positions) || !known_indices(order) || !on_device(in, bytes_) || !known(in, bytes_)) {
      clobber(out);
      return true;
    }
    Mover mover(bytes_, out);
    for (std::size_t at = 0; at < static_cast<std::size_t>(count); ++at) {
      const auto place = static_cast<std::size_t>(read_at<std::int64_t>(positions, 8 * at));
      mover.move(out + place * bytes_, in + static_cast<std::size_t>(read_at<std::int64_t>(order, 8 * at)) * bytes_);
    }
    return true;
  }

 private:
  std::size_t bytes_;
};

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

std::unique_ptr<Executor> make_index(const Signature& kernel) {
  if (kernel.templates.size() != 3) return nullptr;
  const FunctorType outer = parse_functor(kernel.templates[2]);
  if (outer.name == "flip_kernel_impl" && outer.templates.size() == 1) {
    const std::size_t moved = moved_bytes(outer.templates[0]);
    return moved == 0 ? nullptr : std::make_unique<Flip>(moved);
  }
  if (outer.name != "gpu_index_kernel" || outer.templates.size() != 1) return nullptr;
  const FunctorType inner = parse_functor(outer.templates[0]);
  const bool put = inner.name == "index_put_kernel_impl";
  if ((!put && inner.name != "index_kernel_impl") || inner.templates.size() != 1) return nullptr;
  const std::size_t bytes = moved_bytes(inner.templates[0]);
  return bytes == 0 ? nullptr : std::make_unique<Index>(bytes, put);
}

// _scatter_gather_elementwise_kernel<nt, vt, _cuda_scatter_gather_internal_kernel<scatter, T, I>::operator()
// <TensorAssign>(..)::{lambda(int)#1}>(int N, lambda), the lambda {OffsetCalculator<3> (self, src, index);
// char* index; int64_t index_size; TensorAssign f; char* self; int64_t index_stride, numel; char* src}.
// index_stride counts elements along the indexed dimension, of self when scattering, else of src.
class Gather : public Executor {
 public:
  Gather(std::size_t bytes, ScalarType index, bool scatter) : bytes_(bytes), index_(index), scatter_(scatter) {}

  bool run(const Launch& launch) const override {
    const std::byte* const lambda = launch.bytes(1);
    Geometry geometry{.numel = launch.argument<std::int32_t>(0)};
    constexpr std::size_t kUnits[] = {1, 1, 1};
    if (!read_calculator(lambda, 3, 0, kUnits, geometry)) return false;
    const std::size_t at = align_up(calculator_bytes(3), 8);
    auto* const index = read_at<std::byte*>(lambda, at);
    const auto limit = read_at<std::int64_t>(lambda, at + 8);
    auto* const self = read_at<std::byte*>(lambda, at + 24);
    const auto stride = read_at<std::int64_t>(lambda, at + 32) * static_cast<std::int64_t>(bytes_);
    const auto* const source = read_at<const std::byte*>(lambda, at + 48);
    if (!on_device(self, bytes_) || !on_device(index, 1)) return false;
    if (!known_operand(geometry, 2, {index, index_}) || !(small(geometry.numel, 8) || moves(geometry.numel, bytes_, source))) {
      if (scatter_) clobber(self);
      else forget_operand(geometry, 0, self, bytes_);
      return true;
    }
    Mover mover(bytes_, scatter_ ? self : nullptr);
    walk(geometry, 3, [&](const auto& offsets) {
      const std::int64_t picked = std::clamp<std::int64_t>(load(index_, index + offsets[2]).i, 0, limit - 1) * stride;
      mover.move(self + offsets[0] + (scatter_ ? picked : 0), source + offsets[1] + (scatter_ ? 0 : picked));
    });
    return true;
  }

 private:
  std::size_t bytes_;
  ScalarType index_;
  bool scatter_;
};

// _cuda_scatter_fill_internal_kernel<T, I>: as above, {OffsetCalculator<2> (self, index); char* index; int64_t
// index_size; TensorAssign f; char* self; int64_t index_stride, numel; T value}.
class ScatterFill : public Executor {
 public:
  ScatterFill(std::size_t bytes, ScalarType index) : bytes_(bytes), index_(index) {}

  bool run(const Launch& launch) const override {
    const std::byte* const lambda = launch.bytes(1);
    Geometry geometry{.numel = launch.argument<std::int32_t>(0)};
    constexpr std::size_t kUnits[] = {1, 1};
    if (!read_calculator(lambda, 2, 0, kUnits, geometry)) return false;
    const std::size_t at = align_up(calculator_bytes(2), 8);
    auto* const index = read_at<std::byte*>(lambda, at);
    const auto limit = read_at<std::int64_t>(lambda, at + 8);
    auto* const self = read_at<std::byte*>(lambda, at + 24);
    const auto stride = read_at<std::int64_t>(lambda, at + 32) * static_cast<std::int64_t>(bytes_);
    const std::byte* const value = lambda + at + 48;
    if (!on_device(self, bytes_) || !on_device(index, 1)) return false;
    if (geometry.numel > kCountableElements || !known_operand(geometry, 1, {index, index_})) {
      clobber(self);
      return true;
    }
    walk(geometry, 2, [&](const auto& offsets) {
      const std::int64_t picked = std::clamp<std::int64_t>(load(index_, index + offsets[1]).i, 0, limit - 1) * stride;
      std::byte* const to = self + offsets[0] + picked;
      const Content content = content_at(to);
      std::memcpy(to, value, bytes_);
      wrote(to, bytes_, content);
    });
    return true;
  }

 private:
  std::size_t bytes_;
  ScalarType index_;
};

std::unique_ptr<Executor> make_gather(const Signature& kernel) {
  if (kernel.templates.size() != 3 || kernel.templates[2].find("<at::native::TensorAssign>") == std::string_view::npos) {
    return nullptr;
  }
  const FunctorType lambda = parse_functor(kernel.templates[2]);
  if (lambda.name == "_cuda_scatter_fill_internal_kernel" && !lambda.templates.empty()) {
    const auto type = lambda.templates.size() > 1 ? scalar_type(lambda.templates[1]) : ScalarType::kInt64;
    const std::size_t size = moved_bytes(lambda.templates[0]);
    return size == 0 || !type ? nullptr : std::make_unique<ScatterFill>(size, *type);
  }
  if (lambda.name != "_cuda_scatter_gather_internal_kernel" || lambda.templates.size() < 2) return nullptr;
  const std::size_t bytes = moved_bytes(lambda.templates[1]);
  const auto index = lambda.templates.size() > 2 ? scalar_type(lambda.templates[2]) : ScalarType::kInt64;
  if (bytes == 0 || !index) return nullptr;
  return std::make_unique<Gather>(bytes, *index, lambda.templates[0] == "true");
}

// vectorized_gather_kernel<alignment, I>(char* out, char* in, I* index, int indices, int64_t slice_bytes,
//   int64_t dim_size, int64_t in_stride_bytes, int64_t out_stride_bytes, bool negative)
class SliceGather : public Executor {
 public:
  explicit SliceGather(ScalarType index) : index_(index) {}

  bool run(const Launch& launch) const override {
    auto* const out = launch.argument<std::byte*>(0);
    const auto* const in = launch.argument<const std::byte*>(1);
    auto* const index = launch.argument<std::byte*>(2);
    const std::int64_t indices = launch.argument<std::int32_t>(3), slice = launch.argument<std::int64_t>(4);
    const std::int64_t limit = launch.argument<std::int64_t>(5);
    const std::int64_t in_stride = launch.argument<std::int64_t>(6), out_stride = launch.argument<std::int64_t>(7);
    if (indices <= 0 || slice <= 0 || !on_device(out, static_cast<std::size_t>(slice))) return false;
    const auto bytes = static_cast<std::size_t>(slice);
    const std::size_t packed[] = {size_of(index_)};
    if (!moves(indices, bytes, in) || !known_operand(contiguous(indices, packed), 0, {index, index_})) {
      forget(out, static_cast<std::size_t>((indices - 1) * out_stride + slice));
      return true;
    }
    Mover mover(bytes);
    for (std::int64_t at = 0; at < indices; ++at) {
      std::int64_t picked = load(index_, index + static_cast<std::size_t>(at) * size_of(index_)).i;
      if (picked < 0) picked += limit;
      mover.move(out + at * out_stride, in + std::clamp<std::int64_t>(picked, 0, limit - 1) * in_stride);
    }
    return true;
  }

 private:
  ScalarType index_;
};

// indexSelect{Small,Large}Index<T, I, IndexType, ..>(TensorInfo dst, src, index, int dst_dim, int src_dim,
//   [IndexType total,] IndexType inner, int64_t limit): dst.sizes[dst_dim] is 1.
class IndexSelect : public Executor {
 public:
  IndexSelect(std::size_t bytes, ScalarType index, std::size_t index_bytes)
      : bytes_(bytes), index_(index), index_bytes_(index_bytes) {}

  bool run(const Launch& launch) const override {
    TensorInfo to, from, index;
    if (!to.read(launch.bytes(0), index_bytes_) || !from.read(launch.bytes(1), index_bytes_) ||
        !index.read(launch.bytes(2), index_bytes_)) {
      return false;
    }
    const int to_dim = launch.argument<std::int32_t>(3), from_dim = launch.argument<std::int32_t>(4);
    if (to_dim < 0 || to_dim >= to.dims || from_dim < 0 || from_dim >= from.dims || index.dims > 1 ||
        !on_device(to.data, bytes_)) {
      return false;
    }
    const std::int64_t indices = index.dims == 0 ? 1 : index.sizes[0];
    Geometry slice = walk_of(to, from, to_dim, from_dim);
    const std::size_t packed[] = {size_of(index_) * static_cast<std::size_t>(index.dims == 0 ? 1 : index.strides[0])};
    const Geometry positions = contiguous(indices, packed);
    const std::int64_t to_step = to.strides[to_dim] * static_cast<std::int64_t>(bytes_);
    if (!moves(slice.numel * indices, bytes_, from.data) || !known_operand(positions, 0, {index.data, index_})) {
      slice.sizes[slice.dims] = indices;
      slice.strides[0][slice.dims++] = to_step;
      slice.numel *= indices;
      forget_operand(slice, 0, to.data, bytes_);
      return true;
    }
    const std::int64_t from_step = from.strides[from_dim] * static_cast<std::int64_t>(bytes_);
    Mover mover(bytes_);
    for (std::int64_t at = 0; at < indices; ++at) {
      const std::int64_t picked = load(index_, index.data + static_cast<std::size_t>(at) * packed[0]).i;
      walk(slice, 2, [&](const auto& offsets) {
        mover.move(to.data + at * to_step + offsets[0], from.data + picked * from_step + offsets[1]);
      });
    }
    return true;
  }

 private:
  // The dimensions other than the selected one, last first; strides of `to` and `from` in bytes.
  Geometry walk_of(const TensorInfo& to, const TensorInfo& from, int to_dim, int from_dim) const {
    Geometry slice{.numel = 1};
    int source = from.dims - 1;
    for (int dim = to.dims - 1; dim >= 0; --dim) {
      if (dim == to_dim) continue;
      if (source == from_dim) --source;
      slice.sizes[slice.dims] = to.sizes[dim];
      slice.strides[0][slice.dims] = to.strides[dim] * static_cast<std::int64_t>(bytes_);
      slice.strides[1][slice.dims] = source >= 0 ? from.strides[source] * static_cast<std::int64_t>(bytes_) : 0;
      slice.numel *= to.sizes[dim];
      ++slice.dims;
      --source;
    }
    return slice;
  }

  std::size_t bytes_;
  ScalarType index_;
  std::size_t index_bytes_;
};

std::unique_ptr<Executor> make_index_select(const Signature& kernel) {
  if (kernel.templates.size() < 3) return nullptr;
  const std::size_t bytes = moved_bytes(kernel.templates[0]);
  const auto index = scalar_type(kernel.templates[1]), offset = scalar_type(kernel.templates[2]);
  if (bytes == 0 || !index || !offset) return nullptr;
  return std::make_unique<IndexSelect>(bytes, *index, size_of(*offset));
}

// triu_tril_kernel<T, I, upper, ..>(TensorInfo<T, I> to, TensorInfo<const T, I> from, int64_t k, int64_t
// count, ..) (TriangularOps.cu): keeps what lies on one side of diagonal k of the last two dimensions.
class Triangle : public Executor {
 public:
  Triangle(std::size_t bytes, std::size_t index_bytes, bool upper) : bytes_(bytes), index_bytes_(index_bytes), upper_(upper) {}

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

// A running sum or product of rows:
//   tensor_kernel_scan_innermost_dim<T, Op>(T* to, const T* from, unsigned rows, unsigned row, unsigned, T, Op)
//   tensor_kernel_scan_outer_dim<T, I, Op>(T* to, const T* from, unsigned outer, unsigned inner, unsigned row, ..)
//   cub DeviceScanKernel<..>(const T* from, T* to, ScanTileState, int, Op, Init, I count): one row
class Scan : public Executor {
 public:
  enum class Form : std::uint8_t { kInnermost, kOuter, kCub };
  Scan(ScalarType type, Form form, bool product, std::size_t count_bytes = 4, int count_at = 6)
      : type_(type), form_(form), product_(product), count_bytes_(count_bytes), count_at_(count_at) {}

  bool run(const Launch& launch) const override {
    auto* const to = launch.argument<std::byte*>(form_ == Form::kCub ? 1 : 0);
    auto* const from = launch.argument<std::byte*>(form_ == Form::kCub ? 0 : 1);
    std::int64_t outer = 1, inner = 1, row = 0;
    if (form_ == Form::kCub) {
      row = count_bytes_ == 8 ? launch.argument<std::int64_t>(count_at_) : launch.argument<std::uint32_t>(count_at_);
    } else {
      outer = launch.argument<std::uint32_t>(2);
      const std::int64_t third = launch.argument<std::uint32_t>(3);
      if (form_ == Form::kOuter) inner = third;
      row = form_ == Form::kOuter ? launch.argument<std::uint32_t>(4) : third;
    }
    const std::size_t bytes = size_of(type_), all = static_cast<std::size_t>(outer * inner * row) * bytes;
    if (all == 0 || !on_device(to, all)) return false;
    if (!on_device(from, all) || !known(from, all, content_of(type_, outer * inner * row)) ||
        !computes(outer * inner * row, type_, Derivation::assumed())) {
      if (Derivation::assumed()) lose("a running sum of " + std::to_string(outer * inner * row) + " elements");
      forget(to, all);
      return true;
    }
    for (std::int64_t line = 0; line < outer * inner; ++line) {
      scan(from, to, line / inner * row * inner + line % inner, inner, row);
    }
    wrote(to, all, content_of(type_, outer * inner * row));
    return true;
  }

 private:
  void scan(const std::byte* from, std::byte* to, std::int64_t first, std::int64_t step, std::int64_t row) const {
    Lane sum = is_float(type_) ? Lane{.f = product_ ? 1.0 : 0.0} : Lane{.i = product_ ? 1 : 0};
    for (std::int64_t at = 0; at < row; ++at) {
      const auto offset = static_cast<std::size_t>(first + at * step) * size_of(type_);
      const Lane value = load(type_, from + offset);
      if (is_float(type_)) sum.f = product_ ? sum.f * value.f : sum.f + value.f;
      else sum.i = static_cast<std::int64_t>(product_ ? static_cast<std::uint64_t>(sum.i) * static_cast<std::uint64_t>(value.i)
                                                      : static_cast<std::uint64_t>(sum.i) + static_cast<std::uint64_t>(value.i));
      store(type_, sum, to + offset);
    }
  }

  ScalarType type_;
  Form form_;
  bool product_;
  std::size_t count_bytes_;
  int count_at_;
};

// "std::plus<long>", "cuda::std::__4::plus<void>": 1; multiplies: 2; else 0.
int scan_operation(std::string_view type) {
  const auto name = parse_functor(type).name;
  return name == "plus" ? 1 : name == "multiplies" ? 2 : 0;
}

std::unique_ptr<Executor> make_scan(const Signature& kernel) {
  const bool cub = kernel.name == "DeviceScanKernel";
  if (cub && kernel.parameters.size() != 7) return nullptr;
  if (!cub && kernel.templates.size() < 2) return nullptr;
  const int operation = scan_operation(cub ? kernel.parameters[4] : kernel.templates.back());
  std::string_view element = cub ? kernel.parameters[1] : kernel.templates[0];
  if (cub && element.ends_with('*')) element.remove_suffix(1);
  const auto type = scalar_type(element);
  if (operation == 0 || !type) return nullptr;
  if (cub) {
    const auto count = scalar_type(kernel.parameters[6]);
    const bool same = kernel.parameters[0].starts_with(element);
    if (!count || !same) return nullptr;
    return std::make_unique<Scan>(*type, Scan::Form::kCub, operation == 2, size_of(*count), 6);
  }
  const bool outer = kernel.name == "tensor_kernel_scan_outer_dim";
  return std::make_unique<Scan>(*type, outer ? Scan::Form::kOuter : Scan::Form::kInnermost, operation == 2);
}

}  // namespace

std::unique_ptr<Executor> make_indexing(const Signature& kernel) {
  if (kernel.name.starts_with("CatArrayBatchedCopy")) return make_cat(kernel);
  if (kernel.name == "index_elementwise_kernel") return make_index(kernel);
  if (kernel.name == "_scatter_gather_elementwise_kernel") return make_gather(kernel);
  if (kernel.name == "indexSelectSmallIndex" || kernel.name == "indexSelectLargeIndex") return make_index_select(kernel);
  if (kernel.name == "indexing_backward_kernel_stride_1" && kernel.templates.size() == 1 && kernel.parameters.size() == 9) {
    const std::size_t bytes = moved_bytes(kernel.templates[0]);
    return bytes == 0 ? nullptr : std::make_unique<SortedPut>(bytes);
  }
  if (kernel.name == "triu_tril_kernel") return make_triangle(kernel);
  if (kernel.name == "roll_cuda_kernel" && kernel.templates.size() == 1) {
    const std::size_t bytes = moved_bytes(kernel.templates[0]);
    return bytes == 0 ? nullptr : std::make_unique<Roll>(bytes);
  }
  if (kernel.name == "vectorized_gather_kernel" && kernel.templates.size() == 2) {
    const auto index = scalar_type(kernel.templates[1]);
    return index ? std::make_unique<SliceGather>(*index) : nullptr;
  }
  if (kernel.name == "DeviceScanKernel" || kernel.name == "tensor_kernel_scan_innermost_dim" ||
      kernel.name == "tensor_kernel_scan_outer_dim") {
    return make_scan(kernel);
  }
  return nullptr;
}

}  // namespace maya::values
