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
    MOVES_DATA = enum.auto()
    """Each element of its result is an element of an input: it computes nothing."""
    KEEPS_SAME_SHAPE = enum.auto()
    """Where the result has the shape of its one input, it is the identity, but for a shift that
    `CopyAttributes` may tell of."""
    HOLDS_INPUTS = enum.auto()
    """It takes no kernel where its inputs can lie in its result; with a step on top it would."""
    LIES_IN_INPUT = enum.auto()
    """It takes no kernel where its result can lie in its input."""
    WINDOWED = enum.auto()
    """It reads an image, its first input, through `attributes.window`."""
    WEIGHTED = enum.auto()
    """It has `attributes.weights` and `attributes.bias`, and is linear in its input."""
    CONTRACTION = enum.auto()
    """Its attributes are `ConvAttributes`: over all channels of a group, weights [O, H, W, I]."""
