"""A name for all that a compiled partition depends on, its weights included."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import marshal
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import DeviceInfo
from litegpu.graph import Graph
from litegpu.host import cpu_features as host_cpu

_CHUNK = 1 << 20
"""Bytes that are hashed at a time, each such piece on any core."""
_MOST_THREADS = 16
_LIBC = "CS_GNU_LIBC_VERSION"
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
"""Types whose values `marshal` writes whole; it takes no others, subclasses of these neither."""
_BY_VALUE = 2
"""The last version of `marshal`'s form that tells nothing of which objects are one."""
_MACHINE = ("index", "pci_address", "memory_bytes", "max_allocation_bytes")
"""Facts of a device that another of the same kind has otherwise, or itself at another time.

In a container, PoCL tells as much memory as is left. No program depends on it: one that has no room
is refused, also when it is loaded.
"""


class Fingerprint:
    """What names some parts: plain values, enums, dataclasses, mappings, sequences and arrays.

    Raises TypeError for others. Mappings are named in their order.
    """

    def __init__(self, *parts: object) -> None:
        self._arrays: list[npt.NDArray[Any]] = []
        self._plain = marshal.dumps([_plain(part, self._arrays) for part in parts], _BY_VALUE)

    def outline(self) -> bytes:
        """Return 32 bytes that differ where any part does, the elements of arrays apart."""
        return hashlib.sha256(self._plain).digest()

    def whole(self) -> bytes:
        """Return 32 bytes that differ where any part does: a MiB of arrays takes about 0.6 ms."""
        return hashlib.sha256(self._plain + _digests(self._arrays)).digest()


def fingerprint(*parts: object) -> bytes:
    """Return 32 bytes that differ where any part does, see `Fingerprint`.

    >>> fingerprint("a", 1) == fingerprint("a", 2)
    False
    """
    return Fingerprint(*parts).whole()


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


def checksum(*sections: bytes | memoryview) -> bytes:
    """Return 32 bytes that differ where the data do, one section behind the other.

    It is the SHA-256 of the SHA-256 of each MiB, which all cores hash.
    """
    return hashlib.sha256(b"".join(_hashed([*_chunks(sections)]))).digest()


def _chunks(sections: Iterable[bytes | memoryview]) -> Iterator[list[memoryview]]:
    """Yield the pieces of each MiB of sections that lie one behind the other."""
    chunk, room = list[memoryview](), _CHUNK
    for section in sections:
        rest = memoryview(section)
        while rest:
            piece, rest = rest[:room], rest[room:]
            chunk.append(piece)
            room -= len(piece)
            if not room:
                yield chunk
                chunk, room = [], _CHUNK
    if chunk:
        yield chunk


def _plain(value: object, arrays: list[npt.NDArray[Any]]) -> object:
    """Return what `marshal` writes alike for equal values only; arrays are set aside."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        items: Iterable[object] = value  # type: ignore[assignment]
        if _PLAIN.issuperset(map(type, items)):
            return value  # thousands of scales, say
        return [_plain(item, arrays) for item in items]
    if isinstance(value, np.ndarray):
        arrays.append(value)
        return ("array", value.dtype.str, value.shape)
    if isinstance(value, enum.Enum):
        return (kind.__name__, value.name)
    if isinstance(value, str | int | float | bytes):
        return (kind.__name__, repr(value))
    if dataclasses.is_dataclass(kind):
        name, fields = _fields(kind)
        return (name, [_plain(getattr(value, field), arrays) for field in fields])
    if isinstance(value, Mapping):
        return {str(name): _plain(item, arrays) for name, item in value.items()}
    if isinstance(value, tuple | list):
        return (kind.__name__, [_plain(item, arrays) for item in value])
    if isinstance(value, frozenset | set):
        return sorted(map(repr, value))
    raise TypeError(f"{kind.__name__} is no part of a fingerprint")


@cache
def _fields(kind: type[Any]) -> tuple[str, tuple[str, ...]]:
    """Return the names of a dataclass and of its fields."""
    return kind.__name__, tuple(field.name for field in dataclasses.fields(kind))


def _digests(arrays: Iterable[npt.NDArray[Any]]) -> bytes:
    """Return the digests of arrays, in order."""
    small: list[list[memoryview]] = [[]]
    large: list[list[memoryview]] = []
    room = _CHUNK
    for array in arrays:
        view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        if len(view) >= _CHUNK:
            large += [[piece] for piece in _pieces(view)]
        else:
            if len(view) > room:
                small.append([])
                room = _CHUNK
            small[-1].append(view)
            room -= len(view)
    return b"".join(_hashed((*small, *large)))


def _pieces(data: memoryview) -> Iterator[memoryview]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]


def _hashed(batches: Sequence[Iterable[memoryview]]) -> Iterator[bytes]:
    """Yield the digest of each batch of pieces; hashlib lets other threads run meanwhile."""
    if len(batches) < 2:
        yield from map(_digest, batches)
    else:
        with ThreadPoolExecutor(min(_threads(), len(batches))) as pool:
            yield from pool.map(_digest, batches)


def _digest(pieces: Iterable[memoryview]) -> bytes:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.digest()


@cache
def _threads() -> int:
    return min(os.cpu_count() or 1, _MOST_THREADS)
