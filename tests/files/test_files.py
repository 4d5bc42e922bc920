"""Containers of models: their members, the members' names, and rejected files."""

from __future__ import annotations

import json
import mmap
import os
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import litegpu
from containers import bundle, shared_items
from fuzzing.containers import try_damaged
from litegpu import CompiledModel, GpuDelegate, files
from litegpu.errors import CompiledModelError, ModelError
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.runtime_abi.file import ModelFile
from litegpu.tools.cli import main
from litegpu.zoo.containers import BLOCK, Section, litertlm
from small_models import chain, two_signatures

ABS, NEG = chain(["ABS"]), chain(["NEG"])
TASK = {"a.tflite": ABS, "sub/b.tflite": NEG, "notes.txt": b"text"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(content: bytes, name: str = "x.task") -> str:
    Path(name).write_bytes(content)
    return name


def opened(content: bytes) -> files.Container:
    found = files.open_container(write(content))
    assert found is not None
    return found


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_of_bundles_in_bundles(method: int) -> None:
    inner = bundle(TASK, method)
    found = opened(bundle({"in.task": inner, "c.tflite": ABS, "folder/": b""}, method))
    assert [(each.name, each.kind, each.size) for each in found.members] == [
        ("in.task:a.tflite", "model", len(ABS)),
        ("in.task:sub/b.tflite", "model", len(NEG)),
        ("in.task:notes.txt", "data", 4),
        ("c.tflite", "model", len(ABS)),
    ]
    assert [bytes(each.view()) for each in found.members] == [ABS, NEG, b"text", ABS]


def test_sections_of_language_models() -> None:
    sections = [
        Section(ABS),
        Section(NEG, 3, "tf_lite_embedder"),
        Section(NEG),
        Section(b"words", 4, ""),
        Section(b"meta", 5, ""),
        Section(b"json", 6, ""),
        Section(b"numbers", 7),
        Section(b"new", 77, ""),
        Section(ABS, 3, "tf_lite_embedder_2"),
        Section(NEG, 3, "tf_lite_embedder"),
    ]
    found = opened(litertlm(sections))
    assert [(each.name, each.kind) for each in found.members] == [
        ("prefill_decode.tflite", "model"),
        ("embedder.tflite", "model"),
        ("prefill_decode_2.tflite", "model"),
        ("sentencepiece_tokenizer.spiece", "SentencePiece tokenizer"),
        ("llm_metadata.pb", "LLM metadata"),
        ("hugging_face_tokenizer.json.zlib", "Hugging Face tokenizer"),
        ("prefill_decode.weights", "weights"),
        ("section_of_type_77.bin", "section of type 77"),
        ("embedder_2.tflite", "model"),
        ("embedder_3.tflite", "model"),
    ]
    assert [bytes(each.view()) for each in found.members] == [each.content for each in sections]


def test_stored_members_are_mapped_and_beyond_4_gib() -> None:
    """The weights are a hole in the file: reading them would take all memory."""
    far = 5 << 30
    content = litertlm([Section(ABS), Section(b"", 7, begin=BLOCK * 2, end=far)])
    write(content, "x.litertlm")
    os.truncate("x.litertlm", far)
    with open("x.litertlm", "r+b") as file:
        file.seek(far - 4)
        file.write(b"last")
    found = files.open_container("x.litertlm")
    assert found is not None and found.members[1].size == far - 2 * BLOCK
    assert bytes(found.members[1].view()[-4:]) == b"last"
    assert found.members[0].view().obj is found.members[1].view().obj
    assert files.read_model("x.litertlm") == ABS


@pytest.mark.skipif(sys.platform == "win32", reason="names of files have no colons there")
def test_names_of_members() -> None:
    write(bundle(TASK), "a:b.task")
    write(bundle(TASK), "x.task")
    assert files.located("a:b.task") == ("a:b.task", "")
    assert files.located("a:b.task:sub/b.tflite") == ("a:b.task", "sub/b.tflite")
    assert files.located("x.task:in.task:a.tflite") == ("x.task", "in.task:a.tflite")
    assert files.located("C:nothing.task:a") == ("C:nothing.task:a", "")
    assert files.read_model("a:b.task:sub/b.tflite") == NEG


def test_every_class_takes_members() -> None:
    name = write(bundle(TASK)) + ":a.tflite"
    x = np.full((1, 4, 4, 4), -2, np.float32)
    with CompiledModel.from_file(name) as model:
        assert np.array_equal(model(x), -x)
    assert litegpu.check(name).report is not None
    assert bytes(ModelFile.open(name).data) == ABS
    assert GpuDelegate(model=name).model == name


def test_token_of_a_member() -> None:
    pytest.importorskip("farmhash")
    name = write(bundle(TASK))
    assert litegpu.model_token(f"{name}:sub/b.tflite") == litegpu.model_token(NEG)
    with pytest.raises(ModelError, match=r"'x.task' has 2 models"):
        litegpu.model_token(name)


def test_several_models_in_a_file() -> None:
    name = write(bundle(TASK))
    several = (
        r"'x.task' has 2 models: a.tflite \(.* B\), sub/b.tflite \(.*\). "
        "Name one, such as 'x.task:a.tflite'"
    )
    for call in (files.read_model, litegpu.check, ModelFile.open):
        with pytest.raises(ModelError, match=several):
            call(name)
    with pytest.raises(CompiledModelError, match=several):
        CompiledModel.from_file(name)
    with pytest.raises(ModelError, match=r"'x.task' has no model 'a.tfl'. Did you mean 'a.tflite'"):
        files.read_model("x.task:a.tfl")
    with pytest.raises(ModelError, match=r"'x.task' has no model 'notes.txt'"):
        files.read_model("x.task:notes.txt")
    with pytest.raises(ModelError, match=r"'y.zip' has no .tflite model in 1 members"):
        files.read_model(write(bundle({"notes.txt": b""}), "y.zip"))
    with pytest.raises(ModelError, match=r"'z.tflite' is not a bundle .* no member 'a'. Give the"):
        files.read_model(write(ABS, "z.tflite") + ":a")


def spoilt(change: Callable[[bytearray], None], method: int = zipfile.ZIP_STORED) -> bytes:
    content = bytearray(bundle({"a.tflite": ABS}, method))
    change(content)
    return bytes(content)


def put(content: bytearray, at: int, form: str, number: int) -> None:
    """Change a field of the only entry of the central directory."""
    struct.pack_into(form, content, content.index(b"PK\x01\x02") + at, number)


def put_both(content: bytearray, size: int) -> None:
    put(content, 20, "<I", size)
    put(content, 24, "<I", size)


def distant() -> bytes:
    """A member whose header would be at the last of 2^64 bytes."""
    content = bundle({"a.tflite": ABS})
    begin, end = content.index(b"PK\x01\x02"), content.index(b"PK\x05\x06")
    extra = struct.pack("<HHQ", 1, 8, (1 << 64) - 1)
    entry = bytearray(content[begin:end] + extra)
    struct.pack_into("<H", entry, 30, len(extra))
    struct.pack_into("<I", entry, 42, 0xFFFFFFFF)
    finish = bytearray(content[end:])
    struct.pack_into("<I", finish, 12, len(entry))
    return content[:begin] + entry + finish


def wide() -> bytes:
    """Few members, in a directory of more than 1 MiB."""
    return bundle({f"{each:060000}": b"" for each in range(20)})


def nested(depth: int) -> bytes:
    content = bundle({"a.tflite": ABS})
    for _ in range(depth):
        content = bundle({"in.task": content})
    return content


def shared() -> bytes:
    """Two names for the same bytes."""
    content = bytearray(bundle({"a": b"x" * 50, "b": b"y" * 50}))
    second = content.index(b"PK\x01\x02", content.index(b"PK\x01\x02") + 1)
    struct.pack_into("<I", content, second + 42, 0)
    struct.pack_into("<H", content, 26, 1)
    return bytes(content)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bundle(TASK)[:-30], "is damaged: the file is no zip archive"),
        (bundle({"in.task": b"PK\x03\x04"}), r"in.task: is no zip archive"),
        (distant(), "'a.tflite' begins outside of the file"),
        (wide(), "its directory has 1.1 MiB, more than 1.0 MiB"),
        (nested(5), "more than 4 bundles are nested"),
        (bundle({str(each): b"" for each in range(1001)}), "the file has more than 1000 members"),
        (bundle({f"{each}/": b"" for each in range(1001)}), "the file has more than 1000 members"),
        (bundle({"../a": ABS}), r"the member name '\.\./a' is not a relative path"),
        (bundle({"/a": ABS}), "the member name '/a' is not a relative path"),
        (bundle({"C:a": ABS}), "the member name 'C:a' is not a relative path"),
        (bundle({"a\\..\\b": ABS}), r"the member name .* is not a relative path"),
        (bundle({"aa": ABS, "ab": NEG}).replace(b"ab", b"aa"), "two members are called 'aa'"),
        (spoilt(lambda data: put(data, 8, "<H", 1)), "'a.tflite' is encrypted. Extract the models"),
        (spoilt(lambda data: put(data, 24, "<I", 9)), "'a.tflite' is stored with two different"),
        (spoilt(lambda data: put(data, 10, "<H", 12)), "'a.tflite' has the compression method 12"),
        (
            spoilt(lambda data: put(data, 42, "<I", 1 << 30)),
            "begins outside of the file",
        ),
        (spoilt(lambda data: put(data, 42, "<I", 1)), "'a.tflite' has no header"),
        (
            spoilt(lambda data: put_both(data, 1 << 20)),
            r"'a.tflite' is at bytes .* outside of 0 to",
        ),
        (
            spoilt(lambda data: put(data, 24, "<I", 1 << 30), zipfile.ZIP_DEFLATED),
            "the compressed members take more than 64.0 MiB",
        ),
        (shared(), r"'a' and 'b' overlap"),
        (litertlm([])[:20], "is damaged: the file ends within its header, after 20 bytes"),
        (litertlm([], (2, 1, 0)), "'x.task' has version 2.1.0 of the format. litegpu reads"),
        (litertlm([Section(ABS)])[:99], r"the header ends at byte \d+, but the file has 99"),
        (b"LITERTLM\1" + b"\0" * 15 + struct.pack("<Q", 36) + b"\xff" * 99, "has offsets outside"),
        (litertlm([Section(ABS, begin=9)]), "is at bytes 9 to .*, outside of"),
        (litertlm([Section(ABS, end=1 << 40)]), "to 1099511627776, outside of"),
        (litertlm([Section(ABS, end=5)]), "is at bytes 16384 to 5, outside of"),
        (litertlm([Section(ABS), Section(NEG, begin=BLOCK)]), "'.*' and '.*' overlap"),
        (litertlm([Section(b"no model")]), "'prefill_decode.tflite' is not a TensorFlow Lite mod"),
        (litertlm([Section(b"", 1)] * 1001), "the file has more than 1000 sections"),
    ],
)
def test_damaged_and_hostile_files(content: bytes, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        opened(content)


def test_a_text_that_all_items_of_all_sections_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of 1 MB could name 10^6 items with a key of 1 MB each: the bytes read are counted."""
    read = 0
    original = Flatbuffer.text

    def counted(self: Flatbuffer, table: int, field: int) -> str:
        nonlocal read
        found = original(self, table, field)
        read += len(found)
        return found

    monkeypatch.setattr(Flatbuffer, "text", counted)
    with pytest.raises(ModelError, match="is at bytes 0 to 0, outside of"):
        opened(shared_items(sections=50, items=1000, key="k" * 10000))
    assert 0 < read <= 50 * 64 * 256


def test_damaged_compressed_members() -> None:
    content = bundle({"a.tflite": ABS}, zipfile.ZIP_DEFLATED)
    wrong = bytearray(content)
    put(wrong, 16, "<I", 1)
    with pytest.raises(ModelError, match=r"'a.tflite' has another size or checksum than stated"):
        opened(bytes(wrong)).model().view()
    wrong = bytearray(content)
    wrong[38:46] = b"\xff" * 8
    with pytest.raises(ModelError, match=r"'a.tflite' cannot be decompressed"):
        opened(bytes(wrong))


def test_damaged_signatures() -> None:
    with pytest.raises(ModelError, match="its signatures are outside of the file"):
        ModelFile(b"\xff" * 8).signature_keys()
    assert ModelFile(two_signatures()).signature_keys() == ("minus", "less")


def test_randomly_damaged_containers_are_read_or_rejected() -> None:
    outcomes = {try_damaged(number) for number in range(400)}
    assert outcomes == {"read", "rejected"}


def test_check_lists_a_bundle_and_checks_each_model(capsys: pytest.CaptureFixture[str]) -> None:
    name = write(bundle({**TASK, "two.tflite": two_signatures()}))
    options = ["--backend=opencl", "--min_nodes_per_partition=0"]
    assert main(["check", name, *options]) == 0
    text = capsys.readouterr().out
    assert "notes.txt" in text and "minus, less" in text
    assert text.count("will run on the GPU") >= 3
    assert main(["check", name, "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["kind"] for each in found["members"]] == ["model", "model", "data", "model"]
    assert [each["model"] for each in found["models"]] == [
        f"x.task:{each}" for each in ("a.tflite", "sub/b.tflite", "two.tflite")
    ]
    assert main(["check", name, "--report=x.html"]) == 1
    assert "Name one, such as 'x.task:a.tflite'" in capsys.readouterr().err


def test_check_continues_after_a_damaged_model(capsys: pytest.CaptureFixture[str]) -> None:
    name = write(bundle({"bad.tflite": b"\xff\xff\xff\x7fTFL3" + bytes(64), "a.tflite": ABS}))
    assert main(["check", name, "--json"]) == 1
    bad, good = json.loads(capsys.readouterr().out)["models"]
    assert bad["error"] and good["report"]
    assert main(["check", name]) == 1
    assert "damaged" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_is_read() -> None:
    os.mkfifo("pipe")
    code = f"open('pipe', 'wb').write({ABS!r})"
    with subprocess.Popen([sys.executable, "-c", code]) as writer:
        assert files.read_model("pipe") == ABS
    assert writer.returncode == 0


def test_an_empty_file_has_no_bytes() -> None:
    assert files.read_model(write(b"")) == b""


def test_a_file_system_that_cannot_map(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **keywords: object) -> None:
        raise OSError(19, "No such device")

    monkeypatch.setattr(mmap, "mmap", refuse)
    assert files.read_model(write(bundle({"a.tflite": ABS}))) == ABS


def test_check_of_a_bundle_without_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", write(bundle({"notes.txt": b"text"}))]) == 1
    shown = capsys.readouterr()
    assert "notes.txt" in shown.out
    assert "'x.task' has no .tflite model in 1 members. Give a file" in shown.err


def test_check_shows_names_of_members_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", write(bundle({"a\nb": ABS}))])
    assert "model: x.task:a\\nb" in "".join(capsys.readouterr())
