"""The metadata of a language model: start and stop tokens, chat template, sampling."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from litegpu.errors import ModelError
from litegpu.files.wire import fields

Token = tuple[int, ...] | str
"""A start or stop token: either a text or a sequence of token numbers."""
_START, _STOP, _PROMPTS, _SAMPLER, _CONTEXT, _TEMPLATE, _SUPPRESSED, _CACHE_START = (
    *(1, 2, 3, 4, 5, 7),
    *(9, 10),
)
_IDS, _TEXT = 1, 2
_ROLES = {1: "user", 2: "model", 3: "system"}
_PREFIX, _SUFFIX = 1, 2
_TYPE, _K, _P, _TEMPERATURE = 1, 2, 3, 4
_GREEDY = 3


@dataclass(frozen=True)
class Metadata:
    """The metadata of a file about prompts and answers."""

    start: Token = ()
    """The token or tokens that precede a prompt."""
    stops: tuple[Token, ...] = ()
    """The tokens or texts that end an answer."""
    template: str = ""
    """The Jinja template of a chat; empty if there is none."""
    affixes: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """The text before and after a message, by role; used if the file has no template."""
    context: int = 0
    """Maximum number of tokens of prompt and answer; 0 if unknown."""
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    suppressed: tuple[int, ...] = ()
    """Tokens that must not occur in an answer."""
    cache_start: int = 0
    """The initial value of the caches' elements."""


def read_metadata(content: bytes) -> Metadata:
    """Return the content of an LlmMetadata message.

    Raises:
        ModelError: the message is damaged.
    """
    try:
        return _read(content)
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(
            f"The language model's metadata are damaged ({error}). Download or convert it again."
        ) from error


def _read(content: bytes) -> Metadata:
    found: dict[str, Any] = {"stops": ()}
    for number, value in fields(content):
        if number == _START:
            found["start"] = _token(_message(value))
        elif number == _STOP:
            found["stops"] += (_token(_message(value)),)
        elif number == _PROMPTS:
            found["affixes"] = {
                _ROLES[role]: _affixes(_message(each))
                for role, each in fields(_message(value))
                if role in _ROLES
            }
        elif number == _SAMPLER:
            found |= _sampling(_message(value))
        elif number == _CONTEXT:
            found["context"] = _signed(value)
        elif number == _TEMPLATE:
            found["template"] = _message(value).decode()
        elif number == _SUPPRESSED:
            found["suppressed"] = tuple(_ids(_message(value)))
        elif number == _CACHE_START:
            found["cache_start"] = _signed(value)
    return Metadata(**found)


def _token(content: bytes) -> Token:
    found: Token = ()
    for number, value in fields(content):
        if number == _IDS:
            found = tuple(_ids(_message(value)))
        elif number == _TEXT:
            found = _message(value).decode()
    return found


def _ids(content: bytes) -> Iterator[int]:
    """Yield the numbers of a TokenIds message, packed or not."""
    for number, value in fields(content):
        if number == 1 and isinstance(value, bytes):
            # A packed field is a sequence of varints; each one becomes a separate field.
            yield from (_signed(each) for _, each in fields(_as_fields(value)))
        elif number == 1:
            yield _signed(value)


def _as_fields(packed: bytes) -> bytes:
    """Return packed varints as a message with one field per number."""
    result, begins = bytearray(), True
    for byte in packed:
        if begins:
            result.append(1 << 3)
        result.append(byte)
        begins = byte < 128
    return bytes(result)


def _affixes(content: bytes) -> tuple[str, str]:
    found = {number: _message(value).decode() for number, value in fields(content)}
    return found.get(_PREFIX, ""), found.get(_SUFFIX, "")


def _sampling(content: bytes) -> dict[str, Any]:
    found: dict[int, Any] = dict(fields(content))
    if found.get(_TYPE) == _GREEDY:
        return {"temperature": 0.0}
    names = {_K: ("top_k", int), _P: ("top_p", float), _TEMPERATURE: ("temperature", float)}
    return {name: kind(found[number]) for number, (name, kind) in names.items() if number in found}


def _message(value: int | float | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"the number {value} instead of text")
    return value


def _signed(value: int | float | bytes) -> int:
    if not isinstance(value, int):
        raise TypeError("a value that is not an integer")
    return value - (1 << 64) if value >> 63 else value
