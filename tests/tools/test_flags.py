"""Syntax of flags: TensorFlow Lite's `--flag=value`, `--flag value`, and booleans."""

from __future__ import annotations

import pytest

from litegpu.tools.flags import Flag, FlagParser, positive_int
from litegpu.tools.lines import warn_of_unconsumed

FLAGS = (
    Flag("num_runs", positive_int, 50, "how often"),
    Flag("max_secs", float, 1.5, "how long"),
    Flag("json", bool, False, "print JSON"),
    Flag("precision", str, None, "fp32 or fp16", known=("fp32", "fp16")),
)


def parser() -> FlagParser:
    result = FlagParser("litegpu test", "a test", ["litegpu test model.tflite"])
    result.add_argument("model")
    result.add_flags(FLAGS)
    return result


@pytest.mark.parametrize(
    "argv",
    [
        ["model.tflite", "--num_runs=7", "--json=true"],
        ["model.tflite", "--num_runs", "7", "--json", "1"],
        ["--json", "model.tflite", "--num-runs=7"],
        ["--json", "TRUE", "--num-runs", "7", "model.tflite"],
        ["--num_runs=7", "model.tflite", "--json"],
    ],
)
def test_all_spellings_mean_the_same(argv: list[str]) -> None:
    args = parser().parse(argv)
    assert (args.model, args.num_runs, args.json) == ("model.tflite", 7, True)


def test_defaults() -> None:
    args = parser().parse(["m"])
    assert (args.num_runs, args.max_secs, args.json, args.precision) == (50, 1.5, False, None)


@pytest.mark.parametrize("text", ["false", "0", "False"])
def test_boolean_can_be_switched_off(text: str) -> None:
    assert parser().parse(["m", f"--json={text}"]).json is False


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["m", "--json=maybe"], "'maybe' is not one of true, false, 1, 0"),
        (["m", "--num_runs=0"], "'0' is not a whole number of at least 1"),
        (["m", "--num_runs=many"], "'many' is not a whole number of at least 1"),
        (["m", "--precison=fp16"], "unknown flag '--precison'. Did you mean '--precision'?"),
        (["m", "n"], "unexpected argument 'n'."),
        ([], "the following arguments are required: model. For example: "),
    ],
)
def test_bad_usage_is_one_line_and_status_2(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse(argv)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("litegpu test: error: ")
    assert message in error
    assert error.count("\n") == 1


def test_help_shows_defaults_and_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse(["--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "(default: 50)" in text
    assert "(default: false)" in text
    assert "litegpu test model.tflite" in text


def test_help_may_have_a_value(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        parser().parse(["--help=true"])
    assert stop.value.code == 0 and "--num_runs" in capsys.readouterr().out
    assert parser().parse(["m", "--help=false"]).model == "m"
    with pytest.raises(SystemExit):
        parser().parse(["m", "--help=maybe"])
    assert "ignored explicit argument 'maybe'" in capsys.readouterr().err


def test_given_names_the_flags_of_the_command_line_in_their_order() -> None:
    args = parser().parse(["--precision=fp16", "m", "--num-runs", "3", "--json", "--num_runs=4"])
    assert args.given == ("precision", "num_runs", "json")
    assert parser().parse(["m"]).given == ()


# In the manner of TensorFlow Lite's own tools


def of_the_original() -> FlagParser:
    result = FlagParser("litegpu test", "a test", failed="It failed.")
    result.add_argument("model", nargs="?")
    result.add_flags(FLAGS)
    return result


def test_the_first_of_two_counts_and_the_rest_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-runs", "3", "m", "--num_runs=4", "--json", "--num_runs", "5"]
    args = of_the_original().parse(words)
    assert (args.num_runs, args.model, args.json, args.precision) == (3, "m", True, None)
    assert args.given == ("num_runs", "json")
    assert args.unconsumed == ("--num_runs=4", "--num_runs=5")
    warn_of_unconsumed(args)
    assert capsys.readouterr().out == (
        "WARN: Unconsumed cmdline flags: --num_runs=4 --num_runs=5\n"
        "WARN: Some lines are repeated. The first line of each class counts.\n"
    )
    warn_of_unconsumed(of_the_original().parse([]))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--foo", "m"], "unknown flag '--foo'. `litegpu test --help` lists all flags."),
        (["m", "--precison=fp16"], "unknown flag '--precison'. Did you mean '--precision'? `"),
        (["m", "--runs=3"], "unknown flag '--runs'. Did you mean '--num_runs'? `"),
        (["m", "--FP16"], "unknown flag '--FP16'. Did you mean '--precision=fp16'? `"),
        (["m", "--max=3"], "unknown flag '--max'. `"),
        (["m", "n"], "unexpected argument 'n'."),
    ],
)
def test_what_is_unknown_is_an_error_there_too(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        of_the_original().parse(words)
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith(f"litegpu test: error: {error}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--num_runs=0"], "'0' is not a whole number of at least 1"),
        (["--num_runs", "many"], "'many' is not a whole number of at least 1"),
        (["--max_secs=x"], "could not convert string to float: 'x'"),
        (["--json=maybe"], "'maybe' is not one of true, false, 1, 0"),
    ],
)
def test_a_value_that_a_flag_cannot_have(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        of_the_original().parse(["m", *words])
    assert stop.value.code == 2
    name, argv = words[0].split("=")[0], "=".join(words)
    assert capsys.readouterr().err == (
        f"ERROR: Failed to parse flag '{name[2:]}' against argv '{argv}'\n"
        f"litegpu test: error: argument {name}: {said}\nERROR: It failed.\n"
    )
