"""`litegpu check` on models that the runtime rejects, or that crash the process."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

import litegpu
from litegpu import ModelError
from litegpu.host.children import Ended
from litegpu.tools import cli
from litegpu.tools.check import runtime_trial
from litegpu.tools.check.runtime_trial import Trial, try_model
from litegpu.zoo.writer import ModelWriter
from small_models import CPU_ONLY, chain, shifted, waveform


def blocks_of_nothing() -> bytes:
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4))
    options = {"block_size": 0}
    writer.output(writer.op("SPACE_TO_DEPTH", [x], [(1, 2, 2, 16)], options=options))
    return writer.build()


def beyond_the_end() -> bytes:
    writer = ModelWriter()
    x = writer.input((1, 4))
    far = writer.constant([9], "int32", name="far")
    writer.output(writer.op("GATHER", [x, far], [(1, 1)], options={"axis": 1}))
    return writer.build()


def test_what_the_runtime_says_of_a_model_by_itself() -> None:
    assert try_model(shifted()) == Trial()
    alone = "The runtime itself, without litegpu, rejects this model while"
    for model, step, reason in (
        (chain(["ABS"])[:200], "loading it", "not a valid Flatbuffer"),
        (blocks_of_nothing(), "allocating its tensors", "block_size > 0"),
        (beyond_the_end(), "running it on zeros", "index out of bounds"),
    ):
        found = try_model(model)
        assert found.problem.startswith(f"{alone} {step}: ")
        assert reason in found.problem
        assert not found.fatal


def test_a_model_whose_stated_sizes_are_too_small_is_checked_with_larger_ones() -> None:
    found = litegpu.check(waveform((1, -1)), min_nodes_per_partition=1)
    assert found.report is not None and found.report.whole_graph
    assert found.runtime.startswith("The file leaves sizes of inputs open: resize the inputs ")
    assert "rejects this model while allocating its tensors" in " ".join(found.text().split())


def test_check_says_that_the_runtime_rejects_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError, match=r"without litegpu, rejects .* allocating its tensors"):
        litegpu.check(blocks_of_nothing())
    path = tmp_path / "model.tflite"
    path.write_bytes(beyond_the_end())
    assert cli.main(["check", str(path)]) in (0, 1)
    text = " ".join(capsys.readouterr().out.split())
    assert "runtime: The runtime itself, without litegpu, rejects this model while running" in text
    found = litegpu.check(path)
    assert "running it on zeros" in found._repr_html_()
    assert json.dumps(found.to_dict()["runtime"]).startswith('"The runtime itself')


@pytest.mark.skipif(sys.platform == "win32", reason="processes end by statuses there")
@pytest.mark.parametrize("step", [0, 1, 2])
def test_check_outlives_a_model_that_crashes_the_runtime(
    step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter of this process is made only where the trial got so far."""
    steps = runtime_trial._STEPS
    ended = Ended(-signal.SIGSEGV, "\n".join(steps[: step + 1]), "INFO: loaded\nFATAL: bad size.\n")
    monkeypatch.setattr(runtime_trial, "run_module", lambda *_: ended)
    text = (
        "The runtime itself, without litegpu, crashes: Segmentation fault with this model, while "
        f"{steps[step]}. It says: FATAL: bad size."
    )
    model = chain(["ABS", CPU_ONLY])
    if step == 2:
        assert litegpu.check(model).runtime == text
    else:
        with pytest.raises(ModelError) as raised:
            litegpu.check(model)
        assert str(raised.value).startswith(text)


def test_a_trial_that_takes_too_long_or_never_begins_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for ended in (Ended(None, runtime_trial._STEPS[2], ""), Ended(1, "", "no such module")):
        monkeypatch.setattr(runtime_trial, "run_module", lambda *_, each=ended: each)
        assert try_model(b"") == Trial()
