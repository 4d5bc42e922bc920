"""Selection: the implementation that computes a spec, and the reasons against the others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest

from cuda_emulator import INFO
from litegpu.backends.base import DeviceInfo
from litegpu.engine import partition
from litegpu.engine.selected import Selected
from litegpu.engine.target import DeviceTarget
from litegpu.graph import Node
from litegpu.kernels import selector
from litegpu.kernels.base import Implementation, Plan, Rejected, outline
from litegpu.kernels.selector import select
from litegpu.numeric_policy import FP16, FP32
from litegpu.ops.base import KernelRequest, LowerContext, Target, get
from paper_device import DEVICE

TARGET = DeviceTarget(DEVICE, FP32)


@dataclass(frozen=True)
class Spec:
    """What the implementations of these tests compute."""


@dataclass(frozen=True)
class Planned(Plan):
    clocks: float = math.nan
    max_clock_ratio: float = math.inf

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        raise AssertionError("nothing is lowered here")


class Way(Implementation):
    """Accepts with a plan, or rejects with a reason."""

    def __init__(self, name: str, found: Plan | Rejected, rank: int = 0, general: bool = False):
        self.name, self.general = name, general  # type: ignore[misc]
        self._found, self._rank = found, rank
        self.queried = 0

    def plan(self, spec: Spec, target: Target) -> Plan | Rejected:
        self.queried += 1
        return self._found

    def rank(self, spec: Spec) -> int:
        return self._rank


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    with mock.patch.dict(selector.IMPLEMENTATIONS):
        yield


def selected(*ways: Way) -> selector.Selection:
    selector.IMPLEMENTATIONS[Spec] = ways
    return select(Spec(), TARGET)


def test_the_first_that_accepts_is_taken_and_no_other_is_asked() -> None:
    last = Way("last", Planned())
    found = selected(Way("no", Rejected("too small")), Way("yes", Planned()), last)
    assert (found.name, found.rejected) == ("yes", {"no": "too small"})
    assert not last.queried


def test_general_ones_come_last_and_ranks_order_the_others() -> None:
    general = Way("general", Planned(), rank=-1, general=True)
    assert selected(general, Way("a", Planned(), rank=1), Way("b", Planned())).name == "b"
    assert selected(general, Way("a", Rejected("no"))).name == "general"


@pytest.mark.parametrize(("clocks", "name"), [(59.0, "fast"), (61.0, "general")])
def test_a_special_one_must_be_faster_by_its_ratio(clocks: float, name: str) -> None:
    fast, general = Planned(clocks, 0.6), Way("general", Planned(100.0), general=True)
    found = selected(Way("fast", fast), general)
    assert found.name == name
    if name == "general":
        assert found.rejected["fast"] == (
            "the estimate is 61 clocks, that of general 100: not less than 60% of them"
        )
        assert general.queried == 1


def test_where_nothing_else_accepts_no_ratio_applies() -> None:
    rejecting = Way("general", Rejected("no"), general=True)
    unknown = Way("unknown", Planned(), general=True)
    assert selected(Way("fast", Planned(1e9, 0.1)), rejecting, unknown).name == "fast"


def test_nothing_may_accept() -> None:
    found = selected(Way("a", Rejected("no tensor cores")), Way("b", Rejected("too large")))
    assert found.plan is None
    assert found.rejected == {"a": "no tensor cores", "b": "too large"}


# The implementations that there are


FOUND = [
    pytest.param(spec, each, id=f"{each.name}-{spec.__name__}")
    for spec, ways in selector.IMPLEMENTATIONS.items()
    for each in ways
]


def placed(
    each: Implementation, device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> tuple[Any, Selected]:
    """Return what the example computes last as a spec, and all that was selected."""
    graph = each.example.graph()
    graph.verify()
    monkeypatch.setattr(partition, "normalize", lambda given: given)
    target = DeviceTarget(device, FP16)
    rewritten, found = partition._rewrite_and_place(graph, target, False, ())
    node = rewritten.nodes[-1]
    (spec,) = get(node.op).specs(node, found)
    return spec, found


def test_every_implementation_is_found() -> None:
    """A class that is missing in the table would never be selected."""
    found = {type(each) for ways in selector.IMPLEMENTATIONS.values() for each in ways}
    assert found == set(Implementation.__subclasses__()) - {Way}


@pytest.mark.parametrize(("kind", "each"), FOUND)
def test_every_implementation_is_selected_for_its_example(
    kind: type, each: Implementation, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = INFO if each.backend == "cuda" else DEVICE
    spec, found = placed(each, device, monkeypatch)
    assert type(spec) is kind
    assert select(spec, found.target).name == each.name
    again, _ = placed(each, device, monkeypatch)
    assert again is not spec and outline(again) == outline(spec), "what failed is known by that"
    assert hash(outline(again)) == hash(outline(spec))
    selector.IMPLEMENTATIONS[kind] = (each,)
    assert select(spec, found.target).name == each.name


@pytest.mark.parametrize("capability", [None, (9, 0)])
@pytest.mark.parametrize(("kind", "each"), FOUND)
def test_kernels_of_one_backend_are_not_asked_elsewhere(
    kind: type, each: Implementation, capability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even where another API tells that the GPU is one of NVIDIA's."""
    spec, _ = placed(each, INFO if each.backend == "cuda" else DEVICE, monkeypatch)
    target = DeviceTarget(replace(DEVICE, compute_capability=capability), FP16)
    for other in selector.IMPLEMENTATIONS[kind]:
        with mock.patch.dict(selector.IMPLEMENTATIONS, {kind: (other,)}):
            found = select(spec, target)
        if other.backend:
            assert found.plan is None
            assert found.rejected == {other.name: "the kernel is for cuda devices"}
        else:
            assert found.plan is not None or other.name in found.rejected
