// Decodes the cub kernels behind nonzero, boolean indexing, unique and small sorts (PyTorch 2.6 to 2.15,
// ATen/native/cuda/Nonzero.cu, UniqueCub.cu, Sort.cu; cub 2.x). How many elements are kept reaches the host
// and becomes a shape, so it must be right or, where unknown, one that scripts go on with.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "core/recorder.h"
#include "values/executor.h"
#include "values/formula.h"
#include "values/mover.h"

namespace maya::values {
namespace {

bool known_elements(const std::byte* data, std::int64_t count, ScalarType type) {
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(type);
  if (count <= 0 || !on_device(data, bytes) || !known(data, bytes, content_of(type, count))) return false;
  if (computes(count, type, Derivation::picked())) return true;
  if (Derivation::picked()) lose("what is kept of " + std::to_string(count) + " elements");
  return false;
}

Lane element(const std::byte* data, std::int64_t at, ScalarType type) {
  return load(type, data + static_cast<std::size_t>(at) * size_of(type));
}

bool is_nonzero(const std::byte* data, std::int64_t at, ScalarType type) {
  const Lane value = element(data, at, type);
  return is_float(type) ? value.f != 0 : value.i != 0;
}

std::string_view pointee(std::string_view pointer) {
  if (!pointer.ends_with('*')) return {};
  pointer.remove_suffix(1);
  if (pointer.ends_with(" const")) pointer.remove_suffix(6);
  return pointer;
}

// Which elements differ from zero: an iterator over them, by its elements' type and where in it their address is.
struct Flags {
  ScalarType type;
  std::size_t data_at;

  const std::byte* data(const Launch& launch, int parameter) const {
    return read_at<const std::byte*>(launch.bytes(parameter), data_at);
  }
};

// "thrust::..::transform_iterator<at::native::NonZeroOp<bool>, bool const*, ..>" {const bool*; NonZeroOp}
// or, before 2.10, cub::TransformInputIterator<bool, NonZeroOp<bool>, bool const*, long> {NonZeroOp; const bool*}.
std::optional<Flags> nonzero_flags(std::string_view iterator) {
  const FunctorType outer = parse_functor(iterator);
  for (const auto part : outer.templates) {
    const FunctorType type = parse_functor(part);
    if (type.name != "NonZeroOp" || type.templates.size() != 1) continue;
    const auto element = scalar_type(type.templates[0]);
    return element ? std::optional(Flags{*element, outer.name == "TransformInputIterator" ? 8u : 0u}) : std::nullopt;
  }
  return std::nullopt;
}

constexpr std::int64_t kMostSelected = std::int64_t{1} << 23;  // whose positions take little of a device's memory

// A mask that nobody computed selects all: scripts bound what they take of a selection, and fail with an empty one.
// Not so what may be a lost map of tokens to experts, where all would be as many times too many as there are experts.
bool selects_all(std::int64_t count, ScalarType nonzero) {
  const bool mask = nonzero == ScalarType::kBool || nonzero == ScalarType::kUInt8;
  return mask && count > 0 && count <= kMostSelected && !lost_any();
}

constexpr std::string_view kSelectsAll =
    "a mask that nobody computes (boxes that overlap little, labels that match) is taken to select all: it may be more "
    "than it would";

// DeviceReduceSingleTileKernel<..>(In, int* out, N count, plus, ..) and DeviceReduceKernel<..>(In, int*
// partial, N count, ..), a partial sum per block: In the NonZeroOp iterator or the partial sums.
class Count : public Executor {
 public:
  Count(std::optional<Flags> nonzero, ScalarType sum, std::size_t count_bytes, bool single)
      : nonzero_(nonzero), sum_(sum), count_bytes_(count_bytes), single_(single) {}

  bool run(const Launch& launch) const override {
    const auto* const data = nonzero_ ? nonzero_->data(launch, 0) : launch.argument<const std::byte*>(0);
    auto* const out = launch.argument<std::byte*>(1);
    const auto count = count_bytes_ == 8 ? launch.argument<std::int64_t>(2) : launch.argument<std::int32_t>(2);
    const std::size_t sums = single_ ? 1 : launch.grid[0];
    if (!on_device(out, sums * size_of(sum_))) return false;
    forget_integers(out, sums * size_of(sum_));
    if (const auto total = sum(data, count)) {
      store(sum_, {.i = *total}, out);  // the other partial sums stay zero
      wrote(out, sums * size_of(sum_), content_of(sum_));
    }
    return true;
  }

 private:
  std::optional<std::int64_t> sum(const std::byte* data, std::int64_t count) const {
    if (count == 0) return 0;
    if (nonzero_ && nonzero_->type == ScalarType::kBool) {
      if (const auto value = alike(data, static_cast<std::size_t>(count))) return *value ? count : 0;
      const auto [formula, first] = formula_at(data, static_cast<std::size_t>(count));
      if (formula && count * formula->operations() <= Formula::kMostAtOnce) return formula->count_nonzero(first, count);
    }
    if (!known_elements(data, count, nonzero_ ? nonzero_->type : sum_)) {
      if (!nonzero_ || !selects_all(count, nonzero_->type)) return std::nullopt;
      note_way(kSelectsAll);
      return count;
    }
    std::int64_t total = 0;
    for (std::int64_t at = 0; at < count; ++at) {
      total += nonzero_ ? std::int64_t{is_nonzero(data, at, nonzero_->type)} : element(data, at, sum_).i;
    }
    return total;
  }

  std::optional<Flags> nonzero_;
  ScalarType sum_;
  std::size_t count_bytes_;
  bool single_;
};

std::unique_ptr<Executor> make_count(const Signature& kernel) {
  if (kernel.parameters.size() < 4 || parse_functor(kernel.parameters[3]).name == "NullType") return nullptr;
  const auto sum = scalar_type(pointee(kernel.parameters[1]));
  const auto nonzero = nonzero_flags(kernel.parameters[0]);
  const bool wide = kernel.parameters[2].find("long") != std::string_view::npos;
  const bool plain = pointee(kernel.parameters[0]) == pointee(kernel.parameters[1]);
  const bool single = kernel.name == "DeviceReduceSingleTileKernel";
  if (!sum || is_float(*sum) || (!nonzero && !(plain && single))) return nullptr;
  return std::make_unique<Count>(nonzero, *sum, wide ? 8 : 4, single);
}

// Of elements that nobody computed, and which read as zeros, one differs from all before it: no script expects none.
void tell_one(std::byte* kept, ScalarType type) {
  forget_integers(kept, size_of(type));
  store(type, {.i = 1}, kept);
}

// DeviceSelectSweepKernel<..>(In in, Flags flags, T* out, N* kept, ScanTileState, Predicate, Equality,
// int count, ..): positions whose flag is set (nonzero), or first ones of equal neighbours (unique).
class Select : public Executor {
 public:
  Select(std::optional<Flags> flags, ScalarType element, ScalarType kept)
      : flags_(flags), element_(element), kept_(kept) {}

  bool run(const Launch& launch) const override {
    auto* const out = launch.argument<std::byte*>(2);
    auto* const kept = launch.argument<std::byte*>(3);
    const std::int64_t count = launch.argument<std::int32_t>(7);
    const auto* const data = flags_ ? flags_->data(launch, 1) : launch.argument<const std::byte*>(0);
    if (!on_device(kept, size_of(kept_))) return false;
    if (flags_ && count > 0) store_formula(data, static_cast<std::size_t>(count) * size_of(flags_->type));
    const bool all = flags_ && selects_all(count, flags_->type) && count <= kCountableElements;
    const bool known_flags = known_elements(data, count, flags_ ? flags_->type : element_);
    if (!known_flags && !all) {
      if (flags_ || count <= 0) forget(kept, size_of(kept_));
      else tell_one(kept, kept_);
      clobber(out);
      return true;
    }
    const auto first = launch.argument<std::int64_t>(0);  // of the counting iterator
    std::int64_t selected = 0;
    for (std::int64_t at = 0; at < count; ++at) {
      if (known_flags && !keep(data, at)) continue;
      const Lane value = flags_ ? Lane{.i = first + at} : element(data, at, element_);
      store(element_, value, out + static_cast<std::size_t>(selected++) * size_of(element_));
    }
    wrote(out, static_cast<std::size_t>(selected) * size_of(element_), content_of(element_));
    store(kept_, {.i = selected}, kept);
    wrote(kept, size_of(kept_), content_of(kept_));
    return true;
  }

 private:
  bool keep(const std::byte* data, std::int64_t at) const {
    if (flags_) return is_nonzero(data, at, flags_->type);
    const std::size_t bytes = size_of(element_);
    const std::byte* const here = data + static_cast<std::size_t>(at) * bytes;
    return at == 0 || std::memcmp(here, here - bytes, bytes) != 0;
  }

  std::optional<Flags> flags_;
  ScalarType element_, kept_;
};

std::unique_ptr<Executor> make_select(const Signature& kernel) {
  if (kernel.parameters.size() < 8 || kernel.parameters[7] != "int") return nullptr;
  const auto flags = nonzero_flags(kernel.parameters[1]);
  const auto element = scalar_type(pointee(kernel.parameters[2])), kept = scalar_type(pointee(kernel.parameters[3]));
  // thrust's counting_iterator<long, ..> or cub's CountingInputIterator<long, ..> {long value}
  const bool positions =
      flags && kernel.parameters[0].find("ounting") != std::string_view::npos && element == ScalarType::kInt64;
  const bool unique = !flags && scalar_type(pointee(kernel.parameters[0])) == element &&
                      parse_functor(kernel.parameters[6]).name == "equal_to";
  if (!element || !kept || !(positions || unique)) return nullptr;
  return std::make_unique<Select>(flags, *element, *kept);
}

// DeviceReduceByKeyKernel<..>(const T* in, T* out, constant_iterator, C* lengths, N* runs, ReduceByKeyScanTileState,
// int, equal_to, plus, N count, ..): runs of equal elements and their lengths (unique with counts).
class RunLengths : public Executor {
 public:
  RunLengths(ScalarType element, ScalarType length, ScalarType count, bool wide)
      : element_(element), length_(length), count_(count), wide_(wide) {}

  bool run(const Launch& launch) const override {
    const auto* const data = launch.argument<const std::byte*>(0);
    auto* const out = launch.argument<std::byte*>(1);
    auto* const lengths = launch.argument<std::byte*>(3);
    auto* const runs = launch.argument<std::byte*>(4);
    const auto count = wide_ ? launch.argument<std::int64_t>(9) : launch.argument<std::int32_t>(9);
    if (!on_device(runs, size_of(count_))) return false;
    if (!known_elements(data, count, element_)) {
      clobber(out);
      clobber(lengths);
      if (count <= 0) forget(runs, size_of(count_));
      else tell_one(runs, count_);
      return true;
    }
    const std::size_t bytes = size_of(element_);
    std::int64_t made = 0;
    for (std::int64_t at = 0, end = 0; at < count; at = end, ++made) {
      const std::byte* const here = data + static_cast<std::size_t>(at) * bytes;
      while (end < count && std::memcmp(data + static_cast<std::size_t>(end) * bytes, here, bytes) == 0) ++end;
      std::memcpy(out + static_cast<std::size_t>(made) * bytes, here, bytes);
      store(length_, {.i = end - at}, lengths + static_cast<std::size_t>(made) * size_of(length_));
    }
    wrote(out, static_cast<std::size_t>(made) * bytes, content_of(element_, made));
    wrote(lengths, static_cast<std::size_t>(made) * size_of(length_), content_of(length_, made));
    store(count_, {.i = made}, runs);
    wrote(runs, size_of(count_), content_of(count_));
    return true;
  }

 private:
  ScalarType element_, length_, count_;
  bool wide_;
};

std::unique_ptr<Executor> make_run_lengths(const Signature& kernel) {
  if (kernel.parameters.size() < 10 || kernel.parameters[2].find("onstant") == std::string_view::npos) return nullptr;
  const auto element = scalar_type(pointee(kernel.parameters[1])), length = scalar_type(pointee(kernel.parameters[3]));
  const auto count = scalar_type(pointee(kernel.parameters[4]));
  if (!element || !length || !count || is_float(*length) || is_float(*count)) return nullptr;
  if (scalar_type(pointee(kernel.parameters[0])) != element) return nullptr;
  return std::make_unique<RunLengths>(*element, *length, *count, kernel.parameters[9] == "long");
}

// DeviceUniqueByKeySweepKernel<..>(K keys, V values, K keys_out, V values_out, N* kept, ScanTileState, equal_to, N
// count,
// ..) by thrust: the first of equal neighbours, whose sort before was not computed. A sparse tensor is coalesced so,
// and the host makes its shape of `kept`: at the most as many as there were.
class UniqueByKey : public Executor {
 public:
  explicit UniqueByKey(ScalarType count) : count_(count) {}

  bool run(const Launch& launch) const override {
    auto* const kept = launch.argument<std::byte*>(4);
    const std::int64_t count = load(count_, launch.bytes(7)).i;
    if (!on_device(kept, size_of(count_))) return false;
    clobber(launch.argument<std::byte*>(2));
    clobber(launch.argument<std::byte*>(3));
    store(count_, {.i = count}, kept);
    wrote(kept, size_of(count_), content_of(count_));
    note_once("which entries of a sparse tensor lie at one place is known only on the device: all are taken to differ");
    return true;
  }

 private:
  ScalarType count_;
};

std::unique_ptr<Executor> make_unique_by_key(const Signature& kernel) {
  if (kernel.parameters.size() < 8 || parse_functor(kernel.parameters[0]).name != "device_ptr") return nullptr;
  const auto count = scalar_type(kernel.parameters[7]);
  if (!count || is_float(*count) || scalar_type(pointee(kernel.parameters[4])) != count) return nullptr;
  return std::make_unique<UniqueByKey>(*count);
}

// write_indices<I>(int64_t* data, TensorDims<I> {I sizes[25]}, int dims, I count): flat positions become
// coordinates, a row of `count` for each dimension (Nonzero.cu).
class Coordinates : public Executor {
 public:
  explicit Coordinates(ScalarType index) : index_(index) {}

  bool run(const Launch& launch) const override {
    auto* const data = launch.argument<std::byte*>(0);
    const int dims = launch.argument<std::int32_t>(2);
    const std::int64_t count = load(index_, launch.bytes(3)).i;
    if (dims < 1 || dims > 25 || !known_elements(data, count, ScalarType::kInt64)) {
      clobber(data);
      return true;
    }
    for (std::int64_t at = 0; at < count; ++at) {
      std::int64_t flat = element(data, at, ScalarType::kInt64).i;
      for (int dim = dims - 1; dim >= 0; --dim) {
        const std::int64_t size = load(index_, launch.bytes(1) + static_cast<std::size_t>(dim) * size_of(index_)).i;
        if (size <= 0) return false;
        store(ScalarType::kInt64, {.i = flat % size}, data + static_cast<std::size_t>(at + dim * count) * 8);
        flat /= size;
      }
    }
    wrote(data, static_cast<std::size_t>(dims * count) * 8, Content::kInteger);
    return true;
  }

 private:
  ScalarType index_;
};

// DeviceRadixSortSingleTileKernel<Policy, SortOrder, K, V, ..>(const K* in, K* out, const V* values_in,
// V* values_out, N count, int begin_bit, int end_bit, ..), V perhaps NullType.
class Sort : public Executor {
 public:
  Sort(ScalarType key, std::size_t value_bytes, bool descending, bool wide_count)
      : key_(key), value_bytes_(value_bytes), descending_(descending), wide_count_(wide_count) {}

  bool run(const Launch& launch) const override {
    const auto* const in = launch.argument<const std::byte*>(0);
    auto* const out = launch.argument<std::byte*>(1);
    const auto* const values_in = launch.argument<const std::byte*>(2);
    auto* const values_out = launch.argument<std::byte*>(3);
    const auto count = wide_count_ ? launch.argument<std::int64_t>(4) : launch.argument<std::int32_t>(4);
    const int first_bit = launch.argument<std::int32_t>(5), bits = launch.argument<std::int32_t>(6);
    const bool whole = bits >= static_cast<int>(8 * size_of(key_));
    if (count <= 0) return false;
    const std::size_t value_bytes = static_cast<std::size_t>(count) * value_bytes_;
    const bool known_values = value_bytes == 0 || (on_device(values_in, value_bytes) && known(values_in, value_bytes));
    if (first_bit != 0 || (is_float(key_) && !whole) || !known_elements(in, count, key_) || !known_values) {
      forget(out, static_cast<std::size_t>(count) * size_of(key_));
      if (value_bytes > 0) forget(values_out, value_bytes);
      return true;
    }
    // Of indices only the bits that the largest has are looked at.
    const auto order = sorted(in, count, whole ? -1 : (std::int64_t{1} << bits) - 1);
    gather(order, in, out, size_of(key_));
    if (value_bytes > 0) gather(order, values_in, values_out, value_bytes_);
    return true;
  }

 private:
  std::vector<std::int64_t> sorted(const std::byte* in, std::int64_t count, std::int64_t mask) const {
    std::vector<std::int64_t> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](std::int64_t a, std::int64_t b) {
      if (descending_) std::swap(a, b);
      const Lane left = element(in, a, key_), right = element(in, b, key_);
      return is_float(key_) ? left.f < right.f : (left.i & mask) < (right.i & mask);
    });
    return order;
  }

  static void gather(const std::vector<std::int64_t>& order, const std::byte* in, std::byte* out, std::size_t bytes) {
    const Content content = content_at(in);
    std::vector<std::byte> moved(order.size() * bytes);
    for (std::size_t to = 0; to < order.size(); ++to) {
      std::memcpy(&moved[to * bytes], in + static_cast<std::size_t>(order[to]) * bytes, bytes);
    }
    std::ranges::copy(moved, out);
    wrote(out, moved.size(), content);
  }

  ScalarType key_;
  std::size_t value_bytes_;  // 0: none
  bool descending_, wide_count_;
};

std::unique_ptr<Executor> make_sort(const Signature& kernel) {
  if (kernel.parameters.size() < 7 || kernel.templates.size() < 4) return nullptr;
  const auto key = scalar_type(pointee(kernel.parameters[1]));
  const std::size_t value_bytes = moved_bytes(pointee(kernel.parameters[3]));
  const bool no_values = kernel.parameters[3].find("NullType") != std::string_view::npos;
  if (!key || (value_bytes == 0 && !no_values)) return nullptr;
  // (cub::SortOrder)1 in newer releases, a bool IS_DESCENDING in older ones.
  const bool descending = kernel.templates[1].ends_with('1') || kernel.templates[1] == "true";
  return std::make_unique<Sort>(*key, value_bytes, descending,
                                kernel.parameters[4].find("long") != std::string_view::npos);
}

}  // namespace

std::unique_ptr<Executor> make_compaction(const Signature& kernel) {
  if (kernel.name == "DeviceReduceSingleTileKernel" || kernel.name == "DeviceReduceKernel") return make_count(kernel);
  if (kernel.name == "DeviceSelectSweepKernel") return make_select(kernel);
  if (kernel.name == "DeviceUniqueByKeySweepKernel") return make_unique_by_key(kernel);
  if (kernel.name == "DeviceReduceByKeyKernel") return make_run_lengths(kernel);
  if (kernel.name == "DeviceRadixSortSingleTileKernel") return make_sort(kernel);
  if (kernel.name == "write_indices" && !kernel.templates.empty()) {
    const auto index = scalar_type(kernel.templates[0]);
    return index ? std::make_unique<Coordinates>(*index) : nullptr;
  }
  return nullptr;
}

}  // namespace maya::values
