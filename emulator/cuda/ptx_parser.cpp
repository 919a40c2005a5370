// From the text of PTX to the instructions that ptx.cpp runs.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "cuda/ptx.h"

namespace maya::cuda {
namespace {

using Kernel = PtxKernel;
using Op = PtxKernel::Op;
using Type = PtxKernel::Type;
using Operand = PtxKernel::Operand;
using Instruction = PtxKernel::Instruction;

std::string_view trim(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front()))) text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

// `s32`, `u64`, `b16`, `f32`, `pred`...
std::optional<Type> parse_type(std::string_view word) {
  if (word == "pred") return Type{1, false};
  if (word.size() < 2 || std::strchr("subf", word[0]) == nullptr) return std::nullopt;
  int bits = 0;
  const auto [end, error] = std::from_chars(word.data() + 1, word.data() + word.size(), bits);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return Type{bits, word[0] == 's'};
}

std::optional<std::int64_t> parse_number(std::string_view text) {
  const bool negative = text.starts_with('-');
  if (negative) text.remove_prefix(1);
  if (text.ends_with('U')) text.remove_suffix(1);
  const int base = text.starts_with("0x") ? 16 : 10;
  if (base == 16) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return negative ? -static_cast<std::int64_t>(value) : static_cast<std::int64_t>(value);
}

constexpr std::array<std::string_view, 12> kSpecials{"%tid.x",   "%tid.y",    "%tid.z",    "%ctaid.x",
                                                     "%ctaid.y", "%ctaid.z",  "%ntid.x",   "%ntid.y",
                                                     "%ntid.z",  "%nctaid.x", "%nctaid.y", "%nctaid.z"};

// The operand list of an instruction: commas outside of brackets and braces separate.
std::vector<std::string_view> split_operands(std::string_view text) {
  std::vector<std::string_view> parts;
  int depth = 0;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    depth += text[i] == '[' || text[i] == '{';
    depth -= text[i] == ']' || text[i] == '}';
    if (text[i] != ',' || depth > 0) continue;
    parts.push_back(trim(text.substr(begin, i - begin)));
    begin = i + 1;
  }
  if (!trim(text.substr(begin)).empty()) parts.push_back(trim(text.substr(begin)));
  return parts;
}

Op operation(std::string_view base, const std::vector<std::string_view>& modifiers) {
  const auto has = [&](std::string_view word) { return std::ranges::find(modifiers, word) != modifiers.end(); };
  static const std::unordered_map<std::string_view, Op> kPlain{
      {"mov", Op::kMove},       {"add", Op::kAdd},        {"sub", Op::kSub},      {"shl", Op::kShiftLeft},
      {"shr", Op::kShiftRight}, {"and", Op::kAnd},        {"or", Op::kOr},        {"xor", Op::kXor},
      {"not", Op::kNot},        {"neg", Op::kNegate},     {"min", Op::kMin},      {"max", Op::kMax},
      {"div", Op::kDivide},     {"rem", Op::kRemainder},  {"selp", Op::kSelect},  {"setp", Op::kCompare},
      {"cvt", Op::kConvert},    {"bfe", Op::kBitField},   {"bra", Op::kBranch},   {"ret", Op::kReturn},
      {"exit", Op::kReturn},    {"cvta", Op::kMove},      {"brx", Op::kRefuse},   {"call", Op::kRefuse},
      {"shfl", Op::kShuffle},   {"popc", Op::kCountBits}, {"redux", Op::kReduce}, {"prmt", Op::kPermute}};
  if (base == "mul") return has("wide") ? Op::kMulWide : has("hi") ? Op::kMulHigh : Op::kMulLow;
  if (base == "mad") return has("wide") ? Op::kMadWide : has("hi") ? Op::kUnknown : Op::kMadLow;
  if (base == "prmt" && modifiers.size() > 1) return Op::kUnknown;
  if (base == "ld" && has("param")) return Op::kMove;
  if (base == "ld" && has("global")) return Op::kLoad;
  if (base == "st" && has("global")) return Op::kStore;
  if ((base == "atom" || base == "red") && has("global")) return Op::kAtomic;
  const bool own_shared = has("shared") || has("shared::cta");  // the block's; shared::cluster may be another's
  if (base == "ld" && own_shared) return Op::kLoadShared;
  if (base == "st" && own_shared) return Op::kStoreShared;
  if (base == "ldmatrix" && !has("trans") && has("b16")) return Op::kLoadMatrix;
  if (base == "stmatrix" && !has("trans") && has("b16")) return Op::kStoreMatrix;
  if (base == "cp" && has("bulk")) return Op::kRefuse;      // a tensor map holds the addresses
  if (base == "tcgen05" && has("mma")) return Op::kRefuse;  // a descriptor holds the shape
  if (base == "cp" && has("async") && has("global")) return Op::kAsyncCopy;
  const bool shared = std::ranges::any_of(modifiers, [](auto word) { return word.starts_with("shared"); });
  if (base == "stmatrix" || (shared && base != "ldmatrix" && base != "fence")) return Op::kChangeShared;
  const auto plain = kPlain.find(base);
  return plain == kPlain.end() ? Op::kUnknown : plain->second;
}

// What an instruction of PTX comes to in the device's own: few have one, moves have none. Divisions in double precision
// start from a special function's reciprocal and refine it.
KernelWork work_of(std::string_view base, const std::vector<std::string_view>& modifiers) {
  const auto has = [&](std::string_view word) { return std::ranges::find(modifiers, word) != modifiers.end(); };
  constexpr std::array<std::string_view, 6> kFree{"mov", "cvta", "createpolicy", "ret", "exit", "brx"};
  constexpr std::array<std::string_view, 8> kSpecial{"ex2", "lg2", "sin", "cos", "rcp", "rsqrt", "sqrt", "tanh"};
  const bool wide = has("f64"), exact = has("rn");
  if (std::ranges::find(kFree, base) != kFree.end() || (base == "ld" && has("param"))) return {};
  if (base == "div" && wide) return {18, 10, 1, 0};
  if (base == "div" && (has("f32") || has("f16"))) return {exact ? 10.0 : 6.0, 0, 1, 0};
  if (base == "div" || base == "rem") return {20, 0, 1, 0};
  if (std::ranges::find(kSpecial, base) != kSpecial.end()) return {exact ? 8.0 : 1.0, wide ? 8.0 : 0.0, 1, 0};
  if (base == "cvt") return {1, 0, wide || has("s64") || has("u64") ? 1.0 : 0.0, 0};
  if (base == "selp") return {wide || has("b64") ? 2.0 : 1.0, 0, 0, 0};
  return {1, wide && base != "ld" && base != "st" ? 1.0 : 0.0, 0, 0};
}

// `m64n128k16`: what one of the threads that multiply together has of it.
double shape_flops(std::string_view shape, double threads) {
  double flops = 2 / threads;
  for (const char dimension : {'m', 'n', 'k'}) {
    int size = 0;
    if (!shape.starts_with(dimension)) return 0;
    const auto [end, error] = std::from_chars(shape.data() + 1, shape.data() + shape.size(), size);
    if (error != std::errc()) return 0;
    flops *= size;
    shape.remove_prefix(static_cast<std::size_t>(end - shape.data()));
  }
  return shape.empty() ? flops : 0;
}

// How long tensor cores take for operands of a type, over 16-bit ones.
double relative_duration(std::string_view type) {
  if (type == "tf32") return 2;
  constexpr std::array<std::string_view, 4> kNarrow{"e4m3", "e5m2", "s8", "u8"};
  return std::ranges::find(kNarrow, type) == kNarrow.end() ? 1 : 0.5;
}

// Of a warp's matrix product (mma) or a warp group's (wgmma), whose types are those of the result, then the operands.
double products_of(std::string_view base, const std::vector<std::string_view>& modifiers) {
  if (base != "mma" && base != "wgmma") return 0;
  const double threads = base == "wgmma" ? 128 : 32;
  for (std::size_t i = 0; i < modifiers.size(); ++i) {
    const double flops = shape_flops(modifiers[i], threads);
    if (flops == 0) continue;
    std::vector<std::string_view> types(modifiers.begin() + static_cast<std::ptrdiff_t>(i) + 1, modifiers.end());
    std::erase_if(types, [](std::string_view word) { return word == "row" || word == "col"; });
    return flops * (types.size() > 1 ? relative_duration(types[1]) : 1);
  }
  return 0;
}

}  // namespace

// Turns the text of one entry into instructions; a register is its index.
class PtxParser {
 public:
  std::optional<Kernel> parse(std::string_view ptx, std::string_view name) {
    const std::size_t entry = find_entry(ptx, name);
    if (entry == std::string_view::npos) return std::nullopt;
    const std::size_t open = ptx.find('(', entry), close = ptx.find(')', open), body = ptx.find('{', close);
    if (body == std::string_view::npos) return std::nullopt;
    parse_parameters(ptx.substr(open + 1, close - open - 1));
    shared_ = dynamic_shared_memory(ptx);
    parse_body(ptx.substr(body + 1));
    resolve_branches();
    kernel_.stores_integers_ = stores_integers();
    kernel_.stored_to_ = stored_to();
    kernel_.registers_ = static_cast<int>(registers_.size());
    return std::move(kernel_);
  }

 private:
  static std::size_t find_entry(std::string_view ptx, std::string_view name) {
    for (std::size_t at = ptx.find(".entry"); at != std::string_view::npos; at = ptx.find(".entry", at + 1)) {
      const std::string_view rest = trim(ptx.substr(at + 6, name.size() + 8));
      const bool whole = rest.size() == name.size() || rest[name.size()] == '(' || rest[name.size()] == ' ';
      if (rest.starts_with(name) && whole) return at;
    }
    return std::string_view::npos;
  }

  // `.extern .shared .align 16 .b8 global_smem[];`: its name.
  static std::string_view dynamic_shared_memory(std::string_view ptx) {
    const std::size_t begin = ptx.find(".extern .shared"), end = ptx.find('[', begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) return {};
    const std::string_view declared = ptx.substr(begin, end - begin);
    return declared.substr(declared.find_last_of(' ') + 1);
  }

  void parse_parameters(std::string_view list) {
    for (std::string_view line : split(list, ',')) {
      const std::string_view text = trim(line);
      if (text.empty()) continue;
      Kernel::Parameter& parameter = kernel_.parameters_.emplace_back();
      parameter.name = text.substr(text.find_last_of(" \t") + 1);
      parameter.pointer = text.find(".ptr") != std::string_view::npos;
      for (std::string_view word : split(text, ' ')) {
        if (!word.starts_with('.')) continue;
        if (const auto type = parse_type(word.substr(1))) {
          parameter.bytes = type->bits / 8;
          parameter.floating = word[1] == 'f';
        }
      }
    }
  }

  void parse_body(std::string_view body) {
    int depth = 1;
    for (std::string_view line : split(body, '\n')) {
      line = trim(line.substr(0, line.find("//")));
      if (line == "{" || line == "}") depth += line == "{" ? 1 : -1;
      if (depth == 0) return;
      parse_line(line);
    }
  }

  void parse_line(std::string_view line) {
    const bool label = line.ends_with(':');
    if (label) labels_[line.substr(0, line.size() - 1)] = static_cast<int>(kernel_.instructions_.size());
    const bool instruction = line.ends_with(';') && !line.starts_with('.');
    if (instruction) parse_instruction(line.substr(0, line.size() - 1));
  }

  void parse_instruction(std::string_view text) {
    Instruction instruction;
    if (text.starts_with('@')) {
      const std::size_t end = text.find_first_of(" \t");
      std::string_view guard = text.substr(1, end - 1);
      instruction.guard_negated = guard.starts_with('!');
      if (instruction.guard_negated) guard.remove_prefix(1);
      instruction.guard = register_index(guard);
      text = trim(text.substr(end));
    }
    const std::size_t end = std::min(text.find_first_of(" \t"), text.size());
    const auto words = split(text.substr(0, end), '.');
    const std::vector<std::string_view> modifiers(words.begin() + 1, words.end());
    instruction.op = operation(words.front(), modifiers);
    instruction.work = work_of(words.front(), modifiers);
    instruction.work.products = products_of(words.front(), modifiers);
    read_modifiers(instruction, modifiers);
    read_operands(instruction, split_operands(text.substr(end)));
    kernel_.instructions_.push_back(std::move(instruction));
  }

  static constexpr std::size_t kLongestHow = sizeof Instruction::how - 1;

  static void read_modifiers(Instruction& instruction, const std::vector<std::string_view>& modifiers) {
    int vector = 1;
    bool typed = false;
    for (std::string_view word : modifiers) {
      if (word == "v2" || word == "v4" || word == "v8") vector = word[1] - '0';
      instruction.packed = instruction.packed || word == "s16x2" || word == "u16x2";
      const auto type = parse_type(word.substr(0, word.find("x2")));
      const bool floating = (type && word[0] == 'f') || word.starts_with("bf16");
      const bool packed_otherwise = instruction.packed && !PtxKernel::can_be_packed(instruction.op);
      if ((floating || packed_otherwise) && !PtxKernel::is_memory(instruction.op)) instruction.op = Op::kUnknown;
      if (type && !typed) instruction.type = *type;
      if (type) instruction.source_type = *type;  // the last: what cvt converts from
      typed = typed || type;
    }
    instruction.bytes = vector * instruction.type.bits / 8;
    const bool of_warp = instruction.op == Op::kShuffle || instruction.op == Op::kReduce;
    if (of_warp && modifiers.size() > 1) modifiers[1].copy(instruction.how, kLongestHow);
    if (instruction.op == Op::kCompare && modifiers.size() > 1) {
      modifiers[0].copy(instruction.how, kLongestHow);
      using Combined = Kernel::Combined;
      instruction.combined = modifiers[1] == "and"   ? Combined::kAnd
                             : modifiers[1] == "or"  ? Combined::kOr
                             : modifiers[1] == "xor" ? Combined::kXor
                                                     : Combined::kNot;
    }
  }

  void read_operands(Instruction& instruction, const std::vector<std::string_view>& operands) {
    if (instruction.op == Op::kBranch && !operands.empty()) {
      branches_.emplace_back(kernel_.instructions_.size(), operands.front());
      return;
    }
    const bool stores = instruction.op == Op::kStore || instruction.op == Op::kAsyncCopy;
    std::size_t first_source = 0;
    if (!stores && !operands.empty() && !operands.front().starts_with('[')) {
      for (std::string_view name : names_in(operands.front())) {
        instruction.results.push_back(register_index(name));
      }
      first_source = 1;
    }
    for (std::size_t i = first_source; i < operands.size(); ++i) {
      for (std::string_view name : names_in(operands[i])) instruction.sources.push_back(operand(name));
    }
    const bool several = instruction.sources.size() + instruction.results.size() > 2;
    if (instruction.op == Op::kMove && several) instruction.op = Op::kPack;
    if (instruction.op == Op::kAsyncCopy) order_async_copy(instruction);
  }

  // cp.async [shared], [global], bytes, source bytes: the global address goes first, as for loads.
  static void order_async_copy(Instruction& instruction) {
    if (instruction.sources.size() < 3) {
      instruction.op = Op::kRefuse;
      return;
    }
    instruction.bytes = static_cast<int>(instruction.sources[2].immediate);
    std::swap(instruction.sources[0], instruction.sources[1]);
  }

  // `%r1`, `[%rd1+4]`, `{ %r1, %r2 }` or `%p1|%p2`.
  static std::vector<std::string_view> names_in(std::string_view text) {
    if (text.starts_with('[')) return {text};
    if (text.starts_with('{')) text = text.substr(1, text.size() - 2);
    std::vector<std::string_view> names;
    for (std::string_view part : split(text, ',')) {
      for (std::string_view name : split(part, '|')) names.push_back(trim(name));
    }
    return names;
  }

  Operand operand(std::string_view text) {
    Operand result;
    if (text.starts_with('[')) return address(trim(text.substr(1, text.size() - 2)));
    if (const auto number = parse_number(text)) {
      result.kind = Operand::Kind::kImmediate;
      result.immediate = *number;
      return result;
    }
    const auto special = std::ranges::find(kSpecials, text);
    if (special != kSpecials.end()) {
      result.kind = Operand::Kind::kSpecial;
      result.index = static_cast<int>(special - kSpecials.begin());
    } else if (text.starts_with('%')) {
      result.kind = Operand::Kind::kRegister;
      result.index = register_index(text);
    } else if (text == shared_) {
      result.kind = Operand::Kind::kImmediate;  // it begins at 0
    }
    return result;
  }

  Operand address(std::string_view text) {
    const std::size_t plus = text.find('+');
    const std::string_view base = trim(text.substr(0, plus));
    Operand result = operand(base);
    const auto parameter = std::ranges::find(kernel_.parameters_, base, &Kernel::Parameter::name);
    if (parameter != kernel_.parameters_.end()) {
      result.kind = Operand::Kind::kParameter;
      result.index = static_cast<int>(parameter - kernel_.parameters_.begin());
    }
    if (plus != std::string_view::npos) result.immediate = parse_number(trim(text.substr(plus + 1))).value_or(0);
    return result;
  }

  int register_index(std::string_view name) {
    return registers_.try_emplace(name, static_cast<int>(registers_.size())).first->second;
  }

  void resolve_branches() {
    for (const auto& [index, label] : branches_) {
      const auto target = labels_.find(label);
      Instruction& branch = kernel_.instructions_[index];
      if (target == labels_.end()) branch.op = Op::kRefuse;
      else branch.target = target->second;
    }
  }

  // Whether a store has a value that follows from no floating-point arithmetic, whatever is loaded, and none is atomic.
  bool stores_integers() const {
    std::vector<bool> floating(registers_.size());
    bool shared = false;
    const auto is_floating = [&](const Operand& operand) {
      return operand.kind == Operand::Kind::kRegister && floating[static_cast<std::size_t>(operand.index)];
    };
    for (bool changed = true; changed;) {
      changed = false;
      for (const Instruction& it : kernel_.instructions_) {
        const bool from_memory = PtxKernel::is_memory(it.op);
        const bool from_shared = it.op == Op::kLoadShared || it.op == Op::kLoadMatrix;
        const bool to_shared = it.op == Op::kStoreShared || it.op == Op::kStoreMatrix;
        bool result = it.op == Op::kUnknown || it.op == Op::kAtomic || (from_shared && shared);
        result = result || (!from_memory && std::ranges::any_of(it.sources, is_floating));
        if (to_shared && result && !shared) changed = shared = true;
        for (const int index : it.results) {
          if (!result || floating[static_cast<std::size_t>(index)]) continue;
          changed = floating[static_cast<std::size_t>(index)] = true;
        }
      }
    }
    if (std::ranges::find(kernel_.instructions_, Op::kAtomic, &Instruction::op) != kernel_.instructions_.end()) {
      return false;
    }
    return std::ranges::any_of(kernel_.instructions_, [&](const Instruction& it) {
      const bool stores = it.op == Op::kStore && it.sources.size() > 1;
      return stores && !std::ranges::all_of(it.sources.begin() + 1, it.sources.end(), is_floating);
    });
  }

  // The parameters that addresses of stores come from, be it through shared memory.
  std::vector<bool> stored_to() const {
    std::vector<bool> addresses(registers_.size()), parameters(kernel_.parameters_.size());
    bool changed = false, shared = false;
    const auto mark = [&](const Operand& operand) {
      const bool parameter = operand.kind == Operand::Kind::kParameter;
      if (!parameter && operand.kind != Operand::Kind::kRegister) return;
      auto marked = (parameter ? parameters : addresses)[static_cast<std::size_t>(operand.index)];
      changed = changed || !marked;
      marked = true;
    };
    do {
      changed = false;
      for (const Instruction& it : kernel_.instructions_) {
        const bool stores = it.op == Op::kStore || it.op == Op::kAtomic;
        const bool gives_address =
            std::ranges::any_of(it.results, [&](int index) { return addresses[static_cast<std::size_t>(index)]; });
        shared = shared || (gives_address && it.op == Op::kLoadShared);
        if (stores && !it.sources.empty()) mark(it.sources.front());
        const bool passes_on = gives_address ? !PtxKernel::is_memory(it.op) : shared && it.op == Op::kStoreShared;
        if (passes_on) std::ranges::for_each(it.sources, mark);
      }
    } while (changed);
    return parameters;
  }

  Kernel kernel_;
  std::string_view shared_;
  std::unordered_map<std::string_view, int> registers_;
  std::unordered_map<std::string_view, int> labels_;
  std::vector<std::pair<std::size_t, std::string_view>> branches_;
};

std::optional<PtxKernel> PtxKernel::parse(std::string_view ptx, std::string_view name) {
  return PtxParser().parse(ptx, name);
}

}  // namespace maya::cuda
