// Recurrent layers as cuDNN's descriptors tell them (cudnn_adv.h of cuDNN 9).
#pragma once

#include <cstdint>
#include <vector>

namespace maya::math::cudnn {

enum class Cell : std::int32_t { kRelu = 0, kTanh = 1, kLstm = 2, kGru = 3 };               // cudnnRNNMode_t
enum class RecurrentBias : std::int32_t { kNone = 0, kInput = 1, kBoth = 2, kHidden = 3 };  // cudnnRNNBiasMode_t

// A cudnnDropoutDescriptor_t.
struct Dropout {
  float probability = 0;
};

Dropout* find_dropout(const void* handle);  // nullptr: destroyed or foreign

// A cudnnRNNDescriptor_t. A bidirectional layer is two pseudo-layers, each on the joined outputs of the two before.
struct Recurrent {
  std::int32_t algorithm = 0;  // cudnnRNNAlgo_t; 0: standard, others keep the weights of all steps on chip
  Cell cell = Cell::kTanh;
  RecurrentBias bias = RecurrentBias::kBoth;
  int directions = 1;
  std::int32_t type = 0;       // cudnnDataType_t
  std::int32_t math_type = 0;  // cudnnMathType_t
  int input = 0, hidden = 0, projection = 0;
  int layers = 1;
  float dropout = 0;

  int gates() const { return cell == Cell::kLstm ? 4 : cell == Cell::kGru ? 3 : 1; }
  bool projects() const { return projection > 0 && projection < hidden; }
  std::int64_t output() const { return projects() ? projection : hidden; }
  std::int64_t input_of(int layer) const { return layer == 0 ? input : output() * directions; }
  int biases() const { return bias == RecurrentBias::kNone ? 0 : bias == RecurrentBias::kBoth ? 2 : 1; }
  std::int64_t matrix_elements(int layer) const {
    return (input_of(layer) + output()) * gates() * hidden + (projects() ? std::int64_t{projection} * hidden : 0);
  }
  std::int64_t weight_elements() const;
};

Recurrent* find_recurrent(const void* handle);

// A cudnnRNNDataDescriptor_t: sequences of vectors, padded or packed.
struct Sequences {
  std::int32_t type = 0;
  std::int32_t layout = 0;
  int longest = 0, width = 0;
  std::vector<int> lengths;  // [batch]

  bool packed() const { return layout == 1; }
  std::int64_t tokens() const;              // without padding
  std::int64_t elements() const;            // of the tensor: with it, unless packed
  std::vector<std::int64_t> alive() const;  // [longest] sequences that reach each step
};

Sequences* find_sequences(const void* handle);

}  // namespace maya::math::cudnn
