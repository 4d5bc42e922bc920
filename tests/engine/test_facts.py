"""The facts of a partition about its values and launches."""

from __future__ import annotations

from litegpu.engine.facts import PartitionFacts
from litegpu.engine.layout import assign
from litegpu.numeric_policy import FP16_ALL
from paper_device import build
from passes.graphs import GraphBuilder


def test_only_halves_that_are_made_after_a_value_hang_on_it() -> None:
    builder = GraphBuilder()
    first = builder.conv(builder.input(1, 4, 4, 8), 8)
    second = builder.conv(first, 8)
    third = builder.conv(second, 8)
    layout = assign(builder.graph(builder.conv(third, 8)), FP16_ALL)
    facts = PartitionFacts.of(layout, build(layout))
    assert facts.written_after([first]) == [first, second, third]
    assert facts.written_after([second]) == [second, third]
    assert facts.written_after([third, first]) == [first, second, third]
    assert facts.written_after([]) == []
