"""Parses flags in TensorFlow Lite's syntax: `--num_runs=50`, `--num_runs 50`, `--json=true`."""

from __future__ import annotations

import argparse
import enum
import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from litegpu.errors import closest

_METAVARS: dict[Any, str] = {bool: "BOOL", str: "TEXT"}
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Flag:
    """The definition of a flag; `kind` is bool, str or another function that parses a text.

    A flag with `bare` may appear without a value, and then has the value `bare`. Another value of
    this flag requires the syntax with `=`. `known` has possible values for completion in shells.
    """

    name: str
    kind: Callable[[str], Any]
    default: Any
    help: str
    bare: str | None = None
    metavar: str | None = None
    known: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[str, ...]:
        """The possible values, if they can be listed; otherwise empty."""
        if self.kind is bool:
            return ("true", "false")
        return self.kind.values if isinstance(self.kind, _Kind) else self.known

    def parse(self, text: str) -> Any:
        """Parse the value of the flag. Raises ArgumentTypeError or ValueError."""
        return (_bool if self.kind is bool else self.kind)(text)


@dataclass(frozen=True)
class _Kind:
    """A flag type whose values are parsed and then validated."""

    parse: Callable[[str], Any]
    allowed: Callable[[Any], bool]
    what: str
    values: tuple[str, ...] = ()

    def __call__(self, text: str) -> Any:
        try:
            value = self.parse(text)
            if self.allowed(value):
                return value
        except (ValueError, KeyError):
            pass
        close = closest(text, self.values)
        hint = f". Did you mean '{close}'?" if close else ""
        raise argparse.ArgumentTypeError(f"'{text}' is not {self.what}{hint}")


def at_least(least: int) -> Callable[[str], Any]:
    """Return the type of flags whose value is an integer of at least `least`."""
    return _Kind(int, lambda value: value >= least, f"a whole number of at least {least}")


whole = _Kind(int, lambda _: True, "a whole number")
positive_int = at_least(1)
number = _Kind(float, math.isfinite, "a finite number")
positive = _Kind(float, lambda value: 0 < value < math.inf, "a finite number above 0")
from_zero = _Kind(float, lambda value: 0 <= value < math.inf, "a finite number from 0")
divisor = _Kind(
    float, lambda value: math.isfinite(value) and value != 0, "a finite number other than 0"
)
share = _Kind(float, lambda value: 0 <= value <= 1, "a number from 0 to 1")
_bool = _Kind(lambda text: _BOOLS[text.lower()], lambda _: True, "one of true, false, 1, 0")


def truth_or_text(text: str) -> bool | str:
    """Parse the value of a flag that is a bool or a text."""
    return _BOOLS.get(text.lower(), text)


def member(names: type[enum.IntEnum]) -> Callable[[str], Any]:
    """Return the type of flags whose value is the name (in any case) or the number of a member."""
    known = {name.lower(): int(each) for name, each in names.__members__.items()}
    known |= {str(int(each)): int(each) for each in names}
    words = tuple(name.lower() for name in names.__members__)
    return _Kind(lambda text: known[text.lower()], lambda _: True, f"one of {listed(names)}", words)


def one_of(names: Iterable[str]) -> Callable[[str], Any]:
    """Return the type of flags whose value is one of these words, in any case."""
    known = {name.lower(): name for name in names}
    what = f"one of {', '.join(known.values())}"
    return _Kind(lambda text: known[text.lower()], lambda _: True, what, tuple(known.values()))


def listed(names: type[enum.IntEnum] | type[enum.IntFlag]) -> str:
    """Return the members of an enumeration with their numbers."""
    return ", ".join(f"{int(each)} {each.name}" for each in names)


class FlagParser(argparse.ArgumentParser):
    """A parser for `Flag` tables that suggests the known flag for a misspelled one.

    With `failed`, a tool's last line after a failure, the parser behaves like TensorFlow Lite's
    tools. The first of repeated flags counts. The result's attribute `unconsumed` has the other
    ones, for `lines.warn_of_unconsumed`.
    """

    def __init__(
        self,
        prog: str,
        description: str,
        examples: Sequence[str] = (),
        usage: str | None = None,
        failed: str = "",
    ) -> None:
        super().__init__(
            prog=prog,
            usage=usage,
            description=description,
            epilog="\n".join(["examples:", *(f"  {line}" for line in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._flags: dict[str, Flag] = {}
        self._failed = failed
        self._example = f". For example: {examples[0]}" if examples else "."

    def add_flags(self, flags: Iterable[Flag]) -> None:
        """Add these flags to the parser."""
        for flag in flags:
            self._flags[flag.name] = flag
            default = "" if flag.default in (None, "") else f" (default: {flag.default})".lower()
            self.add_argument(
                f"--{flag.name}",
                type=flag.parse,
                default=flag.default,
                metavar=flag.metavar or _METAVARS.get(flag.kind, "N"),
                help=flag.help + default,
            )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`; on bad usage print one line and exit with status 2.

        The result's attribute `given` has the names of the flags in `argv`, in order. The attribute
        `unconsumed` has the words of repeated flags.
        """
        words = self._normalised(argv)
        left: list[str] = []
        if self._failed:
            words, left = self._first_of_each(words)
            for word in words:
                self._check(word)
        for word in itertools.takewhile("--".__ne__, words):
            name = word.partition("=")[0]
            if name.startswith("--") and name != "--help" and name[2:] not in self._flags:
                self.error(f"unknown flag '{name}'.{self._resembling(name)}")
        args, unknown = self.parse_known_intermixed_args(words)
        args.unconsumed = tuple(left)
        if unknown:
            self.error(f"unexpected argument '{unknown[0]}'.")
        names = (word[2:].partition("=")[0] for word in words if word.startswith("--"))
        args.given = tuple(dict.fromkeys(name for name in names if name in self._flags))
        return args

    def split(self, argv: Sequence[str]) -> tuple[list[str], list[str]]:
        """Split `argv` before the first word that is neither a flag nor the value of a flag.

        A word `--` ends the flags, and belongs to neither part.
        """
        words = iter(enumerate(argv))
        for position, word in words:
            if word == "--":
                return [*argv[:position]], [*argv[position + 1 :]]
            if not word.startswith("--") and word != "-h":
                return [*argv[:position]], [*argv[position:]]
            flag = self._flags.get(word[2:].replace("-", "_"))
            following = argv[position + 1 : position + 2]
            is_bare = flag and (flag.kind is bool or flag.bare)
            if flag and following and (not is_bare or following[0].lower() in _BOOLS):
                next(words)  # the value of the flag
        return [*argv], []

    def _resembling(self, name: str) -> str:
        word = name[2:].lower()
        meant = [f"--{known}={word}" for known, each in self._flags.items() if word in each.values]
        close = meant[0] if meant else closest(name, [f"--{known}" for known in self._flags])
        hint = f" Did you mean '{close}'?" if close else ""
        return f"{hint} `{self.prog} --help` lists all flags."

    def _first_of_each(self, words: Sequence[str]) -> tuple[list[str], list[str]]:
        """Return the first occurrence of each flag, joined with its value, and repetitions."""
        valid: dict[str, str] = {}
        left = []
        rest = iter(words)
        for word in rest:
            name, equals, _ = word.partition("=")
            if name[2:] in self._flags and not equals:
                word = "=".join([word, *itertools.islice(rest, 1)])
            key = name if name[2:] in self._flags else f"{len(valid)} {name}"
            if key not in valid:
                valid[key] = word
            else:
                left.append(word)
        return [*valid.values()], left

    def _check(self, word: str) -> None:
        """Print an error about an invalid value of a flag in TensorFlow Lite's wording."""
        name, _, value = word.partition("=")
        flag = self._flags.get(name[2:]) if name.startswith("--") else None
        if flag is None:
            return
        try:
            flag.parse(value)
        except (argparse.ArgumentTypeError, ValueError) as error:
            self.exit(
                2,
                f"ERROR: Failed to parse flag '{flag.name}' against argv '{word}'\n"
                f"{self.prog}: error: argument {name}: {error}\n"
                f"ERROR: {self._failed}\n",
            )

    def error(self, message: str) -> NoReturn:
        """Print `message` as one line, and exit with status 2."""
        if message.startswith("the following arguments are required"):  # argparse's messages
            message += self._example
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _normalised(self, argv: Sequence[str]) -> list[str]:
        """Return `argv` with `--a-b` spelled `--a_b`, and with the default values of bare flags."""
        result = []
        for position, arg in enumerate(argv):
            name, equals, value = arg.partition("=")
            if name == "--help" and value.lower() in _BOOLS:  # argparse's own flag takes no value
                result += ["--help"] * _BOOLS[value.lower()]
                continue
            if name.startswith("--"):
                name = "--" + name[2:].replace("-", "_")
                flag = self._flags.get(name[2:])
                following = argv[position + 1 : position + 2]
                bare = "true" if flag and flag.kind is bool else flag and flag.bare
                if bare and not equals:
                    value = "" if following and following[0].lower() in _BOOLS else f"={bare}"
            result.append(name + equals + value)
        return result
