"""Packages that load TensorFlow Lite's C library with ctypes: models run on the GPU there, too.

The library and the models are those of two real packages, which Home Assistant's wake word
programs use.
"""

from __future__ import annotations

import ctypes
import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import litegpu
from litegpu.acceleration import Acceleration, c_interpreters
from small_models import CPU_ONLY, Array, assert_close, chain, random, reference

pyopen_wakeword = pytest.importorskip("pyopen_wakeword", reason="a package for Linux")
pymicro_wakeword = pytest.importorskip("pymicro_wakeword", reason="a package for Linux")

MODEL = chain(["ABS", "EXP", CPU_ONLY])
SHAPE = (1, 4, 4, 4)
POINTERS = (
    *("TfLiteModelCreate", "TfLiteModelCreateFromFile", "TfLiteInterpreterCreate"),
    *("TfLiteInterpreterOptionsCreate", "TfLiteInterpreterGetInputTensor"),
    "TfLiteInterpreterGetOutputTensor",
)


def library() -> ctypes.CDLL:
    """Load the C library as a program does."""
    folder = Path(pyopen_wakeword.__file__).parent / "lib"
    loaded = ctypes.CDLL(str(next(folder.glob("*tensorflowlite_c*"))))
    for name in POINTERS:
        getattr(loaded, name).restype = ctypes.c_void_p
    return loaded


def pointer(value: int | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(value)


@contextmanager
def interpreter_of(lib: ctypes.CDLL, model: int, options: int | None = None) -> Iterator[int]:
    address = lib.TfLiteInterpreterCreate(pointer(model), pointer(options))
    assert address
    try:
        yield address
    finally:
        lib.TfLiteInterpreterDelete(pointer(address))
        lib.TfLiteModelDelete(pointer(model))


def run(lib: ctypes.CDLL, target: int, x: Array) -> Array:
    assert lib.TfLiteInterpreterAllocateTensors(pointer(target)) == 0
    tensor = pointer(lib.TfLiteInterpreterGetInputTensor(pointer(target), 0))
    size = ctypes.c_size_t(x.nbytes)
    assert lib.TfLiteTensorCopyFromBuffer(tensor, pointer(x.ctypes.data), size) == 0
    assert lib.TfLiteInterpreterInvoke(pointer(target)) == 0
    tensor, found = pointer(lib.TfLiteInterpreterGetOutputTensor(pointer(target), 0)), x.copy()
    assert lib.TfLiteTensorCopyToBuffer(tensor, pointer(found.ctypes.data), size) == 0
    return found


def nodes(acceleration: Acceleration) -> list[tuple[str, int, int]]:
    return [
        (Path(each.model).name, len(each.report.delegated_nodes), each.report.total_nodes)
        for each in acceleration.models
        if each.report is not None
    ]


def test_an_interpreter_in_c_gets_a_delegate(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(MODEL)
    x = random(*SHAPE)
    expected = reference(MODEL, x)
    with litegpu.accelerate(backend=backend) as acceleration:
        lib = library()
        model = lib.TfLiteModelCreateFromFile(str(path).encode())
        with interpreter_of(lib, model) as target:
            assert_close([run(lib, target, x)], expected)
    assert nodes(acceleration) == [("model.tflite", 2, 3)]


def test_options_of_the_program_count(null_device: Any) -> None:
    with litegpu.accelerate() as acceleration:
        lib = library()
        options = lib.TfLiteInterpreterOptionsCreate()
        lib.TfLiteInterpreterOptionsSetNumThreads(pointer(options), 2)
        for _ in range(2):
            model = lib.TfLiteModelCreate(MODEL, ctypes.c_size_t(len(MODEL)))
            with interpreter_of(lib, model, options):
                assert len(c_interpreters._delegates) == 1
        lib.TfLiteInterpreterOptionsDelete(pointer(options))
    assert nodes(acceleration) == [("a model in memory", 2, 3)] * 2
    assert not c_interpreters._delegates
    assert not c_interpreters._files


def test_a_library_that_was_loaded_before_stays_usable(null_device: Any) -> None:
    """Its functions are those that the program has; those of an acceleration outlive it."""
    x = random(*SHAPE)
    before = library()
    with litegpu.accelerate() as acceleration:
        for lib in (before, during := library()):
            with interpreter_of(lib, lib.TfLiteModelCreate(MODEL, ctypes.c_size_t(len(MODEL)))):
                pass
    assert len(acceleration.models) == 1
    model = during.TfLiteModelCreate(MODEL, ctypes.c_size_t(len(MODEL)))
    with interpreter_of(during, model) as target:
        assert_close([run(during, target, x)], reference(MODEL, x))
    assert len(acceleration.models) == 1


def test_a_failure_leaves_the_model_to_the_cpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, null_device: Any
) -> None:
    def fail(*_: Any) -> None:
        raise AttributeError("undefined symbol: TfLiteInterpreterOptionsAddDelegate")

    x = random(*SHAPE)
    expected = reference(MODEL, x)
    with litegpu.accelerate() as acceleration, caplog.at_level(logging.ERROR):
        lib = library()
        monkeypatch.setattr(c_interpreters, "_call", fail)
        model = lib.TfLiteModelCreate(MODEL, ctypes.c_size_t(len(MODEL)))
        with interpreter_of(lib, model) as target:
            assert_close([run(lib, target, x)], expected)
    assert "An interpreter of TensorFlow Lite's C library runs on the CPU." in caplog.text
    assert acceleration.models == ()


def sound() -> bytes:
    """Return a second of sound."""
    t, rng = np.arange(16000), np.random.default_rng(0)
    return (8000 * np.sin(t / 20) + rng.normal(0, 800, t.size)).astype(np.int16).tobytes()


def micro() -> list[float]:
    word = pymicro_wakeword.MicroWakeWord.from_builtin(pymicro_wakeword.Model.HEY_MYCROFT)
    features = np.random.default_rng(0).uniform(0, 26, (150, 1, 1, 40))
    return [word.process_streaming_prob(each) for each in features]


def open_word() -> list[float]:
    word = pyopen_wakeword.OpenWakeWord.from_builtin(pyopen_wakeword.Model.OKAY_NABU)
    features = pyopen_wakeword.OpenWakeWordFeatures.from_builtin()
    embeddings = features.process_streaming(sound())
    return [each for embedding in embeddings for each in word.process_streaming(embedding)]


def test_micro_wake_word_runs_on_the_gpu() -> None:
    """Quantized models are equal in every bit."""
    expected = micro()
    with litegpu.accelerate(backend="opencl") as acceleration:
        assert micro() == expected
    assert nodes(acceleration) == [("hey_mycroft.tflite", 45, 45)]
    assert max(expected) > 0


def test_open_wake_word_runs_on_the_gpu(capfd: pytest.CaptureFixture[str]) -> None:
    expected = open_word()
    with litegpu.accelerate(backend="opencl") as acceleration:
        assert np.allclose(open_word(), expected, rtol=1e-3, atol=1e-6)
    # The shapes that are tried are no errors of the program.
    assert "ERROR" not in capfd.readouterr().err
    gc.collect()
    assert nodes(acceleration) == [
        ("okay_nabu.tflite", 23, 23),
        ("melspectrogram.tflite", 26, 26),
        ("embedding_model.tflite", 64, 64),
    ]
    assert len(expected) > 10
    assert not c_interpreters._delegates
