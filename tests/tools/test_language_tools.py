"""`litegpu generate`, `litegpu chat` and `litegpu benchmark_lm`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from litegpu import LanguageModel, zoo
from litegpu.language_model.generation import TextStream
from litegpu.tools import cli
from litegpu.tools.models import RANDOM_WEIGHTS

pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
NAME = "zoo:tiny_lm?layers=1&context=96"
CPU = "--backend=cpu"


def answer(prompt: object, tokens: int = 8) -> str:
    with LanguageModel(NAME, backend="cpu") as model:
        return model.generate(prompt, max_tokens=tokens).text  # type: ignore[arg-type]


def shown(text: str) -> str:
    return "".join(
        each if each.isprintable() or each == "\n" else "\N{REPLACEMENT CHARACTER}" for each in text
    )


def test_generate_prints_the_answer_and_its_speed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", NAME, "The sky", "--max_tokens=8", CPU]) == 0
    out, err = capsys.readouterr()
    assert out == shown(answer("The sky")) + "\n"
    assert f"model: {NAME}, on the CPU\n{RANDOM_WEIGHTS}\n" in err
    assert "8 tokens of answer" in err and "tokens/s (length)" in err


def test_generate_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello"))
    arguments = ["--chat", "--max_tokens=8", "--json", "--temperature=0", "--stop=never", CPU]
    assert cli.main(["generate", NAME, "-", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == answer([{"role": "user", "content": "Hello"}])
    assert (found["prompt"], found["reason"], len(found["tokens"])) == ("Hello", "length", 8)
    assert found["tokens_per_second"] > 0


def test_models_are_found_in_the_folder_of_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.litertlm").write_bytes(zoo.load_language_model(NAME))
    monkeypatch.setenv("LITEGPU_MODELS", str(tmp_path))
    assert cli.main(["generate", "tiny.litertlm", "The sky", "--max_tokens=8", CPU]) == 0
    assert capsys.readouterr().out == shown(answer("The sky")) + "\n"
    assert cli.main(["generate", "none.litertlm", "The sky", CPU]) == 1
    assert "none.litertlm' cannot be read: No such file" in capsys.readouterr().err
    assert cli.main(["generate", NAME, "The sky", CPU, "--precision=fp16"]) == 1
    assert "precision: these are options of the GPU" in capsys.readouterr().err


def chat(lines: list[str], monkeypatch: pytest.MonkeyPatch, *flags: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return cli.main(["chat", NAME, CPU, "--max_tokens=4", *flags])


def test_chat_remembers_what_was_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(["Hi", "", "And?", "/new", "Hi", "/quit", "no"], monkeypatch, "--system=Be.") == 0
    first = [{"role": "system", "content": "Be."}, {"role": "user", "content": "Hi"}]
    hi = answer(first, 4)
    both = [*first, {"role": "assistant", "content": hi}, {"role": "user", "content": "And?"}]
    texts = [shown(each) for each in (hi, answer(both, 4), hi)]
    out, err = capsys.readouterr()
    assert out == "".join(f"{text}\n" for text in texts)
    assert err.count("tokens/s") == 3


def test_a_chat_that_is_too_long_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chat(["x " * 90, "Hi"], monkeypatch) == 0
    out, err = capsys.readouterr()
    assert "do not fit the cache of 96. Shorten the prompt" in err
    assert "/new starts a new conversation." in err
    assert out == shown(answer([{"role": "user", "content": "Hi"}], 4)) + "\n"


def test_an_interrupt_ends_an_answer_and_not_the_chat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    following = TextStream.__next__
    calls = iter(range(1000))

    def interrupted(stream: TextStream) -> str:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return following(stream)

    monkeypatch.setattr(TextStream, "__next__", interrupted)
    assert chat(["Hi", "Hi"], monkeypatch) == 0
    assert "(cancelled)" in capsys.readouterr().err


def test_benchmark_lm_measures_prompts_and_answers(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    target = tmp_path / "found.json"
    flags = ["--n_prompt=512", "--n_gen=3", "--repetitions=2", f"--json={target}", CPU]
    assert cli.main(["benchmark_lm", NAME, *flags]) == 0
    out = capsys.readouterr().out
    assert all(each in out for each in ("pp48", "tg3", "ttft48", "t/s", " ± ", " ms"))
    assert "caches of a session: 24.0 KiB" in out
    found = json.loads(target.read_text())
    assert [(each["test"], each["tokens"]) for each in found["tests"]] == [("pp48", 48), ("tg3", 3)]
    assert all(len(each["tokens_per_second"]) == 2 for each in found["tests"])
    assert cli.main(["benchmark_lm", NAME, "--n_prompt=0", "--n_gen=1", "--json", CPU]) == 0
    assert [each["test"] for each in json.loads(capsys.readouterr().out)["tests"]] == ["tg1"]
    assert cli.main(["benchmark_lm", NAME, "--n_prompt=0", "--n_gen=0"]) == 2
    assert "n_prompt and n_gen are both 0. Give a number" in capsys.readouterr().err
