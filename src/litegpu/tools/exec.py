"""`litegpu exec PROGRAM`: runs a Python program whose interpreters use the delegate."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import runpy
import sys
import threading
import types
from collections import Counter
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from litegpu.acceleration import AcceleratedModel, accelerate
from litegpu.errors import OptionsError, closest
from litegpu.tools.console import note, start_bar
from litegpu.tools.delegation import DELEGATE_FLAGS, given_options

ARGUMENTS = {"program": "a .py file, -m MODULE, or a command of this environment"}
PROGRAM = True
"""All words after the first argument belong to the program."""
FLAGS = DELEGATE_FLAGS
EXAMPLES = (
    "litegpu exec script.py --its-flag",
    "litegpu exec --precision=fp16 yolo predict model=yolo11n.tflite",
    "litegpu exec --backend=opencl -m pyopen_wakeword --model=okay_nabu a.wav",
)
NOTES = (
    "The program runs in this process, as if Python had started it. Its TensorFlow Lite "
    "interpreters use litegpu's delegate, see `litegpu.accelerate`. At the end the tool prints on "
    "stderr which models ran where. Flags of the delegate come before PROGRAM. The exit status is "
    "that of the program.",
)


def main(args: argparse.Namespace) -> int:
    """Run the program; return its exit status. Raises OptionsError if there is no such program."""
    program = _Program(args.program)
    root = logging.getLogger()
    for handler in root.handlers[:]:  # the program configures its log itself
        root.removeHandler(handler)
    with accelerate(**given_options(args), on_progress=start_bar()) as acceleration:
        try:
            return program.run()
        finally:
            _wait_for_threads()
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
            _print_summary(acceleration.models)


class _Program:
    """A program with its arguments, found before anything is changed."""

    def __init__(self, words: Sequence[str]) -> None:
        self.name, *self.arguments = words
        self.is_module = self.name == "-m"
        if self.is_module and not self.arguments:
            raise OptionsError("-m needs the name of a module. For example: -m pyopen_wakeword")
        self.command: EntryPoint | None = None
        if not self.is_module and not os.path.isfile(self.name):
            commands = {each.name: each for each in entry_points(group="console_scripts")}
            if self.name not in commands:
                close = closest(self.name, [*commands, *os.listdir()])
                hint = f" Did you mean '{close}'?" if close else ""
                if self.name.startswith("python"):
                    hint = " Omit it: this command runs the program itself."
                raise OptionsError(
                    f"There is no file '{self.name}', and no command of this name in the Python "
                    f"environment {sys.prefix}.{hint}"
                )
            self.command = commands[self.name]

    def run(self) -> int:
        """Run the program as the main module; return the exit status."""
        before = sys.argv, sys.path[:]
        try:
            return self._run()
        except SystemExit as end:
            if isinstance(end.code, int | None):
                return end.code or 0
            note(str(end.code))
            return 1
        finally:
            sys.argv, sys.path[:] = before

    def _run(self) -> int:
        if self.is_module:
            sys.argv = self.arguments[:]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(self.arguments[0], run_name="__main__", alter_sys=True)
        elif self.command is None:
            sys.argv = [self.name, *self.arguments]
            _run_file(os.path.abspath(self.name))
        else:
            sys.argv = [self.name, *self.arguments]
            sys.exit(self.command.load()())
        return 0


def _run_file(path: str) -> None:
    """Run a file as the main module, which it remains: functions at exit may need its names."""
    main = types.ModuleType("__main__")
    main.__file__ = path
    code = compile(Path(path).read_bytes(), path, "exec")
    sys.path.insert(0, os.path.dirname(path))
    sys.modules["__main__"] = main
    exec(code, vars(main))


def _wait_for_threads() -> None:
    """Wait until the program's threads end, as Python does: they may create interpreters."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()


def _print_summary(models: Sequence[AcceleratedModel]) -> None:
    """Print a line for each model, with the number of its interpreters if there are several."""
    if not models:
        note(
            "litegpu: no interpreter got a delegate: the program created none that litegpu can "
            "reach, or each had its own GpuDelegate."
        )
    for line, count in Counter(map(_line, models)).items():
        note(f"litegpu: {line}" + f" ({count} interpreters)" * (count > 1))


def _line(model: AcceleratedModel) -> str:
    if model.error:
        return f"{model.model}: on the CPU. {model.error}"
    nodes = len(model.report.delegated_nodes) if model.report else 0
    total = f" of {model.report.total_nodes}" if model.report else ""
    return f"{model.model}: {nodes}{total} nodes on {model.device}"
