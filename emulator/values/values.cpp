#include "values/values.h"

#include <cstring>

#include "values/known.h"

namespace maya::values {
namespace {

std::uintptr_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

}  // namespace

void wrote(const void* pointer, std::size_t bytes, Content content) {
  known_bytes().wrote(address(pointer), bytes, content);
}

void forget(const void* pointer, std::size_t bytes) { known_bytes().forget(address(pointer), bytes); }

void clobber(const void* pointer) { known_bytes().clobber(address(pointer)); }

bool known(const void* pointer, std::size_t bytes, Content content) {
  return known_bytes().known(address(pointer), bytes, content);
}

void copy(void* destination, const void* source, std::size_t bytes) {
  if (bytes > kSmallBytes || !known(source, bytes)) {
    forget(destination, bytes);
    return;
  }
  const Content content = known_bytes().content(address(source));
  std::memmove(destination, source, bytes);
  wrote(destination, bytes, content);
}

void launch(const KernelInfo&, const std::uint32_t*, const std::uint32_t*, void**, std::size_t) {}

}  // namespace maya::values
