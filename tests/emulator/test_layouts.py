"""The emulator's own ABI declarations and tables, held against NVIDIA's headers and PyTorch's libraries."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from ctypes import CDLL, c_char_p
from pathlib import Path

import pytest

from maya.launch.environment import emulator_library

ROOT = Path(__file__).parents[2]
# Where wheels keep the headers: CUDA 13, CUDA 12, and the CUDA 12 ones that Triton carries.
HEADERS = ("nvidia/cu13/include", "nvidia/cuda_runtime/include", "triton/backends/nvidia/include")
NVIDIA_SYMBOL = re.compile(
    r"^(__cuda[A-Z]|cuda[A-Z]|cu[A-Z]|cublas|cudnn[A-Z]|cufft|curand[A-Z]|cusolver|cusparse|nccl[A-Z]|nvml[A-Z]|nvrtc[A-Z])"
)


def site_packages() -> Path:
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        pytest.skip("torch is not installed, and its wheels bring the headers")
    return Path(spec.origin).parents[1]


def header_folders() -> list[Path]:
    return [
        path for path in (site_packages() / name for name in HEADERS) if (path / "driver_types.h").is_file()
    ]


def abi_table() -> dict[str, str]:
    """symbol -> behaviour."""
    table = CDLL(str(emulator_library())).maya_abi_table
    table.restype = c_char_p
    rows = (line.split("\t") for line in table().decode().splitlines())
    return {symbol: behaviour for symbol, _, behaviour in rows}


@pytest.mark.parametrize("major", [12, 13])
def test_structures_agree_with_nvidias_headers(major: int) -> None:
    folders = header_folders()
    version = re.compile(rf"#define CUDART_VERSION\s+{major}\d\d\d")
    wanted = [folder for folder in folders if version.search((folder / "cuda_runtime_api.h").read_text())]
    crt = [folder for folder in folders if (folder / "crt" / "host_defines.h").is_file()]
    if not wanted or not crt:
        pytest.skip(
            f"no wheel here brings the headers of CUDA {major}: pip install nvidia-cuda-runtime triton"
        )
    compiler = shutil.which("g++") or pytest.skip("no g++")
    includes = [f"-I{ROOT / 'emulator'}", "-isystem", str(wanted[0]), "-isystem", str(crt[0])]
    source = Path(__file__).with_name("layouts.cpp")
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-DCUDA_MAJOR={major}", *includes, str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_symbol_that_pytorch_imports_is_in_the_table() -> None:
    nm = shutil.which("nm") or pytest.skip("no nm")
    libraries = sorted((site_packages() / "torch" / "lib").glob("lib*cuda*.so"))
    if not libraries:
        pytest.skip("torch is a CPU-only build")
    listed = subprocess.run(
        [nm, "-D", "--undefined-only", *map(str, libraries)], capture_output=True, text=True, check=True
    )
    imported = {line.split()[-1].split("@")[0] for line in listed.stdout.splitlines() if " U " in line}
    nvidia = {symbol for symbol in imported if NVIDIA_SYMBOL.match(symbol)}
    assert len(nvidia) > 300
    assert sorted(nvidia - abi_table().keys()) == []


def test_table_has_the_behaviours_it_documents() -> None:
    table = abi_table()
    assert set(table.values()) <= {
        "implemented",
        "handle-create",
        "handle-destroy",
        "succeed",
        "unsupported",
        "host",
    }
    assert table["cudaLaunchKernel"] == "implemented"
    assert table["nvrtcCompileProgram"] == "host"
