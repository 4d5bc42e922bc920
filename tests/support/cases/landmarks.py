"""Cases of MediaPipe's custom operations that sample images and landmarks at computed positions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flatbuffers import flexbuffers

import mediapipe_reference as reference
from cases.base import Floats, NumpyCase, Pair, Range, Shape, Sheet
from cases.mediapipe import Outputs

_UPRIGHT = Range(-0.35, 1.2)
"""Elements of a matrix that takes some pixels into the image and others out of it."""


def _map(options: Mapping[str, Any]) -> bytes:
    return bytes(flexbuffers.Dumps(dict(options)))


@dataclass(frozen=True, kw_only=True)
class Resample(NumpyCase):
    """An image at computed positions, some of them outside."""

    image: Shape = (2, 6, 5, 4)
    size: Pair = (4, 3)
    channels: int = 2
    constant: bool = False

    def write(self, sheet: Sheet) -> None:
        """An image, its positions, one output."""
        source, where = sheet.input(self.image), Range(-2.0, self.image[2] + 1.0)
        shape = (self.image[0], *self.size, self.channels)
        warp = sheet.weights(shape, where) if self.constant else sheet.input(shape, where)
        sheet.output(*sheet.custom("Resampler", [source, warp]))

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return the image at the positions."""
        image, warp = (*inputs, *weights)
        return (reference.resample(image, warp),)


@dataclass(frozen=True, kw_only=True)
class Transform(NumpyCase):
    """An image seen through a matrix; version 1 has other options and other corners."""

    image: Shape = (1, 6, 7, 4)
    size: Pair = (5, 4)
    version: int = 2
    name_v1: bool = False
    matrix: Shape = (1, 4, 4)

    def write(self, sheet: Sheet) -> None:
        """An image, a matrix, one output."""
        operands = [sheet.input(self.image), sheet.input(self.matrix, _UPRIGHT)]
        height, width = self.size
        options: dict[str, Any] = {"output_height": height, "output_width": width}
        if self.version == 1:
            options = {"mode": "bilinear", "output_size": [height, width]}
        code = "TransformTensor" if self.name_v1 else "TransformTensorBilinear"
        result = sheet.custom(code, operands, _map(options), version=self.version)
        sheet.output(*result)

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return the transformed image."""
        image, matrix = inputs
        return (reference.transform_image(image, matrix, self.size, corners=self.version == 2),)


@dataclass(frozen=True, kw_only=True)
class MovePoints(NumpyCase):
    """Landmarks sent through a matrix; the options are those of version 1."""

    points: Shape = (1, 7, 3)
    version: int = 2
    dimensions: int = 0
    scale: float = 1.0
    matrix: Shape = (1, 4, 4)

    def write(self, sheet: Sheet) -> None:
        """Points, a matrix, one output."""
        operands = [sheet.input(self.points), sheet.input(self.matrix)]
        options = {"dimensions": self.dimensions, "scale": self.scale} if self.dimensions else {}
        custom = _map(options) if options else b""
        result = sheet.custom("TransformLandmarks", operands, custom, version=self.version)
        sheet.output(*result)

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return the moved points."""
        dimensions = self.dimensions or (self.points[-1] if self.version == 2 else 3)
        return (reference.transform_landmarks(inputs[0], inputs[1], dimensions, self.scale),)


@dataclass(frozen=True, kw_only=True)
class ToMatrix(NumpyCase):
    """The matrix to the part of a picture with some landmarks (x, y, z)."""

    points: Shape = (1, 1, 1, 21)
    version: int = 2
    name_v2: bool = False
    ends: Pair = (0, 4)
    subset: tuple[int, ...] = (0, 1, 2, 3, 5)
    target: float = 0.7
    output: Pair = (12, 16)

    def write(self, sheet: Sheet) -> None:
        """Points, one output."""
        ends = {"left_rotation_idx": self.ends[0], "right_rotation_idx": self.ends[1]}
        height, width = self.output
        options: dict[str, Any] = {
            "subset_idxs": list(self.subset),
            "target_rotation_radians": self.target,
            **{"output_height": height, "output_width": width, "scale_x": 1.5, "scale_y": 1.25},
        }
        if self.version == 1 and not self.name_v2:
            options = {
                **{"dimensions": 3, "landmarks_range": 192.0, "bbox_size_multiplier": 1.5},
                **{"input_hw": [48, 64], "output_hw": [height, width]},
                "subset": list(self.subset),
            }
        code = "Landmarks2TransformMatrix" + ("V2" if self.name_v2 else "")
        source = sheet.input(self.points, Range(0.0, 192.0))
        result = sheet.custom(code, [source], _map({**ends, **options}), version=self.version)
        sheet.output(*result)

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> Outputs:
        """Return the matrix."""
        points, ends = inputs[0], self.ends
        if self.version == 1 and not self.name_v2:
            sizes = (48, 64), self.output
            return (
                reference.landmarks_to_matrix_v1(points, self.subset, *ends, 192.0, 1.5, *sizes),
            )
        return (
            reference.landmarks_to_matrix_v2(
                points, self.subset, *ends, self.target, self.output, (1.5, 1.25)
            ),
        )


CASES: tuple[NumpyCase, ...] = (
    *(Resample(image=(1, 6, 5, c)) for c in range(1, 10)),
    Resample(size=(7, 9), channels=3),
    Resample(image=(3, 9, 12, 33), channels=5),
    Resample(constant=True),
    Resample(image=(1, 1, 1, 3)),
    *(
        Transform(image=(1, 6, 7, c), version=version, size=(5, 3 + c))
        for c in range(1, 10)
        for version in (1, 2)
    ),
    Transform(image=(1, 12, 15, 24), size=(20, 9), matrix=(1, 1, 1, 16)),
    Transform(version=1, name_v1=True, matrix=(4, 4)),
    *(MovePoints(points=(1, n, 3)) for n in range(1, 10)),
    *(MovePoints(points=(2, 5, d)) for d in (2, 3, 4, 5, 9)),
    MovePoints(points=(1, 1, 1, 21), version=1),
    MovePoints(points=(1, 1, 1, 33), version=1, dimensions=3, scale=0.25),
    MovePoints(points=(1, 1, 1, 8), version=1, dimensions=2, scale=2.0, matrix=(1, 16)),
    *(
        ToMatrix(version=version, ends=ends, subset=subset)
        for version in (1, 2)
        for ends in ((0, 4), (4, 0), (6, 2))
        for subset in ((0, 1, 2, 3, 5), (1, 6), (3, 0, 2, 4))
    ),
    *(ToMatrix(target=target, output=(7, 9)) for target in (-2.5, 0.0, 1.5)),
    ToMatrix(version=1, name_v2=True),
)
