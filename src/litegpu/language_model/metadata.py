"""The metadata of a language model: start and stop tokens, chat template, sampling."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from litegpu.errors import ModelError
from litegpu.files.wire import fields

Token = tuple[int, ...] | str
"""A start or stop token: either a text or a sequence of token numbers."""
_START, _STOP, _PROMPTS, _SAMPLER, _CONTEXT, _TEMPLATE, _SUPPRESSED, _CACHE_START, _PAD = (
    *(1, 2, 3, 4, 5, 7),
    *(9, 10, 13),
)
_IDS, _TEXT = 1, 2
_ROLES = {1: "user", 2: "model", 3: "system"}
_PREFIX, _SUFFIX = 1, 2
_TYPE, _K, _P, _TEMPERATURE = 1, 2, 3, 4
_GREEDY = 3
_OLD_SIZE, _OLD_START_ID, _OLD_STOP, _OLD_START, _OLD_AFFIXES = 2, 4, 5, 6, 8
_OLD_PREFIX, _OLD_SUFFIX = 2, 3
_LANGUAGE, _STATES, _MASKS = 1, 2, 3
_STATE_NAME, _STATE_TYPE, _RECURRENT = 3, 6, 5
_MASK_TYPE, _LOCAL_MASK_TYPE, _WINDOW = 1, 2, 3
_BIDIRECTIONAL = 2


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
    padding: Token = ()
    """The token that fills the rest of a prefill; empty if unknown."""
    window: int = 0
    """The number of tokens that a token sees in local attention; 0 if unknown."""
    causal: bool = True
    """Whether a token sees no later tokens."""
    states: frozenset[str] = frozenset()
    """The names of caches that have no positions, such as the state of a convolution."""


def read_metadata(content: bytes, executor: bytes = b"") -> Metadata:
    """Return the content of an LlmMetadata and an ExecutorMetadata message.

    The first one may be an LlmParameters message, as in older .task files.

    Raises:
        ModelError: a message is damaged, or the model does not predict the next token.
    """
    try:
        read = _read_parameters if _is_parameters(content) else _read
        found = replace(read(content), **_read_executor(executor))
    except (ValueError, TypeError, AttributeError, struct.error) as error:
        raise ModelError(
            f"The language model's metadata are damaged ({error}). Download or convert it again."
        ) from error
    if not found.causal:
        raise ModelError(
            "The model's tokens see the tokens after them, so that it cannot generate text. Use "
            "CompiledModel."
        )
    return found


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
        elif number == _PAD:
            found["padding"] = _token(_message(value))
    return Metadata(**found)


def _is_parameters(content: bytes) -> bool:
    """Return whether a message is LlmParameters: numbers and texts where LlmMetadata has others."""
    return any(
        isinstance(value, int) if number in (_OLD_SIZE, _OLD_START_ID) else isinstance(value, bytes)
        for number, value in fields(content)
        if number in (_OLD_SIZE, _OLD_START_ID, _OLD_STOP)
    )


def _read_parameters(content: bytes) -> Metadata:
    found: dict[str, Any] = {"stops": ()}
    for number, value in fields(content):
        if number == _OLD_START_ID:
            found["start"] = (_signed(value),)
        elif number == _OLD_START:
            found["start"] = _message(value).decode()
        elif number == _OLD_STOP:
            found["stops"] += (_message(value).decode(),)
        elif number == _OLD_AFFIXES:
            texts = {key: _message(text).decode() for key, text in fields(_message(value))}
            user = texts.get(_OLD_PREFIX, ""), texts.get(_OLD_SUFFIX, "")
            found["affixes"] = {"user": user, "model": ("", "")}
    return Metadata(**found)


def _read_executor(content: bytes) -> dict[str, Any]:
    """Return the fields of Metadata that an ExecutorMetadata message has."""
    states: set[str] = set()
    found: dict[str, Any] = {}
    for number, value in (
        each
        for outer, inner in fields(content)
        if outer == _LANGUAGE
        for each in fields(_message(inner))
    ):
        if number == _STATES:
            state = dict(fields(_message(value)))
            if state.get(_STATE_TYPE) == _RECURRENT:
                states.add(_message(state.get(_STATE_NAME, b"")).decode())
        elif number == _MASKS:
            masks = dict(fields(_message(value)))
            found["causal"] = _BIDIRECTIONAL not in (
                masks.get(_MASK_TYPE),
                masks.get(_LOCAL_MASK_TYPE),
            )
            found["window"] = _signed(masks.get(_WINDOW, 0))
    return {**found, "states": frozenset(states)}


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
