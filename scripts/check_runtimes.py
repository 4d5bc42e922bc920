"""Run the tests of the bridge in every runtime but the newest, each in an environment of its own.

Usage: check_runtimes.py [NAME ...], after `make setup`; without names it takes all of them. `make
test` runs the same tests in the newest runtime, the one in .venv. The environments are kept in
.runtimes/ and made anew when what they are made from changes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".runtimes"
TESTS = (
    *("runtime_abi/test_runtimes", "runtime_abi/test_bridge", "runtime_abi/test_bridge_faults"),
    *("runtime_abi/test_bridge_lifetime", "runtime_abi/test_bridge_split"),
    *("runtime_abi/test_zero_copy", "engine/test_states"),
)
LEFT_OUT = "not damaged_models"
"""Old runtimes read damaged models beyond their end, and fall over some of them at random."""
COMMON = (
    *("--editable", f"{ROOT}[opencl]"),
    # What the tests and litegpu's tools import. The extra "tools" would ask for a newer runtime.
    *("flatbuffers", "hypothesis", "pillow", "platformdirs", "pytest", "pytest-timeout"),
)
SCHEMA = "ai_edge_litert.schema_py_generated"
_TOGETHER = 2


@dataclass(frozen=True)
class Runtime:
    """A version of a runtime: what pip installs, and the last Python that has wheels of it."""

    name: str
    requirements: tuple[str, ...]
    last_python: tuple[int, int]

    @property
    def folder(self) -> Path:
        """The environment."""
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")

    def fingerprint(self) -> str:
        """Return what an environment that is up to date was made from."""
        parts = (sys.version, sys.prefix, *self.requirements, *COMMON)
        text = "\n".join(parts) + (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        return hashlib.sha256(text.encode()).hexdigest()


# The wheels of the first two were made for NumPy 1.
RUNTIMES = (
    Runtime("tflite-runtime-2.14", ("tflite-runtime==2.14.0", "numpy<2"), (3, 11)),
    Runtime("ai-edge-litert-1.0", ("ai-edge-litert==1.0.1", "numpy<2"), (3, 11)),
    Runtime("ai-edge-litert-1.4", ("ai-edge-litert==1.4.0",), (3, 12)),
    Runtime("ai-edge-litert-2.0", ("ai-edge-litert==2.0.2",), (3, 12)),
)


@dataclass(frozen=True)
class Outcome:
    """How it went in one runtime; `log` says more where that was not well."""

    runtime: Runtime
    result: str
    seconds: float
    log: str


def check(runtime: Runtime) -> Outcome:
    """Make the environment of a runtime unless it is up to date, and run the tests in it."""
    start = time.monotonic()
    result, log = _result_of(runtime)
    return Outcome(runtime, result, time.monotonic() - start, log)


def _result_of(runtime: Runtime) -> tuple[str, str]:
    if sys.version_info[:2] > runtime.last_python:
        return "no wheel for Python {}.{}".format(*sys.version_info[:2]), ""
    tests = (f"tests/{name}.py" for name in TESTS)
    try:
        _make(runtime)
        log = _run(runtime.python, "-m", "pytest", "-q", "-k", LEFT_OUT, *tests)
    except subprocess.CalledProcessError as error:
        command = " ".join(map(str, error.cmd[1:4]))
        return f"FAILED: {command} ...", error.output
    closing = re.search(r"^\d+ passed.*?(?= in )", log, re.MULTILINE)
    return (closing[0], "") if closing else ("FAILED: no test ran", log)


def _make(runtime: Runtime) -> None:
    stamp = runtime.folder / "litegpu.stamp"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == runtime.fingerprint():
        return
    print(f"runtimes: making {runtime.folder}", flush=True)
    _run(sys.executable, "-m", "venv", "--clear", str(runtime.folder))
    install = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile")
    _run(runtime.python, *install, *runtime.requirements, *COMMON)
    _lend_schema(runtime)
    stamp.write_text(runtime.fingerprint(), encoding="utf-8")


def _lend_schema(runtime: Runtime) -> None:
    """Give a runtime without the schema of models that of .venv, to write the tests' models."""
    position = _run(runtime.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    target = Path(position.strip(), *SCHEMA.split(".")).with_suffix(".py")
    source = find_spec(SCHEMA)
    if source is None or source.origin is None:
        raise SystemExit("error: .venv has no ai-edge-litert. Run: make setup")
    if not target.exists():
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(source.origin, target)


def _run(program: str | Path, *arguments: str) -> str:
    done = subprocess.run(
        [program, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    return done.stdout


def main(names: Sequence[str]) -> int:
    """Check the runtimes of these names, or all; return the exit status."""
    known = {runtime.name: runtime for runtime in RUNTIMES}
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: unknown runtime '{unknown[0]}'. Known: {', '.join(known)}.", file=sys.stderr)
        return 2
    with ThreadPoolExecutor(_TOGETHER) as pool:
        outcomes = list(pool.map(check, [known[name] for name in names or known]))
    failed = [outcome for outcome in outcomes if outcome.result.startswith("FAILED")]
    for outcome in failed:
        print(f"--- {outcome.runtime.name}\n{outcome.log}")
    print("\nruntime               result                       seconds")
    for outcome in outcomes:
        print(f"{outcome.runtime.name:<21} {outcome.result:<28} {outcome.seconds:.0f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
