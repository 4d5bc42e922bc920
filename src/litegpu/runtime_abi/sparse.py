"""Expands sparse constants, whose elements are packed, to dense arrays."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.runtime_abi.structs import (
    TfLiteDimensionMetadata,
    TfLiteSparsity,
    int_array,
    int_array_view,
)

_Ints = npt.NDArray[np.int64]
_SPARSE = 1
"""The format of a dimension that stores only some entries."""
_METADATA_SIZE = ctypes.sizeof(TfLiteDimensionMetadata)


@dataclass(frozen=True, slots=True)
class Level:
    """One dimension, in storage order, which stores all `size` entries or only some of them.

    Entry i of the previous level has the stored entries segments[i] up to segments[i + 1];
    `indices` contains the positions of stored entries.
    """

    size: int
    segments: _Ints | None = None
    indices: _Ints | None = None


@dataclass(frozen=True, slots=True)
class Sparsity:
    """The order in which a sparse tensor's elements are stored.

    `order` contains the dimension of each level. The dimensions in `blocked` are divided into
    blocks; numbers from the rank on are dimensions inside blocks.
    """

    order: tuple[int, ...]
    blocked: tuple[int, ...]
    levels: tuple[Level, ...]


def read_sparsity(address: int) -> Sparsity:
    """Read the sparsity of a tensor from the struct at an address."""
    struct = TfLiteSparsity.from_address(address)
    levels = []
    for number in range(max(struct.dim_metadata_size, 0)):
        at = (struct.dim_metadata or 0) + number * _METADATA_SIZE
        metadata = TfLiteDimensionMetadata.from_address(at)
        if metadata.format == _SPARSE:
            segments, indices = map(_integers, (metadata.array_segments, metadata.array_indices))
            levels.append(Level(0, segments, indices))
        else:
            levels.append(Level(metadata.dense_size))
    return Sparsity(int_array(struct.traversal_order), int_array(struct.block_map), tuple(levels))


def _integers(address: int | None) -> _Ints:
    return np.array(int_array_view(address), np.int64)


def densify(
    stored: npt.NDArray[Any], shape: Sequence[int], sparsity: Sparsity
) -> npt.NDArray[Any] | None:
    """Return the dense array, with zeros for missing elements; None for an invalid description."""
    if any(size < 0 for size in shape):
        return None
    offsets = _offsets(shape, sparsity, len(stored))
    if offsets is None or len(offsets) > len(stored):
        return None
    dense = np.zeros(math.prod(shape), stored.dtype)
    dense[offsets] = stored[: len(offsets)]
    return dense.reshape(shape)


def _offsets(shape: Sequence[int], sparsity: Sparsity, stored: int) -> _Ints | None:
    """Return the position of each stored element in the flat array; there are at most `stored`."""
    rank, order, blocked = len(shape), sparsity.order, sparsity.blocked
    known = sorted(order) == list(range(rank + len(blocked))) and len(order) == len(sparsity.levels)
    # The CPU's own kernel reads blocks in another order incorrectly.
    if not known or list(blocked) != sorted(set(blocked) & set(range(rank))):
        return None
    # Levels before the last may have more entries than are stored, but each has a segment.
    segments = (len(e.segments) for e in sparsity.levels if e.segments is not None)
    most = max(stored, *segments, 1)
    entries: _Ints = np.zeros(1, np.int64)
    found: dict[int, _Ints] = {}
    for dim, level in zip(order, sparsity.levels, strict=True):
        entered = _enter(entries, level, most)
        if entered is None:
            return None
        parents, entries, coordinates = entered
        found = {before: struct[parents] for before, struct in found.items()} | {dim: coordinates}
    for number, dim in enumerate(blocked):
        size = sparsity.levels[order.index(rank + number)].size
        found[dim] = found[dim] * size + found[rank + number]
    if any(np.any((found[dim] < 0) | (found[dim] >= shape[dim])) for dim in range(rank)):
        return None
    flat = np.zeros_like(entries)
    for dim in range(rank):
        flat = flat * shape[dim] + found[dim]
    return flat


def _enter(entries: _Ints, level: Level, most: int) -> tuple[_Ints, _Ints, _Ints] | None:
    """Return the previous level's entry, the number and the position of each entry of a level.

    Returns None if the description is invalid, or if the level has more than `most` entries.
    """
    if level.segments is None or level.indices is None:
        size = max(level.size, 0)
        if len(entries) * size > most:
            return None
        parents = np.repeat(np.arange(len(entries)), size)
        coordinates = np.tile(np.arange(size), len(entries))
        return parents, entries[parents] * size + coordinates, coordinates
    segments, indices = level.segments, level.indices
    if len(entries) and entries.max() + 1 >= len(segments):
        return None
    starts, counts = segments[entries], segments[entries + 1] - segments[entries]
    if np.any(counts < 0) or counts.sum() > most:
        return None
    parents = np.repeat(np.arange(len(entries)), counts)
    numbers = np.arange(len(parents)) + np.repeat(starts - np.cumsum(counts) + counts, counts)
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < len(indices)):
        return None
    return parents, numbers, indices[numbers]
