"""Fingerprints of all data on which a compiled partition depends, including its weights."""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import marshal
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import DeviceInfo
from litegpu.graph import Graph
from litegpu.host import cpu_features as host_cpu
from litegpu.host.large_arrays import LARGE, PIECE, ArrayFact, in_parallel

_LIBC = "CS_GNU_LIBC_VERSION"
_PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
"""The types that `marshal` writes completely; litegpu converts all other types first."""
_BY_VALUE = 2
"""The last `marshal` format in which equal values have equal bytes, regardless of identity."""
_MACHINE = ("index", "pci_address", "memory_bytes", "max_allocation_bytes")
"""Device properties that differ between devices of the same kind, or over time.

In a container, PoCL reports the free memory as the memory size. Compiled programs do not depend on
the memory size. A program that needs more memory than the device has is rejected, also when it is
loaded.
"""


class Fingerprint:
    """A hash of `parts`: plain values, enums, dataclasses, mappings, sequences and arrays.

    Raises TypeError for other types. The fingerprint depends on the order of a mapping's items. The
    digest of a large read-only array is remembered while the array exists, because partitions of a
    model, such as the signatures of a language model, read the same arrays.
    """

    def __init__(self, *parts: object) -> None:
        arrays: list[npt.NDArray[Any]] = []
        self._plain = marshal.dumps([_plain(part, arrays) for part in parts], _BY_VALUE)
        self._small = [array for array in arrays if array.nbytes < LARGE]
        self._large = [array for array in arrays if array.nbytes >= LARGE]
        self._remembered = any(map(_DIGEST.knows, self._large))

    def outline(self) -> bytes:
        """Return a 32-byte hash of all parts except the elements of arrays."""
        return hashlib.sha256(self._plain).digest()

    def whole(self) -> bytes:
        """Return a 32-byte hash of all parts, in about 0.6 ms per MiB of arrays and core."""
        return self._hash(_DIGEST.of_all(self._large))

    def holds(self) -> bool:
        """Return whether the elements of arrays are still those that `whole` has hashed.

        They may have changed if a file was overwritten that the runtime has mapped. Digests that
        `whole` computed itself are taken as true.
        """
        return not self._remembered or self.whole() == self._hash(_DIGEST.computed(self._large))

    def _hash(self, large: Sequence[bytes]) -> bytes:
        return hashlib.sha256(b"".join((self._plain, _digests(self._small), *large))).digest()


def fingerprint(*parts: object) -> bytes:
    """Return a 32-byte hash of all parts, see `Fingerprint`.

    >>> fingerprint("a", 1) == fingerprint("a", 2)
    False
    """
    return Fingerprint(*parts).whole()


def device_facts(info: DeviceInfo) -> dict[str, Any]:
    """Return the properties of a device that do not depend on its index or machine."""
    return {name: fact for name, fact in info.to_dict().items() if name not in _MACHINE}


def host_facts() -> tuple[str, ...]:
    """Return the versions of C library and NumPy, which affect constants that the host computes.

    >>> len(host_facts())
    4
    """
    names = getattr(os, "confstr_names", {})
    libc = os.confstr(_LIBC) if _LIBC in names else platform.release()
    return (platform.machine(), str(libc), np.__version__, host_cpu.other_rounding())


def graph_facts(graph: Graph) -> tuple[object, ...]:
    """Return all properties of a graph on which a compiled partition depends."""
    values = [value for _, value in sorted(graph.values.items())]
    return (values, graph.nodes, graph.inputs, graph.outputs)


def checksum(*sections: bytes | memoryview) -> bytes:
    """Return a 32-byte checksum of the data of all sections in order.

    The checksum is the SHA-256 of the SHA-256 hashes of all 1 MiB chunks, computed on all cores.
    """
    return hashlib.sha256(b"".join(in_parallel(_digest, [*_chunks(sections)]))).digest()


def _chunks(sections: Iterable[bytes | memoryview]) -> Iterator[list[memoryview]]:
    """Yield the pieces of each MiB of consecutive sections."""
    chunk, room = list[memoryview](), PIECE
    for section in sections:
        rest = memoryview(section)
        while rest:
            piece, rest = rest[:room], rest[room:]
            chunk.append(piece)
            room -= len(piece)
            if not room:
                yield chunk
                chunk, room = [], PIECE
    if chunk:
        yield chunk


def _plain(value: object, arrays: list[npt.NDArray[Any]]) -> object:
    """Return plain data without arrays, for which `marshal` output is equal only for equal data."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is tuple or kind is list:
        items: Iterable[object] = value  # type: ignore[assignment]
        if _PLAIN.issuperset(map(type, items)):
            return value  # thousands of scales, for example
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
    raise TypeError(f"{kind.__name__} cannot be a part of a fingerprint")


@cache
def _fields(kind: type[Any]) -> tuple[str, tuple[str, ...]]:
    """Return the names of a dataclass and its fields."""
    return kind.__name__, tuple(field.name for field in dataclasses.fields(kind))


def _digests(arrays: Iterable[npt.NDArray[Any]]) -> bytes:
    """Return the digests of small arrays, in order."""
    batches: list[list[memoryview]] = [[]]
    room = PIECE
    for array in arrays:
        view = _bytes_of(array)
        if len(view) > room:
            batches.append([])
            room = PIECE
        batches[-1].append(view)
        room -= len(view)
    return b"".join(in_parallel(_digest, batches))


def _bytes_of(array: npt.NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _digest(pieces: Iterable[memoryview]) -> bytes:
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.digest()


_DIGEST: ArrayFact[bytes] = ArrayFact(lambda piece: _digest([_bytes_of(piece)]), b"".join)
"""The digests of all pieces of an array."""
