// Decodes the kernels of PyTorch 2.6 to 2.11 that move elements to or from given positions, and moves them (files under
// aten/src/ATen/native/cuda): index and index_put (IndexKernel.cu), gather and scatter (ScatterGatherKernel.cu),
// index_select and embedding (Indexing.cu, IndexKernelUtils.cu).
#include <algorithm>
#include <cstring>

#include "values/accumulation.h"
#include "values/geometry.h"
#include "values/mover.h"

namespace maya::values {
namespace {

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
      settle_positions(in, bytes_);
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

// indexing_backward_kernel{,_stride_1,_small_stride}<T, ..>(const int64_t* positions, const int64_t* order, const T*
// in, T* out, int64_t count, int64_t stride, int64_t stride_before, int64_t outer, bool accumulate) (Indexing.cu),
// index_put where it adds or algorithms must be deterministic: out[positions[i]] = in[order[i]], or += that, of rows of
// `stride`.
class SortedPut : public Executor {
 public:
  SortedPut(std::size_t bytes, std::optional<Accumulation> sum) : bytes_(bytes), sum_(sum) {}

  bool run(const Launch& launch) const override {
    const auto *const positions = launch.argument<const std::byte*>(0), *const order =
                                                                            launch.argument<const std::byte*>(1);
    const auto* const in = launch.argument<const std::byte*>(2);
    auto* const out = launch.argument<std::byte*>(3);
    const auto count = launch.argument<std::int64_t>(4), stride = launch.argument<std::int64_t>(5);
    const bool adds = launch.argument<bool>(8);
    if (count <= 0 || stride <= 0 || !on_device(out, bytes_)) return false;
    const auto known_indices = [&](const std::byte* data) {
      const auto all = static_cast<std::size_t>(count) * 8;
      return on_device(data, all) && known(data, all, Content::kInteger);
    };
    if (launch.argument<std::int64_t>(7) != 1 || (adds && !sum_) || count * stride > kCountableElements ||
        !known_indices(positions) || !known_indices(order) || !on_device(in, bytes_) || !known(in, bytes_)) {
      settle_positions(in, bytes_);
      clobber(out);
      return true;
    }
    Mover mover(bytes_, out);
    const std::size_t row = static_cast<std::size_t>(stride) * bytes_;
    for (std::size_t at = 0; at < static_cast<std::size_t>(count); ++at) {
      std::byte* const to = out + static_cast<std::size_t>(read_at<std::int64_t>(positions, 8 * at)) * row;
      const std::byte* const from = in + static_cast<std::size_t>(read_at<std::int64_t>(order, 8 * at)) * row;
      if (adds && !known(from, row)) return clobber(out), true;
      for (std::size_t element = 0; element < row; element += bytes_) {
        if (!adds) mover.move(to + element, from + element);
        else if (!sum_->put(to + element, from + element)) return clobber(out), true;
      }
    }
    return true;
  }

 private:
  std::size_t bytes_;
  std::optional<Accumulation> sum_;
};

// _scatter_gather_elementwise_kernel<nt, vt, _cuda_scatter_gather_internal_kernel<scatter, T, I>::operator()
// <F>(..)::{lambda(int)#1}>(int N, lambda), the lambda {OffsetCalculator<3> (self, src, index);
// char* index; int64_t index_size; F f; char* self; int64_t index_stride, numel; char* src}. F is TensorAssign, or what
// becomes of elements that meet.
// index_stride counts elements along the indexed dimension, of self when scattering, else of src.
class Gather : public Executor {
 public:
  Gather(std::size_t bytes, ScalarType index, bool scatter, std::optional<Accumulation> meeting)
      : bytes_(bytes), index_(index), scatter_(scatter), meeting_(meeting) {}

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
    if (!known_operand(geometry, 2, {index, index_}) || !takes(geometry, source)) {
      settle_positions(source, bytes_);
      if (scatter_) clobber(self);
      else forget_operand(geometry, 0, self, bytes_);
      return true;
    }
    Mover mover(bytes_, scatter_ ? self : nullptr);
    bool computed = true;
    walk(geometry, 3, [&](const auto& offsets) {
      const std::int64_t picked = std::clamp<std::int64_t>(load(index_, index + offsets[2]).i, 0, limit - 1) * stride;
      std::byte* const to = self + offsets[0] + (scatter_ ? picked : 0);
      const std::byte* const from = source + offsets[1] + (scatter_ ? 0 : picked);
      if (!meeting_) mover.move(to, from);
      else computed = computed && meeting_->put(to, from);
    });
    if (!computed) clobber(self);
    return true;
  }

 private:
  bool takes(const Geometry& geometry, const std::byte* source) const {
    if (!meeting_) return small(geometry.numel, 8) || moves(geometry.numel, bytes_, source);
    auto* const data = const_cast<std::byte*>(source);
    return on_device(source, bytes_) && known_operand(geometry, 1, {data, meeting_->type()}) &&
           accumulates(geometry.numel, meeting_->type());
  }

  std::size_t bytes_;
  ScalarType index_;
  bool scatter_;
  std::optional<Accumulation> meeting_;
};

// Where a lambda that puts one value at many places has what it captured, behind its OffsetCalculator<2> (self, index).
struct FillLayout {
  std::size_t self, index, limit, stride, value;
};

// _cuda_scatter_fill_internal_kernel<T, I>: as above, {OffsetCalculator<2>; char* index; int64_t index_size;
// TensorAssign f; char* self; int64_t index_stride, numel; T value}.
constexpr FillLayout kScatterFill{.self = 24, .index = 0, .limit = 8, .stride = 32, .value = 48};
// index_fill_kernel_impl<T>, which 2.15 has for x[indices] = value, too: index_elementwise_kernel<nt, vt, lambda>
// (int64_t N, lambda), the lambda {OffsetCalculator<2>; char *self, *index; int64_t self_dim_size, self_dim_stride;
// T value} (IndexKernel.cu).
constexpr FillLayout kIndexFill{.self = 0, .index = 8, .limit = 16, .stride = 24, .value = 32};

class ScatterFill : public Executor {
 public:
  ScatterFill(std::size_t bytes, ScalarType index, const FillLayout& layout,
              std::optional<Accumulation> meeting = std::nullopt)
      : bytes_(bytes), index_(index), layout_(layout), meeting_(meeting) {}

  bool run(const Launch& launch) const override {
    const std::byte* const lambda = launch.bytes(1);
    Geometry geometry{.numel = launch.argument<std::int32_t>(0)};
    constexpr std::size_t kUnits[] = {1, 1};
    if (!read_calculator(lambda, 2, 0, kUnits, geometry)) return false;
    const std::byte* const captured = lambda + align_up(calculator_bytes(2), 8);
    auto* const index = read_at<std::byte*>(captured, layout_.index);
    const auto limit = read_at<std::int64_t>(captured, layout_.limit);
    auto* const self = read_at<std::byte*>(captured, layout_.self);
    const auto stride = read_at<std::int64_t>(captured, layout_.stride) * static_cast<std::int64_t>(bytes_);
    const std::byte* const value = captured + layout_.value;
    if (!on_device(self, bytes_) || !on_device(index, 1)) return false;
    if (!known_operand(geometry, 1, {index, index_}) || geometry.numel > kCountableElements) {
      clobber(self);
      return true;
    }
    bool computed = true;
    walk(geometry, 2, [&](const auto& offsets) {
      std::int64_t picked = load(index_, index + offsets[1]).i;
      if (picked < 0) picked += limit;
      std::byte* const to = self + offsets[0] + std::clamp<std::int64_t>(picked, 0, limit - 1) * stride;
      if (meeting_) {
        computed = computed && meeting_->put(to, value);
        return;
      }
      const Content content = content_at(to);
      std::memcpy(to, value, bytes_);
      wrote(to, bytes_, content);
    });
    if (!computed) clobber(self);
    return true;
  }

 private:
  std::size_t bytes_;
  ScalarType index_;
  FillLayout layout_;
  std::optional<Accumulation> meeting_;
};

std::unique_ptr<Executor> make_index(const Signature& kernel) {
  if (kernel.templates.size() != 3) return nullptr;
  const FunctorType outer = parse_functor(kernel.templates[2]);
  if (outer.name == "index_fill_kernel_impl" && outer.templates.size() == 1) {
    const std::size_t bytes = moved_bytes(outer.templates[0]);
    return bytes == 0 ? nullptr : std::make_unique<ScatterFill>(bytes, ScalarType::kInt64, kIndexFill);
  }
  if (outer.name != "gpu_index_kernel" || outer.templates.size() != 1) return nullptr;
  const FunctorType inner = parse_functor(outer.templates[0]);
  const bool put = inner.name == "index_put_kernel_impl";
  if ((!put && inner.name != "index_kernel_impl") || inner.templates.size() != 1) return nullptr;
  const std::size_t bytes = moved_bytes(inner.templates[0]);
  return bytes == 0 ? nullptr : std::make_unique<Index>(bytes, put);
}

std::unique_ptr<Executor> make_gather(const Signature& kernel) {
  if (kernel.templates.size() != 3) return nullptr;
  const std::string_view text = kernel.templates[2];
  const FunctorType lambda = parse_functor(text);
  const bool fills = lambda.name == "_cuda_scatter_fill_internal_kernel";
  const std::size_t first = fills ? 0 : 1;  // template argument: the element
  if ((!fills && lambda.name != "_cuda_scatter_gather_internal_kernel") || lambda.templates.size() <= first) {
    return nullptr;
  }
  const std::string_view element = lambda.templates[first];
  const std::size_t bytes = moved_bytes(element);
  const auto index =
      lambda.templates.size() > first + 1 ? scalar_type(lambda.templates[first + 1]) : ScalarType::kInt64;
  const bool assigns = text.find("<at::native::TensorAssign>") != std::string_view::npos;
  const auto meeting = assigns ? std::nullopt : find_accumulation(text, element);
  if (bytes == 0 || !index || (!assigns && !meeting)) return nullptr;
  if (fills) return std::make_unique<ScatterFill>(bytes, *index, kScatterFill, meeting);
  return std::make_unique<Gather>(bytes, *index, lambda.templates[0] == "true", meeting);
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
    if (!moves(indices, bytes, in, static_cast<std::size_t>((limit - 1) * in_stride + slice)) ||
        !known_operand(contiguous(indices, packed), 0, {index, index_})) {
      settle_positions(in, bytes);
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

// What kernels that go over slices of a tensor take first: TensorInfo dst, src, index, int dst_dim, int src_dim. In
// dst_dim the size is 1.
struct Slices {
  TensorInfo to, from, index;
  int to_dim = 0, from_dim = 0;
  ScalarType index_type{};

  // False: not these.
  bool read(const Launch& launch, ScalarType type, std::size_t offset_bytes) {
    index_type = type;
    to_dim = launch.argument<std::int32_t>(3);
    from_dim = launch.argument<std::int32_t>(4);
    return to.read(launch.bytes(0), offset_bytes) && from.read(launch.bytes(1), offset_bytes) &&
           index.read(launch.bytes(2), offset_bytes);
  }
  bool consistent() const {
    return to_dim >= 0 && to_dim < to.dims && from_dim >= 0 && from_dim < from.dims && index.dims <= 1;
  }

  std::int64_t count() const { return index.dims == 0 ? 1 : index.sizes[0]; }
  // Of one index to the next, in bytes.
  std::size_t index_step() const {
    return size_of(index_type) * static_cast<std::size_t>(index.dims == 0 ? 1 : index.strides[0]);
  }
  bool known_indices() const {
    const std::size_t packed[] = {index_step()};
    return known_operand(contiguous(count(), packed), 0, {index.data, index_type});
  }
  std::int64_t picked(std::int64_t at) const {
    return load(index_type, index.data + static_cast<std::size_t>(at) * index_step()).i;
  }

  // Of one slice to the next, in bytes.
  std::int64_t to_step(std::size_t bytes) const { return to.strides[to_dim] * static_cast<std::int64_t>(bytes); }
  std::int64_t from_step(std::size_t bytes) const { return from.strides[from_dim] * static_cast<std::int64_t>(bytes); }
  // The dimensions of a slice, last first; strides of `to` and `from` in bytes.
  Geometry one(std::size_t bytes) const {
    Geometry slice{.numel = 1};
    int source = from.dims - 1;
    for (int dim = to.dims - 1; dim >= 0; --dim) {
      if (dim == to_dim) continue;
      if (source == from_dim) --source;
      slice.sizes[slice.dims] = to.sizes[dim];
      slice.strides[0][slice.dims] = to.strides[dim] * static_cast<std::int64_t>(bytes);
      slice.strides[1][slice.dims] = source >= 0 ? from.strides[source] * static_cast<std::int64_t>(bytes) : 0;
      slice.numel *= to.sizes[dim];
      ++slice.dims;
      --source;
    }
    return slice;
  }
};

// indexSelect{Small,Large}Index<T, I, IndexType, ..>(TensorInfo dst, src, index, int dst_dim, int src_dim,
//   [IndexType total,] IndexType inner, int64_t limit): dst.sizes[dst_dim] is 1.
class IndexSelect : public Executor {
 public:
  IndexSelect(std::size_t bytes, ScalarType index, std::size_t index_bytes)
      : bytes_(bytes), index_(index), index_bytes_(index_bytes) {}

  bool run(const Launch& launch) const override {
    Slices slices;
    if (!slices.read(launch, index_, index_bytes_) || !slices.consistent() || !on_device(slices.to.data, bytes_)) {
      return false;
    }
    std::byte *const to = slices.to.data, *const from = slices.from.data;
    const std::int64_t to_step = slices.to_step(bytes_), from_step = slices.from_step(bytes_);
    Geometry slice = slices.one(bytes_);
    if (!moves(slice.numel * slices.count(), bytes_, from) || !slices.known_indices()) {
      settle_positions(from, bytes_);
      slice.sizes[slice.dims] = slices.count();
      slice.strides[0][slice.dims++] = to_step;
      slice.numel *= slices.count();
      forget_operand(slice, 0, to, bytes_);
      return true;
    }
    Mover mover(bytes_);
    for (std::int64_t at = 0; at < slices.count(); ++at) {
      const std::int64_t picked = slices.picked(at);
      walk(slice, 2, [&](const auto& offsets) {
        mover.move(to + at * to_step + offsets[0], from + picked * from_step + offsets[1]);
      });
    }
    return true;
  }

 private:
  std::size_t bytes_;
  ScalarType index_;
  std::size_t index_bytes_;
};

// indexFunc{Small,Large}Index<T, I, IndexType, .., F>(TensorInfo dst, src, index, int dst_dim, int src_dim, .., F, T
// alpha, ..) (Indexing.cu): of dst along dst_dim, where index says, and alpha * src become what F makes of them.
// (PyTorch 2.15 has a scatter for it.)
class IndexAdd : public Executor {
 public:
  IndexAdd(Accumulation meeting, ScalarType index, std::size_t index_bytes, int alpha_at)
      : meeting_(meeting), index_(index), index_bytes_(index_bytes), alpha_at_(alpha_at) {}

  bool run(const Launch& launch) const override {
    Slices slices;
    if (!slices.read(launch, index_, index_bytes_) || !on_device(slices.to.data, 1)) return false;
    if (put(launch, slices)) return true;
    settle_positions(slices.from.data, size_of(meeting_.type()));
    clobber(slices.to.data);
    return true;
  }

 private:
  bool put(const Launch& launch, const Slices& slices) const {
    if (!slices.consistent() || slices.to.dims != slices.from.dims) return false;
    const std::size_t bytes = size_of(meeting_.type());
    const Geometry slice = slices.one(bytes);
    const auto is_known = [&](const std::byte* source) {
      return on_device(source, bytes) && known(source, bytes, content_of(meeting_.type()));
    };
    if (!slices.known_indices() || !is_known(slices.from.data) ||
        !accumulates(slice.numel * slices.count(), meeting_.type())) {
      return false;
    }
    const Lane alpha = load(meeting_.type(), launch.bytes(alpha_at_));
    bool known_all = true;
    for (std::int64_t at = 0; at < slices.count() && known_all; ++at) {
      std::byte* const row = slices.to.data + slices.picked(at) * slices.to_step(bytes);
      const std::byte* const added = slices.from.data + at * slices.from_step(bytes);
      walk(slice, 2, [&](const auto& offsets) {
        const std::byte* const source = added + offsets[1];
        known_all = known_all && is_known(source) &&
                    meeting_.put(row + offsets[0], meeting_.product(load(meeting_.type(), source), alpha));
      });
    }
    return known_all;
  }

  Accumulation meeting_;
  ScalarType index_;
  std::size_t index_bytes_;
  int alpha_at_;
};

std::unique_ptr<Executor> make_index_add(const Signature& kernel) {
  if (kernel.templates.size() < 4 || kernel.parameters.size() < 9) return nullptr;
  const auto meeting = find_accumulation(kernel.templates.back(), kernel.templates[0]);
  const auto index = scalar_type(kernel.templates[1]), offset = scalar_type(kernel.templates[2]);
  const auto functor = std::ranges::find_if(kernel.parameters, [](auto type) { return type.ends_with("const&"); });
  const auto alpha = functor - kernel.parameters.begin() + 1;
  const bool has_alpha = alpha < std::ssize(kernel.parameters) && kernel.parameters[alpha] == kernel.templates[0];
  if (!meeting || !index || !offset || !has_alpha) return nullptr;
  return std::make_unique<IndexAdd>(*meeting, *index, size_of(*offset), static_cast<int>(alpha));
}

std::unique_ptr<Executor> make_index_select(const Signature& kernel) {
  if (kernel.templates.size() < 3) return nullptr;
  const std::size_t bytes = moved_bytes(kernel.templates[0]);
  const auto index = scalar_type(kernel.templates[1]), offset = scalar_type(kernel.templates[2]);
  if (bytes == 0 || !index || !offset) return nullptr;
  return std::make_unique<IndexSelect>(bytes, *index, size_of(*offset));
}

}  // namespace

std::unique_ptr<Executor> make_indexing(const Signature& kernel) {
  if (kernel.name == "index_elementwise_kernel") return make_index(kernel);
  if (kernel.name == "_scatter_gather_elementwise_kernel") return make_gather(kernel);
  if (kernel.name == "indexSelectSmallIndex" || kernel.name == "indexSelectLargeIndex")
    return make_index_select(kernel);
  if (kernel.name == "indexFuncSmallIndex" || kernel.name == "indexFuncLargeIndex") return make_index_add(kernel);
  if (kernel.name.starts_with("indexing_backward_kernel") && !kernel.templates.empty() &&
      kernel.parameters.size() == 9) {
    const std::size_t bytes = moved_bytes(kernel.templates[0]);
    const auto sum = find_accumulation("ReduceAdd", kernel.templates[0]);
    return bytes == 0 ? nullptr : std::make_unique<SortedPut>(bytes, sum);
  }
  if (kernel.name == "vectorized_gather_kernel" && kernel.templates.size() == 2) {
    const auto index = scalar_type(kernel.templates[1]);
    return index ? std::make_unique<SliceGather>(*index) : nullptr;
  }
  return nullptr;
}

}  // namespace maya::values
