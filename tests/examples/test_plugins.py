"""Files of examples/ that other programs load: Frigate's detector, a model of Triton.

Neither program is on PyPI. Small stand-ins have the classes and functions that the files use.
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from eval_models import detector
from litegpu.zoo.writer import ModelWriter
from places import ROOT
from small_models import reference

EXAMPLES = ROOT / "examples"
BOXES = [[0.1, 0.2, 0.5, 0.6], [0.0, 0.0, 1.0, 1.0], [0.5, 0.5, 1.0, 1.0]]


def put(monkeypatch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    """Let `import name` give a module with these names."""
    module = ModuleType(name)
    vars(module).update(names)
    monkeypatch.setitem(sys.modules, name, module)


# Frigate


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Frigate's plugin, between stand-ins for Frigate's two modules."""
    pydantic = pytest.importorskip("pydantic")

    class BaseDetectorConfig(pydantic.BaseModel):  # type: ignore[misc, name-defined]
        model_config = pydantic.ConfigDict(extra="allow", arbitrary_types_allowed=True)
        type: str = "cpu"
        model: Any = None

    class DetectionApi:
        def __init__(self, detector_config: Any) -> None:
            self.height, self.width = detector_config.model.height, detector_config.model.width

    for name in ("frigate", "frigate.detectors"):
        put(monkeypatch, name)
    put(monkeypatch, "frigate.detectors.detection_api", DetectionApi=DetectionApi)
    types = SimpleNamespace(ssd="ssd", yologeneric="yolo-generic")
    config = {"BaseDetectorConfig": BaseDetectorConfig, "ModelTypeEnum": types}
    put(monkeypatch, "frigate.detectors.detector_config", **config)
    return SimpleNamespace(**runpy.run_path(str(EXAMPLES / "frigate" / "litegpu_tfl.py")))


def configured(plugin: Any, path: Path, model_type: str = "ssd", **options: Any) -> Any:
    model = SimpleNamespace(path=str(path), width=8, height=8, model_type=model_type)
    return plugin.LitegpuTfl(plugin.LitegpuDetectorConfig(type="litegpu", model=model, **options))


def test_frigate_gets_twenty_rows(plugin: Any, backend: str, tmp_path: Path) -> None:
    path = tmp_path / "detector.tflite"
    path.write_bytes(detector(BOXES, [3, 7, 1], [0.9, 0.75, 0.3]))
    found = configured(plugin, path, backend=backend, precision="fp32")
    report = found.delegate.report
    assert report is not None and len(report.delegated_nodes) == report.total_nodes
    rows = found.detect_raw(np.zeros((1, 8, 8, 3), np.float32))
    assert (rows.shape, rows.dtype) == ((20, 6), np.float32)
    assert np.allclose(rows[:2], [[3.0, 0.9, *BOXES[0]], [7.0, 0.75, *BOXES[1]]])
    assert not rows[2:].any()


def test_frigate_s_bytes_fit_models_of_int8(plugin: Any, tmp_path: Path) -> None:
    writer = ModelWriter()
    x = writer.input((1, 2, 2, 3), dtype="int8")
    writer.output(x)
    path = tmp_path / "model.tflite"
    path.write_bytes(writer.build())
    seen: list[Any] = []

    class Target:
        def set_tensor(self, index: int, value: Any) -> None:
            seen.append(value)
            raise InterruptedError

    found = configured(plugin, path)
    found.interpreter = Target()
    with pytest.raises(InterruptedError):
        found.detect_raw(np.array([0, 128, 255], np.uint8))
    assert seen[0].tolist() == [-128, 0, 127]


def test_frigate_s_other_models_are_rejected(plugin: Any) -> None:
    with pytest.raises(ValueError, match="runs models of type ssd, not yolo-generic"):
        configured(plugin, Path("x.tflite"), "yolo-generic")


# Triton


class Config:
    """What Triton passes to auto_complete_config."""

    def __init__(self) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []
        self.batch: int | None = None
        self.add_input, self.add_output = self.inputs.append, self.outputs.append

    def set_max_batch_size(self, size: int) -> None:
        self.batch = size


def request(**arrays: Any) -> dict[str, SimpleNamespace]:
    return {
        name: SimpleNamespace(as_numpy=lambda value=value: value) for name, value in arrays.items()
    }


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[tuple[Any, bytes]]:
    """The class of the copied folder, with a model of which one length is unknown."""
    writer = ModelWriter()
    x = writer.input((-1, 4), name="x")
    writer.output(writer.op("EXP", [x], [(-1, 4)], name="y"))
    content = writer.build()
    folder = tmp_path / "models" / "tflite_on_gpu"
    shutil.copytree(EXAMPLES / "triton" / "tflite_on_gpu", folder)
    (folder / "1" / "model.tflite").write_bytes(content)
    put(
        monkeypatch,
        "triton_python_backend_utils",
        get_input_tensor_by_name=lambda sent, name: sent[name],
        Tensor=lambda name, array: SimpleNamespace(name=name, array=array),
        InferenceResponse=lambda tensors, error=None: SimpleNamespace(tensors=tensors, error=error),
        TritonError=lambda text: text,
        Logger=SimpleNamespace(log_info=print),
    )
    yield runpy.run_path(str(folder / "1" / "model.py"))["TritonPythonModel"], content


def started(model: Any, kind: str = "CPU", **parameters: str) -> Any:
    config = {"parameters": {name: {"string_value": text} for name, text in parameters.items()}}
    instance = model()
    instance.initialize(
        {
            "model_config": json.dumps(config),
            "model_name": "tflite_on_gpu",
            "model_instance_kind": kind,
            "model_instance_device_id": "0",
        }
    )
    return instance


def test_triton_completes_its_configuration(model: tuple[Any, bytes]) -> None:
    config = Config()
    assert model[0].auto_complete_config(config) is config
    assert config.inputs == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 4]}]
    assert [each["name"] for each in config.outputs] == ["y"]
    assert config.batch == 0


def test_triton_gets_answers(
    model: tuple[Any, bytes], backend: str, capsys: pytest.CaptureFixture[str]
) -> None:
    instance = started(model[0], backend=backend, precision="fp32", other="ignored")
    assert f"tflite_on_gpu: <GpuDelegate on {backend}:0" in capsys.readouterr().out
    assert instance.delegate.report.delegated_nodes == [0]
    values = [np.full((rows, 4), 0.5, np.float32) for rows in (1, 3, 1)]
    wrong = np.zeros((1, 5), np.float32)
    answers = instance.execute([request(x=each) for each in (*values, wrong, values[0])])
    for value, answer in zip((*values, values[0]), (*answers[:3], answers[4]), strict=True):
        assert answer.error is None
        (tensor,) = answer.tensors
        assert tensor.name == "y"
        assert np.allclose(tensor.array, reference(model[1], value)[0], rtol=1e-5)
    assert answers[3].tensors == [] and answers[3].error
    instance.finalize()


def test_triton_s_gpu_is_that_of_cuda(
    model: tuple[Any, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(options: Any, **_: Any) -> None:
        raise InterruptedError(options)

    monkeypatch.setitem(model[0].initialize.__globals__, "GpuDelegate", stop)
    with pytest.raises(InterruptedError, match="'device': 'cuda:0'"):
        started(model[0], "GPU", precision="fp16")
