// dlsym and dlopen. Preloading replaces what the dynamic linker binds; libraries that open an NVIDIA
// library themselves and ask it for a symbol (Transformer Engine, pynvml) are served here.
#include <dlfcn.h>

#include <array>
#include <string_view>

#include "abi/stubs.h"
#include "core/process.h"

namespace {

using DlsymFunction = void* (*)(void*, const char*) noexcept;
using DlopenFunction = void* (*)(const char*, int);

// glibc's own function under this name. dlvsym is not interposed, so it does not lead back here.
template <class Function>
Function real(const char* name) {
  // dlsym and dlopen moved into libc.so with 2.34; before, each architecture had its first glibc's version.
  for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
    if (void* found = dlvsym(RTLD_NEXT, name, version)) return reinterpret_cast<Function>(found);
  }
  return nullptr;
}

DlsymFunction real_dlsym() {
  static const auto function = real<DlsymFunction>("dlsym");
  return function;
}

DlopenFunction real_dlopen() {
  static const auto function = real<DlopenFunction>("dlopen");
  return function;
}

std::string_view base_name(const char* path) {
  const std::string_view text(path == nullptr ? "" : path);
  return text.substr(text.rfind('/') + 1);
}

bool in_nvidia_library(const void* address) {
  constexpr std::array<std::string_view, 4> kPrefixes{"libcu", "libnv", "libnccl", "libnvidia"};
  const std::string_view name = base_name(maya::library_of(address).data());
  for (const std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return true;
  }
  return false;
}

// Our definition where `handle` would have led to NVIDIA's; nullptr: not ours to answer. A library that
// defines such a name itself keeps its own.
[[gnu::noinline]] void* replacement(void* handle, const char* name) {
  if (name == nullptr || handle == RTLD_DEFAULT) return nullptr;
  void* ours = maya::find_symbol(name);
  if (ours == nullptr) return nullptr;
  const void* found = real_dlsym()(handle, name);
  return found != nullptr && in_nvidia_library(found) ? ours : nullptr;
}

const char* own_path() {
  static const char* const path = [] {
    Dl_info info;
    return dladdr(reinterpret_cast<void*>(&own_path), &info) == 0 ? nullptr : info.dli_fname;
  }();
  return path;
}

bool is_driver_library(const char* path) {
  constexpr std::array<std::string_view, 4> kNames{"libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1",
                                                   "libnvidia-ml.so"};
  const std::string_view name = base_name(path);
  for (const std::string_view driver : kNames) {
    if (name == driver) return true;
  }
  return false;
}

}  // namespace

// Both end in a jump, not a call: glibc takes RTLD_NEXT, $ORIGIN and RUNPATH from the return address, which
// must stay the caller's.
#pragma GCC push_options
#pragma GCC optimize("O2", "optimize-sibling-calls")

extern "C" {

void* dlsym(void* handle, const char* name) noexcept {
  if (void* ours = replacement(handle, name)) return ours;
  return real_dlsym()(handle, name);
}

void* dlopen(const char* path, int flags) { return real_dlopen()(is_driver_library(path) ? own_path() : path, flags); }

}  // extern "C"

#pragma GCC pop_options
