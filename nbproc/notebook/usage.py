"""CPU and memory of the ranks of a run, seen from the kernel."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import psutil

log = logging.getLogger(__name__)

Sample = tuple[int, int, int | None]


class Usage:
    """Looks at a run's processes now and then; one that is gone has no sample."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        self._gpu = _Gpu()

    def sample(self, pids: Mapping[int, int]) -> dict[int, Sample]:
        """Return rank -> (CPU in percent of one core, resident bytes, GPU bytes or None) for rank -> pid.

        The CPU figure is the mean since the last call, 0 at the first. Takes about 0.1 ms a rank.
        """
        on_gpu = self._gpu.memory(pids.values()) if pids else {}
        samples: dict[int, Sample] = {}
        for rank, pid in pids.items():
            try:
                process = self._processes.get(pid)
                if process is None:
                    process = self._processes[pid] = psutil.Process(pid)
                with process.oneshot():
                    samples[rank] = round(process.cpu_percent()), process.memory_info().rss, on_gpu.get(pid)
            except psutil.Error:
                self._processes.pop(pid, None)
        for pid in self._processes.keys() - set(pids.values()):
            del self._processes[pid]
        return samples


class _Gpu:
    """GPU memory by process, where NVML answers (the `pynvml` module is optional)."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._devices: list[Any] | None = None

    def memory(self, pids: Iterable[int]) -> dict[int, int]:
        if self._devices is None:
            self._devices = self._find()
        wanted = set(pids)
        used: dict[int, int] = {}
        for device in self._devices:
            try:
                for process in self._nvml.nvmlDeviceGetComputeRunningProcesses(device):
                    if process.pid in wanted and process.usedGpuMemory:
                        used[process.pid] = used.get(process.pid, 0) + process.usedGpuMemory
            except Exception:  # NVML's errors differ by driver, and a figure less is no harm
                log.debug("NVML does not answer", exc_info=True)
                self._devices = []
                break
        return used

    def _find(self) -> list[Any]:
        try:
            self._nvml = importlib.import_module("pynvml")
            self._nvml.nvmlInit()
            return [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self._nvml.nvmlDeviceGetCount())]
        except Exception:  # no module, no driver, no device
            return []
