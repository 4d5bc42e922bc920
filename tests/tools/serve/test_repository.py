"""The models of a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from containers import bundle
from litegpu import zoo
from litegpu.errors import ModelError, OptionsError
from litegpu.tools.serve.repository import Entry, entries_of
from small_models import shifted

LM = "zoo:tiny_lm?layers=1&context=96"


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(shifted())


def test_names_come_from_the_command_or_the_file(tmp_path: Path) -> None:
    words = ["a/b/c.tflite", "d.task:e.tflite", LM, f"mine={LM}", "known_name"]
    assert entries_of(words) == [
        Entry("c", "1", "a/b/c.tflite"),
        Entry("e", "1", "d.task:e.tflite"),
        Entry("tiny_lm", "1", LM),
        Entry("mine", "1", LM),
        Entry("known_name", "1", "known_name"),
    ]


def test_folders_have_versions(tmp_path: Path) -> None:
    put(tmp_path, "a/1/model.tflite", "a/10/model.tflite", "a/2/any.tflite", "a/notes/1.txt")
    put(tmp_path, "b/1/model.tflite", "b/1/other.tflite", "other/file.tflite")
    a, b = tmp_path / "a", tmp_path / "b"
    of_a = [("1", "model"), ("2", "any"), ("10", "model")]
    versions = [Entry("a", n, str(a / n / f"{stem}.tflite")) for n, stem in of_a]
    assert entries_of([str(a)]) == versions
    assert [each.name for each in entries_of([f"x={a}"])] == ["x"] * 3
    assert entries_of([str(tmp_path)]) == [*versions, Entry("b", "1", str(b / "1/model.tflite"))]


def test_what_is_no_model_is_rejected(tmp_path: Path) -> None:
    put(tmp_path, "two/1/a.tflite", "two/1/b.tflite", "none/file.tflite")
    with pytest.raises(ModelError, match=r"has 2 model files\. Put one there"):
        entries_of([str(tmp_path / "two")])
    with pytest.raises(ModelError, match=r"has no model\. Use NAME/1/model\.tflite"):
        entries_of([str(tmp_path / "none")])
    with pytest.raises(OptionsError, match=r"are both version 1 of the model 'm'\. Give one"):
        entries_of(["m.tflite", "m=other.tflite"])
    with pytest.raises(OptionsError, match=r"'a/ü b\.tflite' is not usable as a name in URLs"):
        entries_of(["a/ü b.tflite"])


def test_language_models_are_recognized(tmp_path: Path) -> None:
    put(tmp_path, "model.tflite")
    plain = Entry("m", "1", str(tmp_path / "model.tflite"))
    assert [plain.is_language_model(tokenizer) for tokenizer in (False, True)] == [False, True]
    (tmp_path / "b.task").write_bytes(bundle({"model.tflite": shifted()}))
    assert not Entry("m", "1", str(tmp_path / "b.task")).is_language_model(True)
    (tmp_path / "lm.litertlm").write_bytes(zoo.load_language_model(LM))
    assert Entry("m", "1", str(tmp_path / "lm.litertlm")).is_language_model(False)
    assert Entry("m", "1", LM).is_language_model(False)
    assert not Entry("m", "1", "zoo:resnet50").is_language_model(False)
