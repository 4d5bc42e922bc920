"""Encodes dataclasses as JSON; checks the types of all fields when decoding."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import types
import typing
from collections.abc import Callable, Hashable, Mapping
from functools import cache
from typing import Any, TypeVar

_T = TypeVar("_T")
_Read = Callable[[Any], Any]
_LARGEST = 1 << 62
"""Upper bound for all integers of a partition, including bytes and operations."""


def encode(value: Any) -> bytes:
    """Return a value of a type that `decode` supports as JSON.

    >>> encode((1, "a", None))
    b'[1,"a",null]'
    """
    return json.dumps(_plain(value), separators=(",", ":")).encode()


def decode(kind: type[_T], data: bytes) -> _T:
    """Return the value of a type from JSON. Raises ValueError if the data have another type.

    Supported scalar types are int (up to 2**62), bool, str, and enums by their values. Supported
    compound types are tuples of fixed or any length, mappings from numbers, strings or enums,
    unions with None, and dataclasses.
    """
    try:
        plain = json.loads(data, parse_float=_no_number, parse_constant=_no_number)
    except RecursionError as error:  # unlimited nesting
        raise ValueError("the data are nested too deeply") from error
    reader: Callable[[Any], _T] = _reader(typing.cast(Hashable, kind))
    return reader(plain)


def _no_number(text: str) -> Any:
    raise ValueError(f"{text[:20]} is not an integer")


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if dataclasses.is_dataclass(value):
        return [_plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return [[_plain(key), _plain(item)] for key, item in value.items()]
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"{type(value).__name__} cannot be stored in files")


@cache
def _reader(kind: Any) -> _Read:
    """Return a function that creates a value of a type from plain data."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(Hashable, kind))
    if kind is int:
        return _integer
    if kind in (bool, str, type(None)):
        return _exactly(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind
    if origin is tuple and inner[-1] is Ellipsis:
        return _sequence(_reader(inner[0]))
    if origin is tuple:
        return _fixed(tuple(map(_reader, inner)), tuple)
    if origin is Mapping:
        return _mapping(_reader(inner[0]), _reader(inner[1]))
    if origin in (types.UnionType, typing.Union) and len(inner) == 2 and inner[1] is type(None):
        return _optional(_reader(inner[0]))
    raise TypeError(f"{kind} cannot be read from files")


@cache
def _dataclass(kind: Any) -> _Read:
    hints = typing.get_type_hints(kind)
    readers = tuple(_reader(hints[field.name]) for field in dataclasses.fields(kind))
    return _fixed(readers, lambda values: kind(*values))


def _integer(plain: Any) -> int:
    if type(plain) is not int or not -_LARGEST < plain < _LARGEST:
        raise ValueError(f"{str(plain)[:20]} where a number was expected")
    return plain


def _exactly(kind: type) -> _Read:
    def read(plain: Any) -> Any:
        if type(plain) is not kind:
            raise ValueError(f"{type(plain).__name__} where {kind.__name__} was expected")
        return plain

    return read


def _optional(reader: _Read) -> _Read:
    return lambda plain: None if plain is None else reader(plain)


def _items(plain: Any, count: float = math.nan) -> list[Any]:
    if type(plain) is not list or len(plain) != (len(plain) if math.isnan(count) else count):
        raise ValueError(f"{type(plain).__name__} where a list of another length was expected")
    return plain


def _sequence(reader: _Read) -> _Read:
    return lambda plain: tuple(map(reader, _items(plain)))


def _fixed(readers: tuple[_Read, ...], make: Callable[[tuple[Any, ...]], Any]) -> _Read:
    count = len(readers)

    def read(plain: Any) -> Any:
        items = _items(plain, count)
        return make(tuple([reader(item) for reader, item in zip(readers, items, strict=True)]))

    return read


def _mapping(key: _Read, value: _Read) -> _Read:
    def read(plain: Any) -> Any:
        pairs = [_items(pair, 2) for pair in _items(plain)]
        found = {key(name): value(item) for name, item in pairs}
        if len(found) < len(pairs):
            raise ValueError("a key occurs twice")
        return found

    return read
