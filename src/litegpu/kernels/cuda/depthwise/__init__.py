"""Depthwise convolutions with predicated loads, for CUDA: cuda/depthwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.depthwise import DepthwisePlan, tiles_of
from litegpu.kernels.examples import DepthwiseExample
from litegpu.ops.base import Target
from litegpu.ops.common.depthwise_spec import DepthwiseSpec

_WHOLE = 1 << 22
"""Upper bound of integers that kernels can compute exactly as float32."""


class DepthwiseCuda(Implementation):
    """A kernel with predicated loads: pixels outside the image are not loaded, and are zero."""

    name = "cuda/depthwise"
    example = DepthwiseExample((16, 64, 64, 64))
    small = DepthwiseExample((1, 15, 17, 64))

    def plan(self, spec: DepthwiseSpec, target: Target) -> Plan | Rejected:
        if not target.model.tensor_cores:
            return Rejected("the architecture is older than Ampere")
        if spec.taps is None:
            return Rejected("the weights are computed")
        if spec.multiplier > 1:
            return Rejected("the depthwise convolution multiplies the number of channels")
        if not spec.src.vector:
            return Rejected("the number of input channels is not a multiple of four")
        if not np.isfinite(spec.taps).all():
            # Pixels outside the image are multiplied as zeros, too.
            return Rejected("the weights are not all finite")
        if spec.of_integers and not spec.of_bytes:
            return Rejected("the input is not 8-bit")
        if spec.of_integers and _largest_sum(spec.taps) >= _WHOLE:
            return Rejected("float32 cannot represent the sums of integers")
        tiles = tiles_of(spec, target)
        if tiles[0][0] == 1:
            return Rejected("tiles of several rows would be too few, or the kernel's code too long")
        tiles = tuple(tile for tile in tiles if tile[0] > 1)
        return DepthwisePlan(self.name, spec, tiles, spec.of_integers)


def _largest_sum(taps: npt.NDArray[Any]) -> int:
    """Return an upper bound of the magnitude of sums of taps times (byte - zero point)."""
    return 256 * int(np.abs(taps.astype(np.int64)).sum(axis=(0, 1)).max())
