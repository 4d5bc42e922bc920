"""Evaluates the loads and stores of kernel text in Python, with every index checked."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def evaluate(text: str, memory: Array, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression that loads from buffer `t`, which is `memory`."""
    return eval(_python(text), {"__builtins__": {}}, {**_words(memory), **variables})


def execute(text: str, memory: Array, variables: dict[str, Any]) -> None:
    """Run statements that store to buffer `t`, which is `memory`."""
    for statement in filter(None, map(str.strip, text.split(";"))):
        guard, body = re.fullmatch(r"(?:if \((.*?)\) (?=STORE))?(.*)", statement, re.S).groups()  # type: ignore[union-attr]
        if guard and not evaluate(guard, memory, variables):
            continue
        assigned = re.fullmatch(r"(\w+) = (.*)", body, re.S)
        if assigned:
            variables[assigned[1]] = evaluate(assigned[2], memory, variables)
        else:
            evaluate(body, memory, variables)


class Lanes(np.ndarray[Any, Any]):
    """A float4."""

    def __getattr__(self, lane: str) -> Any:
        return self["xyzw".index(lane)]


def lanes(values: Any) -> Lanes:
    """Return four numbers as a float4."""
    return np.array(values, np.float64).view(Lanes)


def _words(memory: Array) -> dict[str, Any]:
    """Return what the dialects' words mean for one buffer in units of single elements."""

    def at(index: int) -> int:
        assert 0 <= index < memory.size, f"element {index} of {memory.size}"
        return index

    def load4(_: str, index: int) -> Lanes:
        return lanes([memory[at(index * 4 + k)] for k in range(4)])

    def load1(_: str, index: int) -> float:
        return float(memory[at(index)])

    def store4(_: str, index: int, value: Lanes) -> None:
        for k in range(4):
            memory[at(index * 4 + k)] = value[k]

    def store1(_: str, index: int, value: float) -> None:
        memory[at(index)] = value

    def mask4(value: Lanes, left: int) -> Lanes:
        return lanes([value[k] if k < left else 0.0 for k in range(4)])

    words: dict[str, Any] = {
        "t": "t",
        "MAKE4": lambda *four: lanes(four),
        "SPLAT4": lambda one: lanes([one] * 4),
        "MASK4": mask4,
    }
    for kind in ("F32", "F16"):
        words |= {f"LOAD4_{kind}": load4, f"LOAD1_{kind}": load1, f"LANE4_{kind}": load1}
        words |= {f"STORE4_{kind}": store4, f"STORE1_{kind}": store1}
    return words


def _python(text: str) -> str:
    """Return a C expression as a Python one: whole division, choices, float literals."""
    text = re.sub(r"(\d\.\d*)f", r"\1", text).replace("/", "//")
    groups: list[str] = []

    def keep(inside: str) -> str:
        groups.append(inside)
        return f"\x00{len(groups) - 1}\x00"

    # From the inside out: a pair of parentheses without others in it.
    while found := re.search(r"\(([^()]*)\)", text):
        text = text[: found.start()] + keep(f"({_choice(found[1])})") + text[found.end() :]
    text = _choice(text)
    while "\x00" in text:
        text = re.sub(r"\x00(\d+)\x00", lambda match: groups[int(match[1])], text)
    return text


def _choice(text: str) -> str:
    if " ? " not in text:
        return text
    condition, rest = text.split(" ? ", 1)
    yes, no = rest.split(" : ", 1)
    return f"{yes} if {condition} else {no}"
