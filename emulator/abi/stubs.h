// What the generated ABI stubs and tables are made of.
#pragma once

#include <cstddef>
#include <string_view>

namespace maya {

// The address of our definition of an NVIDIA symbol; nullptr: not interposed. The resolver behind
// cuGetProcAddress, cudaGetDriverEntryPoint* and dlsym.
void* find_symbol(std::string_view name);

namespace abi {

struct Symbol {
  const char* name;
  void* address;
  int since, until;  // CUDA versions (12080), 0: open
};

extern const Symbol kSymbols[];  // sorted by name
extern const std::size_t kSymbolCount;
extern const char kTable[];  // "symbol\tlibrary\tbehaviour\n"...

const Symbol* lookup(std::string_view name);

long refused(const char* library, const char* function, long code);
long create(const char* library, void** handle);
long destroy(const char* library, void* handle, long bad_handle_code);

}  // namespace abi
}  // namespace maya

extern "C" const char* maya_abi_table();
