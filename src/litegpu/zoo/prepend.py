"""Prepends operations to a model; the result of these operations replaces an input."""

from __future__ import annotations

import io
import zipfile
from typing import Any

from litegpu.errors import ModelError
from litegpu.graph.ir import ABSENT
from litegpu.zoo import objects

_MAIN = 0
"""The index of the main graph, which an interpreter runs."""
_CONTROL_DEPENDENCIES = b"model_control_dependencies"
"""Name of the metadata that refer to operations by index, which a prepended op changes."""


def prepended(content: bytes, model: Any, position: int, front: bytes) -> bytes:
    """Return `content` with the model `front` before its input number `position`.

    `model` is `content` parsed by `objects.parse`; the function modifies `model`. The first input
    of `front` inherits the position, the name and the role in signatures of the old input. The
    first output of `front` replaces the old input. Other graphs, constants, metadata and attached
    files remain unchanged.

    Raises:
        ModelError: the model refers to operations by index.
    """
    _check(model)
    graph = model.subgraphs[_MAIN]
    added = objects.parse(front)
    (extra,) = added.subgraphs
    old = int(graph.inputs[position])
    shift = len(graph.tensors)
    result = int(extra.outputs[0])
    numbers = {t: t + shift - (t > result) for t in range(len(extra.tensors))} | {result: old}
    picture = numbers[int(extra.inputs[0])]

    buffers, codes = len(model.buffers), len(model.operatorCodes)
    for number, tensor in enumerate(extra.tensors):
        if number == result:
            continue
        # In every file, buffer 0 belongs to all tensors without data.
        tensor.buffer += buffers - 1 if tensor.buffer else 0
        graph.tensors.append(tensor)
    model.buffers = [*model.buffers, *added.buffers[1:]]
    model.operatorCodes = [*model.operatorCodes, *added.operatorCodes]
    for node in extra.operators:
        node.opcodeIndex += codes
        node.inputs = [numbers.get(int(t), ABSENT) for t in node.inputs]
        node.outputs = [numbers[int(t)] for t in node.outputs]
    graph.operators = [*extra.operators, *(graph.operators or ())]
    graph.tensors[picture].name = graph.tensors[old].name
    graph.tensors[old].name = (graph.tensors[old].name or b"") + b"/values"
    graph.inputs = [picture if i == position else int(t) for i, t in enumerate(graph.inputs)]
    for signature in model.signatureDefs or ():
        for entry in signature.inputs or () if signature.subgraphIndex == _MAIN else ():
            entry.tensorIndex = picture if entry.tensorIndex == old else entry.tensorIndex
    return _with_attached(objects.pack(model), content)


def _check(model: Any) -> None:
    if any(entry.name == _CONTROL_DEPENDENCIES for entry in model.metadata or ()):
        raise ModelError(
            "The model's metadata refer to operations by index, which changes if operations are "
            "added before them. Convert the model without control dependencies."
        )


def _with_attached(written: bytes, content: bytes) -> bytes:
    """Return the model with the files that are attached to `content`, such as labels.

    The attached files are a ZIP archive after the model, with offsets relative to the start of the
    file.
    """
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return written
    target = io.BytesIO(written)
    with (
        zipfile.ZipFile(io.BytesIO(content)) as old,
        zipfile.ZipFile(target, "a") as new,
    ):
        for each in old.infolist():
            new.writestr(each, old.read(each))
    return target.getvalue()
