// Small tensors that really compute: the values a framework steers by. Prose: docs/values.md.
//
// Invariant: device memory is host memory, and every byte of it that is not *known* reads zero. A byte
// becomes known when real bytes reach it (copies and memsets of at most kSmallBytes, larger ones with zero, small
// collectives, kernels computed here) and is forgotten (zeroed) when something that nobody computes overwrites it.
// A kernel computes only where all its inputs are known, so that no stale byte and no infinity made of
// uncomputed zeros ever reaches the framework.
//
// What is picked by values that nobody computed (the experts of a token) is *assumed*: spread evenly over what there is
// to pick from (ranking.cpp). So are the scores of a router (scores.cpp), as long as nothing is picked by them. All
// that follows from an assumed value is assumed, and the trace notes when the host reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "core/kernel.h"

namespace maya::values {

inline constexpr std::size_t kSmallBytes = 64 * 1024;  // per tensor or copy
// Of a tensor of integers or truth values, which stay exact whatever is made of them: a map of tokens to experts.
inline constexpr std::int64_t kCountableElements = std::int64_t{1} << 20;
inline constexpr std::size_t kCountableBytes = 8 * static_cast<std::size_t>(kCountableElements);

// How known bytes were written. A range known as one of the numeric contents is not known as the other:
// its memory was reused by a kernel whose outputs could not be told. kCountableFloat is a floating-point tensor beyond
// kSmallBytes, of zeros or made of integers: countable too, and no input of floating-point arithmetic. kCountable is a
// large memset's zeros and what was put among them: integers or kCountableFloat, whichever they are read as.
// kUncomputed is not known: integers or truth values that read zero, of which the host is told when it reads them.
// kAllFalse and kAllTrue are truth values that are alike, as many as there may be: none is stored, they read zero. So
// do those of kFormula, which can be computed.
enum class Content : std::uint8_t {
  kBytes,
  kInteger,
  kFloat,
  kCountableFloat,
  kCountable,
  kUncomputed,
  kAllFalse,
  kAllTrue,
  kFormula
};

// What a known value follows from; of several the last.
enum class Assumption : std::uint8_t { kNone, kPick, kScore };

// A launch, called by the CUDA runtime and driver entry points before they return, in program order.
// `args[i]` points to the i-th by-value parameter. Costs one branch where the kernel has no executor.
void launch(const KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3], void** args);

// The same, any number of times once `args` are gone; empty where the kernel has no executor.
std::function<void()> launch_later(const KernelInfo& kernel, const std::uint32_t grid[3], const std::uint32_t block[3],
                                   void** args);

// Real bytes now lie in [pointer, pointer + bytes) of device memory; the caller has stored them.
void wrote(const void* pointer, std::size_t bytes, Content content = Content::kBytes);

// [pointer, pointer + bytes) was overwritten by results nobody computed, or was freed: it reads zero and
// is no longer known. Any size; costs a look-up where nothing was known. The range must still be mapped.
void forget(const void* pointer, std::size_t bytes);

// Likewise, with integers or truth values of which nothing is known.
void forget_integers(const void* pointer, std::size_t bytes);

// Likewise, with truth values that are all `value`.
void forget_alike(const void* pointer, std::size_t bytes, bool value);

// What every truth value of the range is, where they are known to be alike.
std::optional<bool> alike(const void* pointer, std::size_t bytes);

// Elements of a formula.
class Formula;
struct FormulaPart {
  std::shared_ptr<const Formula> formula;
  std::int64_t first = 0;  // bytes from its first element
};

// Likewise, with the elements of a formula from `part` on.
void forget_as(const FormulaPart& part, const void* pointer, std::size_t bytes);

// What the whole range is the elements of; no formula: of none, or several.
FormulaPart formula_at(const void* pointer, std::size_t bytes);

// Makes known what of the range follows from a formula, where it is not too much to be stored.
void store_formula(const void* pointer, std::size_t bytes);

// An output of unknown extent begins at `pointer`.
void clobber(const void* pointer);

// Whether every byte of the range is known and may be read as `content` (kBytes: as anything).
bool known(const void* pointer, std::size_t bytes, Content content = Content::kBytes);

// Whether no byte of the range is known.
bool unknown(const void* pointer, std::size_t bytes);

// A part of a range: bytes from its start.
struct Part {
  std::uint32_t begin = 0, end = 0;
};

// The parts of a range of at most kSmallBytes that are known and may be read as `content`, in order and apart.
std::vector<Part> known_parts(const void* pointer, std::size_t bytes, Content content);

// The known device memory around `pointer`; empty: it is not known.
std::span<const std::byte> known_around(const void* pointer);

// A device-to-device copy of any size: real bytes where the source is known, else the destination is forgotten.
void copy(void* destination, const void* source, std::size_t bytes);

// A device-to-host copy of any size: real bytes or zeros.
void copy_to_host(void* destination, const void* source, std::size_t bytes);

// A product gave [rows, columns] elements, each the sum of `depth` terms, that were forgotten. Of one that may be a
// router's (rows: tokens, columns: experts) they become known, as scores by its first weights; of another nothing
// changes.
void assume_scores(std::byte* data, std::string_view dtype, std::int64_t rows, std::int64_t columns,
                   std::int64_t depth);

// What this thread does with values until the end of this scope is one operation: what it writes after it found an
// assumed value known is assumed too.
class Derivation {
 public:
  Derivation();
  ~Derivation();
  Derivation(const Derivation&) = delete;
  Derivation& operator=(const Derivation&) = delete;
  static bool picked();                  // what was found follows from picks, and from no scores
  static bool scored();                  // from a router's scores
  static void follow(Assumption found);  // from here on, besides what was found before
  static void pick();                    // from here on, whatever was found before
  // What follows from picks was met where it is not stored. It is lost unless it is settled until the end: computed all
  // the same, or of no consequence. settle() tells whether there was any.
  static void miss();
  static bool settle();

 private:
  Assumption outer_;
  bool outer_missed_;
};

// Tells the user, once, of values on which the script's way may hang. Not while this thread prints a tensor: how
// PyTorch lays its numbers out hangs on them, and nothing else does.
void note_way(std::string_view text);

// Tells the user that `what`, which follows from picks, was not computed: the prediction is INCOMPLETE.
void lose(std::string_view what);
bool lost_any();

}  // namespace maya::values
