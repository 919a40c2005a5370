"""The launcher's side: starts the fork server, starts ranks, and judges how a job ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from maya.clusters.types import Cluster
from maya.launch import nvidia_smi
from maya.launch.connection import Connection
from maya.launch.control import Control
from maya.launch.crew import Crew
from maya.launch.device import asked_properties, device_lines, write_rank_config
from maya.launch.environment import (
    LaunchError,
    available_cores,
    dropped,
    own_assembler,
    preloaded,
    rank_environment,
    require_cuda_build,
    scratch_directory,
)
from maya.launch.imports import ALWAYS, heavy_imports, heavy_imports_of_module
from maya.launch.layout import rank_path
from maya.launch.paces import ENOUGH, Pace, beside, recent
from maya.launch.plan import EveryRank, Plan
from maya.launch.representatives import Representatives
from maya.launch.topology import groups_path, read_topology
from maya.launch.types import Job, Known, Run
from maya.launch.watch import Watch

START_SECONDS = 600.0  # for the heavy imports, on a machine that is busy with other things
PACE_SECONDS = 30.0  # for enough measurements of this machine's speed, likewise


class ForkServer:
    """Runs jobs on virtual devices of one cluster. A context manager; one job at a time.

    The heavy imports of a script are paid for at its first job. Raises LaunchError when this machine cannot launch:
    no CUDA build of PyTorch, no emulator, a fork server that does not come up.
    """

    def __init__(self, cluster: Cluster, *, cores: tuple[int, ...] | None = None) -> None:
        self.cluster = cluster
        self.cores = cores or available_cores()
        self._cuda_version = require_cuda_build()
        self._scratch = scratch_directory()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._warmed_for: tuple[str, ...] = ()
        self._paces: list[Pace] = []  # measured beside the jobs so far

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._scratch.cleanup()

    def run(self, job: Job, directory: Path, known: Known = Known()) -> Run:  # noqa: B008 (frozen)
        """Launches the ranks of `job` that it takes, sees their iterations repeat, stops them. Rank traces go to
        `directory`."""
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        self._warm(job)
        return self._run_wider(job, directory, started, known)

    def _run_wider(self, job: Job, directory: Path, started: float, known: Known) -> Run:
        """With more ranks, as long as the script fails for want of those that were left out."""
        run = self._run_once(job, directory, started, known)
        if run.check_failed and self._missed_others(run, directory):
            note = (
                f"no rank was started to check what was inferred: rank {run.failed_rank} was, and failed where others "
                f"that it needs did not run ({run.error})"
            )
            known = replace(known, checks_fail=True)
            run = self._run_once(job, directory, started, known).with_note(note)
        while run.status == "failed" and self._missed_others(run, directory):
            # A rank may have missed one that had ended or was never started; with more of them it cannot.
            wider = job if known.alike_along else job.launching_more()
            if wider is None:
                return run
            job, known = wider, replace(known, alike_along=frozenset())
            again = self._run_once(job, directory, started, known)  # that it failed first took time, too
            if again.status != "failed":
                note = f"{again.launched} ranks were launched: with {run.launched} the script failed ({run.error})"
                return replace(again.with_note(note), repeated=True)
            run = again
        return run

    @staticmethod
    def _missed_others(run: Run, directory: Path) -> bool:
        """Whether a script that failed had been left without ranks. Until it makes a group it needs none."""
        if run.host_memory_ran_out:
            return False
        groups = groups_path(directory, run.failed_rank or 0)
        return run.merged or (run.launched < run.world and groups.exists() and groups.stat().st_size > 0)

    def _run_once(self, job: Job, directory: Path, started: float, known: Known) -> Run:
        for stale in directory.glob("rank-*"):
            stale.unlink()
        connection = self._connection_or_fail()
        control = Control(directory / "control", job.world)
        try:
            plan = self._plan(job, directory, known)
            port = self._start_store(directory, job.world)
            device = device_lines(self.cluster, self._cuda_version)

            def start(rank: int, core: int) -> None:
                config = rank_path(directory, rank).with_suffix(".config")
                write_rank_config(
                    config, device, directory=directory, control=control.path,
                    rank=rank, world=job.world, gpus_per_node=self.cluster.node.gpus,
                )  # fmt: skip
                connection.send(self._request(job, directory, rank, core, port, config))

            began = time.monotonic()
            self._start_pace(job.world)
            crew = Crew(job.world, control, connection, plan, start, self.cores)
            run = Watch(job, crew, plan, directory).until_done(started)
            run = replace(run, pace_ns=self._pace_since(began, wait=run.status == "traced"))
            if self._device_dropped:
                run = run.with_note(self._needs_older_build())
        finally:
            connection.kill_all()
            control.close()
        return run

    def _start_pace(self, world: int) -> None:
        """Has the machine's speed measured beside the ranks, on the cores that they run on."""
        self._pace_file.unlink(missing_ok=True)
        request = {"do": "pace", "name": "pace", "result": str(self._pace_file), "cores": self.cores[:world]}
        self._connection_or_fail().send(request)

    def _pace_since(self, moment: float, wait: bool) -> int | None:
        """How fast this machine has been; None where nothing is known. `wait`: until enough is."""
        connection = self._connection_or_fail()
        deadline = time.monotonic() + PACE_SECONDS
        before = recent(self._paces, time.monotonic())
        while True:
            self._paces = before + (
                Pace.read(self._pace_file.read_text()) if self._pace_file.exists() else []
            )
            pace = beside(self._paces, moment)
            enough = pace is not None and pace.iterations >= ENOUGH
            if not wait or enough or time.monotonic() > deadline or "pace" not in connection.living:
                return None if pace is None else pace.ns
            for _ in connection.answers(0.01):
                pass

    @property
    def _pace_file(self) -> Path:
        return Path(self._scratch.name) / "pace"

    @property
    def _device_dropped(self) -> bool:
        return dropped(self.cluster.device.compute_capability, self._cuda_version)

    def _needs_older_build(self) -> str:
        capability = ".".join(map(str, self.cluster.device.compute_capability))
        return (
            f"PyTorch for CUDA {self._cuda_version} has no kernels for compute capability {capability}: on such a "
            "device the script needs a build for CUDA 12, whose kernels may be others"
        )

    @staticmethod
    def _plan(job: Job, directory: Path, known: Known) -> Plan:
        if job.launching == "representatives":
            return Representatives(
                job.world,
                lambda: read_topology(groups_path(directory), job.world),
                trusting=known.first_iteration_tells,
                alike=known.alike_along,
                checks_fail=known.checks_fail,
            )
        return EveryRank(job.world, merge=job.launching != "all")

    def _request(
        self, job: Job, directory: Path, rank: int, core: int, port: int, config: Path
    ) -> dict[str, Any]:
        path = rank_path(directory, rank)
        request: dict[str, Any] = {
            "do": "rank",
            "name": f"rank {rank}",
            "config": str(config),
            "script": job.script,
            "module": job.module,
            "argv": list(job.argv),
            "cwd": str(Path.cwd()),
            "core": core,
            "environment": {
                **job.environment,
                **rank_environment(rank, job.world, self.cluster.node.gpus, port),
            },
            "stdout": str(path.with_suffix(".stdout")),
            "stderr": str(path.with_suffix(".stderr")),
            "outcome": str(path.with_suffix(".outcome")),
        }
        absent = job.launching == "representatives"
        log = str(groups_path(directory, rank)) if absent or rank == 0 else None
        request["absent"] = absent
        request["others"] = {"rank": rank, "world": job.world, "port": port, "log": log}
        return request

    def _start_store(self, directory: Path, world: int) -> int:
        port_file = directory / "rank-store.port"
        self._connection_or_fail().send(
            {"do": "store", "name": "store", "port_file": str(port_file), "world": world}
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if port_file.exists():
                return int(port_file.read_text())
            time.sleep(0.002)
        raise LaunchError("the rendezvous store did not start")

    def _warm(self, job: Job) -> None:
        if job.module:
            own = heavy_imports_of_module(job.script, [str(Path.cwd()), *sys.path])
        else:
            own = heavy_imports(Path(job.script))
        for argument in job.argv:  # a launcher's script
            if argument.endswith(".py") and Path(argument).is_file():
                own += [module for module in heavy_imports(Path(argument)) if module not in own]
        wanted = (*ALWAYS, *own)
        if self._warmed_for == wanted and self._process is not None and self._process.poll() is None:
            return
        answer = self._start_server(wanted)
        if answer["needs_cuda"]:
            self._start_server(ALWAYS)
        elif late := answer["rank_dependent"]:
            # These look at their rank while they are imported: each rank imports them itself.
            self._start_server(tuple(module for module in wanted if module not in late))
        self._warmed_for = wanted

    def _start_server(self, modules: tuple[str, ...]) -> dict[str, Any]:
        self.stop()
        ours, theirs = socket.socketpair()
        scratch = Path(self._scratch.name)
        assembler = own_assembler() if self._device_dropped else {}
        environment = preloaded(assembler | dict(os.environ), scratch)
        nvidia_smi.put_into(scratch, device_lines(self.cluster, self._cuda_version), sys.executable)
        with (scratch / "server.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "maya.launch.server", str(theirs.fileno())],
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        theirs.close()
        self._connection = Connection(ours)
        properties = asked_properties(self.cluster)
        self._connection.send({"do": "warm", "modules": list(modules), "properties": properties})
        for answer in self._connection.answers(START_SECONDS):
            return answer
        raise LaunchError(f"the fork server did not start: {self._last_words()}")

    def _last_words(self) -> str:
        log = Path(self._scratch.name) / "server.log"
        return log.read_text(errors="replace").strip()[-2000:] or "it printed nothing"

    def _connection_or_fail(self) -> Connection:
        if self._connection is None:
            raise LaunchError("the fork server is not running")
        return self._connection

    def stop(self) -> None:
        """Ends the fork server and every process it forked."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.wait()
            self._process = None
