// cuBLAS handles: created, validated, destroyed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <vector>

#include "math/types.h"

namespace maya::math {

// Objects given out by address. Their memory is kept and reused, so that the tag of a destroyed one can
// still be read: a stale handle is an error, as in the real library, and never a crash.
template <class T>
class ObjectPool {
 public:
  T* create(const T& value = {}) {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      free_.push_back(&objects_.emplace_back());
    }
    T* object = free_.back();
    free_.pop_back();
    *object = value;
    object->tag = T::kTag;
    return object;
  }
  // False when `object` is not a live one.
  bool destroy(T* object) {
    if (!alive(object)) return false;
    const std::lock_guard lock(mutex_);
    object->tag = 0;
    free_.push_back(object);
    return true;
  }
  static bool alive(const T* object) { return object != nullptr && object->tag == T::kTag; }

 private:
  std::mutex mutex_;  // objects_, free_
  std::deque<T> objects_;
  std::vector<T*> free_;
};

struct CublasHandle {
  static constexpr std::uint64_t kTag = 0x62'6c'61'73'68'64'6c'31;
  std::uint64_t tag = 0;
  void* stream = nullptr;
  MathMode math_mode = MathMode::kDefault;
  std::int32_t math_flags = 0;
  PointerMode pointer_mode = PointerMode::kHost;
  std::int32_t atomics_mode = 0;
  std::int32_t sm_count_target = 0;
  std::int32_t emulation_strategy = 0;
  void* workspace = nullptr;
  std::size_t workspace_bytes = 0;
};

struct CublasLtHandle {
  static constexpr std::uint64_t kTag = 0x62'6c'61'73'6c'74'68'31;
  std::uint64_t tag = 0;
};

// cuBLASLt accepts a cublasHandle_t for its own (cuBLAS documentation, cublasLtHandle_t).
inline bool is_lt_handle(const void* handle) {
  return ObjectPool<CublasLtHandle>::alive(static_cast<const CublasLtHandle*>(handle)) ||
         ObjectPool<CublasHandle>::alive(static_cast<const CublasHandle*>(handle));
}

// The version number the emulated cuBLAS reports, major * 10000 + minor * 100 + patch.
int cublas_version();
Status cublas_property(int type, int* value);

}  // namespace maya::math
