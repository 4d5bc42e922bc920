"""Reduces a failing network to a smaller one that still fails."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from fuzzing.network import Layer, Network, shape_fields

_SIMPLE = {"activation": "NONE", "weights": "constant", "padding": "SAME"}
"""Values of fields that are simpler than any other."""


def shrunk(network: Network, goes_wrong: Callable[[Network], bool], seconds: float) -> Network:
    """Return the smallest network that was found to go wrong; `network` does.

    Whole layers go first, then sizes and what else the cases say.
    """
    end = time.monotonic() + seconds
    changed = True
    while changed:
        changed = False
        for smaller in _smaller(network):
            if time.monotonic() > end:
                return network
            if goes_wrong(smaller):
                network, changed = smaller, True
                break
    return network


def _smaller(network: Network) -> Iterator[Network]:
    """Yield smaller networks, those that leave out most first."""
    layers, count = network.layers, len(network.layers)
    size = count // 2
    while size:
        for start in range(count - size, -1, -size):
            yield replace(network, layers=layers[:start] + layers[start + size :])
        size //= 2
    for place, layer in enumerate(layers):
        for other in _simpler(layer):
            yield replace(network, layers=(*layers[:place], other, *layers[place + 1 :]))


def _simpler(layer: Layer) -> Iterator[Layer]:
    """Yield a layer with a field that says less, or a smaller input."""
    shapes = {name for name, _ in shape_fields(layer)}
    fields = dataclasses.fields(layer.case)
    for each in sorted(fields, key=lambda each: each.name not in shapes):
        for value in _simpler_values(each.name, getattr(layer.case, each.name), each.default):
            yield replace(layer, case=replace(layer.case, **{each.name: value}))
    if any(key is not None for key in layer.sources):
        yield replace(layer, sources=(None,) * len(layer.sources))


def _simpler_values(name: str, value: Any, default: Any) -> Iterator[Any]:
    if name in _SIMPLE and value != _SIMPLE[name]:
        yield _SIMPLE[name]
    elif value is True:
        yield False
    elif isinstance(value, int) and not isinstance(value, bool) and name != "axis":
        yield from _smaller_numbers(value)
    elif isinstance(value, tuple) and value and all(isinstance(each, int) for each in value):
        if math.prod(value) > 1 and name in ("kernel", "stride", "dilation"):
            yield (1,) * len(value)
        for place, number in enumerate(value):
            for other in _smaller_numbers(number):
                yield (*value[:place], other, *value[place + 1 :])
    elif value is not None and default is None:
        yield None


def _smaller_numbers(number: int) -> Iterator[int]:
    """Yield whole numbers from 1 on below a number, the smallest first."""
    yield from sorted({each for each in (1, number // 2, number - 1) if 0 < each < number})
