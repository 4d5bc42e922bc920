"""Default sets of supported attribute values, for ops that do not declare any."""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.ops.base import Op, Values, one_of
from litegpu.ops.common.checks import FUSED_ACTIVATIONS

_POSITIVE = Values(least=1, wrong=(0, -1))
_AXIS = Values(about="-rank to rank - 1", wrong=(7, -8))
_COUNT = Values(about="how many there are")
_UNREAD = Values(about="any: it is about quantized tensors")

USUAL: Mapping[str, Values] = {
    "activation": one_of(*FUSED_ACTIVATIONS, wrong=("sign_bit", 99)),
    "asymmetric_quantize_inputs": _UNREAD,
    "axis": _AXIS,
    "batch_dims": Values(about="-rank of the indices to their rank"),
    "block_size": Values(least=1, wrong=(0, -2)),
    "cell_clip": Values(least=0, wrong=(-1.0,)),
    "depth_multiplier": Values(about="any: the op derives it from the shapes"),
    "diagonal_recurrent_tensors": one_of(False, wrong=(True,)),
    "dilation_depth_factor": _POSITIVE,
    "dilation_height_factor": _POSITIVE,
    "dilation_width_factor": _POSITIVE,
    "ellipsis_mask": Values(about="one bit at most"),
    "filter_height": _POSITIVE,
    "filter_width": _POSITIVE,
    "in_data_type": Values(about="the type of the input"),
    "mode": one_of("reflect", "symmetric", wrong=("unknown", 7)),
    "num": Values(about="the size of the axis", wrong=(99,)),
    "num_dimensions": _COUNT,
    "num_splits": Values(about="a divisor of the axis", wrong=(99,)),
    "num_squeeze_dims": _COUNT,
    "out_data_type": Values(about="the type of the output"),
    "output_type": Values(about="the type of the output", wrong=(1,)),
    "padding": one_of("same", "valid", wrong=("unknown", 9)),
    "pot_scale_int16": _UNREAD,
    "proj_clip": Values(least=0, wrong=(-1.0,)),
    "quantized_bias_type": _UNREAD,
    "shape": Values(about="as many elements as the input has; one size may be -1"),
    "squeeze_dims": Values(about="dimensions of size 1, or none for all of them"),
    "stride_depth": _POSITIVE,
    "stride_height": _POSITIVE,
    "stride_width": _POSITIVE,
    "values_count": Values(about="the number of inputs", wrong=(99,)),
    "weights_format": one_of(0, wrong=(1,)),
}


def values(op: Op, name: str) -> Values:
    """Return the supported values of an attribute of `op`, as shown in docs/ops.md."""
    return op.accepts.get(name) or USUAL.get(name) or Values()
