#include "math/gemm.h"

#include <array>
#include <cstddef>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "core/process.h"
#include "core/recorder.h"
#include "core/stream.h"
#include "values/values.h"

namespace maya::math {
namespace {

// cublasLtEpilogue_t's bits in the order in which the library's own names list them.
std::string epilogue_name(std::uint32_t epilogue) {
  constexpr std::uint32_t kDefault = 1, kDRelu = 8 | 128, kDGelu = 64 | 128;
  if (epilogue <= kDefault) return {};
  std::string name;
  const auto take = [&](std::uint32_t bits, const char* word) {
    if ((epilogue & bits) != bits) return;
    if (!name.empty()) name += '_';
    name += word;
    epilogue &= ~bits;
  };
  take(kDRelu, "drelu");
  take(kDGelu, "dgelu");
  constexpr std::array<std::pair<std::uint32_t, const char*>, 7> kBits{
      {{2, "relu"}, {32, "gelu"}, {128, "aux"}, {4, "bias"}, {16, "bgrad"}, {256, "bgrada"}, {512, "bgradb"}}};
  for (const auto& [bits, word] : kBits) take(bits, word);
  if (epilogue != 0) name += "_" + std::to_string(epilogue);
  return name;
}

std::string_view library_name(Library library) {
  switch (library) {
    case Library::kCublas: return "cublas";
    case Library::kCublasLt: return "cublaslt";
    case Library::kCudnn: return "cudnn";
  }
  return {};
}

std::string describe(const Gemm& gemm) {
  const auto quote = [](std::string_view text) { return json_quote(text); };
  std::ostringstream out;
  out << R"("kind":"gemm","m":)" << gemm.m << R"(,"n":)" << gemm.n << R"(,"k":)" << gemm.k << R"(,"batch":)"
      << gemm.batch << R"(,"dtype_a":)" << quote(dtype_name(gemm.a)) << R"(,"dtype_b":)" << quote(dtype_name(gemm.b))
      << R"(,"dtype_c":)" << quote(dtype_name(gemm.c)) << R"(,"compute":)" << quote(compute_name(gemm.compute, gemm.a))
      << std::boolalpha << R"(,"transpose_a":)" << (gemm.transpose_a != 0) << R"(,"transpose_b":)"
      << (gemm.transpose_b != 0) << R"(,"epilogue":)" << quote(epilogue_name(gemm.epilogue)) << R"(,"library":)"
      << quote(library_name(gemm.library));
  if (gemm.multiprocessors != 0) out << R"(,"multiprocessors":)" << gemm.multiprocessors;
  return out.str();
}

// A linear layer's forward product, its weight the transposed first matrix: each column of the output is a token's.
void assume_scores(const Gemm& gemm, const Output& output) {
  if (!gemm.transpose_a || gemm.transpose_b || gemm.batch != 1 || output.pointers || output.data == nullptr ||
      output.leading_dimension != gemm.m) {
    return;
  }
  values::assume_scores(static_cast<std::byte*>(output.data), dtype_name(gemm.c), gemm.n, gemm.m, gemm.k);
}

}  // namespace

std::uint32_t multiprocessors_left(std::int32_t target) {
  return target > 0 && target < rank_config().multiprocessors ? static_cast<std::uint32_t>(target) : 0;
}

void record_gemm(const Gemm& gemm, const Output& output, void* stream, bool blocking) {
  if (gemm.m == 0 || gemm.n == 0 || gemm.batch == 0) return;
  const auto compute = [=] {
    forget_output(output, gemm.m, gemm.n, gemm.batch, gemm.c);
    assume_scores(gemm, output);
  };
  const bool captured = capturing(stream);
  if (!captured) compute();
  const std::uint32_t op = intern_operation(std::as_bytes(std::span(&gemm, 1)), [&] { return describe(gemm); });
  RecordFields fields;
  if (blocking) fields.flags = kBlocking;
  record(RecordKind::kKernel, stream, op, fields);
  if (captured) at_each_launch(stream, compute);
}

}  // namespace maya::math
