"""`litegpu picture_input`: flags become arguments of `with_picture_input`."""

from __future__ import annotations

from pathlib import Path

import pytest

from litegpu import zoo
from litegpu.pictures import with_picture_input
from litegpu.tools import cli

MODEL = "zoo:mobilenet_v1_0.25_128"


@pytest.mark.parametrize("name", ["picture_input", "picture-input"])
def test_the_file_is_what_the_function_returns(name: str, tmp_path: Path) -> None:
    path = tmp_path / "new.tflite"
    flags = ["--input_format=RGBA8", "--size=64x48", "--mean=1,2,3", "--std=4", "--input=input"]
    assert cli.main([name, MODEL, *flags, "--resize=nearest", f"--output={path}"]) == 0
    wanted = with_picture_input(
        *(zoo.load(MODEL), "rgba8"), size=(64, 48), mean=(1, 2, 3), std=4, resize="nearest"
    )
    assert path.read_bytes() == wanted


def test_any_size_and_numbers_of_inputs(tmp_path: Path) -> None:
    path = tmp_path / "new.tflite"
    assert cli.main(["picture_input", MODEL, "--size=any", "--input=0", f"--output={path}"]) == 0
    assert path.read_bytes() == with_picture_input(MODEL, size="any")


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ([], "The path of the new model is missing. Give --output=FILE"),
        (["--size=64"], "'64' is neither HEIGHTxWIDTH nor any"),
        (["--mean=red"], "'red' is neither a number nor numbers separated by commas"),
        (["--input_format=yuyv"], "'yuyv' is not one of rgb8"),
        (["--mean=1", "--output=x"], "mean and std belong together"),
    ],
)
def test_wrong_flags(
    flags: list[str],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["picture_input", MODEL, *flags]) == 2
    assert text in capsys.readouterr().err
