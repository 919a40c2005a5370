#include "math/cudnn_descriptor.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace maya::math::cudnn {

std::size_t element_bytes(std::int32_t type) {
  switch (type) {
    case 2:             // CUDNN_TYPE_BOOLEAN
    case 24: return 1;  // CUDNN_TYPE_CHAR
    case 0:             // CUDNN_TYPE_HANDLE
    case 3:             // CUDNN_TYPE_INT64
    case 5:             // CUDNN_TYPE_DOUBLE
    case 6:             // CUDNN_TYPE_VOID_PTR
    case kDescriptorType: return 8;
    case 26: return 16;  // CUDNN_TYPE_FRACTION
    default: return 4;   // enumerations, float, int32
  }
}

std::vector<std::int64_t> Descriptor::integers(std::int32_t attribute) const {
  const auto at = attributes.find(attribute);
  if (at == attributes.end()) return {};
  std::vector<std::int64_t> values(at->second.bytes.size() / sizeof(std::int64_t));
  std::memcpy(values.data(), at->second.bytes.data(), values.size() * sizeof(std::int64_t));
  return values;
}

std::int32_t Descriptor::enumerator(std::int32_t attribute) const {
  const auto at = attributes.find(attribute);
  std::int32_t value = 0;
  if (at != attributes.end())
    std::memcpy(&value, at->second.bytes.data(), std::min(sizeof value, at->second.bytes.size()));
  return value;
}

const Descriptor* Descriptor::child(std::int32_t attribute) const {
  const auto at = attributes.find(attribute);
  return at == attributes.end() || at->second.children.empty() ? nullptr : at->second.children.front().get();
}

void Descriptor::set_integer(std::int32_t attribute, std::int32_t type, std::int64_t value) {
  Value& stored = attributes[attribute];
  stored.type = type, stored.count = 1;
  stored.bytes.resize(element_bytes(type));
  std::memcpy(stored.bytes.data(), &value, stored.bytes.size());
}

void Descriptor::set_child(std::int32_t attribute, std::shared_ptr<const Descriptor> child) {
  Value& stored = attributes[attribute];
  stored.type = kDescriptorType, stored.count = 1;
  stored.children = {std::move(child)};
}

}  // namespace maya::math::cudnn
