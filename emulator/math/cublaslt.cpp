// cuBLASLt: descriptors, one heuristic answer, and matmul. Prototypes: cublasLt.h of CUDA 12 and 13.
#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "core/process.h"
#include "core/recorder.h"
#include "math/gemm.h"
#include "math/handle.h"
#include "math/lt_descriptors.h"

namespace maya::math {
namespace {

template <class Descriptor>
bool alive(const Descriptor* descriptor) {
  return descriptor != nullptr && descriptor->tag == Descriptor::kTag;
}

// Puts a descriptor into the caller's memory, which may be that of an older, shorter cublasLt.h.
template <class Descriptor>
Status initialize(Descriptor* at, std::size_t bytes, std::size_t needed, const Descriptor& value) {
  if (at == nullptr) return Status::kInvalidValue;
  if (bytes < needed) return Status::kAllocFailed;
  const std::size_t capacity = std::min(bytes, sizeof(Descriptor));
  std::memcpy(static_cast<void*>(at), &value, capacity);
  at->capacity = static_cast<std::uint32_t>(capacity);
  return Status::kSuccess;
}

template <class Object>
HandlePool<Object, 1 << 16>& pool() {
  return handle_pool<Object, 1 << 16>();
}

// cuBLASLt accepts a cublasHandle_t for its own (cuBLAS documentation, cublasLtHandle_t).
bool is_lt_handle(const void* handle) {
  return find_cublas_handle(handle) != nullptr || pool<CublasLtHandle>().find(handle) != nullptr;
}

template <class Descriptor>
Status create(Descriptor** out, Descriptor value) {
  if (out == nullptr) return Status::kInvalidValue;
  value.capacity = sizeof(Descriptor);
  *out = pool<Descriptor>().create(value);
  return Status::kSuccess;
}

template <class Descriptor>
Status destroy(Descriptor* descriptor) {
  if (descriptor == nullptr) return Status::kSuccess;
  if (pool<Descriptor>().find(descriptor) == nullptr) return Status::kInvalidValue;
  descriptor->tag = 0;
  pool<Descriptor>().destroy(descriptor);
  return Status::kSuccess;
}

template <class Descriptor>
Status set(Descriptor* descriptor, std::int32_t id, const void* value, std::size_t bytes) {
  if (!alive(descriptor)) return Status::kInvalidValue;
  const std::span object(reinterpret_cast<std::byte*>(descriptor), descriptor->capacity);
  return set_attribute(Descriptor::attributes(), object, id, value, bytes);
}

template <class Descriptor>
Status get(const Descriptor* descriptor, std::int32_t id, void* value, std::size_t bytes, std::size_t* written) {
  if (!alive(descriptor)) return Status::kInvalidValue;
  const std::span object(reinterpret_cast<const std::byte*>(descriptor), descriptor->capacity);
  return get_attribute(Descriptor::attributes(), object, id, value, bytes, written);
}

struct Operand {
  std::int64_t rows, columns;  // after op()
  bool transposed;             // as a column-major matrix
};

Operand operand(const MatrixLayout& layout, Operation op) {
  auto rows = static_cast<std::int64_t>(layout.rows), columns = static_cast<std::int64_t>(layout.columns);
  const bool transposed = op != Operation::kNone, row_major = layout.order == 1;
  if (transposed) std::swap(rows, columns);
  return {rows, columns, transposed != row_major};
}

// The product the descriptors ask for, in column-major terms. A row-major D is the column-major D^T,
// so then D^T = op(B)^T op(A)^T is what runs.
Status plan(const MatmulDescriptor& matmul, const MatrixLayout& a_layout, const MatrixLayout& b_layout,
            const MatrixLayout& d_layout, Gemm& gemm) {
  Operand a = operand(a_layout, matmul.transpose_a), b = operand(b_layout, matmul.transpose_b);
  const Operand d = operand(d_layout, Operation::kNone);
  if (a.columns != b.rows || a.rows != d.rows || b.columns != d.columns) return Status::kInvalidValue;
  if (a_layout.batch_count != d_layout.batch_count && a_layout.batch_count != 1) return Status::kInvalidValue;
  gemm.m = d.rows, gemm.n = d.columns, gemm.k = a.columns, gemm.batch = d_layout.batch_count;
  gemm.a = a_layout.type, gemm.b = b_layout.type, gemm.c = d_layout.type;
  if (d.transposed) {
    std::swap(gemm.m, gemm.n);
    std::swap(gemm.a, gemm.b);
    std::swap(a, b);
    a.transposed = !a.transposed, b.transposed = !b.transposed;
  }
  gemm.transpose_a = a.transposed, gemm.transpose_b = b.transposed;
  gemm.compute = matmul.compute;
  gemm.epilogue = matmul.epilogue;
  gemm.library = Library::kCublasLt;
  gemm.multiprocessors = multiprocessors_left(matmul.sm_count_target);
  const auto known = [](DataType type) { return !dtype_name(type).empty(); };
  return known(gemm.a) && known(gemm.b) && known(gemm.c) ? Status::kSuccess : Status::kNotSupported;
}

struct Problem {
  const MatmulDescriptor* matmul;
  const MatrixLayout *a, *b, *c, *d;
};

Status plan(const void* handle, const Problem& problem, Gemm& gemm) {
  if (!is_lt_handle(handle)) return Status::kNotInitialized;
  if (!alive(problem.matmul)) return Status::kInvalidValue;
  for (const MatrixLayout* layout : {problem.a, problem.b, problem.c, problem.d}) {
    if (!alive(layout)) return Status::kInvalidValue;
  }
  return plan(*problem.matmul, *problem.a, *problem.b, *problem.d, gemm);
}

// Thread blocks of the tile over the device's multiprocessors.
float waves(const Gemm& gemm) {
  constexpr std::int64_t kTile = 128;
  const std::int64_t tiles =
      ((gemm.m + kTile - 1) / kTile) * ((gemm.n + kTile - 1) / kTile) * std::max<std::int64_t>(gemm.batch, 1);
  return static_cast<float>(tiles) / static_cast<float>(rank_config().multiprocessors);
}

}  // namespace
}  // namespace maya::math

using maya::math::ComputeType;
using maya::math::CublasLtHandle;
using maya::math::DataType;
using maya::math::Gemm;
using maya::math::HeuristicResult;
using maya::math::MatmulAlgorithm;
using maya::math::MatmulDescriptor;
using maya::math::MatmulPreference;
using maya::math::MatrixLayout;
using maya::math::Status;
using maya::math::TransformDescriptor;
namespace math = maya::math;

extern "C" {

// ---- library ----

Status cublasLtCreate(CublasLtHandle** handle) {
  if (handle == nullptr) return Status::kInvalidValue;
  *handle = math::pool<CublasLtHandle>().create();
  return Status::kSuccess;
}

Status cublasLtDestroy(CublasLtHandle* handle) {
  return math::pool<CublasLtHandle>().destroy(handle) ? Status::kSuccess : Status::kNotInitialized;
}

std::size_t cublasLtGetVersion() { return static_cast<std::size_t>(math::cublas_version()); }

std::size_t cublasLtGetCudartVersion() { return static_cast<std::size_t>(maya::rank_config().driver_version); }

Status cublasLtGetProperty(int type, int* value) { return math::cublas_property(type, value); }

const char* cublasLtGetStatusName(Status status) { return math::status_name(status).data(); }

const char* cublasLtGetStatusString(Status status) { return math::status_string(status).data(); }

// ---- descriptors ----

Status cublasLtMatrixLayoutInit_internal(MatrixLayout* layout, std::size_t bytes, DataType type, std::uint64_t rows,
                                         std::uint64_t columns, std::int64_t ld) {
  const MatrixLayout value{.type = type, .rows = rows, .columns = columns, .leading_dimension = ld};
  return math::initialize(layout, bytes, sizeof(MatrixLayout), value);
}

Status cublasLtMatrixLayoutCreate(MatrixLayout** layout, DataType type, std::uint64_t rows, std::uint64_t columns,
                                  std::int64_t ld) {
  return math::create(layout, MatrixLayout{.type = type, .rows = rows, .columns = columns, .leading_dimension = ld});
}

Status cublasLtMatrixLayoutDestroy(MatrixLayout* layout) { return math::destroy(layout); }

Status cublasLtMatrixLayoutSetAttribute(MatrixLayout* layout, std::int32_t id, const void* value, std::size_t bytes) {
  return math::set(layout, id, value, bytes);
}

Status cublasLtMatrixLayoutGetAttribute(const MatrixLayout* layout, std::int32_t id, void* value, std::size_t bytes,
                                        std::size_t* written) {
  return math::get(layout, id, value, bytes, written);
}

Status cublasLtMatmulDescInit_internal(MatmulDescriptor* matmul, std::size_t bytes, ComputeType compute,
                                       std::int32_t scale_type) {
  const MatmulDescriptor value{.compute = compute, .scale_type = scale_type};
  return math::initialize(matmul, bytes, offsetof(MatmulDescriptor, scale_mode_a), value);
}

Status cublasLtMatmulDescCreate(MatmulDescriptor** matmul, ComputeType compute, std::int32_t scale_type) {
  return math::create(matmul, MatmulDescriptor{.compute = compute, .scale_type = scale_type});
}

Status cublasLtMatmulDescDestroy(MatmulDescriptor* matmul) { return math::destroy(matmul); }

Status cublasLtMatmulDescSetAttribute(MatmulDescriptor* matmul, std::int32_t id, const void* value, std::size_t bytes) {
  return math::set(matmul, id, value, bytes);
}

Status cublasLtMatmulDescGetAttribute(const MatmulDescriptor* matmul, std::int32_t id, void* value, std::size_t bytes,
                                      std::size_t* written) {
  return math::get(matmul, id, value, bytes, written);
}

Status cublasLtMatmulPreferenceInit_internal(MatmulPreference* preference, std::size_t bytes) {
  return math::initialize(preference, bytes, sizeof(MatmulPreference), MatmulPreference{});
}

Status cublasLtMatmulPreferenceCreate(MatmulPreference** preference) {
  return math::create(preference, MatmulPreference{});
}

Status cublasLtMatmulPreferenceDestroy(MatmulPreference* preference) { return math::destroy(preference); }

Status cublasLtMatmulPreferenceSetAttribute(MatmulPreference* preference, std::int32_t id, const void* value,
                                            std::size_t bytes) {
  return math::set(preference, id, value, bytes);
}

Status cublasLtMatmulPreferenceGetAttribute(const MatmulPreference* preference, std::int32_t id, void* value,
                                            std::size_t bytes, std::size_t* written) {
  return math::get(preference, id, value, bytes, written);
}

Status cublasLtMatrixTransformDescInit_internal(TransformDescriptor* transform, std::size_t bytes,
                                                std::int32_t scale_type) {
  return math::initialize(transform, bytes, sizeof(TransformDescriptor), TransformDescriptor{.scale_type = scale_type});
}

Status cublasLtMatrixTransformDescCreate(TransformDescriptor** transform, std::int32_t scale_type) {
  return math::create(transform, TransformDescriptor{.scale_type = scale_type});
}

Status cublasLtMatrixTransformDescDestroy(TransformDescriptor* transform) { return math::destroy(transform); }

Status cublasLtMatrixTransformDescSetAttribute(TransformDescriptor* transform, std::int32_t id, const void* value,
                                               std::size_t bytes) {
  return math::set(transform, id, value, bytes);
}

Status cublasLtMatrixTransformDescGetAttribute(const TransformDescriptor* transform, std::int32_t id, void* value,
                                               std::size_t bytes, std::size_t* written) {
  return math::get(transform, id, value, bytes, written);
}

// ---- algorithms ----

Status cublasLtMatmulAlgoGetHeuristic(const void* handle, const MatmulDescriptor* matmul, const MatrixLayout* a,
                                      const MatrixLayout* b, const MatrixLayout* c, const MatrixLayout* d,
                                      const MatmulPreference*, int requested, HeuristicResult* results, int* returned) {
  const maya::Call call;
  if (requested <= 0 || results == nullptr || returned == nullptr) return Status::kInvalidValue;
  *returned = 0;
  Gemm gemm;
  const Status status = math::plan(handle, {matmul, a, b, c, d}, gemm);
  if (status != Status::kSuccess) return status;
  results[0] = HeuristicResult{.waves = math::waves(gemm)};
  *returned = 1;
  return Status::kSuccess;
}

Status cublasLtMatmulAlgoGetIds(const void* handle, ComputeType, std::int32_t, DataType, DataType, DataType, DataType,
                                int requested, int* ids, int* returned) {
  if (!math::is_lt_handle(handle)) return Status::kNotInitialized;
  if (requested <= 0 || ids == nullptr) return Status::kInvalidValue;
  ids[0] = MatmulAlgorithm{}.id;
  if (returned != nullptr) *returned = 1;
  return Status::kSuccess;
}

Status cublasLtMatmulAlgoInit(const void* handle, ComputeType, std::int32_t, DataType, DataType, DataType, DataType,
                              int id, MatmulAlgorithm* algorithm) {
  if (!math::is_lt_handle(handle)) return Status::kNotInitialized;
  if (algorithm == nullptr || id < 0) return Status::kInvalidValue;
  *algorithm = MatmulAlgorithm{.id = id};
  return Status::kSuccess;
}

Status cublasLtMatmulAlgoCheck(const void* handle, const MatmulDescriptor* matmul, const MatrixLayout* a,
                               const MatrixLayout* b, const MatrixLayout* c, const MatrixLayout* d,
                               const MatmulAlgorithm* algorithm, HeuristicResult* result) {
  if (algorithm == nullptr || result == nullptr) return Status::kInvalidValue;
  Gemm gemm;
  const Status status = math::plan(handle, {matmul, a, b, c, d}, gemm);
  result->state = status;
  result->workspace_bytes = 0;
  result->waves = status == Status::kSuccess ? math::waves(gemm) : 0;
  return status;
}

Status cublasLtMatmulAlgoConfigSetAttribute(MatmulAlgorithm* algorithm, std::int32_t id, const void* value,
                                            std::size_t bytes) {
  if (algorithm == nullptr) return Status::kInvalidValue;
  return math::set_attribute(MatmulAlgorithm::attributes(), std::as_writable_bytes(std::span(algorithm, 1)), id, value,
                             bytes);
}

Status cublasLtMatmulAlgoConfigGetAttribute(const MatmulAlgorithm* algorithm, std::int32_t id, void* value,
                                            std::size_t bytes, std::size_t* written) {
  if (algorithm == nullptr) return Status::kInvalidValue;
  return math::get_attribute(MatmulAlgorithm::attributes(), std::as_bytes(std::span(algorithm, 1)), id, value, bytes,
                             written);
}

// ---- D = epilogue(alpha op(A) op(B) + beta C) ----

Status cublasLtMatmul(const void* handle, const MatmulDescriptor* matmul, const void*, const void*,
                      const MatrixLayout* a, const void*, const MatrixLayout* b, const void*, const void*,
                      const MatrixLayout* c, void* output, const MatrixLayout* d, const MatmulAlgorithm*, void*,
                      std::size_t, void* stream) {
  const maya::Call call;
  Gemm gemm;
  const Status status = math::plan(handle, {matmul, a, b, c, d}, gemm);
  if (status != Status::kSuccess) return status;
  const bool pointers = d->batch_mode == 1;  // CUBLASLT_BATCH_MODE_POINTER_ARRAY
  math::record_gemm(gemm, {output, d->leading_dimension, d->batch_stride, pointers}, stream);
  return status;
}

}  // extern "C"
