// cuDNN's backend (graph) descriptors: bags of typed attributes that refer to one another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace maya::math::cudnn {

enum class Status : std::int32_t {
  kSuccess = 0,
  kNotInitialized = 1001,
  kBadParam = 2000,
  kBadParamNullPointer = 2002,
  kBadParamNotFinalized = 2005,
  kNotSupported = 3000,
};

// cudnnBackendDescriptorType_t, those that something here depends on.
enum class Kind : std::int32_t {
  kEngine = 2,
  kEngineConfig = 3,
  kEngineHeuristics = 4,
  kExecutionPlan = 5,
  kConvolutionForward = 10,
  kConvolutionBackwardFilter = 11,
  kConvolutionBackwardData = 12,
  kPointwise = 13,
  kOperationGraph = 15,
  kVariantPack = 16,
  kTensor = 17,
  kMatmul = 19,
  kNormForward = 29,
  kNormBackward = 30,
  kAttentionForward = 41,
  kAttentionBackward = 43,
  kDiagonalBandMask = 44,
};

// cudnnBackendAttributeName_t, likewise.
enum Attribute : std::int32_t {
  kPointwiseMode = 0,
  kConvolutionDilations = 102,
  kConvolutionStrides = 103,
  kConvolutionPrePaddings = 105,
  kHeuristicsGraph = 201,
  kHeuristicsResults = 202,
  kConfigEngine = 300,
  kConfigWorkspaceBytes = 303,
  kConfigSharedMemoryUsed = 304,
  kPlanConfig = 401,
  kPlanWorkspaceBytes = 402,
  kPointwiseDescriptor = 750,
  kPointwiseX = 751,
  kPointwiseB = 752,
  kPointwiseY = 753,
  kGraphOperations = 801,
  kGraphEngineCount = 802,
  kTensorDataType = 901,
  kTensorDimensions = 902,
  kTensorStrides = 903,
  kTensorUniqueId = 906,
  kTensorIsVirtual = 907,
  kPackUniqueIds = 1000,
  kPackPointers = 1001,
  kEngineGraph = 1300,
  kEngineGlobalIndex = 1301,
  kMatmulA = 1520,
  kMatmulC = 1522,
  kAttentionQ = 2800,
  kAttentionK = 2801,
  kAttentionSubgraph = 2811,
};

inline constexpr std::int32_t kDescriptorType = 15;  // CUDNN_TYPE_BACKEND_DESCRIPTOR

// Bytes of one element of cudnnBackendAttributeType_t `type`.
std::size_t element_bytes(std::int32_t type);

struct Descriptor {
  struct Value {
    std::int32_t type = 0;
    std::int64_t count = 0;
    std::vector<std::byte> bytes;                             // unless it refers to descriptors
    std::vector<std::shared_ptr<const Descriptor>> children;  // what they were when they were set
  };
  Kind kind{};
  bool finalized = false;
  std::map<std::int32_t, Value> attributes;

  std::vector<std::int64_t> integers(std::int32_t attribute) const;  // empty: not set
  std::int32_t enumerator(std::int32_t attribute) const;             // 0: not set
  const Descriptor* child(std::int32_t attribute) const;             // nullptr: not set
  void set_integer(std::int32_t attribute, std::int32_t type, std::int64_t value);
  void set_child(std::int32_t attribute, std::shared_ptr<const Descriptor> child);
};

// What a cudnnBackendDescriptor_t points to. A descriptor set into another one lives on there.
struct DescriptorHandle {
  std::shared_ptr<Descriptor> descriptor;
};

}  // namespace maya::math::cudnn
