"""Names communicators, and answers for ranks that are not started: runs in a rank whose peers may be absent.

Every rank of a PyTorch job calls `new_group` for every group, its own or not. So one rank knows the groups of the
whole world. Communicators get names that tell the emulator who their members are (emulator/nccl/communicator.h), also
those that are made when some of these have ended. Where ranks are not even started, one writes the groups down for
the launcher (topology.py), and what it asks of its peers by the rendezvous store is answered here.
"""

from __future__ import annotations

import ctypes
import datetime
import importlib
import inspect
import os
import re
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlparse

from torch._C._distributed_c10d import ProcessGroup, Store, TCPStore
from torch.distributed import distributed_c10d

from maya.launch.object_gather import gather_objects_in_bulk
from maya.launch.pipelining import know_shapes_of_gradients
from maya.launch.symmetric_memory import SymmetricMemory
from maya.launch.topology import FamilyNumbers

UNIQUE_ID_BYTES = 128  # ncclUniqueId (nccl.h)
NO_PAIR = (-1, -1)

# Where a group's backends exchange the ids of communicators, in a store whose prefix ends in the group's name: several
# ids where it is large, and other communicators for pairs of its members.
_ID_KEY = re.compile(
    r"(?:.*/)?(?P<group>[^/]+)//cuda//(?:"
    r"UniqueNCCLID:(?P<root>\d+)|(?P<low>\d+):(?P<high>\d+)|(?P<number>\d+)"  # ProcessGroupNCCL.cpp
    r"|(?:.*/p2p-(?P<first>\d+)-(?P<second>\d+)-(?P<attempt>\d+)/)?"  # LazyBackend.hpp, PyTorch 2.15's
    r"(?:.*/)?nccl_storekey_(?P<generation>\d+)(?:_(?P<part>\d+))?"  # nccl2/NCCLBootstrap.cpp, 2.15's
    r")"
)


@dataclass(frozen=True)
class Group:
    """A process group with this rank in it: of those of the same ranks the `earlier`-th from 0."""

    ranks: tuple[int, ...]
    family: int
    earlier: int = 0


@dataclass(frozen=True)
class Exchange:
    """Of the id of one of a group's communicators, that of all members or of a `pair` of them, by places in the group.

    `root`: which of several ids; ncclCommInitRankScalable knows the communicator by the first. `number`: which of
    several communicators of these members.
    """

    group: Group
    pair: tuple[int, int]
    root: int
    number: int

    @property
    def ranks(self) -> tuple[int, ...]:
        ranks = self.group.ranks
        return ranks if self.pair == NO_PAIR else tuple(ranks[place] for place in self.pair)

    @property
    def identity(self) -> int:
        """Equal on all members. Names of groups may differ: PyTorch counts those that a rank has heard of."""
        of = (self.group.ranks, self.group.earlier, self.pair, self.number)
        return int.from_bytes(blake2b(repr(of).encode(), digest_size=8).digest(), "little")


class Groups:
    """The groups of the world in the order in which the script makes them.

    `log`, if any, gets rank 0's, which are all, and the other ranks' first: little-endian int32 words, for each group
    its size and its ranks.
    """

    def __init__(self, rank: int, log: Path | None = None) -> None:
        self.rank = rank
        self._own: dict[str, Group] = {}
        self._families = FamilyNumbers()
        self._log: BinaryIO | None = log.open("wb", buffering=0) if log else None

    def add(self, name: str, ranks: Sequence[int]) -> None:
        if self._log:
            self._log.write(struct.pack(f"<{len(ranks) + 1}i", len(ranks), *ranks))
            if self.rank > 0:
                self._log = None
        family = self._families.add(ranks)
        if self.rank not in ranks:
            return
        members = tuple(ranks)
        earlier = sum(group.ranks == members for group in self._own.values())
        self._own[name] = Group(members, family, earlier)

    def named_in(self, prefix: str) -> tuple[int, ...]:
        """The ranks of the group whose store has that prefix; none when it is of no group of this rank's."""
        own = (self._own[part] for part in reversed(prefix.split("/")) if part in self._own)
        group = next(own, None)
        return group.ranks if group else ()

    def exchange_at(self, key: str) -> Exchange | None:
        """What a store key is for; None: for something else, or for a group without this rank."""
        found = _ID_KEY.fullmatch(key)
        group = self._own.get(found["group"]) if found else None
        if found is None or group is None:
            return None
        low, high = found["low"] or found["first"], found["high"] or found["second"]
        return Exchange(
            group,
            pair=(int(low), int(high)) if low else NO_PAIR,
            root=int(found["root"] or found["part"] or 0),
            number=int(found["number"] or found["attempt"] or found["generation"] or 0),
        )


class NamingStore(Store):
    """A store that knows the ids of communicators without asking, and tells the emulator whom each is of."""

    in_trace = True  # who the members are: nothing else tells of a rank that ends before it makes its own

    def __init__(self, inner: Store, groups: Groups, world: int) -> None:
        super().__init__()
        self._inner = inner
        self._groups = groups
        self._world = world
        self._shared = SymmetricMemory()
        self._name = ctypes.CDLL(None).maya_name_communicator

    def set(self, key: str, value: Any) -> None:
        if self._shared.tell(key, _as_bytes(value), self._groups.named_in):
            return
        if not self._name_communicator(key, _as_bytes(value)):
            self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        if (shared := self._shared.asked(key)) is not None:
            return shared
        invented = blake2b(key.encode()).digest() * (UNIQUE_ID_BYTES // 64)
        return invented if self._name_communicator(key, invented) else self._known(key)

    def _known(self, key: str) -> bytes:
        return bytes(self._inner.get(key))

    def _name_communicator(self, key: str, unique_id: bytes) -> bool:
        """Tells the emulator which communicator `unique_id` will make, when the key is for one."""
        exchange = self._groups.exchange_at(key)
        if exchange is None or len(unique_id) != UNIQUE_ID_BYTES:
            return False
        if exchange.root == 0:
            ranks = exchange.ranks
            self._name(
                unique_id,
                ctypes.c_uint64(exchange.identity),
                ctypes.c_uint32(exchange.group.family),
                *exchange.pair,
                len(exchange.group.ranks) == self._world,
                (ctypes.c_int * len(ranks))(*ranks),
                len(ranks),
                self.in_trace,
            )
        return True

    def add(self, key: str, amount: int) -> int:
        return int(self._inner.add(key, amount))

    def check(self, keys: list[str]) -> bool:
        asked = self._elsewhere(keys)
        return not asked or bool(self._inner.check(asked))

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        if asked := self._elsewhere(keys):
            self._inner.wait(asked, *([] if timeout is None else [timeout]))

    def _elsewhere(self, keys: list[str]) -> list[str]:
        """Those that this store does not know by itself."""
        return [key for key in keys if not self._groups.exchange_at(key) and self._shared.asked(key) is None]

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        return bytes(self._inner.compare_set(key, expected, desired))

    def delete_key(self, key: str) -> bool:
        return bool(self._inner.delete_key(key))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: datetime.timedelta) -> None:
        self._inner.set_timeout(timeout)

    def clone(self) -> Store:
        """For a group that is split from another."""
        inner: Any = self._inner  # PyTorch's declarations leave its `clone` out
        return _keep(type(self)(inner.clone(), self._groups, self._world))


class AnsweringStore(NamingStore):
    """A store that makes up what ranks that do not run would have put there."""

    in_trace = False  # the launcher knows all groups (topology.py)

    def _known(self, key: str) -> bytes:
        if not self._inner.check([key]):
            raise RuntimeError(
                f"the rendezvous store has no {key!r}: a rank that was not started would have set it; "
                "start every rank: --ranks dedup"
            )
        return super()._known(key)

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        """Never waits: whoever would have come is taken to be there."""


_kept: list[Store] = []  # PyTorch holds the C++ half only; without the Python half the overrides are gone


def _keep(store: Store) -> Store:
    _kept.append(store)
    return store


def _own_store(port: int, world: int) -> TCPStore:
    """The launcher's, which serves all of a job's ranks."""
    return TCPStore("127.0.0.1", port, world, is_master=False, wait_for_workers=False)


def _meet_by(handler: Callable[..., Iterator[tuple[Store, int, int]]]) -> None:
    """Has `init_process_group` find its store by `handler`, whatever address the script names."""
    rendezvous = importlib.import_module("torch.distributed.rendezvous")
    rendezvous._rendezvous_handlers.update(env=handler, tcp=handler)


def _asked_of(url: str, rank: int, world: int) -> int:
    """The rank that the script asks to be. Raises RuntimeError when it makes a world of another size."""
    asked = parse_qs(urlparse(url).query)
    size = int(asked.get("world_size", [os.environ.get("WORLD_SIZE", world)])[0])
    if size != world:
        raise RuntimeError(
            f"the script makes a world of {size:,} ranks where Maya runs {world:,}: ask for --gpus {size}"
        )
    return int(asked.get("rank", [os.environ.get("RANK", rank)])[0])


def answer_for_absent_ranks(rank: int, world: int, port: int, log: str | None) -> None:
    """From here on `init_process_group` and `new_group` succeed though nobody else may be there."""
    importlib.import_module(
        "torch.testing._internal.distributed.fake_pg"
    )  # registers PyTorch's `fake` backend
    groups = Groups(rank, Path(log) if log else None)

    def handler(url: str, timeout: datetime.timedelta, **_: Any) -> Iterator[tuple[Store, int, int]]:
        _asked_of(url, rank, world)
        yield _keep(AnsweringStore(_own_store(port, world), groups, world)), rank, world

    _meet_by(handler)
    _watch_new_groups(groups, apart=True)
    _split_into_new_groups()
    gather_objects_in_bulk()
    know_shapes_of_gradients()


def _split_into_new_groups() -> None:
    """Splitting a communicator asks all of its ranks, who may not be there."""
    original: Callable[..., Any] = distributed_c10d.split_group
    outside = _of_no_part(original)
    new_group: Callable[..., Any] = distributed_c10d.new_group
    in_order = _in_given_order(new_group)

    def split_group(
        parent_pg: ProcessGroup | None = None,
        split_ranks: list[list[int]] | None = None,
        timeout: datetime.timedelta | None = None,
        pg_options: Any | None = None,
        group_desc: str | None = None,
        backend: Any | None = None,
    ) -> Any:
        parent = parent_pg or distributed_c10d._get_default_group()
        ranks_of = distributed_c10d.get_process_group_ranks(parent)
        backend = backend or distributed_c10d._world.pg_map[parent][0]
        groups = [
            new_group([ranks_of[place] for place in (part if in_order else sorted(part))],
                      timeout, backend, pg_options, group_desc=group_desc, **in_order)
            for part in split_ranks or ()
        ]  # fmt: skip
        own = [group for group in groups if group is not distributed_c10d.GroupMember.NON_GROUP_MEMBER]
        return own[0] if own else outside

    for module in list(sys.modules.values()):  # device meshes have it by name
        if getattr(module, "__dict__", {}).get("split_group") is original:
            module.split_group = split_group  # type: ignore[attr-defined]


def _of_no_part(split_group: Callable[..., Any]) -> Any:
    """What PyTorch gives a rank that is in no part: None to 2.11, what `new_group` gives it in 2.15."""
    declared = str(inspect.signature(split_group).return_annotation)
    return None if "None" in declared else distributed_c10d.GroupMember.NON_GROUP_MEMBER


def _in_given_order(new_group: Callable[..., Any]) -> dict[str, bool]:
    """Options for a group in the order of its list, where PyTorch has such: there a split keeps its parts' order."""
    return {"sort_ranks": False} if "sort_ranks" in inspect.signature(new_group).parameters else {}


def name_communicators(rank: int, world: int, port: int, log: str | None) -> None:
    """From here on a communicator is known by its members, though some may have ended when it is made. The world meets
    at Maya's store, whatever address the script names: several jobs of it may run on this machine."""
    groups = Groups(rank, Path(log) if log else None)

    def handler(url: str, timeout: datetime.timedelta, **_: Any) -> Iterator[tuple[Store, int, int]]:
        own_rank = _asked_of(url, rank, world)
        yield _keep(NamingStore(_own_store(port, world), groups, world)), own_rank, world

    _meet_by(handler)
    _watch_new_groups(groups, apart=False)


def _watch_new_groups(groups: Groups, apart: bool) -> None:
    """`apart`: other ranks may not be there to connect to."""
    # No group's communicator is split from the world's: a split one is known to none but who was asked for their part.
    distributed_c10d._get_split_source = lambda *_, **__: None
    original: Callable[..., Any] = distributed_c10d._new_process_group_helper

    def helper(
        size: int,
        rank: int | None,
        ranks: list[int],
        backend: Any,
        store: Any,
        name: str,
        *rest: Any,
        **options: Any,
    ) -> Any:
        among_devices = "nccl" in _devices(backend)
        if among_devices:
            groups.add(str(name), ranks or range(size))
        if not apart:
            return original(size, rank, ranks, backend, store, name, *rest, **options)
        if not among_devices:
            options["device_id"] = None  # none that `fake` has in Gloo's place
        group, prefix = original(size, rank, ranks, _without_gloo(backend), store, name, *rest, **options)
        entry = distributed_c10d._world.pg_map.get(group)
        if entry is not None:
            distributed_c10d._world.pg_map[group] = (backend, entry[1])
        return group, prefix

    distributed_c10d._new_process_group_helper = helper  # type: ignore[assignment]


def _devices(backend: Any) -> str:
    """`cpu:gloo,cuda:nccl` and the like; what PyTorch makes of no backend at all is both."""
    text = str(backend or "undefined")
    return "cpu:gloo,cuda:nccl" if text == "undefined" else text


def _without_gloo(backend: Any) -> str:
    """Gloo connects every pair of ranks; PyTorch's `fake` takes what this rank has for what all have."""
    text = _devices(backend)
    return "cpu:fake" if text == "gloo" else text.replace("gloo", "fake")


def _as_bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
