// Time for the host's account: read twice in every call, so it has to be cheap.
#pragma once

#include <cstdint>

namespace maya {

// ns since some moment, as CLOCK_MONOTONIC counts them; only differences mean something. Where the kernel itself keeps
// time by the processor's counter, and its rate is known well enough, that is read (12 ns against 30 ns).
std::int64_t monotonic_ns();

// Measures the counter's rate, from the library's start to now; called once a rank begins, before it has threads.
void rate_counter();

}  // namespace maya
