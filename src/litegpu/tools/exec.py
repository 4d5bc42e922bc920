"""`litegpu exec PROGRAM`: runs a Python program whose interpreters use the delegate."""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import threading

from litegpu.acceleration import accelerate, children
from litegpu.tools.console import note, start_bar
from litegpu.tools.delegation import DELEGATE_FLAGS, given_options
from litegpu.tools.python_program import PythonProgram

ARGUMENTS = {
    "program": (
        "a .py file, a folder or zip file with __main__.py, -m MODULE, -c CODE, or a command of "
        "this environment"
    )
}
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
    "interpreters use litegpu's delegate, see `litegpu.accelerate`. So do those of processes that "
    "it starts with the same Python, except forks. At the end the tool prints on "
    "stderr which models ran where. Flags of the delegate come before PROGRAM. The exit status is "
    "that of the program.",
)


def main(args: argparse.Namespace) -> int:
    """Run the program; return its exit status. Raises OptionsError if there is no such program."""
    program = PythonProgram(args.program)
    options = given_options(args)
    on_progress = start_bar() or children.Announcement()
    root = logging.getLogger()
    for handler in root.handlers[:]:  # the program configures its log itself
        root.removeHandler(handler)
    with accelerate(**options, on_progress=on_progress) as acceleration, children.reached(options):
        try:
            status = program.run()
        finally:
            _wait_for_threads()
            with contextlib.suppress(BrokenPipeError):
                sys.stdout.flush()
            for line in children.summary(acceleration.models):
                note(f"litegpu: {line}")
        if not acceleration.models:
            note(
                "litegpu: no interpreter of this process got a delegate: the program created none "
                "that litegpu can reach, or each had its own GpuDelegate."
            )
    return status


def _wait_for_threads() -> None:
    """Wait until the program's threads end, as Python does: they may create interpreters."""
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
