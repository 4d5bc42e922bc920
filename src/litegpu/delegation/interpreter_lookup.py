"""Finds the kernels of one interpreter, because one delegate may serve several interpreters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.errors import InterpreterError
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.reader import tensor_at


def kernels_of(
    interpreter: Any, delegate: object, kernels: Iterable[PartitionKernel], call: str
) -> list[PartitionKernel]:
    """Return the delegate's kernels that belong to an interpreter.

    Runtimes do not expose an interpreter's context, so the function compares the addresses of
    inputs and outputs. `call` is the name of the calling method. Raises InterpreterError if the
    interpreter does not use the delegate, and if several interpreters have no tensor memory yet.
    """
    _check_uses(interpreter, delegate, call)
    kernels, places = [kernel for kernel in kernels if kernel.home], _places(interpreter)
    homes = {kernel.home for kernel in kernels if _tensors_match(kernel.home, places)}
    if len(homes) > 1:
        raise InterpreterError(
            f"{len(homes)} interpreters use this delegate, and none of them has allocated its "
            "tensors, so they cannot be distinguished. Call allocate_tensors() of this "
            "interpreter first."
        )
    return [kernel for kernel in kernels if kernel.home in homes]


def _check_uses(interpreter: Any, delegate: object, call: str) -> None:
    """Raise InterpreterError unless the interpreter was created with the delegate.

    `call` is the name of the calling method.
    """
    if not callable(getattr(interpreter, "invoke", None)):
        raise InterpreterError(
            f"{call} takes the interpreter that this delegate was given to, not {interpreter!r}."
        )
    given = getattr(interpreter, "_delegates", None)  # every runtime has this attribute
    if given is not None and not any(each is delegate for each in given):
        raise InterpreterError(
            f"This interpreter was created without this delegate. Give {call} an interpreter with "
            "the delegate in experimental_delegates."
        )


def _places(interpreter: Any) -> Mapping[int, int]:
    """Return the addresses of all inputs and outputs that are not empty; 0 if not allocated.

    The function omits tensors of rank 0, because the runtime returns copies of them.
    """
    found = {}
    for detail in (*interpreter.get_input_details(), *interpreter.get_output_details()):
        if np.dtype(detail["dtype"]).kind in "biufc" and all(
            (*detail["shape"], len(detail["shape"]))
        ):
            try:
                found[detail["index"]] = interpreter.tensor(detail["index"])().ctypes.data
            except ValueError:  # the runtime raises it for a tensor without data
                found[detail["index"]] = 0
    return found


def _tensors_match(context: int, places: Mapping[int, int]) -> bool:
    struct = structs.TfLiteContext.from_address(context)
    tensors, count = struct.tensors or 0, struct.tensors_size
    return all(
        v < count and (tensor_at(tensors, v).data or 0) == address for v, address in places.items()
    )
