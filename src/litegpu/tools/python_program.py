"""A Python program that runs in this process, as Python itself would run it."""

from __future__ import annotations

import importlib.machinery
import os
import pkgutil
import runpy
import sys
import types
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from litegpu import config
from litegpu.errors import OptionsError, closest
from litegpu.tools.console import note

_PACKAGE = str(Path(__file__).parents[1])
_HOOKS = str(Path(_PACKAGE, "acceleration"))


class PythonProgram:
    """A program with its arguments, found before anything is changed.

    The words are those after `python`: a file, a folder or zip file with `__main__.py`,
    `-m MODULE`, `-c CODE` or `-`; or a command of the Python environment. Raises OptionsError if
    there is no such program.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.name, *self.arguments = words
        self._command: EntryPoint | None = None
        if self.name in ("-m", "-c"):
            if not self.arguments:
                raise OptionsError(f"{self.name} needs {_NEEDED[self.name]}")
        elif self.name != "-" and not os.path.exists(self.name):
            self._command = _command(self.name)

    def run(self) -> int:
        """Run the program as the main module, which it remains; return the exit status.

        An error of the program is printed as Python prints it.
        """
        before = sys.argv, sys.path[:]
        try:
            self._run()
        except SystemExit as end:
            if isinstance(end.code, int | None):
                return end.code or 0
            note(str(end.code))
            return 1
        except Exception as error:
            _strip(error)
            sys.excepthook(type(error), error, error.__traceback__)
            return 1
        finally:
            sys.argv, sys.path[:] = before
        return 0

    def _run(self) -> None:
        sys.argv = [self.name, *self.arguments]
        if self._command is not None:
            sys.exit(self._command.load()())
        main = types.ModuleType("__main__")
        # The main module remains after the program, because functions at exit may need its names.
        sys.modules["__main__"] = main
        if self.name == "-m":
            sys.argv = [self.name, *self.arguments[1:]]
            sys.path.insert(0, os.getcwd())
            _run_module(self.arguments[0])
        elif self.name == "-c":
            sys.argv = [self.name, *self.arguments[1:]]
            sys.path.insert(0, "")
            _execute(main, self.arguments[0], "<string>")
        elif self.name == "-":
            sys.path.insert(0, "")
            _execute(main, sys.stdin.read(), "<stdin>")
        elif pkgutil.get_importer(self.name) is not None:
            sys.path.insert(0, os.path.abspath(self.name))
            _run_module("__main__", alter_argv=False)
        else:
            path = os.path.abspath(self.name)
            main.__file__ = path
            main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
            sys.path.insert(0, os.path.dirname(path))
            _execute(main, Path(path).read_bytes(), path)


_NEEDED = {
    "-m": "the name of a module. For example: -m pyopen_wakeword",
    "-c": "the code. For example: -c 'import package; package.main()'",
}


def _command(name: str) -> EntryPoint:
    commands = {each.name: each for each in entry_points(group="console_scripts")}
    if name in commands:
        return commands[name]
    close = closest(name, [*commands, *os.listdir()])
    hint = f" Did you mean '{close}'?" if close else ""
    if name.startswith("python"):
        hint = " Omit it: this command runs the program itself."
    raise OptionsError(
        f"There is no file '{name}', and no command of this name in the Python environment "
        f"{sys.prefix}.{hint}"
    )


def _run_module(name: str, alter_argv: bool = True) -> None:
    """Run a module as `python -m` does; without `alter_argv` as Python runs a folder."""
    run: Any = vars(runpy)["_run_module_as_main"]  # `run_module` removes the module at the end
    run(name, alter_argv)


def _execute(main: types.ModuleType, source: str | bytes, path: str) -> None:
    exec(compile(source, path, "exec", dont_inherit=True), vars(main))


def _strip(error: BaseException) -> None:
    """Remove the frames of this command and of the hooks from tracebacks, except with a log.

    The frames before the program's first one are those of the command.
    """
    if config.debug_level():
        return
    pending, seen = [error], {id(error)}
    while pending:
        each = pending.pop()
        frames: list[types.TracebackType] = []
        trace = each.__traceback__
        while trace is not None:
            path = trace.tb_frame.f_code.co_filename
            is_start = path.startswith(_PACKAGE) or path in (runpy.__file__, "<frozen runpy>")
            if frames or not is_start:
                frames.append(trace)
            trace = trace.tb_next
        rebuilt = None
        for frame in reversed(frames):
            if not frame.tb_frame.f_code.co_filename.startswith(_HOOKS):
                where = frame.tb_frame, frame.tb_lasti, frame.tb_lineno
                rebuilt = types.TracebackType(rebuilt, *where)
        each.__traceback__ = rebuilt
        for other in (each.__cause__, each.__context__):
            if other is not None and id(other) not in seen:
                seen.add(id(other))
                pending.append(other)
