"""Fingerprints differ if any part of the content differs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from litegpu.cache.fingerprint import (
    Fingerprint,
    checksum,
    device_facts,
    fingerprint,
    graph_facts,
    host_facts,
)
from litegpu.graph import DType, Graph, Quantization
from paper_device import DEVICE
from passes.graphs import RELU, GraphBuilder

MIB = 1 << 20


def graph() -> Graph:
    builder = GraphBuilder()
    inside = builder.elementwise(builder.input(1, 5, 3, 7), RELU)
    return builder.graph(builder.conv(inside, 6))


def test_equal_graphs_have_one_fingerprint() -> None:
    assert fingerprint(graph_facts(graph())) == fingerprint(graph_facts(graph()))


def test_whatever_is_otherwise_in_a_graph_tells() -> None:
    first = graph()
    weights = next(v for v in first.values.values() if v.data is not None and v.data.ndim == 4)
    data = np.array(weights.data)
    data.reshape(-1)[-1] += 1
    (first_node, *others) = first.nodes
    changes = [
        {v: dataclasses.replace(first.values[v], **change)}
        for v, change in (
            (weights.id, {"data": data}),
            (weights.id, {"quantization": Quantization((0.5,), (1,))}),
            (first.inputs[0], {"shape": (1, 5, 3, 8)}),
            (first.inputs[0], {"dtype": DType.INT8}),
        )
    ]
    changed = [dataclasses.replace(first, values={**first.values, **each}) for each in changes]
    node = dataclasses.replace(first_node, params={"axis": 1})
    changed.append(dataclasses.replace(first, nodes=(node, *others)))
    changed.append(dataclasses.replace(first, outputs=first.inputs))
    found = [fingerprint(graph_facts(each)) for each in (first, *changed)]
    assert len(set(found)) == len(found)


def test_every_byte_of_large_and_small_arrays_counts() -> None:
    for size in (3, MIB - 1, MIB, 2 * MIB + 5):
        data = np.zeros(size, np.uint8)
        found = {fingerprint(data), checksum(data.data)}
        for position in (0, size // 2, size - 1):
            data[position] = 1
            found |= {fingerprint(data), checksum(data.data)}
            data[position] = 0
        assert len(found) == 8, size
    assert fingerprint(np.zeros(4, np.uint8)) != fingerprint(np.zeros(1, np.float32))
    assert fingerprint(np.zeros((2, MIB), np.uint8)) != fingerprint(np.zeros((MIB, 2), np.uint8))
    whole = np.arange(12).reshape(3, 4)
    assert fingerprint(whole.T) == fingerprint(np.ascontiguousarray(whole.T))


def test_a_read_only_array_is_hashed_once_and_checked_on_request() -> None:
    """As with a file that the runtime has mapped, and that another program overwrites."""
    memory = np.zeros(3 * MIB, np.uint8)
    array = memory.view()
    array.flags.writeable = False
    first = Fingerprint("a", array)
    before = first.whole()
    assert first.holds(), "it has hashed the array itself"
    second, other = Fingerprint("a", array), Fingerprint("b", array)
    assert second.whole() == before != other.whole() and second.holds()
    memory[2 * MIB + 5] = 1
    assert second.whole() == before and not second.holds()
    view = memory.view()
    view.flags.writeable = False
    assert Fingerprint("a", view).whole() != before


def test_sections_are_summed_as_one() -> None:
    assert checksum() == checksum(b"") == checksum(b"", memoryview(b""))
    data = bytes(range(256)) * (5 * MIB // 512) + b"end"
    for cuts in ((), (0,), (7,), (MIB,), (MIB - 1, MIB + 1), (3, 4, 2 * MIB + 9, len(data))):
        ends = zip((0, *cuts), (*cuts, len(data)), strict=True)
        assert checksum(*(data[start:end] for start, end in ends)) == checksum(memoryview(data))


def test_parts_are_told_apart() -> None:
    parts: list[object] = [1, True, "1", b"1", 1.0, -0.0, 0.0, None, DType.INT8, (1,), {"a": 1}]
    parts += [frozenset((1, 2)), (), [[]]]
    assert len({fingerprint(part) for part in parts}) == len(parts)
    with pytest.raises(TypeError, match="object cannot be a part of a fingerprint"):
        fingerprint(object())


def test_the_host_is_its_libraries_and_how_it_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    found = host_facts()
    assert np.__version__ in found and all(isinstance(fact, str) for fact in found)
    monkeypatch.setattr("litegpu.host.cpu_features.other_rounding", lambda: "rounds otherwise")
    assert host_facts() != found


def test_a_device_is_its_kind_and_not_its_place() -> None:
    elsewhere = dataclasses.replace(DEVICE, index=3, pci_address="00000000:3B:00.0")
    same = dataclasses.replace(elsewhere, memory_bytes=7, max_allocation_bytes=7)
    assert device_facts(same) == device_facts(DEVICE)
    other = dataclasses.replace(DEVICE, driver="newer")
    assert device_facts(other) != device_facts(DEVICE)
