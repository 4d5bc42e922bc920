"""Finds the element types that the runtime's kernels take, and which of them litegpu computes.

Usage: python tests/support/op_types.py [OP ...]. Prints them for each operation, which is tried on
one or two of its cases. Their tensors get other types: those of one type in the case stay of one
type, and integers that are positions or sizes stay integers of 32 or 64 bits. Without OP it tries
all, which takes some minutes, and writes docs/data/op_types.csv, of which
scripts/write_docs.py makes a table.
"""

from __future__ import annotations

import csv
import itertools
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cases import TABLE
from cases.base import Sheet
from fuzzing.worker import Task, Worker
from litegpu import GpuDelegate
from litegpu.ops.base import find
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import schema
from litegpu.zoo.objects import pack, parse
from paper_device import on_paper
from places import ROOT

_TYPES = (
    *("float32", "float16", "float64", "int8", "uint8", "int16", "uint16"),
    *("int32", "uint32", "int64", "uint64", "bool", "complex64"),
)
_INTEGERS = ("int32", "int64")
_SCALED = ("int8", "uint8", "int16")
_MAX_ELEMENTS = 600
_BASES = 2
_SECONDS = 5.0


RECORD = ROOT / "docs" / "data" / "op_types.csv"
"""Of each operation all types that the CPU takes, and "GPU" or a reason for each."""
_READ_AS_INT32 = {
    **dict.fromkeys(("BATCH_TO_SPACE_ND", "TRANSPOSE"), "int64"),
    **dict.fromkeys(("PAD", "PADV2"), "bool"),
}
"""Operations whose second operand the CPU reads as int32, if it is of this type, too."""
_OTHER_BYTES = {
    ("BATCH_MATMUL", "float32", "int32"),
    ("PRELU", "int16*", "int16"),
}
"""Further ones, by the types of the first input and of the result."""
_MOVED_TYPES = ("float64", "uint16", "uint32", "uint64", "complex64")


@dataclass(frozen=True)
class Model:
    """A model of one node whose tensors have certain types: `types` lists them as text."""

    types: str
    content: bytes


def bases() -> Mapping[str, Sequence[bytes]]:
    """Return small models of one node without scales by operation: those of the most types."""
    found: dict[str, dict[tuple[str, ...], bytes]] = {}
    for case in TABLE.values():
        sheet = Sheet(reference=True)
        sheet.add(case)
        size = sum(int(np.prod(shape)) for shape, _ in sheet.ranges)
        if len(sheet.ops) != 1 or size > _MAX_ELEMENTS:
            continue
        content = sheet.writer.build()
        graph = parse(content).subgraphs[0]
        scaled = [t for t in graph.tensors if t.quantization and t.quantization.scale is not None]
        kinds = tuple(sorted({_name(graph.tensors[v]) for v in _inputs(graph)}))
        if not scaled and set(kinds) <= set(_TYPES):
            known = found.setdefault(sheet.ops[0], {})
            known[kinds] = min(known.get(kinds, content), content, key=len)
    return {
        op: [known[kinds] for kinds in sorted(known, key=len, reverse=True)[:_BASES]]
        for op, known in found.items()
    }


def variants(op: str, base: bytes) -> Iterator[Model]:
    """Yield a model with other types, with and without scales."""
    graph = parse(base).subgraphs[0]
    kinds = list(dict.fromkeys(_name(graph.tensors[v]) for v in _inputs(graph)))
    results = [_name(graph.tensors[v]) for v in graph.operators[0].outputs]
    several = len(kinds) > 1
    special = {"bool": ("bool",), "int32": _INTEGERS, "int64": _INTEGERS} if several else {}
    choices = [special.get(kind, _TYPES) for kind in kinds]
    for chosen in itertools.product(*choices):
        types = dict(zip(kinds, chosen, strict=True))
        for scaled in (False, True) if {*chosen} & {*_SCALED} else (False,):
            shown = [f"{each} with a scale" * scaled or each for each in chosen]
            given = [types.get(kind, kind) for kind in dict.fromkeys(results)]
            text = f"{', '.join(shown)} → {', '.join(given)}"
            yield Model(text, _with_types(op, base, types, scaled))


def _with_types(op: str, base: bytes, types: Mapping[str, str], scaled: bool) -> bytes:
    model = parse(base)
    graph, tables = model.subgraphs[0], schema.tables()
    node = graph.operators[0]
    for v in {*_inputs(graph), *node.outputs}:
        tensor = graph.tensors[v]
        before = _name(tensor)
        after = types.get(before, before)
        data = model.buffers[tensor.buffer].data
        if data is not None and len(data):
            buffer = tables.BufferT()
            with np.errstate(over="ignore"):
                array = np.frombuffer(bytes(data), before).astype(after)
            buffer.data = np.frombuffer(array.tobytes(), np.uint8)
            tensor.buffer = len(model.buffers)
            model.buffers.append(buffer)
        tensor.type = schema.member("TensorType", after.upper(), "type")
        if scaled and after in _SCALED:
            tensor.quantization = tables.QuantizationParametersT()
            tensor.quantization.scale = np.array([0.05], np.float32)
            tensor.quantization.zeroPoint = np.array([0], np.int64)
    known = find(op)
    if known is not None:
        model.operatorCodes[node.opcodeIndex].version = known.max_version
    return pack(model)


def _inputs(graph: Any) -> list[int]:
    return [v for v in graph.operators[0].inputs if v >= 0]


def _name(tensor: Any) -> str:
    numbers = schema.members("TensorType")
    return next(name for name, number in numbers.items() if number == tensor.type).lower()


def runs_on_cpu(worker: Worker, model: Model) -> bool:
    """Whether the runtime runs a model, and its results are of the types that the file states."""
    result = worker.run(Task(model.content, 1), _SECONDS)
    stated = model.types.partition(" → ")[2].split(", ")
    types = {output.dtype.name for output in result.outputs}
    return result.status == "ran" and types == {*stated}


def runs_on_gpu(model: Model) -> bool:
    """Whether litegpu takes the node of a model."""
    delegate = GpuDelegate(precision="fp32", min_nodes_per_partition=1)
    with on_paper():
        runtime.interpreter(model.content, delegate, builtin_kernels=True)
    return delegate.report is not None and delegate.report.whole_graph


def why(op: str, types: str) -> str:
    """Return why types stay on the CPU, in the words of scripts/write_docs.py."""
    words = types.replace(" with a scale", "*").replace(",", "").split()
    given, result = words[: words.index("→")], words[-1]
    second = given[1].removesuffix("*") if len(given) > 1 else ""
    wrong = op == "FAKE_QUANT" or second == _READ_AS_INT32.get(op, "none")
    if wrong or (op, given[0], result) in _OTHER_BYTES:
        return "no valid result"
    return "no GPU arithmetic" if not {*words}.isdisjoint(_MOVED_TYPES) else "no scale"


def rows(worker: Worker, op: str, contents: Sequence[bytes]) -> list[tuple[str, str, str]]:
    """Return the types of an operation that the CPU takes, and what becomes of each."""
    models = {each.types: each for content in contents for each in variants(op, content)}
    return [
        (op, types, "GPU" if runs_on_gpu(models[types]) else why(op, types))
        for types in sorted(models)
        if runs_on_cpu(worker, models[types])
    ]


def recorded() -> list[tuple[str, str, str]]:
    """Return the rows that were found for all operations."""
    with RECORD.open(encoding="utf-8", newline="") as file:
        return [(op, types, where) for op, types, where in csv.reader(file)]


def main(ops: Sequence[str]) -> None:
    """Print the types of some operations, or write down those of all."""
    worker, found = Worker(), []
    for op, contents in sorted(bases().items()):
        if (ops and op not in ops) or find(op) is None:
            continue
        found += rows(worker, op, contents)
        print(op, *(f"{types}: {where}" for name, types, where in found if name == op), sep="\n  ")
    worker.close()
    if not ops:
        with RECORD.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(found)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    main(sys.argv[1:])
