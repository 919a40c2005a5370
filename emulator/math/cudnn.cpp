// cuDNN: handles and the backend (graph) API, as PyTorch's convolutions and fused attention use it. One
// engine, without knobs or workspace, takes any graph. Prototypes: cudnn_graph.h of cuDNN 9.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/process.h"
#include "core/recorder.h"
#include "math/cudnn_descriptor.h"
#include "math/cudnn_handle.h"
#include "math/cudnn_pool.h"
#include "values/values.h"

namespace maya::math::cudnn {
namespace {

using Pointer = std::shared_ptr<Descriptor>;

// ---- attributes ----

Status set(Descriptor& descriptor, std::int32_t name, std::int32_t type, std::int64_t count, const void* values) {
  if (count < 0 || (values == nullptr && count > 0)) return Status::kBadParamNullPointer;
  Descriptor::Value value{type, count, {}, {}};
  if (type == kDescriptorType) {
    for (const void* handle : std::span(static_cast<void* const*>(values), static_cast<std::size_t>(count))) {
      const DescriptorHandle* child = pool<DescriptorHandle>().find(handle);
      if (child == nullptr) return Status::kBadParam;
      value.children.push_back(child->descriptor);
    }
  } else {
    value.bytes.resize(static_cast<std::size_t>(count) * element_bytes(type));
    if (!value.bytes.empty()) std::memcpy(value.bytes.data(), values, value.bytes.size());
  }
  descriptor.attributes[name] = std::move(value);
  return Status::kSuccess;
}

// Descriptors are copied into ones that the caller made.
void copy_children(const Descriptor::Value& value, std::int64_t room, void* values) {
  const auto count = static_cast<std::size_t>(std::min(room, value.count));
  for (std::size_t i = 0; i < count; ++i) {
    DescriptorHandle* target = pool<DescriptorHandle>().find(static_cast<void**>(values)[i]);
    if (target != nullptr) *target->descriptor = *value.children[i];
  }
}

Status get(const Descriptor& descriptor, std::int32_t name, std::int32_t type, std::int64_t room, std::int64_t* count,
           void* values) {
  const auto at = descriptor.attributes.find(name);
  if (at == descriptor.attributes.end()) {  // knobs, notes: there are none
    if (count != nullptr) *count = 0;
    return Status::kSuccess;
  }
  const Descriptor::Value& value = at->second;
  if (value.type != type) return Status::kBadParam;
  if (count != nullptr) *count = value.count;
  if (values == nullptr || room == 0) return Status::kSuccess;
  if (type == kDescriptorType) {
    copy_children(value, room, values);
  } else {
    const std::size_t most = static_cast<std::size_t>(room) * element_bytes(type);
    std::memcpy(values, value.bytes.data(), std::min(most, value.bytes.size()));
  }
  return Status::kSuccess;
}

// What cuDNN works out when a descriptor is finalized: the one engine that the heuristics find, sizes.
Status finalize(Descriptor& descriptor) {
  constexpr std::int32_t kInt64 = 3, kInt32 = 23;
  switch (descriptor.kind) {
    case Kind::kEngineHeuristics: {
      const auto graph = descriptor.attributes.find(kHeuristicsGraph);
      if (graph == descriptor.attributes.end()) return Status::kBadParam;
      const auto engine = std::make_shared<Descriptor>(Descriptor{.kind = Kind::kEngine, .attributes = {}});
      engine->set_child(kEngineGraph, graph->second.children.front());
      finalize(*engine);
      const auto config = std::make_shared<Descriptor>(Descriptor{.kind = Kind::kEngineConfig, .attributes = {}});
      config->set_child(kConfigEngine, engine);
      finalize(*config);
      descriptor.set_child(kHeuristicsResults, config);
      break;
    }
    case Kind::kEngine:
      if (descriptor.attributes.count(kEngineGlobalIndex) == 0) descriptor.set_integer(kEngineGlobalIndex, kInt64, 0);
      break;
    case Kind::kEngineConfig:
      descriptor.set_integer(kConfigWorkspaceBytes, kInt64, 0);
      descriptor.set_integer(kConfigSharedMemoryUsed, kInt32, 0);
      break;
    case Kind::kExecutionPlan:
      if (descriptor.child(kPlanConfig) == nullptr) return Status::kBadParam;
      descriptor.set_integer(kPlanWorkspaceBytes, kInt64, 0);
      break;
    case Kind::kOperationGraph: descriptor.set_integer(kGraphEngineCount, kInt64, 1); break;
    default: break;
  }
  descriptor.finalized = true;
  return Status::kSuccess;
}

// ---- what a graph is ----

std::int64_t elements(const Descriptor& tensor) {
  std::int64_t product = 1;
  for (const std::int64_t size : tensor.integers(kTensorDimensions)) product *= size;
  return product;
}

std::string list(const std::vector<std::int64_t>& values) {
  std::ostringstream out;
  for (std::size_t i = 0; i < values.size(); ++i) out << (i == 0 ? "[" : ",") << values[i];
  out << (values.empty() ? "[]" : "]");
  return out.str();
}

// Where a convolution's operation keeps its parts (cudnnBackendAttributeName_t 702 to 717).
struct ConvolutionLayout {
  const char* direction;
  std::int32_t convolution, filter, input, output, result;
};

const ConvolutionLayout* convolution_layout(Kind kind) {
  static constexpr ConvolutionLayout kForward{"forward", 702, 703, 704, 705, 705};
  static constexpr ConvolutionLayout kData{"backward_data", 708, 709, 710, 711, 710};
  static constexpr ConvolutionLayout kFilter{"backward_filter", 714, 715, 716, 717, 715};
  switch (kind) {
    case Kind::kConvolutionForward: return &kForward;
    case Kind::kConvolutionBackwardData: return &kData;
    case Kind::kConvolutionBackwardFilter: return &kFilter;
    default: return nullptr;
  }
}

std::string describe_convolution(const Descriptor& operation, const ConvolutionLayout& at) {
  const Descriptor *convolution = operation.child(at.convolution), *filter = operation.child(at.filter),
                   *input = operation.child(at.input), *output = operation.child(at.output);
  if (convolution == nullptr || filter == nullptr || input == nullptr || output == nullptr) return {};
  const auto sizes = input->integers(kTensorDimensions), strides = input->integers(kTensorStrides),
             taps = filter->integers(kTensorDimensions);
  if (sizes.size() < 3 || strides.size() != sizes.size() || taps.size() != sizes.size()) return {};
  const bool channels_last = strides[1] == 1 && sizes[1] > 1;
  std::ostringstream out;
  out << R"("kind":"convolution","direction":")" << at.direction << R"(","input":)" << list(sizes) << R"(,"filter":)"
      << list(taps) << R"(,"output":)" << list(output->integers(kTensorDimensions)) << R"(,"padding":)"
      << list(convolution->integers(kConvolutionPrePaddings)) << R"(,"stride":)"
      << list(convolution->integers(kConvolutionStrides)) << R"(,"dilation":)"
      << list(convolution->integers(kConvolutionDilations)) << R"(,"groups":)"
      << sizes[1] / std::max<std::int64_t>(taps[1], 1) << R"(,"dtype":")" << dtype(input->enumerator(kTensorDataType))
      << R"(","layout":")" << (channels_last ? "nhwc" : "nchw") << '"';
  return out.str();
}

const Descriptor* graph_of(const Descriptor& plan) {
  const Descriptor* config = plan.child(kPlanConfig);
  const Descriptor* engine = config == nullptr ? nullptr : config->child(kConfigEngine);
  return engine == nullptr ? nullptr : engine->child(kEngineGraph);
}

std::span<const std::shared_ptr<const Descriptor>> operations_of(const Descriptor& graph) {
  const auto at = graph.attributes.find(kGraphOperations);
  if (at == graph.attributes.end()) return {};
  return at->second.children;
}

// The tensors of memory that a graph reads and writes, each once.
std::map<std::int64_t, const Descriptor*> tensors_of(const Descriptor& graph) {
  std::map<std::int64_t, const Descriptor*> tensors;
  for (const auto& operation : operations_of(graph)) {
    for (const auto& [name, value] : operation->attributes) {
      for (const auto& child : value.children) {
        const bool real = child->kind == Kind::kTensor && child->enumerator(kTensorIsVirtual) == 0;
        const auto id = child->integers(kTensorUniqueId);
        if (real && !id.empty()) tensors[id.front()] = child.get();
      }
    }
  }
  return tensors;
}

std::int64_t bytes_of(const Descriptor& graph) {
  std::int64_t bytes = 0;
  for (const auto& [id, tensor] : tensors_of(graph)) {
    bytes += elements(*tensor) * dtype_bytes(tensor->enumerator(kTensorDataType));
  }
  return bytes;
}

// Fused attention multiplies Q K^T and P V forward; S, dV, dP, dQ and dK backward.
std::string attention_name(const Descriptor& graph) {
  const auto operations = operations_of(graph);
  const auto count = [&](Kind kind) {
    return std::ranges::count_if(operations, [&](const auto& operation) { return operation->kind == kind; });
  };
  const bool backward = count(Kind::kAttentionBackward) > 0 || count(Kind::kMatmul) > 3;
  const bool forward = count(Kind::kAttentionForward) > 0 || count(Kind::kMatmul) == 2;
  if (!backward && !forward) return {};
  const RankConfig& device = rank_config();
  // cuDNN 9's own name for these kernels, without the tile sizes that its heuristics choose.
  return "cudnn_generated_fort_native_sdpa_sm" + std::to_string(device.major * 10 + device.minor) + "_flash_" +
         (backward ? "bprop" : "fprop");
}

struct AttentionShape {
  std::int64_t batch = 0, heads = 0, queries = 0, keys = 0, head_dim = 0;
};

// cudnnPointwiseMode_t: comparisons GT to LE, and the number of a row or column.
constexpr std::int32_t kGreater = 302, kLessOrEqual = 305, kIndex = 501;

// Whether scores are masked by where they are: one index, of a row, is compared with another, of a column. (Masks of
// lengths compare an index with a tensor of them.) From cuDNN 9.20 an operation of its own does that, and fused
// attention may hold it in a graph within.
bool is_causal(const Descriptor& graph) {
  std::set<std::int64_t> indices;  // tensors that are an index, or made of one
  const auto is_index = [&](const Descriptor* tensor) {
    const auto id = tensor == nullptr ? std::vector<std::int64_t>{} : tensor->integers(kTensorUniqueId);
    return !id.empty() && indices.contains(id.front());
  };
  for (const auto& operation : operations_of(graph)) {
    const Descriptor* within = operation->child(kAttentionSubgraph);
    if (operation->kind == Kind::kDiagonalBandMask || (within != nullptr && is_causal(*within))) return true;
    const Descriptor* pointwise = operation->child(kPointwiseDescriptor);
    const Descriptor* result = operation->child(kPointwiseY);
    if (operation->kind != Kind::kPointwise || pointwise == nullptr || result == nullptr) continue;
    const std::int32_t mode = pointwise->enumerator(kPointwiseMode);
    const bool of_index = is_index(operation->child(kPointwiseX));
    if (mode >= kGreater && mode <= kLessOrEqual) {
      if (of_index && is_index(operation->child(kPointwiseB))) return true;
    } else if (mode == kIndex || of_index) {
      for (const std::int64_t id : result->integers(kTensorUniqueId)) indices.insert(id);
    }
  }
  return false;
}

// Q is [batch, heads, queries, head dim]. Of products the first, either way: Q K^T = S [batch, heads, queries, keys].
AttentionShape attention_shape(const Descriptor& graph) {
  for (const auto& operation : operations_of(graph)) {
    const bool whole = operation->kind == Kind::kAttentionForward;
    if (!whole && operation->kind != Kind::kMatmul) continue;
    const Descriptor* queries = operation->child(whole ? kAttentionQ : kMatmulA);
    const Descriptor* other = operation->child(whole ? kAttentionK : kMatmulC);
    if (queries == nullptr || other == nullptr) return {};
    const auto q = queries->integers(kTensorDimensions), sizes = other->integers(kTensorDimensions);
    if (q.size() != 4 || sizes.size() != 4) return {};
    return {q[0], q[1], q[2], sizes[whole ? 2 : 3], q[3]};
  }
  return {};
}

std::string describe_kernel(const Descriptor& graph) {
  const std::string attention = attention_name(graph);
  std::string name = attention;
  if (name.empty()) {
    name = "cudnn_graph";
    for (const auto& operation : operations_of(graph)) name += "_" + std::to_string(static_cast<int>(operation->kind));
  }
  const AttentionShape shape = attention.empty() ? AttentionShape{} : attention_shape(graph);
  const auto grid = shape.batch > 0 ? list({(shape.queries + 127) / 128, shape.heads, shape.batch}) : "[1,1,1]";
  std::ostringstream out;
  out << R"("kind":"kernel","kernel":)" << json_quote(name) << R"(,"grid":)" << grid
      << R"(,"block":[128,1,1],"shared_bytes":0,"bytes":)" << bytes_of(graph);
  if (shape.batch > 0)
    out << R"(,"attention":)"
        << list({shape.batch, shape.heads, shape.queries, shape.keys, shape.head_dim, is_causal(graph)});
  return out.str();
}

std::string describe(const Descriptor& graph) {
  for (const auto& operation : operations_of(graph)) {
    const ConvolutionLayout* layout = convolution_layout(operation->kind);
    if (layout == nullptr) continue;
    std::string text = describe_convolution(*operation, *layout);
    if (!text.empty()) return text;
  }
  return describe_kernel(graph);
}

// ---- execution ----

// Results of operations: convolution Y, DX, DW; pointwise Y, DX; matmul C; reduction Y.
constexpr std::int32_t kResults[] = {705, 710, 715, 753, 756, 1522, 1611};

void forget_results(const Descriptor& graph, const Descriptor& pack) {
  const auto ids = pack.integers(kPackUniqueIds), pointers = pack.integers(kPackPointers);
  for (const auto& operation : operations_of(graph)) {
    for (const std::int32_t attribute : kResults) {
      const Descriptor* tensor = operation->child(attribute);
      if (tensor == nullptr || tensor->enumerator(kTensorIsVirtual) != 0) continue;
      const auto id = tensor->integers(kTensorUniqueId);
      const auto at = id.empty() ? ids.end() : std::ranges::find(ids, id.front());
      if (at == ids.end()) continue;
      const auto bytes = elements(*tensor) * dtype_bytes(tensor->enumerator(kTensorDataType));
      const auto address = pointers[static_cast<std::size_t>(at - ids.begin())];
      values::forget(reinterpret_cast<void*>(address), static_cast<std::size_t>(bytes));
    }
  }
}

Status execute(const Handle& handle, const Descriptor& plan, const Descriptor& pack) {
  const Descriptor* graph = graph_of(plan);
  if (graph == nullptr) return Status::kBadParam;
  const std::string description = describe(*graph);
  const auto key = std::as_bytes(std::span(description));
  record(RecordKind::kKernel, handle.stream, intern_operation(key, [&] { return description; }));
  forget_results(*graph, pack);
  return Status::kSuccess;
}

}  // namespace

Handle* find_handle(const void* handle) { return pool<Handle>().find(handle); }

// cudnnDataType_t.
std::string_view dtype(std::int32_t type) {
  switch (type) {
    case 0: return "fp32";
    case 1: return "fp64";
    case 2: return "fp16";
    case 3: return "int8";
    case 4: return "int32";
    case 6: return "uint8";
    case 9: return "bf16";
    case 10: return "int64";
    case 11: return "bool";
    case 12: return "fp8_e4m3";
    case 13: return "fp8_e5m2";
    default: return "";
  }
}

std::int64_t dtype_bytes(std::int32_t type) {
  const std::string_view name = dtype(type);
  if (name == "fp64" || name == "int64") return 8;
  if (name == "fp32" || name == "int32") return 4;
  return name == "fp16" || name == "bf16" ? 2 : 1;
}

}  // namespace maya::math::cudnn

using maya::Call;
using maya::math::cudnn::Descriptor;
using maya::math::cudnn::DescriptorHandle;
using maya::math::cudnn::Handle;
using maya::math::cudnn::Kind;
using maya::math::cudnn::Status;
namespace cudnn = maya::math::cudnn;

namespace {

Status with_descriptor(const void* handle, auto&& act) {
  DescriptorHandle* found = cudnn::pool<DescriptorHandle>().find(handle);
  return found == nullptr ? Status::kBadParam : act(*found->descriptor);
}

Status with_handle(const void* handle, auto&& act) {
  Handle* found = cudnn::find_handle(handle);
  return found == nullptr ? Status::kNotInitialized : act(*found);
}

}  // namespace

extern "C" {

// ---- handles ----

Status cudnnCreate(Handle** handle) { return cudnn::create(handle); }

Status cudnnDestroy(Handle* handle) {
  return cudnn::pool<Handle>().destroy(handle) ? Status::kSuccess : Status::kNotInitialized;
}

Status cudnnSetStream(Handle* handle, void* stream) {
  return with_handle(handle, [&](Handle& live) {
    live.stream = stream;
    return Status::kSuccess;
  });
}

Status cudnnGetStream(Handle* handle, void** stream) {
  return with_handle(handle, [&](Handle& live) {
    if (stream == nullptr) return Status::kBadParamNullPointer;
    *stream = live.stream;
    return Status::kSuccess;
  });
}

void cudnnGetLastErrorString(char* message, std::size_t bytes) {
  if (message != nullptr && bytes > 0) *message = '\0';
}

// ---- descriptors ----

Status cudnnBackendCreateDescriptor(Kind kind, DescriptorHandle** descriptor) {
  const Call call;
  if (descriptor == nullptr) return Status::kBadParamNullPointer;
  auto content = std::make_shared<Descriptor>(Descriptor{.kind = kind, .attributes = {}});
  *descriptor = cudnn::pool<DescriptorHandle>().create(DescriptorHandle{std::move(content)});
  return Status::kSuccess;
}

Status cudnnBackendDestroyDescriptor(DescriptorHandle* descriptor) {
  const Call call;
  if (descriptor == nullptr) return Status::kSuccess;
  return cudnn::pool<DescriptorHandle>().destroy(descriptor) ? Status::kSuccess : Status::kBadParam;
}

Status cudnnBackendFinalize(DescriptorHandle* descriptor) {
  const Call call;
  return with_descriptor(descriptor, [](Descriptor& content) { return cudnn::finalize(content); });
}

Status cudnnBackendSetAttribute(DescriptorHandle* descriptor, std::int32_t name, std::int32_t type, std::int64_t count,
                                const void* values) {
  const Call call;
  return with_descriptor(descriptor,
                         [&](Descriptor& content) { return cudnn::set(content, name, type, count, values); });
}

Status cudnnBackendGetAttribute(DescriptorHandle* descriptor, std::int32_t name, std::int32_t type, std::int64_t room,
                                std::int64_t* count, void* values) {
  const Call call;
  return with_descriptor(descriptor,
                         [&](Descriptor& content) { return cudnn::get(content, name, type, room, count, values); });
}

Status cudnnBackendExecute(Handle* handle, DescriptorHandle* plan, DescriptorHandle* pack) {
  const Call call;
  return with_handle(handle, [&](Handle& live) {
    return with_descriptor(plan, [&](Descriptor& what) {
      return with_descriptor(pack, [&](Descriptor& on) { return cudnn::execute(live, what, on); });
    });
  });
}

}  // extern "C"
