// The operator ranges that a thread is in. The innermost is the context of what it records.
#pragma once

#include <string_view>

namespace maya {

// Enters a range on the calling thread; returns its depth from 0. `sizes`: the operator's inputs as
// `[[2, 3], []]`, or empty. `owner`: what leaves it.
int push_range(std::string_view name, std::string_view sizes, const void* owner);

// Enters a range without a name of its own: it is in the operator that the thread is in.
int push_same_range(const void* owner);

// Leaves the innermost range of `owner`, and returns its depth, or -1 when it has none.
int pop_range(const void* owner);

// Whether the calling thread is in a range of that name, be others within it.
bool in_range(std::string_view name);

// Has every operator of this process and of its forks be a range from here on, or no longer. False when this process
// has no PyTorch that can be asked. Called by one thread.
bool observe_operators(bool wanted);
bool observing();

}  // namespace maya
