"""What a step of training takes, measured by the process that takes it. Needs nothing but torch."""

from __future__ import annotations

import time
from pathlib import Path

import torch


class Meter:
    """Seconds and peak memory of steps; made after everything is imported, before any weight.

    On a CPU seconds are those of the process on its one thread, so that others on the machine
    change little, and memory is resident memory above that of the libraries. On a GPU both are the
    GPU's.
    """

    def __init__(self) -> None:
        self._cuda = torch.cuda.is_available()
        self._base = 0 if self._cuda else _status("VmRSS")
        self._began = 0.0
        self._seconds: list[float] = []
        self._peaks: list[int] = []

    def begin(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            self._began = time.perf_counter()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self._began = time.process_time()

    def end(self) -> None:
        if self._cuda:
            torch.cuda.synchronize()
            self._seconds.append(time.perf_counter() - self._began)
            self._peaks.append(torch.cuda.max_memory_allocated())
        else:
            self._seconds.append(time.process_time() - self._began)
            self._peaks.append(_status("VmHWM") - self._base)

    def report(self) -> dict[str, float]:
        """Of all steps but the first, which makes the optimizer's state."""
        seconds, peaks = self._seconds[1:], self._peaks[1:]
        return {"seconds": sum(seconds) / len(seconds), "peak_mb": max(peaks) / 1e6}


def _status(name: str) -> int:
    """Bytes, by the kernel's word."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ValueError(name)
