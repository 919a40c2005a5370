"""What was measured on the device, and what came of matching it."""

from __future__ import annotations

from dataclasses import dataclass, field

from maya.trace.types import Operation, Operator

NO_OPERATOR = Operator()


@dataclass(frozen=True)
class Activity:
    """One kernel, copy or fill that the device did."""

    kind: str  # kernel, memcpy, memset
    name: str  # demangled; of copies CUPTI's own: "Memcpy HtoD (Pinned -> Device)"
    seconds: float  # in a stream that never runs dry: to the start of the next
    operator: Operator = NO_OPERATOR  # the innermost that launched it
    call: int = 0  # tells one call of the operator from another
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    bytes: int = 0


@dataclass(frozen=True)
class Matched:
    samples: dict[Operation, list[float]] = field(default_factory=dict)  # seconds
    unmatched: dict[str, float] = field(default_factory=dict)  # what was measured but not matched: seconds
    unmeasured: tuple[Operation, ...] = ()  # what the virtual device saw and the real one did not

    @property
    def share(self) -> float:
        """Of the device's time, what the samples cover."""
        matched = sum(map(sum, self.samples.values()))
        total = matched + sum(self.unmatched.values())
        return matched / total if total else 0.0
