"""What stages of torch.distributed.pipelining hear from absent ones that come after them.

From PyTorch 2.15 on stages tell each other before the first step what they will send: forward the shapes of
activations, then backward those of gradients. Who stands for a later stage sends the latter to no one, or only when it
has heard them itself; what it sent forward is no answer.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from maya.launch.on_import import change_on_import

_LEAST = 1024  # bytes of what stages tell each other


def know_shapes_of_gradients() -> None:
    """From here on a stage that hears something else takes gradients to be like its outputs, as PyTorch itself does
    where a script gives it these."""
    change_on_import({"torch.distributed.pipelining.stage": _answer_with_outputs})


def _answer_with_outputs(stages: Any) -> None:
    stage = stages.PipelineStage
    tell: Callable[..., None] | None = getattr(stage, "_send_meta", None)
    hear: Callable[..., Any] | None = getattr(stage, "_recv_meta", None)
    expected = getattr(stages, "_StageBackwardMeta", None)
    if tell is None or hear is None or expected is None:
        return

    def tell_at_length(self: Any, meta: Any, dst_stage: int) -> None:
        tell(self, _padded(meta), dst_stage)

    def hear_or_know(self: Any, src_stage: int) -> Any:
        heard = hear(self, src_stage)
        meta = heard[0] if isinstance(heard, tuple) else heard
        if src_stage < self.stage_index or isinstance(meta, expected):
            return meta
        outputs = self._stage_meta.outputs
        if not all(placed.is_shard() for output in outputs for placed in getattr(output, "placements", ())):
            return meta  # the gradient of a DTensor that each rank has whole may be a sum yet to be made
        return expected(tuple(map(_gradient_of, outputs)))

    stage._send_meta, stage._recv_meta = tell_at_length, hear_or_know


def _gradient_of(output: Any) -> Any:
    return replace(output, requires_grad=False) if output.requires_grad else None


def _padded(meta: Any) -> tuple[Any, bytes]:
    """As long as others are: ranks of equal work that are answered by different ones still make the same calls."""
    length = len(pickle.dumps((meta, bytes(_LEAST)))) - _LEAST
    least = length + _LEAST // 4  # pickle has fewer bytes say how long a shorter padding is
    return meta, bytes(max(_LEAST, 1 << (least - 1).bit_length()) - length)
