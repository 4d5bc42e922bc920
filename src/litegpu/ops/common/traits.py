"""What passes and the layout ask about operations, as flags that each op states for itself."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """Properties of an operation; where attributes are named, those of its normalized nodes."""

    NONE = 0
    READS_SHAPES = enum.auto()
    """Its results follow from the shapes of its inputs, whatever these hold."""
    SAME_DATA = enum.auto()
    """Of a constant it gives the constant's own data: folding makes nothing new."""
    SUMS_PRODUCTS = enum.auto()
    """It makes sums of products, where the sign of a zero means nothing."""
    CONVEX = enum.auto()
    """Each element of its result is a convex combination of elements of an input (one of them, or a
    weighted mean), or a constant: where these are small, it is."""
    RESIZES = enum.auto()
    """With one input, of the shape of its result, it is the identity, but for shifts and strides
    that its `CopyAttributes` tell of."""
    HOLDS_INPUTS = enum.auto()
    """It takes no kernel where its inputs can lie in its result; with an epilogue it would."""
    LIES_IN_INPUT = enum.auto()
    """It takes no kernel where its result can lie in its input."""
    WINDOWED = enum.auto()
    """It reads an image, its first input, through `attributes.window`, which passes may widen."""
    WEIGHTED = enum.auto()
    """It has `attributes.weights` and `attributes.bias`, and is linear in its input."""
    TRANSPOSED = enum.auto()
    """Its window goes over the result: what lies beyond the input there counts as zero."""
    CONTRACTION = enum.auto()
    """Its attributes are `ConvAttributes`: over all channels of a group, weights [O, H, W, I]."""
