#include "math/lapack.h"

#include <algorithm>
#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>

#include "core/recorder.h"
#include "values/values.h"

namespace maya::math {
namespace {

std::string_view routine_name(Routine routine) {
  switch (routine) {
    case Routine::kGeqrf: return "geqrf";
    case Routine::kOrgqr: return "orgqr";
    case Routine::kOrmqr: return "ormqr";
    case Routine::kGels: return "gels";
    case Routine::kPotrf: return "potrf";
    case Routine::kPotrs: return "potrs";
    case Routine::kGetrf: return "getrf";
    case Routine::kGetrs: return "getrs";
    case Routine::kSytrf: return "sytrf";
    case Routine::kSytrs: return "sytrs";
    case Routine::kTrsm: return "trsm";
    case Routine::kSyevd: return "syevd";
    case Routine::kSyevj: return "syevj";
    case Routine::kGesvd: return "gesvd";
    case Routine::kGesvdj: return "gesvdj";
    case Routine::kGesvda: return "gesvda";
    case Routine::kGeev: return "geev";
  }
  return {};
}

std::string describe(const Lapack& work) {
  std::ostringstream out;
  out << R"("kind":"lapack","routine":)" << json_quote(routine_name(work.routine)) << R"(,"m":)" << work.m << R"(,"n":)"
      << work.n << R"(,"k":)" << work.k << R"(,"batch":)" << work.batch << R"(,"dtype":)"
      << json_quote(dtype_name(work.type)) << std::boolalpha << R"(,"vectors":)" << (work.vectors != 0)
      << R"(,"batched":)" << (work.batched != 0);
  return out.str();
}

}  // namespace

void record_lapack(const Lapack& work, std::initializer_list<Written> written, int* info, void* stream) {
  for (const Written& each : written) forget_output(each.output, each.rows, each.columns, work.batch, each.type);
  if (info != nullptr) {
    std::fill_n(info, work.batch, 0);
    values::wrote(info, static_cast<std::size_t>(work.batch) * sizeof *info, values::Content::kInteger);
  }
  if (work.m == 0 || work.n == 0 || work.batch == 0) return;
  record(RecordKind::kKernel, stream, intern_operation(work, [&] { return describe(work); }));
}

DataType real_type(DataType type) {
  if (type == DataType::kC32F) return DataType::kR32F;
  return type == DataType::kC64F ? DataType::kR64F : type;
}

}  // namespace maya::math
