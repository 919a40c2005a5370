"""Runs a script on the device, times some optimizer steps and profiles some more: `python -m maya.profile.script OUT
SKIP TIMED PROFILED SCRIPT [ARGS]...`.

After SKIP optimizer steps it takes the time of TIMED, with nothing else going on, and records PROFILED more under
PyTorch's profiler; it writes the profiler's trace to OUT and a line of JSON beside it (the device, the libraries, the
steps, their time, the memory in use), and leaves. A script that ends earlier is recorded as far as it came.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any


class Recording:
    def __init__(self, out: Path, skip: int, timed: int, profiled: int) -> None:
        self.out, self.skip, self.timed, self.profiled = out, skip, timed, profiled
        self.seen = 0
        self.began_s: float | None = None
        self.step_s: float | None = None
        self.memory: dict[str, int] = {}
        self.profiler: Any = None

    def step(self, *_: Any) -> None:
        """After each optimizer step, inside its range: the profiler must not change there."""
        self.seen += 1

    def before_step(self, *_: Any) -> None:
        """At the next step's start the last one's range has closed."""
        past = self.seen - self.skip
        if self.began_s is None and past >= 0:
            self.began_s = now_s()
        elif self.profiler is None and past >= self.timed:
            self.start()
        elif self.profiler is not None and past >= self.timed + self.profiled:
            self.finish()
            sys.stdout.flush()
            os._exit(0)

    def start(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        assert self.began_s is not None
        self.step_s = (now_s() - self.began_s) / self.timed
        self.memory = memory()
        self.first = self.seen
        self.profiler = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True)
        self.profiler.start()

    def finish(self) -> None:
        if self.profiler is None:
            return
        import torch

        torch.cuda.synchronize()
        self.profiler.stop()
        self.profiler.export_chrome_trace(str(self.out))
        about = {
            "device": torch.cuda.get_device_name(),
            "versions": versions(),
            "steps": self.seen - self.first,
            "step_s": self.step_s,
            **self.memory,
        }
        self.out.with_suffix(".about").write_text(json.dumps(about))


def now_s() -> float:
    """The time when the device has done all that it was told."""
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def memory() -> dict[str, int]:
    """Bytes of the device: the most that PyTorch had in tensors, and from the driver; and all that is in use."""
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
        "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
        "used_bytes": total - free,
    }


def versions() -> str:
    """The libraries that decide which kernels run."""
    import torch

    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return f"torch {torch.__version__.partition('+')[0]}, cuda {torch.version.cuda}, cudnn {cudnn}"


def main() -> None:
    out, skip, timed, profiled, script, *argv = sys.argv[1:]
    from torch.optim import optimizer

    recording = Recording(Path(out), int(skip), int(timed), int(profiled))
    optimizer.register_optimizer_step_pre_hook(recording.before_step)
    optimizer.register_optimizer_step_post_hook(recording.step)
    sys.argv = [script, *argv]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    recording.finish()


if __name__ == "__main__":
    main()
