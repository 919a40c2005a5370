#include "cuda/image.h"

#include <elf.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <optional>

namespace maya::cuda {
namespace {

constexpr std::uint32_t kFatBinary = 0xBA55ED50, kFatBinaryWrapper = 0x466243B1;

template <class T>
std::optional<T> read(std::span<const std::byte> image, std::size_t offset) {
  if (offset > image.size() || image.size() - offset < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, image.data() + offset, sizeof(T));
  return value;
}

std::span<const std::byte> slice(std::span<const std::byte> image, std::size_t offset, std::size_t bytes) {
  if (offset > image.size()) return {};
  return image.subspan(offset, std::min(bytes, image.size() - offset));
}

std::string_view text_at(std::span<const std::byte> table, std::size_t offset) {
  if (offset >= table.size()) return {};
  const char* begin = reinterpret_cast<const char*>(table.data()) + offset;
  return {begin, strnlen(begin, table.size() - offset)};
}

// Attribute codes of the .nv.info sections (what `cuobjdump -elf` prints as EIATTR_*).
enum InfoAttribute : std::uint8_t {
  kMaxThreads = 0x05,
  kRequiredThreads = 0x10,
  kFrameSize = 0x11,
  kParameter = 0x17,
  kRegisterCount = 0x2f,
};

struct Info {
  std::uint8_t attribute = 0;
  std::vector<std::uint32_t> words;
};

// Entries are (format, attribute, 16 bits), followed by that many bytes when the format is 4.
std::vector<Info> read_info(std::span<const std::byte> section) {
  std::vector<Info> entries;
  for (std::size_t at = 0; at + 4 <= section.size();) {
    const auto format = *read<std::uint8_t>(section, at);
    const auto bytes = format == 4 ? *read<std::uint16_t>(section, at + 2) : std::uint16_t{0};
    Info& entry = entries.emplace_back();
    entry.attribute = *read<std::uint8_t>(section, at + 1);
    for (std::size_t word = 0; word + 4 <= bytes; word += 4) {
      entry.words.push_back(read<std::uint32_t>(section, at + 4 + word).value_or(0));
    }
    at += 4 + bytes;
  }
  return entries;
}

class Cubin {
 public:
  explicit Cubin(std::span<const std::byte> image) : image_(image) {
    const auto header = read<Elf64_Ehdr>(image, 0);
    if (!header) return;
    for (std::size_t i = 0; i < header->e_shnum; ++i) {
      const auto section = read<Elf64_Shdr>(image, header->e_shoff + i * sizeof(Elf64_Shdr));
      if (section) sections_.push_back(*section);
    }
    if (header->e_shstrndx < sections_.size()) names_ = bytes_of(sections_[header->e_shstrndx]);
  }

  ModuleImage parse() const {
    ModuleImage result;
    result.complete = !sections_.empty();
    constexpr std::string_view kText = ".text.", kPtx = ".nv_debug_ptx_txt";
    for (const Elf64_Shdr& section : sections_) {
      const std::string_view name = text_at(names_, section.sh_name);
      if (name.starts_with(kText)) result.kernels.push_back(kernel(name.substr(kText.size()), section));
      if (name == kPtx) result.ptx = joined_lines(bytes_of(section));
    }
    apply_module_info(result);
    return result;
  }

 private:
  std::span<const std::byte> bytes_of(const Elf64_Shdr& section) const {
    return section.sh_type == SHT_NOBITS ? std::span<const std::byte>{}
                                         : slice(image_, section.sh_offset, section.sh_size);
  }

  const Elf64_Shdr* find(const std::string& name) const {
    const auto at = std::ranges::find_if(
        sections_, [&](const Elf64_Shdr& section) { return text_at(names_, section.sh_name) == name; });
    return at == sections_.end() ? nullptr : &*at;
  }

  // The debugger's copy of the PTX separates lines by NUL.
  static std::string joined_lines(std::span<const std::byte> section) {
    std::string text(reinterpret_cast<const char*>(section.data()), section.size());
    std::ranges::replace(text, '\0', '\n');
    return text;
  }

  KernelImage kernel(std::string_view name, const Elf64_Shdr& text) const {
    KernelImage result;
    result.name = name;
    result.registers = static_cast<int>(text.sh_info >> 24);  // older cubins; see apply_module_info
    const std::string suffix(name);
    if (const Elf64_Shdr* shared = find(".nv.shared." + suffix)) {
      result.static_shared_bytes = static_cast<int>(shared->sh_size);
    }
    if (const Elf64_Shdr* constant = find(".nv.constant0." + suffix)) {
      result.constant_bytes = static_cast<int>(constant->sh_size);
    }
    const Elf64_Shdr* info = find(".nv.info." + suffix);
    if (info != nullptr) apply_kernel_info(read_info(bytes_of(*info)), result);
    return result;
  }

  static void apply_kernel_info(const std::vector<Info>& entries, KernelImage& kernel) {
    for (const Info& entry : entries) {
      const auto& words = entry.words;
      if (entry.attribute == kParameter && words.size() == 3) {
        const std::size_t ordinal = words[1] & 0xffff;  // size in bits 18 and up of the last word
        kernel.parameters.resize(std::max(kernel.parameters.size(), ordinal + 1));
        kernel.parameters[ordinal] = {.offset = words[1] >> 16, .bytes = words[2] >> 18};
      }
      const bool bounds = entry.attribute == kRequiredThreads || entry.attribute == kMaxThreads;
      if (bounds && words.size() >= 3) kernel.max_threads = static_cast<int>(words[0] * words[1] * words[2]);
    }
  }

  // The module's own .nv.info lists, per symbol index, register count and stack frame.
  void apply_module_info(ModuleImage& module) const {
    const Elf64_Shdr* info = find(".nv.info");
    const Elf64_Shdr* symbols = find(".symtab");
    const Elf64_Shdr* strings = find(".strtab");
    if (info == nullptr || symbols == nullptr || strings == nullptr) return;
    for (const Info& entry : read_info(bytes_of(*info))) {
      if (entry.words.size() != 2) continue;
      const auto symbol = read<Elf64_Sym>(bytes_of(*symbols), entry.words[0] * sizeof(Elf64_Sym));
      if (!symbol) continue;
      const std::string_view name = text_at(bytes_of(*strings), symbol->st_name);
      const auto kernel = std::ranges::find(module.kernels, name, &KernelImage::name);
      if (kernel == module.kernels.end()) continue;
      if (entry.attribute == kRegisterCount) kernel->registers = static_cast<int>(entry.words[1]);
      if (entry.attribute == kFrameSize) kernel->local_bytes = static_cast<int>(entry.words[1]);
    }
  }

  std::span<const std::byte> image_;
  std::vector<Elf64_Shdr> sections_;
  std::span<const std::byte> names_;
};

// The `.entry name(` directives of PTX text.
ModuleImage parse_ptx(std::string text) {
  ModuleImage result;
  result.complete = true;
  constexpr std::string_view kEntry = ".entry";
  for (std::size_t at = text.find(kEntry); at != std::string::npos; at = text.find(kEntry, at)) {
    at = text.find_first_not_of(" \t\n", at + kEntry.size());
    if (at == std::string::npos) break;
    const std::size_t end = text.find_first_of(" \t\n(", at);
    if (end == std::string::npos) break;
    result.kernels.emplace_back().name = text.substr(at, end - at);
  }
  result.ptx = std::move(text);
  return result;
}

bool is_elf(const void* data) { return std::memcmp(data, ELFMAG, SELFMAG) == 0; }

bool is_fat_binary(const void* data) {
  std::uint32_t magic;
  std::memcpy(&magic, data, sizeof magic);
  return magic == kFatBinary || magic == kFatBinaryWrapper;
}

// PTX begins with comments or the .version directive.
bool is_ptx(const void* data) {
  const auto* text = static_cast<const char*>(data);
  while (std::isspace(static_cast<unsigned char>(*text)) != 0) ++text;
  return *text == '.' || std::strncmp(text, "//", 2) == 0;
}

}  // namespace

bool is_known_image(const void* data) { return is_elf(data) || is_fat_binary(data) || is_ptx(data); }

std::size_t image_bytes(const void* data) {
  if (is_elf(data)) {
    Elf64_Ehdr header;
    std::memcpy(&header, data, sizeof header);
    const std::size_t sections = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
    const std::size_t programs = header.e_phoff + std::size_t{header.e_phnum} * header.e_phentsize;
    return std::max(sections, programs);
  }
  if (is_fat_binary(data)) return sizeof(std::uint32_t);
  return is_ptx(data) ? std::strlen(static_cast<const char*>(data)) : 0;
}

ModuleImage parse_image(std::span<const std::byte> image) {
  if (image.size() < sizeof(std::uint32_t)) return {};
  if (is_elf(image.data())) return Cubin(image).parse();
  if (is_fat_binary(image.data())) return {};
  return parse_ptx(std::string(reinterpret_cast<const char*>(image.data()), image.size()));
}

}  // namespace maya::cuda
