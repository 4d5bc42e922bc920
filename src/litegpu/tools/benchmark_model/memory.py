"""Memory of this process on the host: now, and the most so far."""

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
"""Bytes in a unit of `ru_maxrss`."""


def peak_kb() -> int | None:
    """Return the most KB that were resident at once, None where the system does not tell."""
    if not _has_peak:
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT // 1024


def resident_kb() -> dict[str, int]:
    """Return the KB that are resident now by kind (VmRSS is all); empty except on Linux."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    kinds = ("VmRSS", "RssAnon", "RssFile", "RssShmem")
    found = (line.split() for line in lines)
    return {w[0][:-1]: int(w[1]) for w in found if len(w) == 3 and w[0][:-1] in kinds}


def resident_mb() -> float:
    """Return the MB that are resident now, the most so far where only that is told, or 0."""
    return resident_kb().get("VmRSS", peak_kb() or 0) / 1024


class PeakMonitor:
    """Looks at the memory every so often, in a thread, while the `with` block runs."""

    def __init__(self, interval_ms: int, look: Callable[[], float] = resident_mb) -> None:
        """Keep the most of what `look` returns, in MB; any thread calls it, one at a time."""
        self._read = look
        self._interval = interval_ms / 1000
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_mb = 0.0
        """The most that was seen, in MB; 0 where the system does not tell."""

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
