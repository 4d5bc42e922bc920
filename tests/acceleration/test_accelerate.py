"""Interpreters that programs create get a delegate while an acceleration is active."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import litegpu
from litegpu import CompiledModel, GpuDelegate, OptionsError, UnsupportedDeviceError
from litegpu.acceleration import python_interpreters, session
from litegpu.runtime_abi import interpreter as runtime
from places import python_path
from small_models import CPU_ONLY, assert_close, chain, in_threads, random, reference, run

MODEL = chain(["ABS", "EXP", CPU_ONLY])
Interpreter = runtime.load().Interpreter


def delegates_of(target: Any) -> list[GpuDelegate]:
    return [each for each in target._delegates or () if isinstance(each, GpuDelegate)]


def test_an_interpreter_gets_a_delegate(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(MODEL)
    x = random(1, 4, 4, 4)
    with litegpu.accelerate(backend=backend) as acceleration:
        targets = [Interpreter(str(path)), Interpreter(model_content=MODEL, num_threads=1)]
    assert [each.model for each in acceleration.models] == [str(path), "a model in memory"]
    for target, model in zip(targets, acceleration.models, strict=True):
        assert model.report is not None
        assert (model.report.delegated_nodes, model.report.total_nodes) == ([0, 1], 3)
        assert model.device.startswith(backend)
        assert len(delegates_of(target)) == 1
        target.allocate_tensors()
        assert_close(run(target, x), reference(MODEL, x))


def test_everything_is_as_before_afterwards() -> None:
    def changeable() -> tuple[Any, ...]:
        return Interpreter.__init__, ctypes.CDLL.__getitem__, [*sys.meta_path]

    before = changeable()
    acceleration = litegpu.accelerate()
    assert all(now != old for now, old in zip(changeable(), before, strict=True))
    assert repr(acceleration) == "<Acceleration: active, 0 models>"
    acceleration.close()
    acceleration.close()
    assert changeable() == before
    assert repr(acceleration) == "<Acceleration: closed, 0 models>"
    assert not Interpreter(model_content=MODEL)._delegates


def test_the_last_acceleration_has_its_way() -> None:
    first, second = litegpu.accelerate(precision="fp32"), litegpu.accelerate(precision="fp16")
    Interpreter(model_content=MODEL)
    first.close()
    target = Interpreter(model_content=MODEL)
    second.close()
    assert (len(first.models), len(second.models)) == (0, 2)
    assert delegates_of(target)[0].precision == "fp16"


def test_delegates_of_the_program_and_of_litegpu_stay() -> None:
    with litegpu.accelerate() as acceleration:
        delegate = GpuDelegate(max_delegated_partitions=1)
        target = Interpreter(model_content=MODEL, experimental_delegates=[delegate])
        assert target._delegates == [delegate]
        assert not runtime.interpreter(MODEL)._delegates
        CompiledModel.from_buffer(chain(["ABS"])).close()
    assert acceleration.models == ()


def test_threads_share_an_acceleration() -> None:
    x = random(1, 4, 4, 4)
    expected = reference(MODEL, x)

    def work(_: int) -> None:
        target = Interpreter(model_content=MODEL)
        target.allocate_tensors()
        assert_close(run(target, x), expected)

    with litegpu.accelerate() as acceleration:
        in_threads(work)
    assert len(acceleration.models) == 4


def test_wrong_options_change_nothing() -> None:
    before = Interpreter.__init__
    with pytest.raises(OptionsError, match="precision"):
        litegpu.accelerate(precision="fp8")  # type: ignore[arg-type]
    assert Interpreter.__init__ is before


def test_wrong_arguments_are_the_runtime_s_matter() -> None:
    with litegpu.accelerate(), pytest.raises(TypeError, match="nonsense"):
        Interpreter(nonsense=True)


def test_without_a_delegate_a_model_runs_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise UnsupportedDeviceError("The device is gone.")

    with litegpu.accelerate() as acceleration, caplog.at_level(logging.WARNING):
        monkeypatch.setattr(session, "GpuDelegate", fail)
        target = Interpreter(model_content=MODEL)
    assert not target._delegates
    assert "of a model in memory runs on the CPU: The device is gone." in caplog.text
    assert [each.error for each in acceleration.models] == ["The device is gone."]


def test_other_changes_of_a_class_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    # The end of the test restores what the class has now, not what the acceleration gave it.
    monkeypatch.setattr(Interpreter, "__init__", Interpreter.__init__)
    with litegpu.accelerate() as acceleration:
        ours = Interpreter.__init__

        def theirs(self: Any, *args: Any, **kwargs: Any) -> None:
            ours(self, *args, **kwargs)

        Interpreter.__init__ = theirs
        sys.meta_path.remove(python_interpreters._FINDER)
        Interpreter(model_content=MODEL)
    assert Interpreter.__init__ is theirs
    Interpreter(model_content=MODEL)
    assert len(acceleration.models) == 1


def test_a_runtime_may_be_imported_later(tmp_path: Path) -> None:
    """A package of the name tflite_runtime gets its delegate after those of its program."""
    package = tmp_path / "tflite_runtime"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "interpreter.py").write_text(
        "class Interpreter:\n"
        "    def __init__(self, model_path=None, size=0, experimental_delegates=None):\n"
        "        self.delegates = experimental_delegates\n"
    )
    code = """
        import litegpu, sys
        with litegpu.accelerate():
            assert "tflite_runtime.interpreter" not in sys.modules
            from tflite_runtime.interpreter import Interpreter
            import tflite_runtime.interpreter as module
            print([type(each).__name__ for each in Interpreter("x", 0, ["theirs"]).delegates])
        print(Interpreter("x").delegates, type(module.__loader__).__name__)
        print(module.__spec__.loader is module.__loader__)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**litegpu.config.environment(), "PYTHONPATH": python_path(tmp_path)},
        check=False,
        timeout=120,
    )
    expected = "['str', 'GpuDelegate']\nNone SourceFileLoader\nTrue\n"
    assert done.stdout == expected, done.stderr


def test_an_import_that_ends_later_changes_nothing() -> None:
    """An acceleration may end while a runtime is imported."""
    loaded = runtime.load()
    finder, name = python_interpreters._FINDER, loaded.__name__
    with litegpu.accelerate():
        spec = finder.find_spec(name, sys.modules[name.partition(".")[0]].__path__)
        assert finder.find_spec("tflite_runtime.interpreter", []) is None
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.Interpreter not in python_interpreters._changed
