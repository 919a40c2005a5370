"""Generates the stubs, the symbol table and the export list of libmaya_cuda.so from the ABI tables.

Comes in: the *.tsv files beside this script, one row a symbol: symbol, library, behaviour and, optionally,
the CUDA version since which the symbol exists and the one until which it did (0: open), for example 12080.
Goes out, into OUTPUT_DIR: generated_stubs.cpp (every symbol that no C++ file defines), generated_symbols.cpp
(name -> address) and exports.map (the linker's version script). Must not know what an implemented function does.

Behaviours:
  implemented     a C++ file of the emulator defines it; the link fails if none does
  alias:TARGET    another name of TARGET, with the same parameters
  handle-create   writes a new handle through its first parameter
  handle-destroy  takes a handle that handle-create made, refuses any other
  succeed         success without an effect is the whole truth
  unsupported     refused: named, counted, answered with the library's own not-supported code
  host            runs in the real library, which needs no device for it; not interposed
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

COLUMNS = ("symbol", "library", "behaviour", "since", "until")

# What each library returns for a call it cannot serve, and for a handle it does not know.
NOT_SUPPORTED = {
    "cuda": 801,  # CUDA_ERROR_NOT_SUPPORTED
    "cudart": 801,  # cudaErrorNotSupported
    "cublas": 15,  # CUBLAS_STATUS_NOT_SUPPORTED
    "cublaslt": 15,
    "cudnn": 3000,  # CUDNN_STATUS_NOT_SUPPORTED (cuDNN 9)
    "cufft": 16,  # CUFFT_NOT_SUPPORTED
    "cufile": 5001,  # CU_FILE_DRIVER_NOT_INITIALIZED
    "cupti": 27,  # CUPTI_ERROR_NOT_SUPPORTED
    "curand": 204,  # CURAND_STATUS_INITIALIZATION_FAILED
    "cusolver": 9,  # CUSOLVER_STATUS_NOT_SUPPORTED
    "cusparse": 10,  # CUSPARSE_STATUS_NOT_SUPPORTED
    "cusparselt": 10,
    "nccl": 5,  # ncclInvalidUsage
    "nvml": 3,  # NVML_ERROR_NOT_SUPPORTED
    "nvshmem": 1,
}
BAD_HANDLE = {"cublas": 7, "cublaslt": 7, "cudnn": 2000, "cusolver": 3, "cusparse": 3, "nccl": 4}


@dataclass(frozen=True)
class Row:
    symbol: str
    library: str
    behaviour: str
    since: int = 0
    until: int = 0


def read_tables(folder: Path) -> list[Row]:
    """Every row of every table, sorted by symbol. Raises ValueError on a repeated or malformed row."""
    rows: dict[str, Row] = {}
    for path in sorted(folder.glob("*.tsv")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not line or line.startswith(("#", "symbol\t")):
                continue
            fields = line.split("\t")
            if not 3 <= len(fields) <= len(COLUMNS):
                raise ValueError(f"{path.name}:{number}: want {' '.join(COLUMNS)}, got {line!r}")
            row = Row(fields[0], fields[1], fields[2], *(int(field or 0) for field in fields[3:]))
            if row.symbol in rows:
                raise ValueError(f"{path.name}:{number}: {row.symbol} is listed twice")
            rows[row.symbol] = row
    for row in rows.values():
        check(row, rows, folder)
    return [rows[symbol] for symbol in sorted(rows)]


def check(row: Row, rows: dict[str, Row], folder: Path) -> None:
    simple = ("implemented", "succeed", "unsupported", "host", "handle-create", "handle-destroy")
    if row.behaviour.startswith("alias:"):
        target = row.behaviour.removeprefix("alias:")
        if target not in rows or rows[target].behaviour.startswith("alias:"):
            raise ValueError(f"{folder.name}: {row.symbol} is an alias of {target}, which no row defines")
    elif row.behaviour not in simple:
        raise ValueError(f"{folder.name}: {row.symbol} has the unknown behaviour {row.behaviour!r}")
    if row.behaviour != "host" and row.library not in NOT_SUPPORTED:
        raise ValueError(f"{folder.name}: {row.symbol} is of the unknown library {row.library!r}")


def effective(row: Row, by_symbol: dict[str, Row]) -> str:
    """The behaviour a caller meets: an alias does what its target does."""
    if row.behaviour.startswith("alias:"):
        return by_symbol[row.behaviour.removeprefix("alias:")].behaviour
    return row.behaviour


def stub(row: Row) -> str:
    name, library = row.symbol, f'"{row.library}"'
    if row.behaviour == "unsupported":
        code = NOT_SUPPORTED[row.library]
        return f'extern "C" long {name}() {{ return refused({library}, "{name}", {code}); }}'
    if row.behaviour == "succeed":
        return f'extern "C" long {name}() {{ return 0; }}'
    if row.behaviour == "handle-create":
        return f'extern "C" long {name}(void** handle) {{ return create({library}, handle); }}'
    if row.behaviour == "handle-destroy":
        code = BAD_HANDLE[row.library]
        return f'extern "C" long {name}(void* handle) {{ return destroy({library}, handle, {code}); }}'
    # A jump keeps every argument where the caller put it.
    target = row.behaviour.removeprefix("alias:")
    return (
        f'asm(".text\\n.globl {name}\\n.type {name}, %function\\n{name}: " MAYA_JUMP " {target}" MAYA_PLT "\\n"\n'
        f'    ".size {name}, . - {name}\\n");'
    )


STUBS = """// Generated by emulator/abi/generate.py. Do not edit.
#include "abi/stubs.h"
#if defined(__aarch64__)
#define MAYA_JUMP "b"
#define MAYA_PLT ""
#else
#define MAYA_JUMP "jmp"
#define MAYA_PLT "@PLT"
#endif
using namespace maya::abi;
// A stub takes whatever its caller passes, so it declares nothing.
#pragma GCC diagnostic ignored "-Wbuiltin-declaration-mismatch"
"""

SYMBOLS = """// Generated by emulator/abi/generate.py. Do not edit.
#include "abi/stubs.h"
namespace maya::abi {
extern const Symbol kSymbols[] = {
@ROWS@
};
extern const std::size_t kSymbolCount = sizeof(kSymbols) / sizeof(kSymbols[0]);
extern const char kTable[] =
@TABLE@;
}  // namespace maya::abi
"""


def generate(tables: Path, output: Path) -> None:
    rows = read_tables(tables)
    by_symbol = {row.symbol: row for row in rows}
    interposed = [row for row in rows if row.behaviour != "host"]
    stubs = [stub(row) for row in interposed if row.behaviour != "implemented"]
    declarations = "\n".join(f'extern "C" void {row.symbol}();' for row in interposed)
    entries = "\n".join(
        f'    {{"{row.symbol}", reinterpret_cast<void*>(&{row.symbol}), {row.since}, {row.until}}},'
        for row in interposed
    )
    table = "\n".join(f'    "{row.symbol}\\t{row.library}\\t{effective(row, by_symbol)}\\n"' for row in rows)
    symbols = SYMBOLS.replace("@ROWS@", entries).replace("@TABLE@", table)
    extra = ["maya_*", "InitializeInjectionNvtx2", "dlsym", "dlopen", "dlvsym"]
    extra += ["_ZN2at14RecordFunction*"]  # core/observer.cpp
    exports = "{ global:\n" + "".join(f"  {name};\n" for name in [r.symbol for r in interposed] + extra)
    output.mkdir(parents=True, exist_ok=True)
    write_if_changed(output / "generated_stubs.cpp", STUBS + "\n".join(stubs) + "\n")
    write_if_changed(output / "generated_symbols.cpp", declarations + "\n" + symbols)
    write_if_changed(output / "exports.map", exports + "  local: *;\n};\n")


def write_if_changed(path: Path, text: str) -> None:
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


if __name__ == "__main__":
    generate(Path(sys.argv[1]), Path(sys.argv[2]))
