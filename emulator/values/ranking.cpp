// Decodes the kernels behind topk, sort, randperm and histograms (PyTorch 2.6 to 2.11, ATen/native/cuda/TensorTopK.cu,
// Sort.cu, SortStable.cu, Randperm.cu, SummaryOps.cu; cub 2.x), and Transformer Engine's routers: which experts tokens
// go to, and how many tokens each expert gets.
//
// What is picked by values that nobody computed is spread evenly, what is picked by a router's assumed scores likewise:
// a router that is balanced, as its loss or its bias makes it, gives each expert equally many tokens. Row r of a top-k
// of n picks elements r * k, r * k + 1, .. (mod n).
#include <algorithm>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "values/geometry.h"

namespace maya::values {
namespace {

// TensorInfo<T, I>: T and sizeof(I).
struct InfoType {
  ScalarType element;
  std::size_t index_bytes;
};

std::optional<InfoType> info_type(std::string_view parameter) {
  const FunctorType type = parse_functor(parameter);
  if (type.name != "TensorInfo" || type.templates.size() != 2) return std::nullopt;
  std::string_view element = type.templates[0];
  if (element.ends_with(" const")) element.remove_suffix(6);
  const auto scalar = scalar_type(element), index = scalar_type(type.templates[1]);
  if (!scalar || !index) return std::nullopt;
  return InfoType{*scalar, size_of(*index)};
}

std::int64_t index_argument(const Launch& launch, int at, std::size_t index_bytes) {
  return index_bytes == 4 ? launch.argument<std::uint32_t>(at) : launch.argument<std::int64_t>(at);
}

// `slices` rows of `length` elements, `stride` elements apart, in a tensor; the index space of both is walked row by
// row.
struct Slices {
  TensorInfo info;
  ScalarType type;
  std::int64_t count, length, stride;

  std::byte* at(std::int64_t slice, std::int64_t place) const {
    return info.data + (info.offset(slice) + place * stride) * static_cast<std::int64_t>(size_of(type));
  }
  std::int64_t elements() const { return count * length; }
  std::size_t span() const {
    std::int64_t last = (length - 1) * stride;
    for (int dim = 0; dim < info.dims; ++dim) last += (info.sizes[dim] - 1) * info.strides[dim];
    return static_cast<std::size_t>(last + 1) * size_of(type);
  }
  bool valid() const { return count > 0 && length > 0 && stride > 0 && on_device(info.data, span()); }
  bool known() const { return computes(elements(), type, false) && values::known(info.data, span(), content_of(type)); }
  // Whether their order is that of their values: scores that are assumed rank nothing.
  bool ranks() const { return known() && !(is_float(type) && Derivation::scored()); }
  Lane value(std::int64_t slice, std::int64_t place) const { return load(type, at(slice, place)); }
};

bool precedes(const Slices& keys, std::int64_t slice, std::int64_t a, std::int64_t b, bool descending) {
  if (descending) std::swap(a, b);
  const Lane left = keys.value(slice, a), right = keys.value(slice, b);
  return is_float(keys.type) ? left.f < right.f : left.i < right.i;
}

std::vector<std::int64_t> ranked(const Slices& keys, std::int64_t slice, bool descending) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(keys.length));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return precedes(keys, slice, a, b, descending); });
  return order;
}

// sbtopk::gatherTopK<T, I, Dim, ..>(TensorInfo<const T, I> input, I length, I k, bool largest, I slices, I stride,
//   TensorInfo<T, I> values, I values_stride, TensorInfo<int64_t, I> indices, I indices_stride, ..), mbtopk's likewise.
class TopK : public Executor {
 public:
  explicit TopK(InfoType type) : type_(type) {}

  bool run(const Launch& launch) const override {
    Slices input{.info = {},
                 .type = type_.element,
                 .count = number(launch, 4),
                 .length = number(launch, 1),
                 .stride = number(launch, 5)};
    Slices values{.info = {},
                  .type = type_.element,
                  .count = input.count,
                  .length = number(launch, 2),
                  .stride = number(launch, 7)};
    Slices indices{.info = {},
                   .type = ScalarType::kInt64,
                   .count = input.count,
                   .length = values.length,
                   .stride = number(launch, 9)};
    if (!input.info.read(launch.bytes(0), type_.index_bytes) || !values.info.read(launch.bytes(6), type_.index_bytes) ||
        !indices.info.read(launch.bytes(8), type_.index_bytes) || !input.valid() || !values.valid() ||
        !indices.valid() || values.length > input.length) {
      return false;
    }
    if (input.ranks()) {
      pick(input, values, indices, launch.argument<bool>(3));
      return true;
    }
    forget(values.info.data, values.span());
    forget(indices.info.data, indices.span());
    if (indices.elements() <= kCountableElements) spread(indices, input.length);
    else if (indices.count > 1) lose("a top-k of " + std::to_string(indices.elements()) + " picks");
    return true;
  }

 private:
  std::int64_t number(const Launch& launch, int at) const { return index_argument(launch, at, type_.index_bytes); }

  void pick(const Slices& input, const Slices& values, const Slices& indices, bool largest) const {
    Output picked(input.type), places(ScalarType::kInt64);
    for (std::int64_t slice = 0; slice < input.count; ++slice) {
      const auto order = ranked(input, slice, largest);
      for (std::int64_t rank = 0; rank < values.length; ++rank) {
        const std::int64_t place = order[static_cast<std::size_t>(rank)];
        picked.put(values.at(slice, rank), input.at(slice, place));
        places.put(indices.at(slice, rank), Lane{.i = place});
      }
    }
  }

  void spread(const Slices& indices, std::int64_t choices) const {
    Derivation::pick();
    Output places(ScalarType::kInt64);
    for (std::int64_t slice = 0; slice < indices.count; ++slice) {
      for (std::int64_t rank = 0; rank < indices.length; ++rank) {
        places.put(indices.at(slice, rank), Lane{.i = (slice * indices.length + rank) % choices});
      }
    }
  }

  InfoType type_;
};

// A router in one kernel (Transformer Engine, common/fused_router): kernel(const T* logits, int tokens, int experts,
//   int picks, .., bool* map, ..) maps tokens to experts, [tokens, experts], and writes scores of the same size.
class FusedRouter : public Executor {
 public:
  FusedRouter(int map, std::vector<std::pair<int, std::size_t>> scores) : map_(map), scores_(std::move(scores)) {}

  bool run(const Launch& launch) const override {
    const std::int64_t tokens = launch.argument<std::int32_t>(1), experts = launch.argument<std::int32_t>(2);
    const std::int64_t picks = launch.argument<std::int32_t>(3), count = tokens * experts;
    auto* const map = launch.argument<std::byte*>(map_);
    if (tokens <= 0 || picks <= 0 || picks > experts || !on_device(map, static_cast<std::size_t>(count))) return false;
    for (const auto& [index, bytes] : scores_) {
      auto* const scores = launch.argument<std::byte*>(index);
      if (on_device(scores, static_cast<std::size_t>(count) * bytes))
        forget(scores, static_cast<std::size_t>(count) * bytes);
    }
    forget(map, static_cast<std::size_t>(count));
    if (!computes(count, ScalarType::kBool, true)) {
      lose("a router's map of " + std::to_string(count) + " elements");
      return true;
    }
    Derivation::pick();
    Output mapped(ScalarType::kBool);
    for (std::int64_t at = 0; at < count; ++at) {
      const std::int64_t token = at / experts, expert = at % experts;
      const std::int64_t rank = ((expert - token * picks) % experts + experts) % experts;
      mapped.put(map + at, Lane{.i = rank < picks});
    }
    return true;
  }

 private:
  int map_;
  std::vector<std::pair<int, std::size_t>> scores_;  // parameter, bytes of an element
};

std::unique_ptr<Executor> make_fused_router(const Signature& kernel) {
  int map = -1;
  std::vector<std::pair<int, std::size_t>> scores;
  for (int at = 4; at < static_cast<int>(kernel.parameters.size()); ++at) {
    std::string_view parameter = kernel.parameters[static_cast<std::size_t>(at)];
    if (!parameter.ends_with('*')) continue;
    parameter.remove_suffix(1);
    if (parameter == "bool") {
      map = at;
    } else if (parameter == "float" || parameter == "double") {  // not to const
      scores.emplace_back(at, parameter == "float" ? 4 : 8);
    } else if (parameter == "__nv_bfloat16" || parameter == "__half") {
      scores.emplace_back(at, 2);
    }
  }
  return map < 0 ? nullptr : std::make_unique<FusedRouter>(map, std::move(scores));
}

// Sorts each slice of the keys, and of the values with it, in place:
//   bitonicSortKVInPlace, warpMergeSortKVInPlace<.., K, V, Comparator, I>(TensorInfo<K, I> keys, I slices, I length,
//     I keys_stride, TensorInfo<V, I> values, I values_stride, Comparator, ..), the comparator GTOp or LTOp;
//   radixSortKVInPlace<..>(.., bool descending).
class SortInPlace : public Executor {
 public:
  SortInPlace(InfoType key, ScalarType value, std::optional<bool> descending)
      : key_(key), value_(value), descending_(descending) {}

  bool run(const Launch& launch) const override {
    const auto number = [&](int at) { return index_argument(launch, at, key_.index_bytes); };
    Slices keys{.info = {}, .type = key_.element, .count = number(1), .length = number(2), .stride = number(3)};
    Slices values{.info = {}, .type = value_, .count = keys.count, .length = keys.length, .stride = number(5)};
    if (!keys.info.read(launch.bytes(0), key_.index_bytes) || !values.info.read(launch.bytes(4), key_.index_bytes) ||
        !keys.valid() || !values.valid()) {
      return false;
    }
    if (!values.known()) {
      forget(keys.info.data, keys.span());
      forget(values.info.data, values.span());
      return true;
    }
    const bool ranks = keys.ranks();
    if (!ranks) {
      forget(keys.info.data, keys.span());
      Derivation::pick();
    }
    for (std::int64_t slice = 0; slice < keys.count; ++slice) {
      const auto order =
          ranks ? ranked(keys, slice, descending_.value_or(false) || (!descending_ && launch.argument<bool>(6)))
                : rotated(keys.length, slice);
      if (ranks) arrange(keys, slice, order);
      arrange(values, slice, order);
    }
    return true;
  }

 private:
  // An order that nobody knows, another one for each slice: what comes first is picked evenly.
  static std::vector<std::int64_t> rotated(std::int64_t length, std::int64_t by) {
    std::vector<std::int64_t> order(static_cast<std::size_t>(length));
    for (std::int64_t place = 0; place < length; ++place)
      order[static_cast<std::size_t>(place)] = (place + by) % length;
    return order;
  }

  static void arrange(const Slices& slices, std::int64_t slice, const std::vector<std::int64_t>& order) {
    std::vector<Lane> moved;
    moved.reserve(order.size());
    for (const auto place : order) moved.push_back(slices.value(slice, place));
    Output output(slices.type);
    for (std::int64_t place = 0; place < slices.length; ++place) {
      output.put(slices.at(slice, place), moved[static_cast<std::size_t>(place)]);
    }
  }

  InfoType key_;
  ScalarType value_;
  std::optional<bool> descending_;  // empty: the seventh argument tells
};

std::unique_ptr<Executor> make_sort_in_place(const Signature& kernel) {
  if (kernel.parameters.size() < 7) return nullptr;
  const auto key = info_type(kernel.parameters[0]), value = info_type(kernel.parameters[4]);
  if (!key || !value || key->index_bytes != value->index_bytes) return nullptr;
  const std::string_view order = parse_functor(kernel.parameters[6]).name;
  if (order == "bool") return std::make_unique<SortInPlace>(*key, value->element, std::nullopt);
  if (order != "GTOp" && order != "LTOp") return nullptr;
  return std::make_unique<SortInPlace>(*key, value->element, order == "GTOp");
}

// fill_reverse_indices_kernel(int64_t* data, int count, IntDivider<unsigned> length): 0, 1, .. length - 1 in each
// segment, what a large sort permutes.
class SegmentIndices : public Executor {
 public:
  bool run(const Launch& launch) const override {
    auto* const data = launch.argument<std::byte*>(0);
    const std::int64_t count = launch.argument<std::int32_t>(1), length = launch.argument<std::uint32_t>(2);
    if (count <= 0 || length <= 0 || !on_device(data, static_cast<std::size_t>(count) * 8)) return false;
    forget(data, static_cast<std::size_t>(count) * 8);
    if (!computes(count, ScalarType::kInt64, true)) return true;
    Output output(ScalarType::kInt64);
    for (std::int64_t at = 0; at < count; ++at) output.put(data + at * 8, Lane{.i = at % length});
    return true;
  }
};

// One pass of a large radix sort, by the bits [first, first + bits) of the keys:
// DeviceRadixSortOnesweepKernel<Policy, SortOrder, K, V, ..>(int*, int*, Offset*, const Offset*, K* keys_out,
//   const K* keys_in, V* values_out, const V* values_in, int count, int first, int bits, ..), V perhaps NullType.
class RadixPass : public Executor {
 public:
  RadixPass(ScalarType key, std::size_t value_bytes, bool descending)
      : key_(key), value_bytes_(value_bytes), descending_(descending) {}

  bool run(const Launch& launch) const override {
    auto *const keys_out = launch.argument<std::byte*>(4), *const values_out = launch.argument<std::byte*>(6);
    auto *const keys_in = launch.argument<std::byte*>(5), *const values_in = launch.argument<std::byte*>(7);
    const std::int64_t count = launch.argument<std::int32_t>(8);
    const std::size_t keys = static_cast<std::size_t>(count) * size_of(key_),
                      values = static_cast<std::size_t>(count) * value_bytes_;
    if (count <= 0 || !on_device(keys_out, keys) || (values > 0 && !on_device(values_out, values))) return false;
    const bool known_keys = !is_float(key_) && on_device(keys_in, keys) && known(keys_in, keys, content_of(key_));
    if (!known_keys || !computes(count, key_, false) ||
        (values > 0 && (!on_device(values_in, values) || !known(values_in, values)))) {
      if (known_keys && Derivation::picked()) lose("a sort of " + std::to_string(count) + " elements");
      forget(keys_out, keys);
      if (values > 0) forget(values_out, values);
      return true;
    }
    const auto order = by_digit(keys_in, count, launch.argument<std::int32_t>(9), launch.argument<std::int32_t>(10));
    gather(order, keys_in, keys_out, size_of(key_), content_of(key_));
    if (values > 0) gather(order, values_in, values_out, value_bytes_, Content::kInteger);
    return true;
  }

 private:
  std::vector<std::int64_t> by_digit(const std::byte* keys, std::int64_t count, int first, int bits) const {
    const std::uint64_t mask = (std::uint64_t{1} << bits) - 1;
    const std::uint64_t sign =
        key_ == ScalarType::kBool || key_ == ScalarType::kUInt8 ? 0 : std::uint64_t{1} << (8 * size_of(key_) - 1);
    std::vector<std::uint64_t> digits(static_cast<std::size_t>(count));
    for (std::size_t at = 0; at < digits.size(); ++at) {
      const auto key = static_cast<std::uint64_t>(load(key_, keys + at * size_of(key_)).i) ^ sign;  // negatives first
      digits[at] = ((descending_ ? ~key : key) >> first) & mask;
    }
    std::vector<std::int64_t> order(digits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](std::int64_t at) { return digits[static_cast<std::size_t>(at)]; });
    return order;
  }

  static void gather(const std::vector<std::int64_t>& order, const std::byte* in, std::byte* out, std::size_t bytes,
                     Content content) {
    Output output(bytes, content);
    for (const auto at : order) {
      output.put(out, in + static_cast<std::size_t>(at) * bytes);
      out += bytes;
    }
  }

  ScalarType key_;
  std::size_t value_bytes_;
  bool descending_;
};

std::unique_ptr<Executor> make_radix_pass(const Signature& kernel) {
  if (kernel.parameters.size() < 11 || kernel.templates.size() < 4) return nullptr;
  const auto key = scalar_type(kernel.templates[2]);
  if (!key) return nullptr;
  std::size_t bytes = 0;
  if (kernel.templates[3].find("NullType") == std::string_view::npos) {
    const auto value = scalar_type(kernel.templates[3]);
    const bool opaque = kernel.templates[3].find("OpaqueType<8>") != std::string_view::npos;
    if (!opaque && (!value || is_float(*value))) return nullptr;
    bytes = opaque ? 8 : size_of(*value);
  }
  // (cub::SortOrder)1 in newer releases, a bool IS_DESCENDING in older ones.
  const bool descending = kernel.templates[1].ends_with('1') || kernel.templates[1] == "true";
  return std::make_unique<RadixPass>(*key, bytes, descending);
}

// randperm_handle_duplicate_keys_kernel<K, T>(K* keys, T* permuted, K mask, int count, ..), the last of torch.randperm
// (Randperm.cu): any order is one that it may draw, and so the elements stay in theirs.
class Permutation : public Executor {
 public:
  bool run(const Launch& launch) const override {
    auto* const permuted = launch.argument<std::byte*>(1);
    const std::int64_t count = launch.argument<std::int32_t>(3);
    if (count <= 0 || !on_device(permuted, static_cast<std::size_t>(count) * 8)) return false;
    forget(permuted, static_cast<std::size_t>(count) * 8);
    if (!computes(count, ScalarType::kInt64, true)) return true;
    Output output(ScalarType::kInt64);
    for (std::int64_t at = 0; at < count; ++at) output.put(permuted + at * 8, Lane{.i = at});
    return true;
  }
};

std::unique_ptr<Executor> make_permutation(const Signature& kernel) {
  const bool wide =
      kernel.parameters.size() > 3 && kernel.parameters[1].find("OpaqueType<8>") != std::string_view::npos;
  return wide ? std::make_unique<Permutation>() : nullptr;
}

// kernelHistogram1D<Out, In, I, ..>(TensorInfo<Out, I> counts, TensorInfo partial, TensorInfo<const In, I> values,
//   int64_t bins, acc<In> least, acc<In> most, I total, ..), without weights: adds to the counts.
class Histogram : public Executor {
 public:
  Histogram(InfoType value, ScalarType count) : value_(value), count_(count) {}

  bool run(const Launch& launch) const override {
    TensorInfo counts, values;
    const auto bins = launch.argument<std::int64_t>(3), total = index_argument(launch, 6, value_.index_bytes);
    if (!counts.read(launch.bytes(0), value_.index_bytes) || !values.read(launch.bytes(2), value_.index_bytes) ||
        bins <= 0 || total <= 0 || counts.dims != 1 || values.dims != 1 ||
        !on_device(counts.data, static_cast<std::size_t>(bins) * size_of(count_))) {
      return false;
    }
    const Slices all{.info = {.data = values.data},
                     .type = value_.element,
                     .count = 1,
                     .length = total,
                     .stride = values.strides[0]};
    const Slices sums{
        .info = {.data = counts.data}, .type = count_, .count = 1, .length = bins, .stride = counts.strides[0]};
    if (!all.valid() || !sums.valid() || !sums.known() || !countable(all)) {
      forget(counts.data, static_cast<std::size_t>(bins) * size_of(count_));
      return true;
    }
    count(all, sums, load(wide(), launch.bytes(4)), load(wide(), launch.bytes(5)));
    return true;
  }

 private:
  // at::acc_type<In, true>: long for integers, float for 16- and 32-bit, double for double.
  ScalarType wide() const {
    if (!is_float(value_.element)) return ScalarType::kInt64;
    return value_.element == ScalarType::kDouble ? ScalarType::kDouble : ScalarType::kFloat;
  }

  static bool countable(const Slices& all) {
    if (!known(all.info.data, all.span(), content_of(all.type, all.length))) return false;
    if (computes(all.length, all.type, Derivation::picked())) return true;
    if (Derivation::picked()) lose("a histogram of " + std::to_string(all.length) + " elements");
    return false;
  }

  // getBin (SummaryOps.cu).
  std::int64_t bin(Lane x, Lane least, Lane most, std::int64_t bins) const {
    const auto at = is_float(value_.element)
                        ? static_cast<std::int64_t>((x.f - least.f) * static_cast<double>(bins) / (most.f - least.f))
                        : (x.i - least.i) * bins / std::max<std::int64_t>(most.i - least.i, 1);
    return std::min(at, bins - 1);
  }

  void count(const Slices& all, const Slices& sums, Lane least, Lane most) const {
    std::vector<std::int64_t> counts(static_cast<std::size_t>(sums.length));
    for (std::int64_t at = 0; at < all.length; ++at) {
      const Lane x = all.value(0, at);
      const bool within = is_float(all.type) ? x.f >= least.f && x.f <= most.f : x.i >= least.i && x.i <= most.i;
      if (within) ++counts[static_cast<std::size_t>(bin(x, least, most, sums.length))];
    }
    Output output(count_);
    for (std::int64_t at = 0; at < sums.length; ++at) {
      const std::int64_t more = counts[static_cast<std::size_t>(at)];
      Lane sum = sums.value(0, at);
      if (is_float(count_)) sum.f += static_cast<double>(more);
      else sum.i += more;
      output.put(sums.at(0, at), sum);
    }
  }

  InfoType value_;
  ScalarType count_;
};

std::unique_ptr<Executor> make_histogram(const Signature& kernel) {
  if (kernel.parameters.size() < 8 || kernel.parameters[7].find(", false>") == std::string_view::npos) return nullptr;
  const auto counts = info_type(kernel.parameters[0]), values = info_type(kernel.parameters[2]);
  if (!counts || !values || counts->index_bytes != values->index_bytes) return nullptr;
  return std::make_unique<Histogram>(*values, counts->element);
}

}  // namespace

std::unique_ptr<Executor> make_ranking(const Signature& kernel) {
  if (kernel.name == "gatherTopK" && kernel.parameters.size() > 10) {
    const auto input = info_type(kernel.parameters[0]);
    return input ? std::make_unique<TopK>(*input) : nullptr;
  }
  if (kernel.name == "fused_topk_with_score_function_forward_kernel" ||
      kernel.name == "fused_score_for_moe_aux_loss_forward_kernel") {
    return make_fused_router(kernel);
  }
  if (kernel.name == "bitonicSortKVInPlace" || kernel.name == "warpMergeSortKVInPlace" ||
      kernel.name == "radixSortKVInPlace") {
    return make_sort_in_place(kernel);
  }
  if (kernel.name == "fill_reverse_indices_kernel") return std::make_unique<SegmentIndices>();
  if (kernel.name == "DeviceRadixSortOnesweepKernel") return make_radix_pass(kernel);
  if (kernel.name == "randperm_handle_duplicate_keys_kernel") return make_permutation(kernel);
  if (kernel.name == "kernelHistogram1D") return make_histogram(kernel);
  return nullptr;
}

}  // namespace maya::values
