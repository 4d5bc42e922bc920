"""Whether the rows of a batch are computed each by itself: what may be cut and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from litegpu.errors import CompiledModelError

if TYPE_CHECKING:
    from litegpu.compiled_model.model import CompiledModel


def check_outputs(model: CompiledModel, rows: int) -> None:
    """Raise CompiledModelError unless each output of the first signature has so many rows."""
    for tensor in model.signature.outputs:
        if tensor.shape[:1] != (rows,):
            raise CompiledModelError(
                f"The output '{tensor.key}' has the shape {[*tensor.shape]} for a batch of "
                f"{rows}: its rows are not those of the inputs. Run the model by itself."
            )


def check_independent(model: CompiledModel) -> None:
    """Raise CompiledModelError unless the last row of a batch is the same beside other rows."""
    random = np.random.default_rng(0)
    tensors = model.signature.inputs
    every = [random.integers(0, 2, tensor.shape).astype(tensor.dtype) for tensor in tensors]
    last = [array.copy() for array in every]
    for array in last:
        array[:-1] = 0
    found = [
        [*results.values()] if isinstance(results, dict) else [results]
        for results in (model(*every), model(*last))
    ]
    for tensor, one, other in zip(model.signature.outputs, *found, strict=True):
        if not np.array_equal(one[-1:], other[-1:], equal_nan=one.dtype.kind == "f"):
            raise CompiledModelError(
                f"The output '{tensor.key}' of a row depends on the other rows of its batch. Run "
                "the model by itself."
            )
