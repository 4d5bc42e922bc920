"""Flags that ops declare for graph passes and the layout."""

from __future__ import annotations

import enum


class Trait(enum.Flag):
    """Flags of ops; the attributes that they mention are attributes of normalized nodes."""

    NONE = 0
    READS_SHAPES = enum.auto()
    """The op's results depend only on the shapes of its inputs, not on their data."""
    SAME_DATA = enum.auto()
    """Folding the op returns the constant input's data without a copy, so folding allocates
    nothing.
    """
    SUMS_PRODUCTS = enum.auto()
    """The op computes sums of products, so the sign of a zero result does not matter."""
    CONVEX = enum.auto()
    """Result elements are constants, input elements, or weighted means of input elements, so small
    inputs give small results.
    """
    RESIZES = enum.auto()
    """The op is the identity for a single input of the result's shape, except for shifts and
    strides in its `CopyAttributes`.
    """
    HOLDS_INPUTS = enum.auto()
    """The op needs no kernel if its inputs can be stored within its result, unless it has an
    epilogue.
    """
    VIEWS_INPUT = enum.auto()
    """The op needs no kernel if its result can be a view of its input."""
    UPDATES_INPUT = enum.auto()
    """The op replaces a part of its first input: if input and result share memory, the kernel
    writes only this part.
    """
    WINDOWED = enum.auto()
    """The op reads its first input, an image, through `attributes.window`, which passes may
    enlarge.
    """
    WEIGHTED = enum.auto()
    """The op has `attributes.weights` and `attributes.bias`, and is linear in its input."""
    TRANSPOSED = enum.auto()
    """The op is a transposed convolution, whose window moves over the result; outside the input are
    zeros.
    """
    CONTRACTION = enum.auto()
    """The op has `ConvAttributes`: it sums over all channels of a group, with weights [O, H, W, I].
    """
    READS_BITS = enum.auto()
    """The op reads or writes the bits of floats, so none of its float tensors may be rounded."""
    COMPLEX_PAIRS = enum.auto()
    """The op reads and writes a complex tensor as a float tensor whose last axis alternates real
    and imaginary parts.
    """
