"""The trials of `litegpu doctor` in separate processes, with broken packages."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from litegpu import backends
from litegpu.tools import doctor
from litegpu.tools.doctor import outcomes, trial
from litegpu.tools.doctor.findings import Finding, Machine, run_checks
from litegpu.tools.doctor.host import environment
from litegpu.tools.doctor.nvidia import hidden_gpus
from litegpu.zoo import ModelWriter

RUNTIME = "ai_edge_litert.interpreter"


def put_before(folder: Path, package: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that are started from here import `text` as a package."""
    (folder / package).mkdir()
    (folder / package / "__init__.py").write_text(text)
    monkeypatch.syspath_prepend(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="crashes are spelt otherwise")
def test_a_driver_that_crashes_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyopencl")
    text = "import os, sys; print('a driver falls', file=sys.stderr, flush=True); os.abort()"
    put_before(tmp_path, "wgpu", text, monkeypatch)
    crashed, none = outcomes._listed("webgpu")
    assert crashed is not None and not none
    assert crashed.text == "Looking for devices crashes: Aborted. a driver falls"
    found, devices = outcomes._listed("opencl")
    assert found is None
    assert [each["name"] for each in devices] == [
        info.name for info in backends.devices_of("opencl")
    ]


def test_a_device_that_hangs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_before(tmp_path, "wgpu", "import time; time.sleep(600)", monkeypatch)
    monkeypatch.setattr(outcomes, "_PATIENCE_S", 2.0)
    found, _ = outcomes._listed("webgpu")
    assert found is not None and found.level == "problem"
    assert found.text.startswith("Looking for devices hangs.")


def test_a_trial_needs_no_package_that_writes_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_before(tmp_path, "flatbuffers", "raise ImportError('flatbuffers')", monkeypatch)
    info = backends.list_devices()[0]
    found = outcomes._tried((info.backend, info.to_dict(), RUNTIME))
    assert found.level == "ok", found.text


def test_the_model_is_what_the_writer_writes() -> None:
    random, writer = np.random.default_rng(0), ModelWriter()
    x = writer.input((1, 9, 9, 5))
    weights = random.normal(size=(7, 3, 3, 5)).astype(np.float32)
    bias = random.normal(size=7).astype(np.float32)
    size = {"stride_w": 1, "stride_h": 1, "dilation_w_factor": 1, "dilation_h_factor": 1}
    inputs = [x, writer.constant(weights), writer.constant(bias)]
    options = {"padding": "SAME", **size}
    found = writer.op("CONV_2D", inputs, [(1, 9, 9, 7)], options=options)
    writer.output(writer.op("LOGISTIC", [found], [found.shape]))
    assert trial.MODEL.read_bytes() == writer.build()


@pytest.mark.parametrize("value", ["", "-1"])
def test_gpus_that_the_environment_hides(value: str) -> None:
    machine = Machine(environment={"CUDA_VISIBLE_DEVICES": value})
    (found,) = run_checks(machine, (hidden_gpus,))
    assert found.text == f"CUDA_VISIBLE_DEVICES={value} hides every GPU from CUDA."
    assert (found.level, found.remedy) == ("problem", "unset CUDA_VISIBLE_DEVICES")
    shown = Machine(environment={"CUDA_VISIBLE_DEVICES": "0"})
    assert run_checks(shown, (hidden_gpus,)) == run_checks(Machine(environment={}), (hidden_gpus,))


def test_a_backend_that_nobody_knows() -> None:
    (found,) = run_checks(Machine(environment={"LITEGPU_BACKEND": "vulcan"}), (environment,))
    assert found.text == "LITEGPU_BACKEND=vulcan is not a backend."
    assert found.level == "problem" and found.remedy.startswith("Did you mean 'vulkan'?")
    (found,) = run_checks(Machine(environment={"LITEGPU_BACKEND": "Vulkan"}), (environment,))
    assert found.level == "note"


def test_where_nothing_works_each_missing_backend_is_a_problem(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = Finding("OpenCL", "note", "It is not installed.", "pip install 'x'")
    monkeypatch.setattr(outcomes, "_listed", lambda _: (missing, ()))
    found = outcomes.devices()
    assert {each.level for each in found.findings} == {"problem"}
    assert {each.remedy for each in found.findings} == {"pip install 'x'"}

    works = Finding("WebGPU", "ok", "right")
    facts = {"index": 0, "software": True}
    monkeypatch.setattr(
        outcomes, "_listed", lambda name: (None, [facts]) if name == "webgpu" else (missing, ())
    )
    monkeypatch.setattr(outcomes, "_tried", lambda _: works)
    assert {each.level for each in outcomes.devices().findings} == {"note", "ok"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("'/srv/people/ada/x', /srv/people/ada2", "'~/x', /srv/people/ada2"),
        ("/home/eve/x and /Users/eve/x", "~/x and ~/x"),
        ("C:\\Users\\eve\\x", "~\\x"),
        ("/homes/x", "/homes/x"),
    ],
)
def test_no_user_is_named(text: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/srv/people/ada"))
    assert doctor._without_home(Finding("a", "ok", text, text)) == Finding("a", "ok", shown, shown)

    def nobody() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", nobody)
    assert doctor._without_home(Finding("a", "ok", "/home/eve/x")).text == "~/x"
