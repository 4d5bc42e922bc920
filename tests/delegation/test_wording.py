"""Figures in readable form."""

from __future__ import annotations

import pytest

from litegpu.wording import shown_nodes, shown_ops, shown_size, shown_time


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_sizes(nbytes: int, text: str) -> None:
    assert shown_size(nbytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (2.5, "2.5 s"),
        (0.1234, "123 ms"),
        (1.26e-3, "1.3 ms"),
        (41.2e-6, "41 us"),
        (4.2e-6, "4.2 us"),
        (9e-7, "less than 1 us"),
        (0.0, "less than 1 us"),
    ],
)
def test_times(seconds: float, text: str) -> None:
    assert shown_time(seconds) == text


def test_nodes_and_ops() -> None:
    assert shown_nodes([3]) == "node 3"
    assert shown_nodes(range(8)) == "nodes 0, 1, 2, 3, 4, 5 and 2 more"
    assert shown_ops(["ABS", "EXP", "EXP"]) == "EXP x2, ABS"
