#include "core/clock.h"

#include <time.h>

#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace maya {
namespace {

constexpr std::int64_t kLongEnough = 200'000'000;  // ns between two readings 50 ns apart: 0.5 ns a us, at worst

std::int64_t read_monotonic() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

#if defined(__x86_64__)
std::uint64_t read_counter() { return __rdtsc(); }
#else
std::uint64_t read_counter() { return 0; }
#endif

// Constant, running on in idle and equal on all cores: the kernel would not use it otherwise. Only x86-64 has it.
bool kernel_counts_by_it() {
  std::FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
  if (!file) return false;
  char name[16] = {};
  const bool is_counter = std::fgets(name, sizeof name, file) && std::strcmp(name, "tsc\n") == 0;
  std::fclose(file);
  return is_counter;
}

struct Moment {
  std::uint64_t counter = read_counter();
  std::int64_t ns = read_monotonic();
};

const Moment start;
Moment base;
std::uint64_t ns_per_count = 0;  // in 2^-32; 0: not known

}  // namespace

void rate_counter() {
  const Moment now;
  if (now.ns - start.ns < kLongEnough || !kernel_counts_by_it()) return;
  const double rate = static_cast<double>(now.ns - start.ns) / static_cast<double>(now.counter - start.counter);
  base = now;
  ns_per_count = static_cast<std::uint64_t>(rate * 0x1p32);
}

std::int64_t monotonic_ns() {
  if (!ns_per_count) return read_monotonic();
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t counts = read_counter() - base.counter;
  return base.ns +
         static_cast<std::int64_t>(static_cast<std::uint64_t>(static_cast<Wide>(counts) * ns_per_count >> 32));
}

}  // namespace maya
