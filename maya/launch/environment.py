"""The environment a rank runs in: the emulator preloaded, and what `torchrun` would have set."""

from __future__ import annotations

import importlib.resources
import importlib.util
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from maya.errors import MayaError
from maya.launch.unrecorded import VARIABLE as UNRECORDED

# Names under which libraries and Triton look for what the emulator provides.
ALIASES = ("libcuda.so.1", "libcuda.so", "libnvidia-ml.so.1")

# Ranks share few cores: compile in the rank itself rather than in a pool of workers each.
LAUNCH_DEFAULTS = {"TORCHINDUCTOR_COMPILE_THREADS": "1", "OMP_NUM_THREADS": "1"}

# CUDA 13 compiles for Turing and later (its release notes: Maxwell, Pascal and Volta are dropped).
OLDEST_OF_CUDA_13 = (7, 5)


class LaunchError(MayaError):
    """This machine, this PyTorch or this script cannot be launched."""


def emulator_library() -> Path:
    """The preloaded library. Raises LaunchError when the package was installed without it."""
    found = importlib.resources.files("maya.launch") / "native" / "libmaya_cuda.so"
    path = Path(str(found))
    if not path.is_file():
        raise LaunchError(f"{path} is missing: install Maya from a wheel, or build it with pip install .")
    return path


@dataclass(frozen=True)
class TorchBuild:
    root: Path  # the package's folder
    version: str
    cuda: str | None  # None: a CPU-only build


def installed_torch() -> TorchBuild | None:
    """This interpreter's PyTorch, found without importing it; None when there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    root = Path(spec.origin).parent
    text = (root / "version.py").read_text()
    version = re.search(r"__version__ = '([^']+)'", text)
    cuda = re.search(r"^cuda: Optional\[str\] = '([^']+)'", text, re.MULTILINE)
    return TorchBuild(root, version.group(1) if version else "unknown", cuda.group(1) if cuda else None)


def require_cuda_build() -> str:
    """The CUDA version of the installed PyTorch.

    Raises LaunchError when PyTorch is missing or CPU-only: Maya runs the CUDA build.
    """
    build = installed_torch()
    if build is None:
        raise LaunchError(
            "PyTorch is not installed here; Maya runs its CUDA build: pip install torch==2.11.0"
        )
    if build.cuda is None:
        raise LaunchError(
            f"torch {build.version} is a CPU-only build; Maya runs the CUDA build of PyTorch "
            "(it needs no GPU): pip install torch==2.11.0"
        )
    return build.cuda


def preloaded(environment: dict[str, str], directory: Path) -> dict[str, str]:
    """`environment` with the emulator in front of every CUDA library; `directory` gets the aliases, and comes first in
    which programs are found, too (maya/launch/nvidia_smi.py)."""
    library = emulator_library()
    for alias in ALIASES:
        link = directory / alias
        if not link.exists():
            link.symlink_to(library)
    result = {**environment}
    result.pop("CUDA_VISIBLE_DEVICES", None)  # every rank sees the whole virtual node
    result["LD_PRELOAD"] = _joined(str(library), environment.get("LD_PRELOAD"))
    result["PATH"] = _joined(str(directory), environment.get("PATH"))
    result["LD_LIBRARY_PATH"] = _joined(str(directory), environment.get("LD_LIBRARY_PATH"))
    result["NVTX_INJECTION64_PATH"] = str(library)
    result["TRITON_LIBCUDA_PATH"] = str(directory)
    result["PYTORCH_NVML_BASED_CUDA_CHECK"] = (
        "1"  # asking the runtime how many devices there are forbids forking
    )
    return LAUNCH_DEFAULTS | result


def dropped(capability: tuple[int, int], cuda_version: str) -> bool:
    """Whether that CUDA compiles for devices of that compute capability no more."""
    return int(cuda_version.split(".")[0]) >= 13 and capability < OLDEST_OF_CUDA_13


def own_assembler() -> dict[str, str]:
    """Has Triton use the assembler of its own wheel, which is CUDA 12's: PyTorch's compiler would name PyTorch's."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        return {}
    return {"TRITON_PTXAS_PATH": str(Path(spec.origin).parent / "backends" / "nvidia" / "bin" / "ptxas")}


def rank_environment(rank: int, world: int, gpus_per_node: int, port: int) -> dict[str, str]:
    """What `torchrun` sets for one rank; the rendezvous store is the launcher's own."""
    local_world = min(world, gpus_per_node)
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % gpus_per_node),
        "LOCAL_WORLD_SIZE": str(local_world),
        "GROUP_RANK": str(rank // gpus_per_node),
        "GROUP_WORLD_SIZE": str(-(-world // gpus_per_node)),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "maya",
    }


# Variables whose values in a rank are the launcher's, whatever the user's were.
LAUNCH_VARIABLES = frozenset(
    {
        *rank_environment(0, 1, 1, 0),
        "CUDA_VISIBLE_DEVICES",
        "NVTX_INJECTION64_PATH",
        "TRITON_LIBCUDA_PATH",
        "PYTORCH_NVML_BASED_CUDA_CHECK",
        UNRECORDED,
    }
)


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="maya-launch-")


def available_cores() -> tuple[int, ...]:
    return tuple(sorted(os.sched_getaffinity(0)))


def _joined(first: str, rest: str | None) -> str:
    return f"{first}:{rest}" if rest else first
