// What a block's instructions do with device memory and shared memory.
#include <algorithm>
#include <cstring>

#include "cuda/ptx_block.h"
#include "cuda/ptx_integers.h"
#include "values/values.h"

namespace maya::cuda {
namespace {

using Op = PtxKernel::Op;
using Type = PtxKernel::Type;

constexpr std::uint64_t kLine = 128;
constexpr std::size_t kSharedBytes = 256 * 1024, kWord = 4;

template <class Bits>
std::uint64_t loaded(const std::byte* data, Type type) {
  Bits bits;
  std::memcpy(&bits, data, sizeof bits);
  return narrow(bits, type);
}

std::uint64_t loaded(const std::byte* data, Type type) {
  switch (type.bits) {
    case 8: return loaded<std::uint8_t>(data, type);
    case 16: return loaded<std::uint16_t>(data, type);
    case 32: return loaded<std::uint32_t>(data, type);
    default: return loaded<std::uint64_t>(data, type);
  }
}

}  // namespace

void PtxBlock::touch(const Instruction& instruction, const Source& address) {
  const bool atomic = instruction.op == Op::kAtomic, stores = instruction.op == Op::kStore;
  const bool counted = traffic_ == PtxTraffic::kCounted;
  if (counted && !stores) add(footprint_[{address.pointer, false}], address, instruction.bytes);
  if (counted && (stores || atomic)) add(footprint_[{address.pointer, true}], address, instruction.bytes);
  if (stores && loads_ == PtxLoads::kKnown) store(instruction, address);
  if (instruction.op == Op::kAsyncCopy) forget_shared(source(instruction.sources[1]), instruction.bytes);
}

void PtxBlock::add(Touched& touched, const Source& address, int bytes) {
  const auto size = static_cast<std::uint64_t>(bytes);
  for (std::size_t lane = 0; lane < lanes_; ++lane) {
    if (executed_[lane] == kNot) continue;
    if (!address.is_known(lane)) {
      touched.unplaced_bytes += size;
      continue;
    }
    const std::uint64_t at = address.of(lane);
    Interval* const last = touched.intervals.empty() ? nullptr : &touched.intervals.back();
    if (last != nullptr && last->begin + last->bytes == at) last->bytes += size;
    else touched.intervals.push_back({at, size});
  }
  count_lines(address, size);
}

// The lines that the threads of a warp ask for together.
void PtxBlock::count_lines(const Source& address, std::uint64_t bytes) {
  for (std::size_t first = 0; first < lanes_; first += kWarp) {
    warp_lines_.clear();
    for (std::size_t lane = first; lane < std::min(first + kWarp, lanes_); ++lane) {
      if (executed_[lane] == kNot || !address.is_known(lane)) continue;
      const std::uint64_t at = address.of(lane);
      for (std::uint64_t line = at / kLine; line <= (at + bytes - 1) / kLine; ++line) warp_lines_.push_back(line);
    }
    std::ranges::sort(warp_lines_);
    work_.lines += static_cast<double>(warp_lines_.size() - std::ranges::unique(warp_lines_).size());
  }
}

// nullptr: not all of it is known.
const std::byte* PtxBlock::find_known_bytes(std::uint64_t address, std::size_t bytes) {
  const auto* const data = reinterpret_cast<const std::byte*>(address);
  const std::span<const std::byte> around = values::known_around(data);
  known_.begin = reinterpret_cast<std::uint64_t>(around.data());
  known_.end = known_.begin + around.size();
  return address >= known_.begin && address + bytes <= known_.end ? data : nullptr;
}

// The result of lanes that all load, no further from each other than if each had its own place. False: they are, or not
// all of what lies there is known.
bool PtxBlock::load_close(Type type, const Source& address, std::uint64_t offset) {
  if (!all_execute_ || !address.all_known || address.step == 0) return false;
  const std::size_t bytes = static_cast<std::size_t>(type.bits) / 8;
  const auto [low, high] = std::minmax_element(address.bits, address.bits + lanes_);
  const std::uint64_t span = *high - *low + bytes, first = *low + address.plus + offset;
  const std::byte* const data = span > bytes * lanes_ ? nullptr : known_bytes(first, span);
  if (data == nullptr) return false;
  Values& result = new_result();
  result.all_known = true;
  const auto load_all = [&, begin = *low](auto width) {
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      result.bits[lane] = loaded<decltype(width)>(data + (address.bits[lane] - begin), type);
    }
  };
  switch (type.bits) {
    case 8: load_all(std::uint8_t{}); break;
    case 16: load_all(std::uint16_t{}); break;
    case 32: load_all(std::uint32_t{}); break;
    default: load_all(std::uint64_t{});
  }
  read_.add({first, span, address.pointer});
  return true;
}

void PtxBlock::load(const Instruction& instruction, const Source& address) {
  const Type type = instruction.type;
  const std::size_t bytes = static_cast<std::size_t>(type.bits) / 8;
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    if (load_close(type, address, i * bytes)) {
      write(instruction.results[i], -1);
      continue;
    }
    Values& result = new_result();
    result.uniform = address.step == 0;
    for (std::size_t lane = 0; lane < distinct_lanes(); ++lane) {
      result.known[lane] = 0;
      if ((!result.uniform && executed_[lane] == kNot) || !address.is_known(lane)) continue;
      const std::uint64_t at = address.of(lane) + i * bytes;
      const std::byte* const data = known_bytes(at, bytes);
      (data != nullptr ? read_ : missed_).add({at, bytes, address.pointer});
      if (data == nullptr) continue;
      result.bits[lane] = loaded(data, type);
      result.known[lane] = 1;
    }
    write(instruction.results[i], -1);
  }
}

void PtxBlock::store(const Instruction& instruction, const Source& address) {
  const auto bytes = static_cast<std::uint8_t>(instruction.type.bits / 8);
  for (std::size_t i = 1; i < instruction.sources.size(); ++i) {
    const Source value = source(instruction.sources[i]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (executed_[lane] == kNot) continue;
      const bool known = executed_[lane] == kSurely && value.is_known(lane);
      const std::uint64_t at = address.of(lane) + (i - 1) * bytes;
      if (!address.is_known(lane) || address.pointer < 0) stores_are_placed_ = false;
      else stored_.push_back({at, value.of(lane), address.pointer, bytes, known});
    }
  }
}

void PtxBlock::load_shared(const Instruction& instruction, const Source& address) {
  const std::size_t bytes = static_cast<std::size_t>(instruction.type.bits) / 8;
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    new_result();
    std::int16_t pointer = -1;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::uint64_t at = address.of(lane) + i * bytes;
      read_shared(lane, at, instruction.type, address.is_known(lane));
      if (result_.known[lane] != 0) pointer = std::max(pointer, shared_pointers_[at / kWord]);
    }
    write(instruction.results[i], pointer);
  }
}

void PtxBlock::store_shared(const Instruction& instruction, const Source& address) {
  const std::size_t bytes = static_cast<std::size_t>(instruction.type.bits) / 8;
  for (std::size_t i = 1; i < instruction.sources.size(); ++i) {
    const Source value = source(instruction.sources[i]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (executed_[lane] == kNot) continue;
      if (!address.is_known(lane)) return forget_shared();
      const bool known = executed_[lane] == kSurely && value.is_known(lane);
      write_shared(address.of(lane) + (i - 1) * bytes, bytes, value.of(lane), known, value.pointer);
    }
  }
}

// Matrices of 8 rows of 16 bytes: lane 8 i + j has the address of the i-th one's row j, and each lane four bytes of it,
// those of a row in four lanes after each other (PTX ISA, ldmatrix).
void PtxBlock::load_matrices(const Instruction& instruction, const Source& rows) {
  for (std::size_t i = 0; i < instruction.results.size(); ++i) {
    new_result();
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::size_t in_warp = lane % kWarp, from = std::min(lane - in_warp + 8 * i + in_warp / 4, lanes_ - 1);
      read_shared(lane, rows.of(from) + in_warp % 4 * 4, {32, false}, rows.is_known(from));
    }
    write(instruction.results[i], -1);
  }
}

void PtxBlock::store_matrices(const Instruction& instruction, const Source& rows) {
  for (std::size_t i = 1; i < instruction.sources.size(); ++i) {
    const Source value = source(instruction.sources[i]);
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      const std::size_t in_warp = lane % kWarp, from = std::min(lane - in_warp + 8 * (i - 1) + in_warp / 4, lanes_ - 1);
      if (executed_[lane] == kNot) continue;
      if (!rows.is_known(from)) return forget_shared();
      const bool known = executed_[lane] == kSurely && value.is_known(lane);
      write_shared(rows.of(from) + in_warp % 4 * 4, 4, value.of(lane), known, -1);
    }
  }
}

// What lies there becomes a lane's result.
void PtxBlock::read_shared(std::size_t lane, std::uint64_t address, Type type, bool address_known) {
  const std::size_t bytes = static_cast<std::size_t>(type.bits) / 8;
  result_.known[lane] = 0;
  if (!address_known || !together_ || address + bytes > shared_.size()) return;
  const auto* const known = &shared_known_[address];
  result_.known[lane] = std::all_of(known, known + bytes, [](std::uint8_t it) { return it != 0; });
  result_.bits[lane] = loaded(&shared_[address], type);
}

void PtxBlock::write_shared(std::uint64_t address, std::size_t bytes, std::uint64_t bits, bool known,
                            std::int16_t pointer) {
  if (shared_.empty()) {
    shared_.resize(kSharedBytes);
    shared_known_.resize(kSharedBytes);
    shared_pointers_.resize(kSharedBytes / kWord);
  }
  if (address + bytes > shared_.size()) return;
  std::memcpy(&shared_[address], &bits, bytes);
  std::fill_n(&shared_known_[address], bytes, std::uint8_t{known && together_});
  shared_pointers_[address / kWord] = pointer;
}

void PtxBlock::forget_shared(const Source& address, int bytes) {
  for (std::size_t lane = 0; lane < lanes_ && !shared_known_.empty(); ++lane) {
    if (executed_[lane] == kNot) continue;
    if (!address.is_known(lane)) return forget_shared();
    const std::size_t first = std::min<std::size_t>(address.of(lane), kSharedBytes);
    std::fill_n(&shared_known_[first], std::min<std::size_t>(static_cast<std::size_t>(bytes), kSharedBytes - first), 0);
  }
}

void PtxBlock::forget_shared() { std::ranges::fill(shared_known_, std::uint8_t{0}); }

}  // namespace maya::cuda
