// Handles that can be told from foreign and destroyed ones without following them.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace maya {

// A fixed range of address space holding up to `Capacity` objects; pages appear as they are used. A
// handle is the object's address: valid if it lies in the range, on a slot, and the slot is alive.
template <class T, std::size_t Capacity>
class HandlePool {
 public:
  HandlePool() {
    void* range = mmap(nullptr, Capacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) throw std::bad_alloc();
    slots_ = static_cast<Slot*>(range);
  }
  HandlePool(const HandlePool&) = delete;
  HandlePool& operator=(const HandlePool&) = delete;

  template <class... Arguments>
  T* create(Arguments&&... arguments) {
    std::lock_guard lock(mutex_);
    std::size_t index = used_;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (++used_ > Capacity) {
      throw std::bad_alloc();
    }
    T* object = new (slots_[index].storage) T(std::forward<Arguments>(arguments)...);
    slots_[index].alive = true;
    return object;
  }

  // nullptr unless `handle` is a live object of this pool.
  T* find(const void* handle) const {
    const auto offset = reinterpret_cast<std::uintptr_t>(handle) - reinterpret_cast<std::uintptr_t>(slots_);
    if (offset >= Capacity * sizeof(Slot) || offset % sizeof(Slot) != 0) return nullptr;
    Slot& slot = slots_[offset / sizeof(Slot)];
    return slot.alive ? reinterpret_cast<T*>(slot.storage) : nullptr;
  }

  bool destroy(const void* handle) {
    std::lock_guard lock(mutex_);
    T* object = find(handle);
    if (!object) return false;
    Slot& slot = *reinterpret_cast<Slot*>(object);
    slot.alive = false;
    object->~T();
    free_.push_back(static_cast<std::size_t>(&slot - slots_));
    return true;
  }

  template <class Visit>
  void for_each(Visit&& visit) {
    std::lock_guard lock(mutex_);
    for (std::size_t index = 0; index < used_; ++index)
      if (slots_[index].alive) visit(*reinterpret_cast<T*>(slots_[index].storage));
  }

 private:
  struct Slot {
    alignas(T) std::byte storage[sizeof(T)];
    bool alive;
  };
  Slot* slots_ = nullptr;
  std::mutex mutex_;  // guards: used_, free_ and the slots' lives
  std::size_t used_ = 0;
  std::vector<std::size_t> free_;
};

// The pool of a kind's handles; it outlives every caller's destructor.
template <class T, std::size_t Capacity>
HandlePool<T, Capacity>& handle_pool() {
  static auto* const instance = new HandlePool<T, Capacity>;
  return *instance;
}

}  // namespace maya
