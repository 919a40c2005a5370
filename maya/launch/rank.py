"""What a forked process does: become a rank (or the rendezvous store) and run the user's script as `__main__`."""

from __future__ import annotations

import ctypes
import json
import os
import random
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from maya.launch import (
    loading,
    operators,
    optimizers,
    own_steps,
    script,
    spawned,
    stacks,
    subprocesses,
    unrecorded,
)
from maya.launch.readings import READINGS, SUFFIX
from maya.launch.script import run_script

PR_SET_PDEATHSIG = 1  # prctl(2)


def main(request: dict[str, Any]) -> int:
    """Runs in the fork; returns its exit status."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if request["do"] == "store":
        return _serve_store(Path(request["port_file"]), request["world"])
    if request["do"] == "pace":
        from maya.launch import pace

        return pace.main(Path(request["result"]), request["cores"])
    os.sched_setaffinity(0, [request["core"]])
    _redirect(request["stdout"], request["stderr"])
    os.environ.update(request["environment"])
    outcome_path = Path(request["outcome"])
    os.environ[unrecorded.VARIABLE] = str(outcome_path.with_suffix(unrecorded.SUFFIX))
    os.chdir(request["cwd"])
    _reseed()
    stacks.answer(outcome_path.with_suffix(stacks.SUFFIX))
    READINGS.write_to(outcome_path.with_suffix(SUFFIX))
    if ctypes.CDLL(None).maya_begin_rank(request["config"].encode()) != 0:
        return 1
    _know_the_others(request)
    outcome = _run_script(request)
    sys.stdout.flush()
    sys.stderr.flush()
    outcome_path.with_suffix(".partial").write_text(json.dumps(outcome))
    outcome_path.with_suffix(".partial").rename(outcome_path)
    return 0


def _know_the_others(request: dict[str, Any]) -> None:
    from maya.launch.absent import answer_for_absent_ranks, name_communicators

    know = answer_for_absent_ranks if request["absent"] else name_communicators
    know(**request["others"])


def _serve_store(port_file: Path, world: int) -> int:
    """The rendezvous, in a process of its own: it has threads, and a fork server must not."""
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore("127.0.0.1", 0, world, is_master=True, wait_for_workers=False)
    port_file.with_suffix(".partial").write_text(str(store.port))
    port_file.with_suffix(".partial").rename(port_file)
    while True:
        signal.pause()


def _redirect(stdout: str, stderr: str) -> None:
    for descriptor, path in ((0, os.devnull), (1, stdout), (2, stderr)):
        flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        opened = os.open(path, flags, 0o644)
        os.dup2(opened, descriptor)
        os.close(opened)


def _reseed() -> None:
    """Processes started one by one differ in their random state; forks would share it."""
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _run_script(request: dict[str, Any]) -> dict[str, Any]:
    operators.observe()
    optimizers.tell_apart()
    own_steps.tell_apart()
    spawned.run_in_place()
    subprocesses.run_in_place()
    loading.observe(Path(request["outcome"]).with_suffix(loading.SUFFIX))
    try:
        run_script(request["script"], request["argv"], request["module"])
    except SystemExit as leave:
        if leave.code in (None, 0):
            return {"status": "finished"}
        return {"status": "raised", "message": f"the script called sys.exit({leave.code!r})", "traceback": ""}
    except BaseException as error:
        return _describe(error)
    return {"status": "finished"}


def _describe(error: BaseException) -> dict[str, Any]:
    import torch

    told = _nccls_own(error)
    # NCCL's own memory, for a communicator, is none of PyTorch's allocator.
    no_memory = isinstance(error, torch.OutOfMemoryError) or "out of memory" in told
    unsaid = f" ({told})" if told and told not in str(error) else ""
    return {
        "status": "oom" if no_memory else "raised",
        "message": f"{type(error).__name__}: {error}{unsaid}",
        "traceback": _own_traceback(error).rstrip("\n") + unsaid,
    }


def _nccls_own(error: BaseException) -> str:
    """What NCCL says of a communicator that it did not make, where that is the error: it may name the result only."""
    if not (isinstance(error, RuntimeError) and "NCCL" in str(error)):
        return ""
    last = ctypes.CDLL(None).ncclGetLastError
    last.restype = ctypes.c_char_p
    return (last(None) or b"").decode() or str(error)


def _own_traceback(error: BaseException) -> str:
    """The traceback without the frames of what runs the script."""
    described = traceback.TracebackException.from_exception(error)
    hidden = (__file__, script.__file__, spawned.__file__, subprocesses.__file__, "<frozen runpy>")
    described.stack = traceback.StackSummary.from_list(
        [frame for frame in described.stack if frame.filename not in hidden]
    )
    return "".join(described.format())
