"""Converts model outputs to columns of an Arrow table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.tools.batch.arrays import real_numbers
from litegpu.tools.engines import Arrays, BatchPlan, Tensor

NAME, ERROR = "name", "error"
_KINDS = "fiub"
_FIRST_WITH_MISSING_TENSORS = 26
"""The first version of pyarrow that supports missing values in tensor columns."""


class OutputColumns:
    """The table columns of the model's outputs.

    An output with a fixed shape is a column of tensors (Arrow's extension type
    `arrow.fixed_shape_tensor`), or of lists if pyarrow is too old. A scalar output is a column of
    numbers. An output with a dynamic shape is a column of lists, and the column NAME_shape has the
    shapes. The metadata of a column contain the tensor's name, shape, type and quantization as
    JSON, under the key `litegpu`.
    """

    def __init__(
        self, plan: BatchPlan, names: Sequence[str], reserved: Iterable[str], real: bool
    ) -> None:
        """Set the names of the outputs; with `real`, quantized outputs are dequantized.

        Raises:
            ModelError: a table cannot have an output's type.
        """
        self._tensors, self._real = plan.outputs, real
        used = {NAME, ERROR, *reserved}
        self._names = [_free(name, used) for name in names]
        for tensor in self._tensors:
            if tensor.dtype.kind not in _KINDS:
                raise ModelError(
                    f"The output '{tensor.name}' has the type {tensor.dtype}, which Parquet does "
                    "not have. Use a model with outputs of numbers."
                )

    @property
    def row_bytes(self) -> int:
        """Approximate number of bytes per row."""
        return sum(tensor.nbytes for tensor in self._tensors) + 64

    def fields(self) -> list[Any]:
        """Return the fields of the table's schema."""
        import pyarrow as pa

        found = []
        for name, tensor in zip(self._names, self._tensors, strict=True):
            kind = pa.from_numpy_dtype(self._dtype(tensor))
            about = {b"litegpu": json.dumps(_about(tensor, self._real)).encode()}
            if tensor.dynamic:
                found.append(pa.field(name, pa.list_(kind), metadata=about))
                found.append(pa.field(f"{name}_shape", pa.list_(pa.int32())))
            else:
                found.append(pa.field(name, _typed(kind, tensor), metadata=about))
        return found

    def arrays(self, rows: Sequence[Arrays | None]) -> list[Any]:
        """Return the columns of rows; None means a row without outputs."""
        found: list[Any] = []
        for index, tensor in enumerate(self._tensors):
            values = [None if row is None else self._stored(row[index], tensor) for row in rows]
            found += _lists(values) if tensor.dynamic else [self._column(values, tensor)]
        return found

    def _dtype(self, tensor: Tensor) -> np.dtype[Any]:
        return np.dtype(np.float32) if self._real and tensor.quantization[0] else tensor.dtype

    def _stored(self, values: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
        return real_numbers(values, tensor) if self._real else np.asarray(values)

    def _column(self, values: list[NDArray[Any] | None], tensor: Tensor) -> Any:
        import pyarrow as pa

        absent = np.array([value is None for value in values], np.bool_)
        if _is_tensor(tensor) and not _holds_missing_tensors():
            flat = [None if value is None else value.reshape(-1) for value in values]
            return pa.array(flat, pa.list_(pa.from_numpy_dtype(self._dtype(tensor))))
        dense = np.zeros((len(values), *tensor.shape), self._dtype(tensor))
        for row, value in enumerate(values):
            if value is not None:
                dense[row] = value
        if not _is_tensor(tensor):
            return pa.array(dense, mask=absent)
        size = int(np.prod(tensor.shape))
        mask = pa.array(absent) if absent.any() else None
        storage = pa.FixedSizeListArray.from_arrays(pa.array(dense.reshape(-1)), size, mask=mask)
        kind = pa.fixed_shape_tensor(storage.type.value_type, tensor.shape)
        return pa.ExtensionArray.from_storage(kind, storage)


def output_names(interpreter: Any) -> list[str]:
    """Return the names of the outputs, from a signature that has all outputs if possible."""
    details = interpreter.get_output_details()
    for key in interpreter.get_signature_list():
        named = interpreter.get_signature_runner(key).get_output_details()
        by_tensor = {detail["name"]: name for name, detail in named.items()}
        if by_tensor.keys() >= {each["name"] for each in details}:
            return [by_tensor[each["name"]] for each in details]
    return [each["name"].removesuffix(":0") for each in details]


def _typed(kind: Any, tensor: Tensor) -> Any:
    """Return the Arrow type of the column of an output with a fixed shape and a numeric type."""
    import pyarrow as pa

    if not _is_tensor(tensor):
        return kind
    if not _holds_missing_tensors():
        return pa.list_(kind)
    return pa.fixed_shape_tensor(kind, tensor.shape)


def _holds_missing_tensors() -> bool:
    """Whether pyarrow can write and read missing tensors, for rows of failed samples."""
    import pyarrow as pa

    return int(pa.__version__.split(".")[0]) >= _FIRST_WITH_MISSING_TENSORS


def _is_tensor(tensor: Tensor) -> bool:
    return len(tensor.shape) > 0 and min(tensor.shape) > 0


def _free(name: str, used: set[str]) -> str:
    """Return an unused name: `name`, or `name` followed by a number."""
    candidates = (name or "output", *(f"{name}_{number}" for number in range(1, len(used) + 2)))
    free = next(each for each in candidates if each not in used)
    used.add(free)
    return free


def _lists(values: list[NDArray[Any] | None]) -> list[Any]:
    import pyarrow as pa

    shapes = [None if value is None else list(value.shape) for value in values]
    flat = [None if value is None else value.reshape(-1) for value in values]
    return [pa.array(flat), pa.array(shapes, pa.list_(pa.int32()))]


def _about(tensor: Tensor, real: bool) -> dict[str, Any]:
    scale, zero_point = tensor.quantization
    quantized = scale and not real
    return {
        "tensor": tensor.name,
        "shape": None if tensor.dynamic else list(tensor.shape),
        "dtype": str(tensor.dtype),
        "quantization": {"scale": scale, "zero_point": zero_point} if quantized else None,
    }
