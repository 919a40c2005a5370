"""The small training that tells how fast this machine is, beside virtual devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_it_never_counts_devices(emulate: Callable[..., Any]) -> None:
    """As optimizers do each step, and in some versions of PyTorch several times, each with a start of NVML."""
    run = emulate(
        """
        import threading, time
        from pathlib import Path
        import torch
        from maya.launch import pace
        counted = []
        def count(frame, event, argument):
            if event == "call" and frame.f_code.co_name in ("step", "_raw_device_count_nvml"):
                counted.append(frame.f_code.co_name)
        assert torch.cuda.is_available()
        threading.setprofile(count)
        measured = Path("measured")
        threading.Thread(target=pace.main, args=(measured, [0]), daemon=True).start()
        while not measured.exists() or not measured.read_text():
            time.sleep(0.01)
        result = {name: name in counted for name in ("step", "_raw_device_count_nvml")}
        """
    )
    assert run.result == {"step": True, "_raw_device_count_nvml": False}
