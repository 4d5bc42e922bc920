"""`litegpu build-delegate OUTPUT`: compiles an external delegate for programs in any language."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from litegpu.errors import DelegateLibraryError
from litegpu.tools.console import note
from litegpu.tools.files import replacing
from litegpu.tools.flags import Flag

ARGUMENTS = {"output": "the shared library to write: .so, on macOS .dylib, on Windows .dll"}
FLAGS = (
    Flag(
        *("compiler", str, None),
        "the C compiler (default: the first of cc, gcc, clang and cl on PATH)",
        metavar="PROGRAM",
    ),
)
EXAMPLES = (
    "litegpu build-delegate liblitegpu.so",
    "litegpu build-delegate liblitegpu.so --compiler=clang",
    "litegpu benchmark model.tflite --external_delegate_path=./liblitegpu.so \\\n"
    "    --external_delegate_options='backend:opencl;precision:fp16'",
)
NOTES = (
    "The library exports tflite_plugin_create_delegate and tflite_plugin_destroy_delegate, for "
    'load_delegate("liblitegpu.so", {...}) and for programs in C and C++. Its options are those '
    "of GpuDelegate, by their names, and `model`.",
    "The library starts a Python interpreter in the program, or uses a running one. The library "
    "belongs to this Python environment: build it again after moving or replacing the environment.",
)
_COMPILERS = ("cc", "gcc", "clang", "cl")


def main(args: argparse.Namespace) -> int:
    """Compile the library; raise DelegateLibraryError without a suitable compiler."""
    compiler = find_compiler(args.compiler)
    library = python_library()
    with replacing("", args.output) as part, tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "delegate.c")
        source.write_text(source_text(sys.executable, library), encoding="utf-8")
        built = Path(folder, f"built{part.suffix}")
        done = subprocess.run(
            _command(compiler, source.name, built.name),
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if done.returncode or not built.exists():
            said = (done.stderr + done.stdout).strip() or f"status {done.returncode}"
            raise DelegateLibraryError(
                f"'{compiler}' cannot compile the delegate: {said}\n"
                "Name another C compiler with --compiler=PROGRAM."
            )
        shutil.copyfile(built, part)
    note(f"output: {args.output}")
    if not library:
        note(
            "Only Python programs can load the delegate, because this Python has no shared "
            "library. For other programs use a Python with a shared library (Debian: "
            "libpython3-dev; pyenv: PYTHON_CONFIGURE_OPTS=--enable-shared)."
        )
    return 0


def find_compiler(name: str | None) -> str:
    """Return the path of a C compiler. Raises DelegateLibraryError if there is none."""
    for each in (name,) if name else _COMPILERS:
        if found := shutil.which(each):
            return found
    remedy = _REMEDIES.get(sys.platform, "apt-get install gcc")
    error = DelegateLibraryError(
        f"There is no C compiler '{name}'. Name one that exists with --compiler=PROGRAM."
        if name
        else (
            f"There is no C compiler: none of {', '.join(_COMPILERS)} is on PATH. Install one "
            f"({remedy}), or name a compiler with --compiler=PROGRAM."
        )
    )
    error.remedy = remedy
    raise error


_REMEDIES = {
    "darwin": "xcode-select --install",
    "win32": "winget install Microsoft.VisualStudio.2022.BuildTools",
}


def python_library() -> str:
    """Return the path of this Python's shared library; "" if Python is linked statically."""
    version = sysconfig.get_python_version()
    names = [f"python{version.replace('.', '')}.dll"]
    if sys.platform != "win32":
        names = [str(sysconfig.get_config_var("INSTSONAME")), f"libpython{version}.so.1.0"]
    folder, machine, framework = map(
        sysconfig.get_config_var, ("LIBDIR", "MULTIARCH", "PYTHONFRAMEWORKPREFIX")
    )
    folders = [folder, f"{folder}/{machine}", framework, sys.base_prefix, f"{sys.base_prefix}/lib"]
    for path in (Path(each, name) for name in names for each in folders if each):
        if path.suffix != ".a" and path.is_file():
            return str(path)
    return ""


def source_text(executable: str, library: str, version: str = "") -> str:
    """Return the C source for a Python executable, its shared library, and its version."""
    native = "wchar_t" if os.name == "nt" else "char"
    return "\n".join(
        (
            "#define _GNU_SOURCE",
            f'#define PYTHON_VERSION "{version or sysconfig.get_python_version()}"',
            "#include <wchar.h>",
            _array("wchar_t", "executable", _units(executable)),
            _array(native, "python_file", _units(executable, native)),
            _array(native, "library", _units(library, native)),
            Path(__file__).with_name("delegate.c").read_text(encoding="utf-8"),
        )
    )


def _units(text: str, kind: str = "wchar_t") -> Sequence[int]:
    """Return the code units of a text for the initializer of a C array."""
    if kind == "char":
        return memoryview(os.fsencode(text)).cast("b").tolist()
    if os.name == "nt":
        return memoryview(text.encode("utf-16-le")).cast("H").tolist()
    return [ord(each) for each in text]


def _array(kind: str, name: str, units: Sequence[int]) -> str:
    return f"static const {kind} {name}[] = {{{', '.join(map(str, (*units, 0)))}}};"


def _command(compiler: str, source: str, target: str) -> list[str]:
    if Path(compiler).stem.lower() in ("cl", "clang-cl"):
        return [compiler, "/nologo", "/O2", "/LD", source, f"/Fe:{target}"]
    position = [] if os.name == "nt" else ["-fPIC", "-fvisibility=hidden"]
    libraries = ["-ldl", "-lpthread"] if sys.platform == "linux" else []
    return [compiler, "-O2", "-shared", *position, source, "-o", target, *libraries]
