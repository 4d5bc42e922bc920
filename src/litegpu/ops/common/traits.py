"""Properties of operations for passes and the layout, as flags that each op declares."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """Flags of operations; attributes are those of normalized nodes."""

    NONE = 0
    READS_SHAPES = enum.auto()
    """Its results depend only on the shapes of its inputs, not on their data."""
    SAME_DATA = enum.auto()
    """For constant inputs it returns the input's own data, so folding allocates nothing."""
    SUMS_PRODUCTS = enum.auto()
    """It computes sums of products: the sign of a zero result does not matter."""
    CONVEX = enum.auto()
    """Each element of its result is a constant or a convex combination of input elements (one of
    them, or a weighted mean): small inputs give small results.
    """
    RESIZES = enum.auto()
    """With a single input of the result's shape it is the identity, except for the shifts and
    strides in its `CopyAttributes`.
    """
    HOLDS_INPUTS = enum.auto()
    """It needs no kernel if its inputs can be stored in its result, unless it has an epilogue."""
    LIES_IN_INPUT = enum.auto()
    """It needs no kernel if its result can be a view of its input."""
    UPDATES_INPUT = enum.auto()
    """Its result is its first input with a part replaced: if both share memory, only this part is
    written.
    """
    WINDOWED = enum.auto()
    """It reads an image, its first input, through `attributes.window`, which passes may enlarge."""
    WEIGHTED = enum.auto()
    """It has `attributes.weights` and `attributes.bias`, and is linear in its input."""
    TRANSPOSED = enum.auto()
    """Its window moves over the result (transposed convolution); outside the input are zeros."""
    CONTRACTION = enum.auto()
    """It has `ConvAttributes`: it sums over all channels of a group, with weights [O, H, W, I]."""
    READS_BITS = enum.auto()
    """It reads or writes the bits of floats, so none of its floats may be rounded."""
