"""Runs the scripts of rows that are not recorded yet, one after another."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING

from maya.clusters.types import Cluster
from maya.errors import MayaError
from maya.launch.trust import Trust
from maya.launch.types import Job
from maya.trace.types import JobTrace
from maya.validate.mapping import MEGATRON, Mapped
from maya.validate.traces import Unjudged

if TYPE_CHECKING:
    from maya.predict import Predictor

ROW_SECONDS = 3600.0
_TRANSFORMER_ENGINE = ("Transformer Engine", "transformer_engine", "scripts/transformer-engine builds it")
_TORCHAO = ("torchao", "torchao", "pip install torchao")
_EMERGING_OPTIMIZERS = (
    "Emerging-Optimizers",
    "emerging_optimizers",
    "pip install git+https://github.com/NVIDIA-NeMo/Emerging-Optimizers@v0.1.0",
)
# By the arguments that ask for them.
LIBRARIES = {
    "--transformer-impl transformer_engine": _TRANSFORMER_ENGINE,
    "--float8 delayed": _TRANSFORMER_ENGINE,
    "--float8 tensorwise": _TORCHAO,
    "--float8 rowwise": _TORCHAO,
    "--optimizer muon": _EMERGING_OPTIMIZERS,
    "--optimizer dist_muon": _EMERGING_OPTIMIZERS,
}
MEGATRON_CORE = ("megatron-core", "megatron", "pip install 'maya-search[megatron]'")
# Without flash-attn Transformer Engine attends unfused and says nothing.
FLASH_ATTENTION = ("flash-attn", "flash_attn", "scripts/transformer-engine brings its interface")


class Recorder:
    """Its fork server serves rows of like nodes, and what rows told of a script holds for all that follow: `lessons` is
    the file that keeps it."""

    def __init__(self, lessons: Path) -> None:
        self._predictor: Predictor | None = None
        self._trust = Trust(lessons=lessons)

    def record(self, mapped: Mapped, examples: Path) -> JobTrace | Unjudged:
        """Raises MayaError for what the user must mend."""
        from maya.predict import unsimulated

        require(mapped)
        job = Job(
            script=str(examples / mapped.script),
            argv=mapped.argv,
            world=mapped.world,
            environment=dict(mapped.environment),
            ranks="representatives",  # a row's other ranks do the same work
            timeout_s=ROW_SECONDS,
        )
        run, trace = self._predictor_on(mapped.cluster).record(job)
        if trace is not None:
            return trace
        ended = unsimulated(run, job, mapped.cluster).prediction
        return Unjudged(ended.verdict, ended.message)

    def _predictor_on(self, cluster: Cluster) -> Predictor:
        from maya.predict import Predictor  # loads the emulator: only where something runs

        last = self._predictor
        if last is not None and last.serves(cluster):
            last.move(cluster)
            return last
        if last is not None:
            last.__exit__(None, None, None)
        self._predictor = Predictor(cluster, trust=self._trust).__enter__()
        return self._predictor


def require(mapped: Mapped) -> None:
    """Raises MayaError when the script, or what its arguments ask for, needs a library that is not installed."""
    words = " ".join(mapped.argv)
    needed = [library for arguments, library in LIBRARIES.items() if arguments in words]
    if mapped.script == MEGATRON:
        needed.append(MEGATRON_CORE)
    if "transformer_engine" in mapped.argv and not {"fused", "unfused"} & set(mapped.argv):
        needed.append(FLASH_ATTENTION)
    for library, module, installed_by in needed:
        if importlib.util.find_spec(module) is None:
            raise MayaError(f"{library} is not installed: {installed_by}")
