"""Writes constants with sparse encoding, as converters store pruned weights."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.zoo import schema
from litegpu.zoo.writer import ModelWriter, TensorRef

DENSE, SPARSE = 0, 1


def sparse_constant(
    writer: ModelWriter,
    data: npt.NDArray[Any],
    order: Sequence[int],
    formats: Sequence[int],
    blocks: Mapping[int, int],
) -> TensorRef:
    """Add a constant of which whole entries of the SPARSE levels are left out if they are zero.

    `order` has the dimension of each level; those from the rank on are the insides of `blocks`,
    which maps a dimension to the size that it is cut into.
    """
    sizes: list[int] = []
    outer, inside = [], {}
    for d, size in enumerate(data.shape):
        outer.append(len(sizes))
        sizes += [size // blocks[d], blocks[d]] if d in blocks else [size]
        inside[d] = len(sizes) - 1
    inner = [inside[d] for d in blocks]
    spread = data.reshape(sizes).transpose([*outer, *inner]).transpose(order)
    values, levels = _pack(spread, formats)
    ref = writer.constant(values, data.dtype)
    tensor = writer._tensors[ref.index]
    tensor.shape = list(data.shape)
    tensor.sparsity = schema.tables().SparsityParametersT()
    tensor.sparsity.traversalOrder = list(order)
    tensor.sparsity.blockMap = list(blocks)
    tensor.sparsity.dimMetadata = levels
    return ref


def _pack(spread: npt.NDArray[Any], formats: Sequence[int]) -> tuple[npt.NDArray[Any], list[Any]]:
    tables = schema.tables()
    entries, levels = [spread], []
    for size, kind in zip(spread.shape, formats, strict=True):
        level = tables.DimensionMetadataT()
        level.format = kind
        if kind == DENSE:
            level.denseSize = size
            entries = [entry[i] for entry in entries for i in range(size)]
        else:
            nonzero = [[i for i in range(size) if np.any(entry[i])] for entry in entries]
            level.arraySegmentsType = level.arrayIndicesType = tables.SparseIndexVector.Int32Vector
            level.arraySegments, level.arrayIndices = tables.Int32VectorT(), tables.Int32VectorT()
            level.arraySegments.values = [0, *itertools.accumulate(map(len, nonzero))]
            level.arrayIndices.values = [i for positions in nonzero for i in positions]
            entries = [entry[i] for entry, at in zip(entries, nonzero, strict=True) for i in at]
        levels.append(level)
    return np.asarray(entries, spread.dtype), levels
