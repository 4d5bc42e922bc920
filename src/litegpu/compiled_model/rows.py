"""Checks that the rows of a batch are independent, so that batches can be split and joined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from litegpu.compiled_model.signatures import Signature
from litegpu.errors import CompiledModelError


def check_outputs(signature: Signature, rows: int) -> None:
    """Raise CompiledModelError unless each output of a signature has `rows` rows."""
    for tensor in signature.outputs:
        if tensor.shape[:1] != (rows,):
            raise CompiledModelError(
                f"The output '{tensor.key}' has the shape {[*tensor.shape]} for a batch of "
                f"{rows}: its first dimension is not that of the inputs. Run the model without "
                "batching."
            )


def check_independent(signature: Signature, run: Callable[..., Any]) -> None:
    """Raise CompiledModelError if the last row of a batch depends on the other rows.

    `run` calls the model with an array for each input, and returns an array or a dict of them.
    """
    random = np.random.default_rng(0)
    tensors = signature.inputs
    every = [random.integers(0, 2, tensor.shape).astype(tensor.dtype) for tensor in tensors]
    last = [array.copy() for array in every]
    for array in last:
        array[:-1] = 0
    found = [
        [*results.values()] if isinstance(results, dict) else [results]
        for results in (run(*every), run(*last))
    ]
    for tensor, one, other in zip(signature.outputs, *found, strict=True):
        if not np.array_equal(one[-1:], other[-1:], equal_nan=one.dtype.kind == "f"):
            raise CompiledModelError(
                f"The output '{tensor.key}' of a row depends on the other rows of its batch. Run "
                "the model without batching."
            )
