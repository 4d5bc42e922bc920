"""A name for all that a compiled partition depends on, its weights included."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu import host_cpu
from litegpu.backends.base import DeviceInfo
from litegpu.graph import Graph

_CHUNK = 1 << 20
"""Bytes that are hashed at a time, each such piece on any core."""
_MOST_THREADS = 16
_LIBC = "CS_GNU_LIBC_VERSION"
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
"""Types whose `repr` tells all of a value."""
_MACHINE = ("index", "pci_address")
"""Facts of a device that another of the same kind has otherwise."""


def fingerprint(*parts: object) -> bytes:
    """Return 32 bytes that differ where any part does.

    Parts are plain values, enums, dataclasses, mappings in their order, sequences and arrays.
    Raises TypeError for others.

    >>> fingerprint("a", 1) == fingerprint("a", 2)
    False
    """
    arrays: list[npt.NDArray[Any]] = []
    text = repr([_described(part, arrays) for part in parts])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass") + _digests(arrays)).digest()


def device_facts(info: DeviceInfo) -> dict[str, Any]:
    """Return what a device is, whichever of several it is on whichever machine."""
    return {name: fact for name, fact in info.to_dict().items() if name not in _MACHINE}


def host_facts() -> tuple[str, ...]:
    """Return what decides about constants that the host works out: its C library and NumPy.

    >>> len(host_facts())
    4
    """
    names = getattr(os, "confstr_names", {})
    libc = os.confstr(_LIBC) if _LIBC in names else platform.release()
    return (platform.machine(), str(libc), np.__version__, host_cpu.other_rounding())


def graph_facts(graph: Graph) -> tuple[object, ...]:
    """Return all of a graph that a compiled partition depends on."""
    values = [value for _, value in sorted(graph.values.items())]
    return (values, graph.nodes, graph.inputs, graph.outputs)


def checksum(data: memoryview) -> bytes:
    """Return 32 bytes that differ where the data do: hashed on all cores.

    It is the SHA-256 of the SHA-256 of each MiB.
    """
    return hashlib.sha256(b"".join(_hashed(_pieces(data)))).digest()


def _described(value: object, arrays: list[npt.NDArray[Any]]) -> object:
    """Return what has a `repr` of its own for each value; arrays are set aside."""
    if isinstance(value, enum.Enum):
        return (type(value).__name__, value.name)
    if value is None or isinstance(value, str | int | float | bytes):
        return value
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return ("array", value.dtype.str, value.shape)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return (type(value).__name__, [_described(field, arrays) for field in fields])
    if isinstance(value, Mapping):
        return {str(name): _described(item, arrays) for name, item in value.items()}
    if isinstance(value, tuple | list):
        if _PLAIN.issuperset(map(type, value)):
            return value  # thousands of scales, say
        return [_described(item, arrays) for item in value]
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    raise TypeError(f"{type(value).__name__} is no part of a fingerprint")


def _digests(arrays: Iterable[npt.NDArray[Any]]) -> bytes:
    """Return the digests of arrays, in order."""
    views = [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays]
    small = hashlib.sha256()
    for view in views:
        if len(view) < _CHUNK:
            small.update(view)
    large = [piece for view in views if len(view) >= _CHUNK for piece in _pieces(view)]
    return small.digest() + b"".join(_hashed(large))


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]


def _hashed(pieces: Iterable[memoryview]) -> Iterator[bytes]:
    """Yield the digest of each piece; hashlib lets other threads run meanwhile."""
    with ThreadPoolExecutor(_threads()) as pool:
        yield from pool.map(lambda piece: hashlib.sha256(piece).digest(), pieces)


@cache
def _threads() -> int:
    return min(os.cpu_count() or 1, _MOST_THREADS)
