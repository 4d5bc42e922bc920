"""Properties of operations for passes and the layout, as flags that each op declares."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """Properties of an operation; attributes are those of its normalized nodes."""

    NONE = 0
    READS_SHAPES = enum.auto()
    """Its results depend only on the shapes of its inputs, not on their data."""
    SAME_DATA = enum.auto()
    """For a constant it returns the constant's own data: folding creates nothing new."""
    SUMS_PRODUCTS = enum.auto()
    """It computes sums of products, in which the sign of a zero does not matter."""
    CONVEX = enum.auto()
    """Each element of its result is a convex combination of elements of an input (one of them, or a
    weighted mean), or a constant: if these are small, so is the result.
    """
    RESIZES = enum.auto()
    """With one input, of the shape of its result, it is the identity, except for the shifts and
    strides in its `CopyAttributes`.
    """
    HOLDS_INPUTS = enum.auto()
    """It needs no kernel if its inputs can be stored in its result, unless it has an epilogue."""
    LIES_IN_INPUT = enum.auto()
    """It needs no kernel if its result can be a view of its input."""
    UPDATES_INPUT = enum.auto()
    """Its result is its first input with a part replaced: stored there, it needs to write no more
    than this part.
    """
    WINDOWED = enum.auto()
    """It reads an image, its first input, through `attributes.window`, which passes may enlarge."""
    WEIGHTED = enum.auto()
    """It has `attributes.weights` and `attributes.bias`, and is linear in its input."""
    TRANSPOSED = enum.auto()
    """Its window moves over the result: pixels beyond the input count as zero."""
    CONTRACTION = enum.auto()
    """Its attributes are `ConvAttributes`: over all channels of a group, weights [O, H, W, I]."""
    READS_BITS = enum.auto()
    """It reads or makes the bits of numbers: none of its floats may be rounded."""
