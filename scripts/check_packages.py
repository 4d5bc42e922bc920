"""Build the wheel and the sdist, and check each in clean environments, far from the checkout.

Usage: check_packages.py [--keep FOLDER] [PYTHON ...], where `build`, `hatchling` and `twine` are
installed. Each PYTHON is an interpreter to try, the one that runs this unless told. In each, the
wheel with the extras of a machine without a GPU runs README's commands from an empty folder; the
sdist is installed beside it once. It needs the package index, and an OpenCL device (PoCL will do).
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = "runtime,opencl,tools,report,batch"
PREPARE = """
import shutil
from litegpu import zoo
from litegpu.tools.picture_flag import (default_picture,)
from pathlib import Path
Path("pictures").mkdir()
shutil.copy(default_picture(), "picture.jpg")
shutil.copy(default_picture(), "pictures")
Path("model.tflite").write_bytes(zoo.load("zoo:mobilenet_v1_0.25_128"))
"""
QUICKLY = {
    "run": ("--num_runs=1", "--max_secs=1"),
    "demo": ("--num_runs=1", "--max_secs=1"),
    "profile": ("--repeats=1",),
    "benchmark": ("--num_runs=1", "--min_secs=0", "--warmup_min_secs=0"),
    "inference_diff": ("--num_runs=1",),
}
"""What keeps a command short where it would measure."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build both packages into `folder`; return the wheel (made from the sdist) and the sdist."""
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)])
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist


def missing_files(wheel: Path, sdist: Path) -> list[str]:
    """Return the files of the source that a package lacks, as `PACKAGE: PATH`."""
    source = ROOT / "src"
    paths = (path for path in source.rglob("*") if path.is_file())
    expected = {str(p.relative_to(source)) for p in paths if "__pycache__" not in p.parts}
    with zipfile.ZipFile(wheel) as opened:
        in_wheel = set(opened.namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    return [
        *(f"wheel: {path}" for path in sorted(expected - in_wheel)),
        *(f"sdist: {path}" for path in sorted(expected) if f"src/{path}" not in in_sdist),
    ]


def check_description(packages: Sequence[Path]) -> None:
    """Let twine judge whether a package index can show README."""
    _run([sys.executable, "-m", "twine", "check", "--strict", *map(str, packages)])


def readme_commands() -> list[list[str]]:
    """Return the arguments of each `$ litegpu ...` in README."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [shlex.split(line) for line in re.findall(r"^\$ litegpu (.+)$", text, re.MULTILINE)]


def environment_without_checkout() -> dict[str, str]:
    """Return this environment without what would lend a program the checkout or its models."""
    hidden = ("PYTHONPATH", "LITEGPU_", "VIRTUAL_ENV")
    return {name: text for name, text in os.environ.items() if not name.startswith(hidden)}


def make_environment(python: str, folder: Path, requirement: str) -> Path:
    """Make a virtual environment with `requirement`; return its interpreter."""
    _run([python, "-m", "venv", str(folder)])
    interpreter = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = (str(interpreter), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    _run([*pip, requirement])
    return interpreter


def check_installed(python: Path, folder: Path, commands: Sequence[Sequence[str]]) -> None:
    """Run `commands` by an installed litegpu, in `folder`, which is made, from models it writes."""
    folder.mkdir()
    where = _run([str(python), "-c", "import litegpu; print(litegpu.__file__)"], folder).strip()
    if ROOT in Path(where).parents or not (Path(where).parent / "py.typed").exists():
        raise SystemExit(f"error: {where} is not an installed litegpu with its types")
    _run([str(python), "-c", PREPARE], folder)
    program = str(python.with_name("litegpu"))
    for arguments in [["--help"], ["--version"], *commands]:
        _run([program, *arguments, *QUICKLY.get(arguments[0], ())], folder)


def _run(command: Sequence[str], folder: Path | None = None) -> str:
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment_without_checkout(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        shown = shlex.join(command[:8])
        raise SystemExit(f"error: {shown} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Build and check; return the exit status."""
    parser = argparse.ArgumentParser(description="Build the packages and check them.")
    parser.add_argument("--keep", type=Path, help="folder for the packages, which is made")
    parser.add_argument("python", nargs="*", default=[sys.executable], help="interpreters to try")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = build(folder / "dist")
        if missing := missing_files(wheel, sdist):
            raise SystemExit("error: files are missing\n" + "\n".join(missing))
        check_description([wheel, sdist])
        print(f"packages: {wheel.name} and {sdist.name} are complete", flush=True)
        for number, python in enumerate(options.python):
            interpreter = make_environment(python, folder / f"wheel{number}", f"{wheel}[{EXTRAS}]")
            check_installed(interpreter, folder / f"empty{number}", readme_commands())
            print(f"packages: README's commands ran with {python}", flush=True)
        interpreter = make_environment(options.python[0], folder / "sdist", str(sdist))
        _run([str(interpreter), "-m", "litegpu", "--help"], folder)
        print("packages: the sdist installs", flush=True)
        if options.keep:
            shutil.copytree(folder / "dist", options.keep, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
