"""Flags in TensorFlow Lite's spelling: `--num_runs=50`, `--num_runs 50`, `--json=true`."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from litegpu.errors import did_you_mean

_BOOLS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True)
class Flag:
    """One flag as data; `kind` is bool, int, float, str or another function of the text."""

    name: str
    kind: Callable[[str], Any]
    default: Any
    help: str
    choices: tuple[str, ...] | None = None


def positive_int(text: str) -> int:
    """Parse a whole number of at least 1, the kind of flags that count things."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of at least 1")
    return value


def _bool(text: str) -> bool:
    if text.lower() not in _BOOLS:
        raise argparse.ArgumentTypeError(f"'{text}' is not one of true, false, 1, 0")
    return _BOOLS[text.lower()]


class FlagParser(argparse.ArgumentParser):
    """A parser for `Flag` tables that says which known flag a misspelt one resembles."""

    def __init__(self, prog: str, description: str, examples: Sequence[str] = ()) -> None:
        super().__init__(
            prog=prog,
            description=description,
            epilog="\n".join(["examples:", *(f"  {line}" for line in examples)]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._flags: dict[str, Flag] = {}

    def add_flags(self, flags: Iterable[Flag]) -> None:
        """Accept these flags."""
        for flag in flags:
            self._flags[flag.name] = flag
            default = "" if flag.default in (None, "") else f" (default: {flag.default})".lower()
            self.add_argument(
                f"--{flag.name}",
                type=_bool if flag.kind is bool else flag.kind,
                default=flag.default,
                choices=flag.choices,
                metavar=None if flag.choices else _metavar(flag.kind),
                help=flag.help + default,
            )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse `argv`; on bad usage print one line and exit with status 2."""
        args, unknown = self.parse_known_args(self._normalised(argv))
        if unknown:
            name = unknown[0].split("=")[0]
            if name.startswith("--"):
                known = did_you_mean(name, [f"--{known}" for known in self._flags])
                self.error(f"unknown flag '{name}'.{known}")
            self.error(f"unexpected argument '{name}'.")
        return args

    def error(self, message: str) -> NoReturn:
        """Print `message` as one clean line and exit with status 2."""
        self.exit(2, f"{self.prog}: error: {message}\n")

    def _normalised(self, argv: Sequence[str]) -> list[str]:
        """Return `argv` with `--a-b` spelt `--a_b` and a bare boolean flag spelt `--flag=true`."""
        result = []
        for position, arg in enumerate(argv):
            name, equals, value = arg.partition("=")
            if name.startswith("--"):
                name = "--" + name[2:].replace("-", "_")
                flag = self._flags.get(name[2:])
                following = argv[position + 1 : position + 2]
                if flag and flag.kind is bool and not equals:
                    value = "" if following and following[0].lower() in _BOOLS else "=true"
            result.append(name + equals + value)
        return result


def _metavar(kind: Callable[[str], Any]) -> str:
    names: dict[Any, str] = {bool: "BOOL", float: "NUMBER", str: "TEXT"}
    return names.get(kind, "N")
