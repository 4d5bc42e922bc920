"""Rejected nodes of MediaPipe's custom operations."""

from __future__ import annotations

import struct

from cases.rejected.base import IMAGE, Rejected, computed, floats


def _pool(*changed: tuple[int, int]) -> bytes:
    fields = [1, 2, 2, 2, 2, 0]
    for place, number in changed:
        fields[place] = number
    return struct.pack("<6i", *fields)


_SENSELESS = "Its operands make no sense (ValueError: "
_CONV = (IMAGE, floats(3, 3, 3, 6))

CASES = (
    Rejected(
        "MaxPoolingWithArgmax2D",
        (IMAGE,),
        _SENSELESS + "8 bytes of options where 24 are needed).",
        outputs=2,
        custom=_pool()[:8],
    ),
    Rejected(
        "MaxPoolingWithArgmax2D",
        (IMAGE,),
        _SENSELESS + "padding is 3 in the options; 0 to 2 are known).",
        outputs=2,
        custom=_pool((0, 3)),
    ),
    Rejected(
        "MaxPoolingWithArgmax2D",
        (IMAGE,),
        "Unsupported fused activation: sign_bit",
        outputs=2,
        custom=_pool((5, 5)),
    ),
    Rejected(
        "MaxPoolingWithArgmax2D",
        (IMAGE,),
        "Expected 2 output tensor(s), but node has 1 output(s).",
        custom=_pool(),
    ),
    Rejected(
        "MaxPoolingWithArgmax2D",
        (computed(5, 4, 6),),
        "The image must have 4 dimensions, not [5, 4, 6].",
        outputs=2,
        custom=_pool(),
    ),
    Rejected(
        "MaxUnpooling2D",
        (IMAGE, IMAGE),
        "Incorrect kernel values: kernel_height = 2, kernel_width = 0",
        custom=_pool((3, 0)),
    ),
    Rejected(
        "MaxUnpooling2D",
        (IMAGE, computed(1, 5, 4, 7)),
        "Values of [1, 5, 4, 6] and places of [1, 5, 4, 7] do not belong together.",
        custom=_pool(),
    ),
    Rejected(
        "Convolution2DTransposeBias",
        (IMAGE, floats(3, 3, 3, 5)),
        "A filter of [3, 3, 3, 5] does not fit an image of [1, 5, 4, 6].",
        custom=struct.pack("<3i", 1, 2, 2),
    ),
    Rejected(
        "Convolution2DTransposeBias",
        _CONV,
        "The options ask for activation 3, which MediaPipe's CPU ignores.",
        custom=struct.pack("<4i", 1, 2, 2, 3),
    ),
    Rejected(
        "Convolution2DTransposeBias",
        _CONV,
        "Incorrect stride values: stride_height = 0, stride_width = 2",
        custom=struct.pack("<3i", 1, 2, 0),
    ),
)
