"""Lines in the manner of TensorFlow Lite's tools: `INFO: ` and `WARN: ` on stdout, else stderr."""

from __future__ import annotations

import argparse
import sys

from litegpu.tools.console import wipe


def info(message: str) -> None:
    """Print what people and scripts read."""
    wipe()
    print(f"INFO: {message}", flush=True)


def warn(message: str) -> None:
    """Print what was asked for and cannot be had here."""
    wipe()
    print(f"WARN: {message}", flush=True)


def warn_of_unconsumed(args: argparse.Namespace) -> None:
    """Name the flags of the command line that came before; see `FlagParser`."""
    if args.unconsumed:
        warn(f"Unconsumed cmdline flags: {' '.join(args.unconsumed)}")
        warn("They come twice. The first of each counts.")


def error(message: str) -> None:
    """Print on stderr, after all that stdout was given, what went wrong."""
    wipe()
    sys.stdout.flush()
    print(f"ERROR: {message}", file=sys.stderr, flush=True)
