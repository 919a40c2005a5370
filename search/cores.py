"""Hands out a node's cores: one broker a node, a Ray actor, so that trials there do not run on each other's cores."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

_ATTEMPTS = 3


class CoreBroker:
    """Grants the cores that fewest holders share, round-robin among equals."""

    def __init__(self, cores: tuple[int, ...], holders: int) -> None:
        self._turn = list(cores)
        self._share = max(1, len(cores) // holders)
        self._held: Counter[int] = Counter()
        self._grants: dict[str, tuple[int, ...]] = {}

    def grant(self, holder: str) -> tuple[int, ...]:
        """A share of the node's cores; what the same holder had before goes back (it may have been killed)."""
        self.release(holder)
        granted = tuple(sorted(self._turn, key=lambda core: self._held[core])[: self._share])
        for core in granted:
            self._held[core] += 1
            self._turn.remove(core)
            self._turn.append(core)  # last in turn among those that are shared alike
        self._grants[holder] = granted
        return granted

    def release(self, holder: str) -> None:
        self._held.subtract(self._grants.pop(holder, ()))


class NodeCores:
    """A worker's way to the broker of its node, of which `holders` workers may want cores at a time."""

    def __init__(self, holders: int) -> None:
        self._holders = holders
        self._name = uuid.uuid4().hex
        self._broker: Any = None

    @contextlib.contextmanager
    def lease(self) -> Iterator[tuple[int, ...]]:
        cores = self._grant()
        try:
            yield cores
        finally:
            self._broker.release.remote(self._name)

    def _grant(self) -> tuple[int, ...]:
        import ray
        from ray.exceptions import RayActorError

        for _ in range(_ATTEMPTS):
            self._broker = self._broker or self._find()
            with contextlib.suppress(RayActorError):  # it went with the worker that had started it
                return tuple(ray.get(self._broker.grant.remote(self._name)))
            self._broker = None
        return ()  # any core: slower, not wrong

    def _find(self) -> Any:
        """The node's broker, started by whoever asks first."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = ray.get_runtime_context().get_node_id()
        here = NodeAffinitySchedulingStrategy(node, soft=False)
        broker = ray.remote(CoreBroker).options(
            name=f"maya-cores-{node}", get_if_exists=True, num_cpus=0, scheduling_strategy=here
        )
        return broker.remote(tuple(sorted(os.sched_getaffinity(0))), self._holders)
