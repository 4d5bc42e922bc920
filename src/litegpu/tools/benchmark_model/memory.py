"""Current and peak host memory of this process."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    _has_peak = False
else:
    _has_peak = True

_STATUS = Path("/proc/self/status")
_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes per unit of `ru_maxrss`."""


def peak_kb() -> int | None:
    """Return the peak resident memory in KB, None if the system does not report it."""
    if not _has_peak:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT // 1024


def resident_kb() -> dict[str, int]:
    """Return the resident memory in KB by kind (VmRSS is the total); empty except on Linux."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    kinds = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
    found = (line.split() for line in lines)
    return {w[0][:-1]: int(w[1]) for w in found if len(w) == 3 and w[0][:-1] in kinds}


def resident_mb() -> float:
    """Return the resident memory in MB; the peak if the system reports only the peak, else 0."""
    return resident_kb().get("VmRSS", peak_kb() or 0) / 1024


class PeakMonitor:
    """Samples the memory periodically, in a thread, while the `with` block runs."""

    def __init__(self, interval_ms: int, look: Callable[[], float] = resident_mb) -> None:
        """Record the maximum of `look()` in MB; calls come from any thread, one at a time."""
        self._read = look
        self._interval = interval_ms / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0
        """The observed maximum in MB; 0 if the system does not report memory."""

    def __enter__(self) -> PeakMonitor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look()

    def _watch(self) -> None:
        self._look()
        while not self._stop.wait(self._interval):
            self._look()

    def _look(self) -> None:
        self.peak_mb = max(self.peak_mb, self._read())
