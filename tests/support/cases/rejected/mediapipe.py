"""Rejected nodes of MediaPipe's custom operations."""

from __future__ import annotations

import struct
from typing import Any

from flatbuffers import flexbuffers

from cases.rejected.base import IMAGE, Rejected, Tensor, computed, floats
from litegpu.graph import DType, Quantization

_EVEN = Quantization((0.5,), (0,))


def _pool(*changed: tuple[int, int]) -> bytes:
    fields = [1, 2, 2, 2, 2, 0]
    for position, number in changed:
        fields[position] = number
    return struct.pack("<6i", *fields)


def _landmarks(reason: str, **changed: Any) -> Rejected:
    options = {
        **{"left_rotation_idx": 0, "right_rotation_idx": 1, "subset_idxs": [0, 1, 2]},
        **{"target_rotation_radians": 0.0, "output_height": 8, "output_width": 8},
        **{"scale_x": 1.0, "scale_y": 1.0},
    }
    custom = bytes(flexbuffers.Dumps({**options, **changed}))
    return Rejected("Landmarks2TransformMatrix", (computed(1, 7, 3),), reason, custom=custom)


def _transform(image: Tensor, matrix: Tensor, reason: str, **changed: Any) -> Rejected:
    options = {"output_height": 8, "output_width": 8, **changed}
    custom = bytes(flexbuffers.Dumps(options))
    return Rejected("TransformTensorBilinear", (image, matrix), reason, custom=custom)


_MATRIX = computed(1, 4, 4)
_SENSELESS = "The node's operands are invalid (ValueError: "
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
        "The values [1, 5, 4, 6] and the indices [1, 5, 4, 7] have different shapes.",
        custom=_pool(),
    ),
    Rejected(
        "Convolution2DTransposeBias",
        (IMAGE, Tensor(shape=(3, 3, 3, 6), dtype=DType.INT8, data=1, quantization=_EVEN)),
        "The filter (input 1) is INT8 instead of FLOAT16 or FLOAT32.",
        custom=struct.pack("<3i", 1, 2, 2),
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
        "The options request the activation 3, which MediaPipe's CPU kernel ignores.",
        custom=struct.pack("<4i", 1, 2, 2, 3),
    ),
    Rejected(
        "Convolution2DTransposeBias",
        _CONV,
        "Incorrect stride values: stride_height = 0, stride_width = 2",
        custom=struct.pack("<3i", 1, 2, 0),
    ),
    Rejected(
        "Resampler",
        (IMAGE, computed(2, 2)),
        "src or warp dims size != 4: [1, 5, 4, 6] and [2, 2].",
    ),
    Rejected(
        "Resampler",
        (IMAGE, computed(2, 3, 3, 2)),
        "src.b != warp.b: [1, 5, 4, 6] and [2, 3, 3, 2].",
    ),
    Rejected("Resampler", (IMAGE, computed(1, 3, 3, 1)), "warp.c < 2: [1, 3, 3, 1]."),
    _transform(
        computed(2, 5, 4, 6),
        _MATRIX,
        "The image must have 4 dimensions and a batch of 1, not [2, 5, 4, 6].",
    ),
    _transform(
        IMAGE,
        computed(3, 3),
        "The matrix has the shape [3, 3], but 16 elements are needed.",
    ),
    _transform(IMAGE, _MATRIX, "Only mode bilinear is supported, not nearest.", mode="nearest"),
    _transform(IMAGE, _MATRIX, "The output size [0, 8] must be positive.", output_height=0),
    Rejected(
        "TransformTensorBilinear",
        (IMAGE, _MATRIX),
        _SENSELESS + "0 bytes are no FlexBuffer).",
    ),
    Rejected(
        "TransformLandmarks",
        (computed(1, 7, 3), computed(3, 3)),
        "The matrix has the shape [3, 3], but 16 elements are needed.",
    ),
    Rejected(
        "TransformLandmarks",
        (computed(1, 1, 1, 7), _MATRIX),
        "The shape [1, 1, 1, 7] is not that of points with 3 dimensions.",
    ),
    _landmarks("Landmarks must have 3 dimensions, not 2.", dimensions=2),
    _landmarks("The options select no landmarks for the bounding box.", subset_idxs=[]),
    _landmarks("The options name landmark 7, but there are 7.", subset_idxs=[0, 7]),
)
