"""Orders whose members tell their own positions."""

from __future__ import annotations

import pytest

from litegpu.ordering import Neighbours, in_order


def test_members_stand_where_they_say() -> None:
    members = {"last": Neighbours(after="first"), "first": Neighbours()}
    assert in_order(members) == ["first", "last"]
    between = {"new": Neighbours(after="first", before="last")}
    assert in_order({**members, **between}) == ["first", "new", "last"]
    assert in_order({**members, "new": Neighbours(before="first")}) == ["new", "first", "last"]


@pytest.mark.parametrize(
    ("positions", "reason"),
    [
        ({"b": Neighbours(), "a": Neighbours()}, "a and b might change places: one must name"),
        (
            {"a": Neighbours(), "b": Neighbours("a"), "new": Neighbours("a")},
            "b and new might change places",
        ),
        ({"a": Neighbours("c")}, "a stands beside c, which is none of them"),
        ({"a": Neighbours(before="c")}, "a stands beside c, which is none of them"),
        (
            {"a": Neighbours("b"), "b": Neighbours("a")},
            "each of them stands after the next: [ab], ",
        ),
    ],
)
def test_any_other_order_is_an_error(positions: dict[str, Neighbours], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        in_order(positions)
