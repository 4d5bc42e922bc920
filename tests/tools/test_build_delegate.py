"""`litegpu build-delegate`: its library in Python, in a C program, and in other programs."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c_compiler import compiler, program, shared_library
from every_backend import device_of, present
from litegpu import GpuDelegate
from litegpu.errors import DelegateLibraryError, OptionsError
from litegpu.options import GpuDelegateOptions
from litegpu.tools import build_delegate, cli
from litegpu.tools.build_delegate import find_compiler, plugin, python_library, source_text
from litegpu.zoo.writer import ModelWriter, TensorRef
from loop_models import Carried, counted, loop
from places import SUPPORT
from small_models import RUNTIME, assert_close, fully_convolutional, random, reference, run

MODEL = fully_convolutional()
LIBRARIES = ("-ldl", "-lpthread")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler()
    target = tmp_path_factory.mktemp("built") / "delegate.so"
    assert cli.main(["build-delegate", str(target)]) == 0
    return target


def backend() -> str:
    """Return a backend of this machine."""
    found = present() or ["opencl"]
    return device_of("opencl" if "opencl" in found else found[0]).backend


# In Python


def delegate_of(loaded: Any) -> GpuDelegate:
    return plugin._delegates[loaded._get_native_delegate_pointer()]


def interpreter(model: bytes, *delegates: Any) -> Any:
    target = RUNTIME.Interpreter(model_content=model, experimental_delegates=list(delegates))
    target.allocate_tensors()
    return target


def test_it_is_loaded_into_the_python_that_runs(library: Path) -> None:
    """One delegate serves two models with several graphs each; it is new for each of them."""
    writer = ModelWriter()
    x = writer.input((1, 4))

    def doubled(graph: ModelWriter, inside: Carried) -> Sequence[TensorRef]:
        return counted(graph, inside[0]), graph.op("ADD", [inside[1]] * 2, [(1, 4)])

    writer.output(loop(writer, (writer.constant(0, np.int32), x), doubled, 3)[1])
    model, values = writer.build(), random(1, 4)
    loaded = RUNTIME.load_delegate(str(library), {"backend": backend(), "precision": "fp32"})
    for _ in range(2):
        target = interpreter(model, loaded)
        report = delegate_of(loaded).report
        assert report is not None and report.delegated_nodes
        assert_close(run(target, values), reference(model, values))
    picture = random(1, 9, 7, 3)
    target = interpreter(MODEL, loaded)
    assert_close(run(target, picture), reference(MODEL, picture))
    delegate = delegate_of(loaded)
    assert delegate.report is not None and len(delegate.report.delegated_nodes) == 4
    del loaded
    del target
    assert repr(delegate).endswith("closed>")


def test_a_destroyed_delegate_is_not_applied(
    library: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = RUNTIME.load_delegate(str(library), {"backend": backend()})
    functions = ctypes.PyDLL(str(library))
    functions.tflite_plugin_destroy_delegate.argtypes = [ctypes.c_void_p]
    functions.tflite_plugin_destroy_delegate(loaded._get_native_delegate_pointer())
    with pytest.raises((RuntimeError, ValueError), match=r"was destroyed\. Create a new one"):
        interpreter(MODEL, loaded)
    assert not caplog.records
    del loaded
    assert "The program destroyed a delegate that does not exist" in caplog.text


WRONG = {
    "backned": ("opencl", r"Unknown option 'backned'\. Did you mean 'backend'\? Known: backend"),
    "precision": ("fp23", "Unknown precision 'fp23'. Did you mean 'fp32'"),
    "quick_start": ("perhaps", "quick_start: 'perhaps' is not one of true, false, 1, 0."),
    "invoke_timeout_ms": ("1.5", "invoke_timeout_ms: '1.5' is not a whole number."),
    "backend": ("none", "Unknown backend 'none'"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_reported(name: str, library: Path) -> None:
    value, text = WRONG[name]
    with pytest.raises(ValueError, match=text):
        RUNTIME.load_delegate(str(library), {name: value})


def test_every_option_has_a_text() -> None:
    assert {flag.name for flag in plugin.OPTIONS} == {
        *(field.name for field in dataclasses.fields(GpuDelegateOptions)),
        "model",
    }
    texts = {"cache": "False", "unsafe_cache": "1", "quick_start": "true", "device": "0"}
    texts |= {"inference_preference": "sustained_speed", "experimental_flags": "3", "model": "m"}
    assert plugin.parsed(texts) == {
        **{"cache": False, "unsafe_cache": True, "quick_start": True, "device": "0"},
        **{"inference_preference": 1, "experimental_flags": 3, "model": "m"},
    }
    assert plugin.parsed({"cache": "folder"}) == {"cache": "folder"}
    with pytest.raises(OptionsError, match="Unknown option 'x'"):
        plugin.parsed({"x": ""})


def test_an_interrupt_reaches_the_program(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plugin, "GpuDelegate", interrupted)
    create = ctypes.PyDLL(str(library)).tflite_plugin_create_delegate
    with pytest.raises(KeyboardInterrupt):
        create(None, None, ctypes.c_size_t(0), None)


def test_a_delegate_that_cannot_be_released(
    library: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = RUNTIME.load_delegate(str(library), {"backend": backend()})

    def fails(_: GpuDelegate) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(GpuDelegate, "close", fails)
    del loaded
    assert "A delegate could not be destroyed cleanly: no" in caplog.text


# In a program without Python


@dataclasses.dataclass(frozen=True)
class Host:
    """A program in C, and the model that it runs."""

    program: Path
    litert: Path
    model: Path

    def run(self, library: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a scenario; variables for another Python must not matter."""
        command = [*map(str, (self.program, self.litert, library, self.model)), *words]
        environment = os.environ | {"LITEGPU_DEBUG": "1", "PYTHONHOME": "/no", "PYTHONPATH": "/no"}
        return subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=100, check=False
        )


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    if sys.platform != "linux":
        pytest.skip("the C program is written for Linux")
    if not python_library():
        pytest.skip("this Python has no shared library")
    spec = importlib.util.find_spec("ai_edge_litert")
    litert = Path(spec.origin or "").parent / "libLiteRt.so" if spec else Path("none")
    assert litert.is_file(), "the wheel of LiteRT has its C library"
    subprocess.run([sys.executable, "-I", "-c", "import litegpu"], check=True)
    folder = tmp_path_factory.mktemp("host")
    compiled = program((SUPPORT / "external_host.c").read_text(), folder, *LIBRARIES)
    (folder / "model.tflite").write_bytes(MODEL)
    return Host(compiled, litert, folder / "model.tflite")


def sums() -> float:
    """Return the sum that the program prints, as the CPU computes it."""
    values = (np.arange(9 * 7 * 3) % 17 / 17).astype(np.float32).reshape(1, 9, 7, 3)
    (got,) = reference(MODEL, values)
    return float((got.ravel() * (np.arange(got.size) % 5 + 1)).sum())


SCENARIOS = {
    "delegates": (0, [*["sum"] * 5, "invoke fails: 1", "sum"]),
    "fork": (
        5,
        [
            *("sum", "child's invoke fails: 1", "reported:  was opened before"),
            *("created: 0", "child's status 7", "sum"),
        ],
    ),
    "signals": (0, ["sum", "locale C"]),
}


def outline(line: str) -> str:
    """Return a line of the program without numbers and names of devices."""
    return re.sub(r"^(sum).*|^(reported: ).*( was opened before).*", r"\1\2\3", line)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_program_in_c(scenario: str, host: Host, library: Path) -> None:
    status, wanted = SCENARIOS[scenario]
    ended = host.run(library, scenario, f"backend={backend()}", "precision=fp32")
    assert ended.returncode == status, ended.stdout + ended.stderr
    lines = ended.stdout.splitlines()
    assert list(map(outline, lines)) == wanted, ended.stderr
    got = [float(line[4:]) for line in lines if line.startswith("sum ")]
    assert got == pytest.approx([sums()] * len(got), rel=1e-4)
    assert "4 operations will run on the GPU, and the remaining 0" in ended.stderr
    assert ended.stderr.count("The program destroyed a delegate that does not") == (
        scenario == "delegates"
    )
    assert "Traceback" not in ended.stderr


def test_a_program_in_c_learns_what_is_wrong(host: Host, library: Path) -> None:
    ended = host.run(library, "refused", "precision=fp23")
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("reported: Unknown precision 'fp23'. Did you mean 'fp32'?")
    assert (lines[1:], ended.returncode) == (["created: 0", "created: 0"], 0)


# With another Python than its own

MESSAGES = {
    "no library": ((sys.executable, ""), "has no shared library, so that only Python programs"),
    "bad library": ((sys.executable, "/no/libpython.so"), "cannot load Python's library: /no/libp"),
    "moved": (("/no/bin/python", python_library()), "environment was moved or deleted. Run `lite"),
}


@pytest.mark.parametrize("which", MESSAGES)
def test_a_python_that_cannot_start(which: str, host: Host, tmp_path: Path) -> None:
    arguments, text = MESSAGES[which]
    library = shared_library(source_text(*arguments), tmp_path, *LIBRARIES)
    ended = host.run(library, "refused")
    assert text in ended.stdout
    assert ended.returncode == 0, ended.stderr


def test_a_path_of_any_letters(host: Host, tmp_path: Path) -> None:
    environment = tmp_path / "Umgebung für 機械"
    environment.symlink_to(sys.prefix)
    python = environment / Path(sys.executable).relative_to(sys.prefix)
    source = source_text(str(python), python_library())
    ended = host.run(shared_library(source, tmp_path, *LIBRARIES), "refused", "precision=fp23")
    assert ended.stdout.startswith("reported: Unknown precision 'fp23'"), ended.stderr


CREATE = """
code = '''
import ctypes
said = []
create = ctypes.PyDLL({path!r}).tflite_plugin_create_delegate
create.restype = ctypes.c_void_p
report = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(said.append)
print(create(None, None, ctypes.c_size_t(0), report), said, flush=True)
'''
"""
SUBINTERPRETER = """
try:
    import _interpreters
    _interpreters.exec(_interpreters.create("legacy"), code)
except ImportError:
    import _xxsubinterpreters as interpreters
    interpreters.run_string(interpreters.create(isolated=False), code)
"""


def created(library: Path, rest: str, *flags: str) -> str:
    """Return what a Python says that creates a delegate."""
    source = CREATE.format(path=str(library)) + rest
    command = [sys.executable, *flags, "-c", source]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("None [")
    return ended.stdout + ended.stderr


def test_a_python_without_litegpu(library: Path) -> None:
    text = created(library, "exec(code)", "-I", "-S")
    assert re.search(r"cannot be used in the Python of this process, .*: No module named", text)
    assert "pip install litegpu" in text


def test_a_python_of_another_version(tmp_path: Path) -> None:
    source = source_text(sys.executable, "", "2.7")
    library = shared_library(source, tmp_path, *LIBRARIES)
    text = created(library, "exec(code)")
    assert f"built for Python 2.7, but this process has Python {sys.version.split()[0]}" in text


def test_a_library_of_another_version(tmp_path: Path) -> None:
    source = source_text(sys.executable, "").replace("char error[1024]", "char error[2048]")
    text = created(shared_library(source, tmp_path, *LIBRARIES), "exec(code)")
    assert "built by another version of litegpu. Run `litegpu build-delegate` again" in text


def test_a_subinterpreter(library: Path) -> None:
    assert "cannot be used in a subinterpreter" in created(library, SUBINTERPRETER)


# The tool


def test_without_a_shared_library_it_says_so(
    tmp_path: Path,
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(build_delegate, "python_library", lambda: "")
    target = tmp_path / "delegate.so"
    assert cli.main(["build-delegate", str(target)]) == 0
    shown = capsys.readouterr().err
    assert f"output: {target}" in shown
    assert "Only Python programs can load the delegate" in shown
    assert target.stat().st_size > 9000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            None,
            r"no C compiler: none of cc, gcc, clang, cl is on PATH\. Install .*--compiler",
        ),
        ("mycc", r"no C compiler 'mycc'\. Name one that exists with --compiler=PROGRAM"),
    ],
)
def test_without_a_compiler(
    name: str | None, text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DelegateLibraryError, match=text) as caught:
        find_compiler(name)
    assert caught.value.remedy


@pytest.mark.skipif(os.name == "nt", reason="a script as compiler")
def test_a_compiler_that_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho no headers\nexit 1\n")
    compiler.chmod(0o755)
    target = tmp_path / "delegate.so"
    assert cli.main(["build-delegate", str(target), f"--compiler={compiler}"]) == 1
    shown = capsys.readouterr().err
    assert f"'{compiler}' cannot compile the delegate: no headers" in shown
    assert "--compiler=PROGRAM" in shown
    assert list(tmp_path.iterdir()) == [compiler]


def test_a_path_that_cannot_be_written(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    assert cli.main(["build-delegate", "/no/such/folder/delegate.so"]) == 1
    assert "error: /no/such/folder/delegate.so: the file cannot be writ" in capsys.readouterr().err
