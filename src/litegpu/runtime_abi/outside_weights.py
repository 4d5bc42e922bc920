"""Constants of a model that are not in its tables: in the rest of its file, or in other files.

A table can refer to bytes after the tables (`Buffer.offset`), or to bytes of another file or
section (`ExternalBuffer`). The runtime reads the former only if it has the whole file in memory,
and the latter never. Here, the runtime gets the tables alone. A delegate that replaces no nodes
then binds the memory-mapped constants to the tensors.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.runtime_abi.callbacks import Callback
from litegpu.runtime_abi.enums import DTYPES, AllocationType, DelegateFlags, TfLiteStatus
from litegpu.runtime_abi.reader import tensor_at
from litegpu.runtime_abi.structs import DELEGATE_PREPARE, TfLiteContext, TfLiteDelegate, int_array
from litegpu.runtime_abi.subgraphs import acquired
from litegpu.wording import printable

Constants = Mapping[tuple[int, int], memoryview]
"""The bytes of constants, by the number of the graph and of the tensor."""

_SUBGRAPHS, _BUFFERS, _GROUPS, _EXTERNAL = 2, 4, 8, 9
_TENSORS, _INPUTS, _OPERATORS = 0, 1, 3
_TENSOR_BUFFER, _TENSOR_NAME, _VARIABLE, _SPARSITY, _TENSOR_EXTERNAL = 2, 3, 5, 6, 10
_BUFFER_OFFSET, _BUFFER_SIZE = 1, 2
_OPERATOR_OUTPUTS, _LARGE_OPTIONS = 2, 9
_ID, _GROUP, _OFFSET, _LENGTH, _PACKING = range(5)
_INSIDE = 1
"""The largest `Buffer.offset` of a buffer whose data are in the tables."""
_UNPACKED = ("", "unpacked")
_MAX_TABLES = 1 << 31
_MAX_VISITED = 1 << 20
"""Maximum number of tables that are read; tables in a file can share lists."""


class TablesOnly(bytes):
    """The bytes of a .tflite model without the constants that are stored outside of its tables."""

    constants: Constants


def tables_only(model: memoryview, group: Callable[[str], memoryview]) -> TablesOnly | None:
    """Return a model without its outside constants; None if all constants are in the tables.

    `group` returns the bytes of a file or section by its name in the model. Raises ModelError for a
    damaged model, and the errors of `group`.
    """
    try:
        return _Reader(model, group).read()
    except (struct.error, IndexError) as error:
        raise ModelError(
            "The model is damaged: its tables have offsets outside of the file. Download or "
            "convert it again."
        ) from error


class _Reader:
    """Reads where the constants of a model are."""

    def __init__(self, model: memoryview, group: Callable[[str], memoryview]) -> None:
        self._file, self._model = Flatbuffer(model), model
        self._root = self._file.target(0)
        self._visited = 0
        self._group = group

    def read(self) -> TablesOnly | None:
        """Return the model without its outside constants; None if there are none."""
        appended = {
            number: (table, offset)
            for number, table in enumerate(self._entries(self._root, _BUFFERS))
            if (offset := self._file.scalar(table, _BUFFER_OFFSET, "<Q")) > _INSIDE
        }
        external = self._external()
        if not appended and not external:
            return None
        end = min((offset for _, offset in appended.values()), default=len(self._model))
        if end > _MAX_TABLES:
            raise ModelError(
                f"The tables of the model have {end} bytes, more than a table can refer to. "
                "Convert the model again."
            )
        tables = bytearray(self._model[:end])
        places = {}
        for number, (table, offset) in appended.items():
            size = self._file.scalar(table, _BUFFER_SIZE, "<Q")
            places[number] = self._part(self._model, offset, size, f"Constant {number}")
            for field in (_BUFFER_OFFSET, _BUFFER_SIZE):
                if place := self._file.place(table, field):
                    struct.pack_into("<Q", tables, place, 0)
        found = TablesOnly(tables)
        found.constants = dict(self._constants(places, external, bool(appended)))
        return found

    def _external(self) -> dict[int, memoryview]:
        """Return the bytes of each external buffer by its id."""
        groups: dict[int, memoryview] = {}
        names = [self._file.text(each, 0) for each in self._entries(self._root, _GROUPS)]
        found = {}
        for table in self._entries(self._root, _EXTERNAL):
            number, index = (self._file.scalar(table, field, "<I") for field in (_ID, _GROUP))
            packing = self._file.text(table, _PACKING)
            if packing not in _UNPACKED:
                raise ModelError(
                    f"The weights {number} of the model are packed as '{printable(packing)}', "
                    "which litegpu cannot read. Convert the model again without packing."
                )
            if index >= len(names):
                raise ModelError(
                    f"The weights {number} of the model are in file {index} of {len(names)}. "
                    "Download or convert the model again."
                )
            if index not in groups:
                groups[index] = self._group(names[index])
            offset, size = (self._file.scalar(table, field, "<Q") for field in (_OFFSET, _LENGTH))
            found[number] = self._part(groups[index], offset, size, f"The weights {number}")
        return found

    def _constants(
        self, appended: Mapping[int, memoryview], external: Mapping[int, memoryview], whole: bool
    ) -> Iterator[tuple[tuple[int, int], memoryview]]:
        """Yield the graph, the tensor and the bytes of each outside constant."""
        for number, graph in enumerate(self._entries(self._root, _SUBGRAPHS)):
            written = {*self._file.numbers(graph, _INPUTS)}
            for operator in self._entries(graph, _OPERATORS):
                outputs = self._file.numbers(operator, _OPERATOR_OUTPUTS)
                self._visit(len(outputs))
                written.update(outputs)
                if whole and self._file.scalar(operator, _LARGE_OPTIONS, "<Q") > _INSIDE:
                    raise ModelError(
                        "The options of a custom operation are stored after the model's tables, "
                        "which litegpu cannot read. Convert the model again."
                    )
            for index, tensor in enumerate(self._entries(graph, _TENSORS)):
                key = self._file.scalar(tensor, _TENSOR_EXTERNAL, "<I")
                buffer = self._file.scalar(tensor, _TENSOR_BUFFER, "<I")
                found = external.get(key) if key else appended.get(buffer)
                if found is None and not key:
                    continue
                name = printable(self._file.text(tensor, _TENSOR_NAME))
                if found is None:
                    raise ModelError(
                        f"The tensor '{name}' refers to the weights {key}, which the model does "
                        "not list. Download or convert the model again."
                    )
                if index in written or self._file.scalar(tensor, _VARIABLE, "<B"):
                    raise ModelError(
                        f"The tensor '{name}' is computed, but has constant weights in a file. "
                        "Convert the model again."
                    )
                if self._file.field(tensor, _SPARSITY):
                    raise ModelError(
                        f"The tensor '{name}' is sparse, but its weights are outside of the "
                        "model's tables. Convert the model with its weights inside."
                    )
                yield (number, index), found

    def _entries(self, table: int, field: int) -> Iterator[int]:
        """Yield the tables in a vector of a table."""
        vector = self._file.field(table, field)
        count = self._file.count(vector)
        self._visit(count)
        for index in range(count):
            yield self._file.entry(vector, index)

    def _visit(self, count: int) -> None:
        self._visited += count
        if self._visited > _MAX_VISITED:
            raise ModelError(
                f"The model has more than {_MAX_VISITED} tensors, operations and constants. "
                "Split the model."
            )

    @staticmethod
    def _part(data: memoryview, offset: int, size: int, what: str) -> memoryview:
        if offset + size > len(data):
            raise ModelError(
                f"{what} of the model would be at bytes {offset} to {offset + size} of "
                f"{len(data)}. Download or convert the model again."
            )
        return data[offset : offset + size]


class Binder:
    """A delegate that binds outside constants to an interpreter's tensors, and replaces no nodes.

    An interpreter keeps its delegates, and thereby the constants.
    """

    def __init__(self, constants: Constants) -> None:
        """Prepare for one interpreter of the model."""
        self.error: BaseException | None = None
        self._arrays = {
            place: np.frombuffer(each, np.uint8) for place, each in constants.items() if len(each)
        }
        self._bound = False
        self._callback = Callback(self._bind, self._failed)
        self._struct = TfLiteDelegate()
        self._struct.Prepare = DELEGATE_PREPARE(self._callback.address)
        # Otherwise the runtime prepares the nodes before the constants are bound.
        self._struct.flags = DelegateFlags.ALLOW_DYNAMIC_TENSORS

    def _get_native_delegate_pointer(self) -> int:
        return ctypes.addressof(self._struct)

    def _failed(self, context: int, error: BaseException) -> int:
        self.error = error
        return int(TfLiteStatus.ERROR)

    def _bind(self, context: int) -> None:
        """Bind the constants of all graphs when the runtime applies the delegate to the first."""
        if self._bound:
            return
        self._bound = True
        for number, group in itertools.groupby(sorted(self._arrays), lambda place: place[0]):
            if not number:
                self._bind_graph(context, 0, group)
                continue
            with acquired(context, number) as other:
                self._bind_graph(other, number, group)

    def _bind_graph(self, context: int, number: int, places: Iterator[tuple[int, int]]) -> None:
        struct = TfLiteContext.from_address(context) if context else None
        for place in places:
            if struct is None or not struct.tensors or place[1] >= struct.tensors_size:
                raise ModelError(
                    f"The runtime has no tensor {place[1]} in graph {number} of the model. Update "
                    "it: pip install --upgrade ai-edge-litert"
                )
            tensor, array = tensor_at(struct.tensors, place[1]), self._arrays[place]
            wanted = _size(tensor)
            if wanted != array.nbytes:
                name = printable((tensor.name or b"").decode("utf-8", "replace"))
                raise ModelError(
                    f"The tensor '{name}' has {wanted} bytes, but its weights have {array.nbytes}. "
                    "Download or convert the model again."
                )
            tensor.data = array.ctypes.data
            tensor.bytes = array.nbytes
            tensor.allocation_type = AllocationType.MMAP_RO


def _size(tensor: Any) -> int:
    """Return the number of bytes of a tensor's elements."""
    dtype = DTYPES.get(tensor.type)
    bits = (8 * dtype.size or dtype.packed_bits) if dtype is not None else 0
    if not bits:
        return int(tensor.bytes)
    return -(-math.prod(int_array(tensor.dims)) * bits // 8)
