// Descriptors behind cuDNN's handles, a pool for each kind.
#pragma once

#include "core/handle_pool.h"
#include "math/cudnn_descriptor.h"

namespace maya::math::cudnn {

template <class Object>
HandlePool<Object, 1 << 18>& pool() {
  return handle_pool<Object, 1 << 18>();
}

// What cudnnCreate...Descriptor and cudnnDestroy...Descriptor do.
template <class Object>
Status create(Object** handle) {
  if (handle == nullptr) return Status::kBadParamNullPointer;
  *handle = pool<Object>().create();
  return Status::kSuccess;
}

template <class Object>
Status destroy(Object* handle) {
  if (handle == nullptr) return Status::kSuccess;
  return pool<Object>().destroy(handle) ? Status::kSuccess : Status::kBadParam;
}

}  // namespace maya::math::cudnn
