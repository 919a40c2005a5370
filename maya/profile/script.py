"""Runs a script under PyTorch's profiler for some optimizer steps: `python -m maya.profile.script OUT SKIP STEPS SCRIPT
[ARGS]...`.

After SKIP optimizer steps it records STEPS more, writes the profiler's trace to OUT and a line of JSON beside it (the
device, the libraries, the steps recorded), and leaves. A script that ends earlier is recorded as far as it came.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any


class Recording:
    def __init__(self, out: Path, skip: int, steps: int) -> None:
        self.out, self.skip, self.steps = out, skip, steps
        self.seen = 0
        self.profiler: Any = None

    def step(self, *_: Any) -> None:
        """After each optimizer step, inside its range: the profiler must not change there."""
        self.seen += 1

    def before_step(self, *_: Any) -> None:
        """At the next step's start the last one's range has closed."""
        if self.profiler is None and self.seen >= self.skip:
            self.start()
        elif self.profiler is not None and self.seen >= self.skip + self.steps:
            self.finish()
            sys.stdout.flush()
            os._exit(0)

    def start(self) -> None:
        import torch
        from torch.profiler import ProfilerActivity, profile

        torch.cuda.synchronize()
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
        }
        self.out.with_suffix(".about").write_text(json.dumps(about))


def versions() -> str:
    """The libraries that decide which kernels run."""
    import torch

    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return f"torch {torch.__version__.partition('+')[0]}, cuda {torch.version.cuda}, cudnn {cudnn}"


def main() -> None:
    out, skip, steps, script, *argv = sys.argv[1:]
    from torch.optim import optimizer

    recording = Recording(Path(out), int(skip), int(steps))
    optimizer.register_optimizer_step_pre_hook(recording.before_step)
    optimizer.register_optimizer_step_post_hook(recording.step)
    sys.argv = [script, *argv]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")
    recording.finish()


if __name__ == "__main__":
    main()
