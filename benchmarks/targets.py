"""What litegpu wants to reach against its rivals, as data, and whether a result file shows it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Row = Mapping[str, Any]
Models = Mapping[str, Mapping[str, Any]]

_MOBILENET, _RESNET = "zoo:mobilenet_v1_1.0_224", "zoo:resnet50"
_BATCH = "?batch=64"
OURS = "litegpu cuda"
RIVAL = "LiteRT accelerator"
_CPU = "XNNPACK 8 threads"


def figure(model: Mapping[str, Any], way: str, field: str) -> float | None:
    """Return a figure of a row, or None when it was not measured."""
    value = model.get("rows", {}).get(way, {}).get(field)
    return None if value is None else float(value)


def best(model: Mapping[str, Any], pattern: str, field: str) -> float | None:
    """Return the least figure among the rows whose way begins with `pattern`."""
    found = [figure(model, way, field) for way in model.get("rows", {}) if way.startswith(pattern)]
    return min((value for value in found if value is not None), default=None)


Measure = Callable[[Mapping[str, Any]], float | None]


def _ours(precision: str, field: str) -> Measure:
    return lambda model: figure(model, f"{OURS} {precision}", field)


def _quotient(over: Measure, under: Measure) -> Measure:
    def divide(model: Mapping[str, Any]) -> float | None:
        a, b = over(model), under(model)
        return None if a is None or not b else a / b

    return divide


def _against(precision: str, rival: str, field: str = "whole_ms") -> Measure:
    """How many times less litegpu needs than a rival."""
    return _quotient(lambda model: best(model, rival, field), _ours(precision, field))


def _of_torch(precision: str) -> Measure:
    """The part of the device time of torch.compile with a CUDA graph that litegpu needs."""
    rival = f"torch {precision} compile"
    return _quotient(_ours(precision, "device_ms"), lambda model: best(model, rival, "device_ms"))


@dataclass(frozen=True, slots=True)
class Target:
    """A limit for one figure of some models: at most `limit`, or at least when `least`.

    `models` are titles; empty for every float model at batch 1, None for every model that does not
    rank its results: near-equal ones change places, which says nothing about accuracy.
    """

    name: str
    how: str
    measure: Measure
    limit: float
    unit: str = ""
    least: bool = False
    models: tuple[str, ...] | None = ()


_DEVICE = "GPU events, kernels only"
_CALL = "whole call"

TARGETS: tuple[Target, ...] = (
    Target(
        "MobileNet v1 fp16, batch 1, device time",
        _DEVICE, _ours("fp16", "device_ms"), 0.060, " ms", models=(_MOBILENET,),
    ),
    Target(
        "MobileNet v1 fp16, batch 1, part of torch.compile + CUDA graph",
        _DEVICE, _of_torch("fp16"), 0.45, "x", models=(_MOBILENET,),
    ),
    Target(
        "MobileNet v1 fp16, batch 1, whole call",
        _CALL, _ours("fp16", "whole_ms"), 0.130, " ms", models=(_MOBILENET,),
    ),
    Target(
        "MobileNet v1 fp16, batch 1, faster than the accelerator",
        _CALL, _against("fp16", f"{RIVAL} fp16"), 7, "x", True, (_MOBILENET,),
    ),
    Target(
        "every float model fp16, faster than the accelerator",
        _CALL, _against("fp16", f"{RIVAL} fp16"), 6, "x", True,
    ),
    Target(
        "every float model fp16, faster than XNNPACK with 8 threads",
        _CALL, _against("fp16", _CPU), 1, "x", True,
    ),
    Target(
        "every float model fp32, faster than the accelerator",
        _CALL, _against("fp32", f"{RIVAL} fp32"), 5, "x", True,
    ),
    Target(
        "MobileNet v1 fp16, batch 64, device time",
        _DEVICE, _ours("fp16", "device_ms"), 0.45, " ms", models=(_MOBILENET + _BATCH,),
    ),
    Target(
        "MobileNet v1 fp16, batch 64, part of torch.compile + CUDA graph",
        _DEVICE, _of_torch("fp16"), 0.5, "x", models=(_MOBILENET + _BATCH,),
    ),
    Target(
        "ResNet-50 fp16, batch 1 and 64, part of torch.compile + CUDA graph",
        _DEVICE, _of_torch("fp16"), 1, "x", models=(_RESNET, _RESNET + _BATCH),
    ),
    *(
        Target(
            f"creation {precision}, part of the accelerator's",
            "nothing cached",
            _quotient(
                _ours(precision, "create_ms"),
                lambda model, rival=f"{RIVAL} {precision}": figure(model, rival, "create_ms"),
            ),
            1, "x",
        )
        for precision in ("fp16", "fp32")
    ),
    *(
        Target(
            f"accuracy {precision}",
            "‖a−b‖/‖b‖, the worst output, of models that do not rank",
            _ours(precision, "norm_error"), limit, models=None,
        )
        for precision, limit in (("fp32", 1e-5), ("fp16", 5e-3))
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """The worst figure for a target and whose it is; `met` is None when nothing was measured."""

    target: Target
    value: float | None
    model: str
    met: bool | None
    missing: tuple[str, ...]


def verdicts(models: Models, targets: Sequence[Target] = TARGETS) -> Iterator[Verdict]:
    """Judge each target by the model that does worst."""
    for target in targets:
        wanted = _wanted(models, target)
        found = {title: target.measure(models.get(title, {})) for title in wanted}
        values = {title: value for title, value in found.items() if value is not None}
        missing = tuple(title for title in wanted if title not in values)
        if not values:
            yield Verdict(target, None, "", None, missing)
            continue
        worst = max(values, key=lambda title: _badness(target, values[title]))
        value = values[worst]
        met = value >= target.limit if target.least else value <= target.limit
        yield Verdict(target, value, worst, met and (not missing or None), missing)


def _badness(target: Target, value: float) -> float:
    """Return what is larger the further a value is on the wrong side; most for a NaN."""
    if math.isnan(value):
        return math.inf
    return -value if target.least else value


def _wanted(models: Models, target: Target) -> list[str]:
    if target.models is None:
        return [title for title, model in models.items() if not model.get("ranks")]
    if target.models:
        return list(target.models)
    return [t for t, m in models.items() if m.get("float") and m.get("batch") == 1]
