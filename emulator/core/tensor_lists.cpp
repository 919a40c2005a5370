#include "core/tensor_lists.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cstring>

#include "core/elementwise.h"

namespace maya {
namespace {

constexpr std::int64_t kManyElements = std::int64_t{1} << 40;  // addresses are larger, element counts are not

template <class Value>
Value read_at(const std::byte* base, std::size_t offset) {
  Value value;
  std::memcpy(&value, base + offset, sizeof value);
  return value;
}

// Tensors there is room for, by depth. PyTorch's later builds for CUDA 13 use 32 KiB of arguments, seven times as
// many, and count tensors in 16 bits.
std::size_t room(const TensorListType& type, bool large) {
  constexpr std::size_t kTensors[] = {110, 64, 48, 36, 30, 24}, kScalar0 = 96, kComplex[] = {72, 60};
  const auto row = static_cast<std::size_t>(type.depth - 1);
  std::size_t tensors = kTensors[row];
  if (type.scalar_bytes && row == 0) tensors = kScalar0;
  if (type.scalar_bytes == 16 && row < 2) tensors = kComplex[row];
  return large ? 7 * tensors : tensors;
}

}  // namespace

TensorLists::Layout TensorLists::layout(const TensorListType& type, bool large) {
  TensorListType scalar_list = type;
  scalar_list.scalar_bytes = 8;
  Layout at{};
  at.room = maya::room(type, large);
  at.numel = 8 * static_cast<std::size_t>(type.depth) * at.room;
  at.numel_bytes = type.apex ? 4 : 8;
  at.scalars = at.numel + at.numel_bytes * at.room;
  at.scalar_bytes = static_cast<std::size_t>(type.scalar_bytes);
  at.block_to_tensor = at.scalars + at.scalar_bytes * at.room + (type.steps ? 8 * maya::room(scalar_list, large) : 0);
  at.blocks = large ? 2240 : 320;
  at.index_bytes = large ? 2 : 1;
  at.block_to_chunk = (at.block_to_tensor + at.blocks * at.index_bytes + 3) / 4 * 4;
  return at;
}

std::int64_t TensorLists::numel_at(const std::byte* metadata, const Layout& at, std::size_t tensor) {
  const std::size_t offset = at.numel + at.numel_bytes * tensor;
  return at.numel_bytes == 4 ? read_at<std::int32_t>(metadata, offset) : read_at<std::int64_t>(metadata, offset);
}

// Follows the blocks through tensors and chunks. False: that is not how these arguments lie.
bool TensorLists::read(const TensorListType& type, bool large) {
  const Layout at = layout(type, large);
  if (blocks_ == 0 || blocks_ > at.blocks) return false;
  std::size_t last_tensor = 0;
  std::int64_t last_chunk = -1, elements = 0;
  for (std::size_t block = 0; block < blocks_; ++block) {
    const std::size_t tensor = large ? read_at<std::uint16_t>(metadata_, at.block_to_tensor + 2 * block)
                                     : read_at<std::uint8_t>(metadata_, at.block_to_tensor + block);
    const std::int64_t chunk = read_at<std::int32_t>(metadata_, at.block_to_chunk + 4 * block);
    const bool first = block == 0 && tensor == 0 && chunk >= 0;  // which may go on where the last launch ended
    const bool next =
        block > 0 && ((tensor == last_tensor && chunk == last_chunk + 1) || (tensor > last_tensor && chunk == 0));
    if (!(first || next) || tensor >= at.room) return false;
    const std::int64_t numel = numel_at(metadata_, at, tensor);
    if (numel <= chunk * chunk_ || numel > kManyElements) return false;
    elements += std::min(numel - chunk * chunk_, chunk_);
    last_tensor = tensor;
    last_chunk = chunk;
  }
  at_ = at;
  tensors_ = last_tensor + 1;
  elements_ = static_cast<std::uint64_t>(elements);
  return true;
}

TensorLists::TensorLists(const TensorListType& type, void* const* args, std::uint32_t blocks)
    : metadata_(static_cast<const std::byte*>(args[type.apex ? 2 : 0])), blocks_(blocks) {
  if (type.apex) {
    chunk_ = read_at<std::int32_t>(static_cast<const std::byte*>(args[0]), 0);  // int, and int64_t in later ones
    if (chunk_ > 0) read(type, false);
    return;
  }
  static std::atomic<bool> large{false};  // as it was last: one process has one PyTorch
  const bool likely = large.load(std::memory_order_relaxed);
  if (!read(type, likely) && read(type, !likely)) large.store(!likely, std::memory_order_relaxed);
}

std::byte* TensorLists::address(int list, std::size_t tensor) const {
  return read_at<std::byte*>(metadata_, 8 * (static_cast<std::size_t>(list) * at_.room + tensor));
}

std::int64_t TensorLists::numel(std::size_t tensor) const { return numel_at(metadata_, at_, tensor); }

const std::byte* TensorLists::scalar(std::size_t tensor) const {
  return metadata_ + at_.scalars + tensor * at_.scalar_bytes;
}

TensorListType tensor_list_type(std::string_view parameter) {
  const auto open = parameter.find('<');
  if (open == std::string_view::npos) return {};
  const std::string_view type = parameter.substr(0, open);
  const std::string_view list = bracketed(parameter.substr(open));
  TensorListType lists;
  lists.apex = type == "TensorListMetadata";  // PyTorch's has a namespace
  lists.steps = type.ends_with("FusedOptimizerTensorListMetadata");
  std::string_view depth = list;
  if (type.ends_with("TensorListScalarListMetadata")) {
    const auto comma = list.rfind(',');
    if (comma == std::string_view::npos) return {};
    lists.scalar_bytes = size_of_type(list.substr(0, comma));
    depth = list.substr(comma + 2);
  } else if (!lists.steps && !type.ends_with("TensorListMetadata")) {
    return {};
  }
  std::from_chars(depth.data(), depth.data() + depth.size(), lists.depth);
  if (lists.depth < 1 || lists.depth > (lists.apex ? 6 : 5) || lists.scalar_bytes < 0) return {};
  return lists;
}

TensorListType tensor_list_type_of_kernel(std::string_view kernel) {
  constexpr std::string_view kKernel = "multi_tensor_apply_kernel<";
  const auto at = kernel.find(kKernel);
  return at == std::string_view::npos ? TensorListType{} : tensor_list_type(kernel.substr(at + kKernel.size()));
}

}  // namespace maya
