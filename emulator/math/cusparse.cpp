// cuSPARSE, as PyTorch multiplies with sparse matrices: descriptors, products with dense matrices and vectors, products
// of dense ones sampled at a sparse one's places, offsets of rows. Prototypes: cusparse.h of CUDA 12 and 13, which
// agree on the functions here.
//
// All of it is bound by memory: each non-zero reads its row of the dense matrix, of which nothing is taken to be in
// cache.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/handle_pool.h"
#include "core/recorder.h"
#include "math/memory_bound.h"
#include "math/types.h"
#include "values/values.h"

namespace maya::math::cusparse {
namespace {

enum class Status : std::int32_t { kSuccess = 0, kNotInitialized = 1, kInvalidValue = 3 };

enum class IndexType : std::int32_t { k16U = 1, k32I = 2, k64I = 3 };  // cusparseIndexType_t

struct Handle {
  void* stream = nullptr;
};

// CSR, with an offset a row, or COO, with a row a non-zero.
struct Sparse {
  std::int64_t rows = 0, columns = 0, nonzeros = 0;
  bool offsets = false;
  void* values = nullptr;
  IndexType index = IndexType::k32I;
  DataType type = DataType::kR32F;
  std::int64_t batch = 1;

  std::int64_t bytes() const {
    const std::int64_t item = index == IndexType::k64I ? 8 : 4;
    const std::int64_t indices = offsets ? nonzeros + rows + 1 : 2 * nonzeros;
    return batch * (indices * item + nonzeros * static_cast<std::int64_t>(dtype_bytes(type)));
  }
};

// A vector has one column.
struct Dense {
  std::int64_t rows = 0, columns = 1;
  void* values = nullptr;
  DataType type = DataType::kR32F;
  std::int64_t extent = 0;  // elements from the first to the last
  std::int64_t batch = 1, stride = 0;

  std::int64_t bytes() const { return batch * rows * columns * static_cast<std::int64_t>(dtype_bytes(type)); }
};

template <class Object>
HandlePool<Object, 1 << 16>& pool() {
  return handle_pool<Object, 1 << 16>();
}

template <class Object>
Status create(const Object** handle, const Object& object) {
  if (handle == nullptr) return Status::kInvalidValue;
  *handle = pool<Object>().create(object);
  return Status::kSuccess;
}

template <class Object>
Status destroy(const Object* handle) {
  return pool<Object>().destroy(handle) ? Status::kSuccess : Status::kInvalidValue;
}

// What a call does to the descriptor that it names.
template <class Object>
Status change(const Object* handle, auto&& act) {
  Object* const live = pool<Object>().find(handle);
  if (live == nullptr) return Status::kInvalidValue;
  act(*live);
  return Status::kSuccess;
}

void forget(const Dense& output) {
  const auto item = dtype_bytes(output.type);
  for (std::int64_t each = 0; each < output.batch; ++each) {
    values::forget(static_cast<std::byte*>(output.values) + static_cast<std::size_t>(each * output.stride) * item,
                   static_cast<std::size_t>(output.extent) * item);
  }
}

Status record(const Handle* handle, const std::string& name, std::int64_t threads, std::int64_t bytes) {
  constexpr int kThreads = 256;
  const std::int64_t blocks = std::max<std::int64_t>(threads / kThreads, 1);
  record_memory_bound("cusparse_" + name, blocks, kThreads, bytes, handle->stream);
  return Status::kSuccess;
}

// C = op(A) op(B), A sparse; C is read where beta says so, which the device may know alone.
Status product(const Handle* handle, const char* name, const Sparse* a, const Dense* b, const Dense* c) {
  const Call call;
  if (pool<Handle>().find(handle) == nullptr) return Status::kNotInitialized;
  if (pool<Sparse>().find(a) == nullptr || pool<Dense>().find(b) == nullptr || pool<Dense>().find(c) == nullptr)
    return Status::kInvalidValue;
  forget(*c);
  const auto item = static_cast<std::int64_t>(dtype_bytes(b->type));
  const std::int64_t batch = std::max({a->batch, b->batch, c->batch});
  const std::int64_t read = batch * a->nonzeros * c->columns * item;
  return record(handle, std::string(name) + "_" + std::string(dtype_name(a->type)), c->rows * c->columns,
                a->bytes() + read + c->bytes());
}

// The places of C, of A B: a row of A and a column of B each.
Status sampled(const Handle* handle, const Dense* a, const Dense* b, const Sparse* c, bool transposed) {
  const Call call;
  if (pool<Handle>().find(handle) == nullptr) return Status::kNotInitialized;
  if (pool<Dense>().find(a) == nullptr || pool<Dense>().find(b) == nullptr || pool<Sparse>().find(c) == nullptr)
    return Status::kInvalidValue;
  const auto item = static_cast<std::int64_t>(dtype_bytes(a->type));
  const std::int64_t inner = transposed ? a->rows : a->columns;
  values::forget(c->values, static_cast<std::size_t>(c->nonzeros * item));
  return record(handle, "sddmm_" + std::string(dtype_name(c->type)), c->nonzeros,
                c->bytes() + c->batch * c->nonzeros * (2 * inner + 1) * item);
}

Status no_buffer(std::size_t* bytes) {
  if (bytes == nullptr) return Status::kInvalidValue;
  *bytes = 0;
  return Status::kSuccess;
}

}  // namespace
}  // namespace maya::math::cusparse

using maya::Call;
using maya::math::DataType;
using maya::math::Operation;
using maya::math::cusparse::Dense;
using maya::math::cusparse::Handle;
using maya::math::cusparse::IndexType;
using maya::math::cusparse::Sparse;
using maya::math::cusparse::Status;
namespace cusparse = maya::math::cusparse;
using Index = std::int64_t;

extern "C" {

Status cusparseCreate(const Handle** handle) { return cusparse::create(handle, Handle{}); }

Status cusparseDestroy(const Handle* handle) {
  return cusparse::pool<Handle>().destroy(handle) ? Status::kSuccess : Status::kNotInitialized;
}

Status cusparseSetStream(Handle* handle, void* stream) {
  return cusparse::change<Handle>(handle, [&](Handle& live) { live.stream = stream; });
}

// ---- descriptors ----

Status cusparseCreateCsr(const Sparse** matrix, Index rows, Index columns, Index nonzeros, void*, void*, void* values,
                         IndexType, IndexType index, std::int32_t, DataType type) {
  return cusparse::create(matrix, Sparse{rows, columns, nonzeros, true, values, index, type});
}

Status cusparseCreateCoo(const Sparse** matrix, Index rows, Index columns, Index nonzeros, void*, void*, void* values,
                         IndexType index, std::int32_t, DataType type) {
  return cusparse::create(matrix, Sparse{rows, columns, nonzeros, false, values, index, type});
}

Status cusparseDestroySpMat(const Sparse* matrix) { return cusparse::destroy(matrix); }

Status cusparseCsrSetStridedBatch(const Sparse* matrix, int batch, Index, Index) {
  return cusparse::change(matrix, [&](Sparse& live) { live.batch = batch; });
}

Status cusparseCsrSetPointers(const Sparse* matrix, void*, void*, void* values) {
  return cusparse::change(matrix, [&](Sparse& live) { live.values = values; });
}

Status cusparseSpMatGetSize(const Sparse* matrix, Index* rows, Index* columns, Index* nonzeros) {
  if (rows == nullptr || columns == nullptr || nonzeros == nullptr) return Status::kInvalidValue;
  return cusparse::change(matrix, [&](const Sparse& live) {
    *rows = live.rows;
    *columns = live.columns;
    *nonzeros = live.nonzeros;
  });
}

Status cusparseCreateDnMat(const Dense** matrix, Index rows, Index columns, Index leading_dimension, void* values,
                           DataType type, std::int32_t order) {
  constexpr std::int32_t kRowMajor = 2;
  const Index lines = order == kRowMajor ? rows : columns, length = order == kRowMajor ? columns : rows;
  const Index extent = lines > 0 ? (lines - 1) * leading_dimension + length : 0;
  return cusparse::create(matrix, Dense{rows, columns, values, type, extent});
}

Status cusparseDestroyDnMat(const Dense* matrix) { return cusparse::destroy(matrix); }

Status cusparseDnMatSetStridedBatch(const Dense* matrix, int batch, Index stride) {
  return cusparse::change(matrix, [&](Dense& live) {
    live.batch = batch;
    live.stride = stride;
  });
}

Status cusparseCreateDnVec(const Dense** vector, Index size, void* values, DataType type) {
  return cusparse::create(vector, Dense{size, 1, values, type, size});
}

Status cusparseDestroyDnVec(const Dense* vector) { return cusparse::destroy(vector); }

// ---- products: cuSPARSE's default algorithms for CSR take no buffer to speak of ----

Status cusparseSpMM_bufferSize(const Handle*, Operation, Operation, const void*, const Sparse*, const Dense*,
                               const void*, const Dense*, DataType, std::int32_t, std::size_t* bytes) {
  return cusparse::no_buffer(bytes);
}

Status cusparseSpMM(const Handle* handle, Operation, Operation, const void*, const Sparse* a, const Dense* b,
                    const void*, const Dense* c, DataType, std::int32_t, void*) {
  return cusparse::product(handle, "spmm", a, b, c);
}

Status cusparseSpMV_bufferSize(const Handle*, Operation, const void*, const Sparse*, const Dense*, const void*,
                               const Dense*, DataType, std::int32_t, std::size_t* bytes) {
  return cusparse::no_buffer(bytes);
}

Status cusparseSpMV(const Handle* handle, Operation, const void*, const Sparse* a, const Dense* x, const void*,
                    const Dense* y, DataType, std::int32_t, void*) {
  return cusparse::product(handle, "spmv", a, x, y);
}

Status cusparseSDDMM_bufferSize(const Handle*, Operation, Operation, const void*, const Dense*, const Dense*,
                                const void*, const Sparse*, DataType, std::int32_t, std::size_t* bytes) {
  return cusparse::no_buffer(bytes);
}

Status cusparseSDDMM_preprocess(const Handle*, Operation, Operation, const void*, const Dense*, const Dense*,
                                const void*, const Sparse*, DataType, std::int32_t, void*) {
  return Status::kSuccess;
}

Status cusparseSDDMM(const Handle* handle, Operation operation, Operation, const void*, const Dense* a, const Dense* b,
                     const void*, const Sparse* c, DataType, std::int32_t, void*) {
  return cusparse::sampled(handle, a, b, c, operation != Operation::kNone);
}

// ---- conversion ----

Status cusparseXcoo2csr(const Handle* handle, const int*, int nonzeros, int rows, int* offsets, std::int32_t) {
  const Call call;
  if (cusparse::pool<Handle>().find(handle) == nullptr) return Status::kNotInitialized;
  if (nonzeros < 0 || rows < 0) return Status::kInvalidValue;
  const std::size_t bytes = (static_cast<std::size_t>(rows) + 1) * sizeof *offsets;
  maya::values::forget_integers(offsets, bytes);
  return cusparse::record(handle, "coo2csr", nonzeros, Index{4} * nonzeros + static_cast<Index>(bytes));
}

}  // extern "C"
