"""Files that litegpu maps into memory, and pages of them that the process need not hold.

The system counts the pages of a mapped file that were read as memory of the process, until they are
released. Released pages are read again from the system's cache of files when they are needed.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from pathlib import Path

import numpy as np

_RELEASE = getattr(mmap, "MADV_DONTNEED", None)
"""The advice that releases pages; None on Windows."""
_mapped: dict[int, tuple[int, weakref.ref[mmap.mmap]]] = {}
"""The size and the mapping at each address."""
_changing = threading.Lock()


def map_file(path: str | os.PathLike[str]) -> memoryview:
    """Return the bytes of a file, memory-mapped unless the file is empty or cannot be mapped."""
    with Path(path).open("rb") as file:
        try:
            found = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError):
            return memoryview(file.read())
    address = _address(memoryview(found))
    with _changing:
        for start in [start for start, (_, ref) in _mapped.items() if ref() is None]:
            del _mapped[start]
        _mapped[address] = len(found), weakref.ref(found)
    return memoryview(found)


def release(data: memoryview) -> None:
    """Release the whole pages of a part of a file that `map_file` has mapped.

    The function has no effect on other memory. The bytes stay readable.
    """
    if _RELEASE is None or not _mapped or not data.nbytes:
        return
    begin = _address(data)
    with _changing:
        known = [*_mapped.items()]
    for start, (size, ref) in known:
        mapping = ref()
        if mapping is not None and start <= begin and begin + data.nbytes <= start + size:
            first = -(-(begin - start) // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (begin - start + data.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
            if first < end:
                mapping.madvise(_RELEASE, first, end - first)


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)
