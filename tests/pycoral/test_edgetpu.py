"""PyCoral's interpreters, on GPUs."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu import ModelError, OptionsError, UnsupportedDeviceError, list_devices
from litegpu.pycoral.adapters import common
from litegpu.pycoral.utils import dataset, edgetpu
from litegpu.version import __version__
from litegpu.zoo.writer import ModelWriter
from small_models import chain, reference

MODEL = chain(["ABS", "EXP"])


@pytest.mark.parametrize("as_file", [True, False])
def test_a_model_runs_on_the_gpu(as_file: bool, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(MODEL)
    delegate = edgetpu.load_edgetpu_delegate({"backend": backend})
    target = edgetpu.make_interpreter(str(path) if as_file else MODEL, delegate=delegate)
    assert delegate.report and delegate.report.delegated_nodes == [0, 1]
    target.allocate_tensors()
    x = np.linspace(-1, 1, 64, dtype=np.float32).reshape(1, 4, 4, 4)
    (expected,) = reference(MODEL, x)
    content = x.tobytes()
    pointer = ctypes.cast(ctypes.create_string_buffer(content, len(content)), ctypes.c_void_p)
    for data in (content, x.ravel(), (pointer, len(content))):
        common.set_input(target, np.zeros((4, 4, 4)))
        edgetpu.run_inference(target, data)
        assert np.allclose(common.output_tensor(target, 0), expected, rtol=1e-5)
    with pytest.raises(ValueError, match="The input has 3 bytes, and the model takes 256"):
        edgetpu.run_inference(target, b"abc")
    with pytest.raises(TypeError, match="The input is str, not bytes"):
        edgetpu.run_inference(target, "abc")  # type: ignore[arg-type]


def test_devices_have_pycoral_s_names() -> None:
    found = edgetpu.list_edge_tpus()
    assert [each["type"] for each in found] == [each.backend for each in list_devices()]
    for number, each in enumerate(found):
        for name in (f":{number}", each["path"]):
            delegate = edgetpu.load_edgetpu_delegate({"device": name})
            assert f"{delegate.device.backend}:{delegate.device.index}" == each["path"]
    assert edgetpu.make_interpreter(MODEL, device=":0")._delegates
    assert edgetpu.get_runtime_version() == f"litegpu {__version__}"


@pytest.mark.parametrize("device", ["usb", "usb:0", "pci", "pci:1"])
def test_an_edge_tpu_is_no_gpu(device: str) -> None:
    with pytest.raises(OptionsError, match=f"The device '{device}' is an Edge TPU"):
        edgetpu.make_interpreter(MODEL, device=device)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("missing.tflite", r"Model file 'missing\.tflite' does not exist\. Check the path"),
        (".", r"Model file '\.' cannot be read: "),
        (5, r"is text, not int\. Give the path of a \.tflite file, `zoo:NAME`, or the bytes"),
        (b"junk", r"The model \(4 bytes\) is no \.tflite file: .* Give the path or the bytes"),
        (__file__, r"test_edgetpu\.py' is not a TensorFlow Lite model: its bytes 4 to 8 are"),
    ],
)
def test_models_that_cannot_be_read(model: Any, message: str, null_device: Any) -> None:
    with pytest.raises(ModelError, match=message):
        edgetpu.make_interpreter(model)


def test_libraries_are_no_delegates(null_device: Any) -> None:
    with pytest.raises(OptionsError, match=r"'libedgetpu.so.1' is no GpuDelegate\. Leave `del"):
        edgetpu.make_interpreter(MODEL, delegate="libedgetpu.so.1")  # type: ignore[arg-type]
    with pytest.raises(OptionsError, match=r"are a mapping, not 'libedgetpu.so.1'\. For example"):
        edgetpu.load_edgetpu_delegate("libedgetpu.so.1")  # type: ignore[arg-type]


@pytest.mark.parametrize("device", [":99", "tpu"])
def test_unknown_devices(device: str) -> None:
    message = f"No device matches '{device.lstrip(':')}'. Usable devices: 0 "
    with pytest.raises(UnsupportedDeviceError, match=message):
        edgetpu.make_interpreter(MODEL, device=device)


@pytest.mark.parametrize("as_file", [True, False])
def test_models_for_the_edge_tpu_are_rejected(
    as_file: bool, null_device: Any, tmp_path: Path
) -> None:
    writer = ModelWriter()
    x = writer.input((1, 4))
    writer.output(*writer.custom("edgetpu-custom-op", [x], [(1, 4)]))
    path = tmp_path / "model_edgetpu.tflite"
    path.write_bytes(writer.build())
    with pytest.raises(ModelError, match="was compiled for the Edge TPU, and runs only there"):
        edgetpu.make_interpreter(str(path) if as_file else path.read_bytes())


def test_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.txt"
    path.write_text("0 background\n7: traffic light\nstop sign\n12\n", encoding="utf-8")
    labels = {0: "background", 7: "traffic light", 2: "stop sign", 3: "12"}
    assert dataset.read_label_file(path) == labels
