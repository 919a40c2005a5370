"""The fork server: `python -m maya.launch.server` under the emulator.

It imports what is heavy once and forks a process per request. Requests and answers are JSON lines on the socket whose
descriptor is its argument; the end of the socket ends it and everything it forked.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from maya.launch import printed, undrawn
from maya.launch.asked import answered
from maya.launch.compiler import choose_untimed, ready_compiler, with_compiler
from maya.launch.readings import READINGS

# Modules that look at these while they are imported must be imported by each rank itself.
RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
)
PR_SET_CHILD_SUBREAPER = 36  # prctl(2): processes whose parent has ended become this one's


class Server:
    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.buffer = b""
        self.children: dict[int, str] = {}  # pid -> name
        self.own: frozenset[int] = frozenset()  # processes that this one had before it had ranks
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        self.woken, waker = os.pipe()
        for end in (self.woken, waker):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher decides when the ranks end

    def serve(self) -> None:
        while True:
            ready, _, _ = select.select([self.connection.fileno(), self.woken], [], [])
            if self.woken in ready:
                self._drain()
            self._reap()
            if self.connection.fileno() in ready and not self._receive():
                self._kill_all()
                return

    def _drain(self) -> None:
        try:
            while os.read(self.woken, 512):
                pass
        except BlockingIOError:
            pass

    def _receive(self) -> bool:
        data = self.connection.recv(1 << 16)
        self.buffer += data
        *lines, self.buffer = self.buffer.split(b"\n")
        for line in lines:
            self._handle(json.loads(line))
        return bool(data)

    def _handle(self, request: dict[str, Any]) -> None:
        if request["do"] == "warm":
            self._send(warm(request["modules"], request["properties"]))
        elif request["do"] == "kill":
            self._kill(request["names"])
        else:
            self._fork(request)

    def _fork(self, request: dict[str, Any]) -> None:
        if not self.children:
            self.own = frozenset(children())
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                self.connection.close()
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                from maya.launch import rank

                status = rank.main(request)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        self.children[pid] = request["name"]
        self._send({"started": request["name"], "pid": pid})

    def _reap(self) -> None:
        for pid in list(self.children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                name = self.children.pop(pid)
                self._end_orphans()
                self._send({"ended": name, "code": os.waitstatus_to_exitcode(status)})

    def _end_orphans(self) -> None:
        """Once no rank is left: what ranks have started in sessions of their own, which no signal to a rank ends."""
        if any(name.startswith("rank ") for name in self.children.values()):
            return
        while orphans := set(children()) - self.children.keys() - self.own:
            for pid in orphans:
                kill_group(pid)
                os.waitpid(pid, 0)

    def _kill(self, names: list[str]) -> None:
        for pid, name in self.children.items():
            if name in names:
                kill_group(pid)

    def _kill_all(self) -> None:
        for pid in self.children:
            kill_group(pid)
            os.waitpid(pid, 0)
        self.children.clear()
        self._end_orphans()

    def _send(self, answer: dict[str, Any]) -> None:
        self.connection.sendall(json.dumps(answer).encode() + b"\n")


def children() -> list[int]:
    """This process's, by number: those of its main thread, which forks. None where the system does not tell."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(pid) for pid in listed.read_text().split()] if listed.exists() else []


def kill_group(pid: int) -> None:
    """Kills a rank and whatever it started: each rank leads a process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def warm(modules: list[str], properties: dict[str, object]) -> dict[str, Any]:
    """Imports `modules`, and names in modules. Says which of them read a rank's variables, and whether any needs an
    initialised CUDA."""
    if not modules:
        return {"warm": [], "rank_dependent": [], "needs_cuda": False}
    import torch

    with answered(properties) as unknown, _rank_variables_read() as read:
        rank_dependent: list[str] = []
        imported: list[str] = []
        for module in with_compiler(modules):
            read.clear()
            try:
                _import(module)
            except Exception:  # the rank will meet it again, and report it as the script's own
                continue
            (rank_dependent if read else imported).append(module)
    for module in ("maya.launch.absent", "torch.distributed.launcher.api", "torch.utils.data.dataloader"):
        importlib.import_module(module)  # which ranks would import, each by itself
    ready_compiler()
    undrawn.leave_undrawn()
    printed.tell_emulator()
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared with the ranks
    needs_cuda = torch.cuda.is_initialized() or bool(unknown)  # type: ignore[no-untyped-call]
    return {"warm": imported, "rank_dependent": rank_dependent, "needs_cuda": needs_cuda}


def _import(name: str) -> None:
    """A module, or as `from module import name` does."""
    module, _, attribute = name.rpartition(".")
    if not module or not hasattr(importlib.import_module(module), attribute):
        importlib.import_module(name)


@contextmanager
def _rank_variables_read() -> Iterator[set[str]]:
    """Those of RANK_VARIABLES that are read within."""
    watched = type(os.environ)
    read: set[str] = set()
    original = watched.__getitem__

    def watch(self: Any, key: str) -> str:
        if key in RANK_VARIABLES:
            read.add(key)
        return original(self, key)

    watched.__getitem__ = watch  # type: ignore[method-assign]
    try:
        yield read
    finally:
        watched.__getitem__ = original  # type: ignore[method-assign]


def main() -> None:
    READINGS.watch()
    choose_untimed()
    connection = socket.socket(fileno=int(sys.argv[1]))
    Server(connection).serve()


if __name__ == "__main__":
    main()
