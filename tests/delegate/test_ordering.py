"""Orders whose members tell their own positions."""

from __future__ import annotations

import pytest

from litegpu.ordering import Position, in_order


def test_members_stand_where_they_say() -> None:
    members = {"last": Position(after="first"), "first": Position()}
    assert in_order(members) == ["first", "last"]
    between = {"new": Position(after="first", before="last")}
    assert in_order({**members, **between}) == ["first", "new", "last"]
    assert in_order({**members, "new": Position(before="first")}) == ["new", "first", "last"]


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        ({"b": Position(), "a": Position()}, "a and b might change places: one must name"),
        (
            {"a": Position(), "b": Position("a"), "new": Position("a")},
            "b and new might change places",
        ),
        ({"a": Position("c")}, "a stands beside c, which is none of them"),
        ({"a": Position(before="c")}, "a stands beside c, which is none of them"),
        ({"a": Position("b"), "b": Position("a")}, "each of them stands after the next: [ab], "),
    ],
)
def test_any_other_order_is_an_error(positions: dict[str, Position], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        in_order(positions)
