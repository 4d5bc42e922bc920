"""`litegpu cache`: lists, verifies, limits, clears and fills the cache."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from litegpu import GpuDelegate
from litegpu.cache.artifact import Artifact
from litegpu.cache.store import ArtifactStore, entries, read
from litegpu.host import disk_cache, private_files
from litegpu.tools import cache, cli
from litegpu.version import __version__
from small_models import chain, fully_convolutional, interpreter

Capture = pytest.CaptureFixture[str]


def in_folder(folder: Path, *argv: str) -> int:
    return cli.main(["cache", f"--serialization_dir={folder}", *argv])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.tflite"
    path.write_bytes(fully_convolutional())
    return path


def test_nothing_is_kept_yet(tmp_path: Path, capsys: Capture) -> None:
    assert in_folder(tmp_path / "none") == 0
    assert f"The cache '{tmp_path / 'none'}' is empty." in capsys.readouterr().out
    assert not (tmp_path / "none").exists()


def test_what_was_warmed_serves_a_delegate(tmp_path: Path, model: Path, capsys: Capture) -> None:
    folder = tmp_path / "kept"
    flags = (f"--warm={model}", "--backend=opencl", "--precision=fp16", "--model_token=mine")
    assert in_folder(folder, *flags) == 0
    seen = capsys.readouterr()
    assert "mine-" in seen.out and f"{model}: 1 partition on opencl:" in seen.err
    assert "1×9×7×3" in seen.out and __version__ in seen.out and ", 1 new file (" in seen.err
    (entry,) = entries(folder)
    os.utime(entry.path, (0, 0))
    delegate = GpuDelegate(
        backend="opencl", precision="fp16", serialization_dir=folder, model_token="mine"
    )
    target = interpreter(model.read_bytes(), delegate)
    assert [each.path for each in entries(folder)] == [entry.path]
    assert entry.path.stat().st_mtime > 0, "it was used"
    del target
    assert in_folder(folder, *flags, "--verify") == 0
    seen = capsys.readouterr()
    assert ", which was already cached (" in seen.err
    assert "1 file, " in seen.out and "none damaged" in seen.out and "opencl " in seen.out


def test_several_models_are_warmed(tmp_path: Path, model: Path, capsys: Capture) -> None:
    other = tmp_path / "other.tflite"
    other.write_bytes(chain(["ABS"]))
    flags = (f"--warm={model},{other}", "--backend=opencl")
    assert in_folder(tmp_path / "kept", *flags) == 0
    lines = capsys.readouterr().err.splitlines()
    for path in (model, other):
        assert any(f"{path}: 1 partition on opencl:" in line for line in lines)
    assert len(entries(tmp_path / "kept")) == 2


def test_several_precisions_are_warmed(
    tmp_path: Path, model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    flags = (f"--warm={model}", "--device=opencl:0", "--precision=fp32,fp16")
    assert in_folder(shipped, *flags) == 0
    assert capsys.readouterr().err.count(", 1 new file (") == 2
    accessible = os.access
    monkeypatch.setattr(os, "access", lambda p, m: p != shipped and accessible(p, m))
    monkeypatch.setenv("LITEGPU_CACHE_PATH", os.pathsep.join(map(str, (shipped, own))))
    assert cli.main(["cache", *flags, "--json"]) == 0
    seen = capsys.readouterr()
    assert seen.err.count(", which was already cached (") == 2
    found = json.loads(seen.out)
    assert (found["folder"], found["files"]) == (str(own), [])
    (other,) = found["others"]
    assert other["folder"] == str(shipped)
    assert {file["precision"] for file in other["files"]} == {"fp32", "fp16"}
    assert cli.main(["cache"]) == 0
    seen = capsys.readouterr()
    assert f"The cache '{own}' is empty." in seen.out and "2 files, " in seen.out
    assert cli.main(["cache", *flags[:2], "--precision=fp32,fp99"]) == 2
    assert "Unknown precision 'fp99'" in capsys.readouterr().err


def test_entries_of_one_model_are_told_apart(tmp_path: Path, model: Path, capsys: Capture) -> None:
    warm = (f"--warm={model}", "--backend=opencl")
    for flags in (("--precision=fp32",), ("--precision=fp16", "--quantized=float")):
        assert in_folder(tmp_path / "kept", *warm, *flags) == 0
    capsys.readouterr()
    assert in_folder(tmp_path / "kept", "--json") == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert sorted(file["precision"] for file in files) == ["fp16, quantized as float", "fp32"]
    assert all(file["device"].startswith("opencl ") for file in files)
    assert in_folder(tmp_path / "kept") == 0
    seen = capsys.readouterr().out
    assert "precision" in seen and "fp32" in seen and "quantized as float" in seen
    first = entries(tmp_path / "kept")[0].path
    found = read(first)
    assert found is not None
    hostile = replace(Artifact.read(found), precision="\x1b[2Jhalf\u202e", device="\x1b]0;x\x07")
    ArtifactStore(tmp_path / "hostile").store(bytes(32), hostile.sections())
    assert in_folder(tmp_path / "hostile", "--verify") == 0
    seen = capsys.readouterr().out
    assert "\\x1b[2Jhalf" in seen and not {"\x1b", "\u202e", "\x07"} & set(seen)


def test_a_model_that_stays_on_the_cpu_warms_nothing(
    tmp_path: Path, model: Path, capsys: Capture
) -> None:
    flags = (f"--warm={model}", "--backend=opencl", "--first_delegate_node_index=999")
    assert in_folder(tmp_path / "kept", *flags) == 1
    seen = capsys.readouterr().err
    assert "0 partitions on" in seen and "; `litegpu check` says why (" in seen


@pytest.mark.parametrize("tool", ["cache", "check"])
def test_what_cannot_be_kept_is_told(
    tool: str, tmp_path: Path, model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    disk_cache._reported.clear()
    monkeypatch.setattr(private_files, "replace", full)
    options = (f"--serialization_dir={tmp_path / 'kept'}", "--backend=opencl", "--cache")
    what = f"--warm={model}" if tool == "cache" else str(model)
    assert cli.main([tool, what, *options]) == (tool == "cache")
    seen = capsys.readouterr().err
    assert seen.count("Compiled partitions cannot be cached in") == 1
    assert (", which cannot be cached (" in seen) == (tool == "cache")


def test_damage_is_an_exit_status(tmp_path: Path, capsys: Capture) -> None:
    store = ArtifactStore(tmp_path, "mine")
    store.store(bytes(32), [bytes(100)])
    assert in_folder(tmp_path) == 0, "nobody has looked inside"
    assert in_folder(tmp_path, "--verify") == 1, "its checksum is right, but it is not an artifact"
    store.path(bytes(32)).write_bytes(b"short")
    capsys.readouterr()
    assert in_folder(tmp_path, "--verify", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["folder"] == str(tmp_path)
    (file,) = found["files"]
    assert (file["bytes"], file["fault"], file["inputs"]) == (5, "the file is truncated", [])
    assert in_folder(tmp_path, "--verify") == 1
    assert "the file is truncated" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such modes")
def test_a_folder_of_all_is_looked_at_where_the_user_says_so(
    tmp_path: Path, model: Path, capsys: Capture
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    folder.chmod(0o777)
    flags = (f"--warm={model}", "--backend=opencl", "--unsafe_cache")
    assert in_folder(folder, *flags, "--verify") == 0 and len(entries(folder)) == 1
    capsys.readouterr()
    assert in_folder(folder, "--verify") == 1
    assert "other users may write to the folder" in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such modes")
@pytest.mark.parametrize(
    "command", [("benchmark_model", "--num_runs=1"), ("inference_diff", "--num_runs=1")]
)
def test_tools_of_the_original_take_a_folder_of_all_where_a_flag_says_so(
    command: tuple[str, str], tmp_path: Path, model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    folder.chmod(0o777)
    name, *flags = command
    source = f"--graph={model}" if name == "benchmark_model" else str(model)
    cached = (f"--delegate_serialize_dir={folder}", "--delegate_serialize_token=mine")
    use = "--delegate=gpu" if name == "inference_diff" else "--use_gpu=true"
    argv = [name, source, *flags, use, "--gpu_backend=cl", *cached]
    assert cli.main(argv) == 0
    assert not entries(folder), "others may write there"
    assert cli.main([*argv, "--gpu_unsafe_cache"]) == 0
    assert len(entries(folder)) == 1


@pytest.mark.parametrize(
    ("description", "status"),
    [('["0.0.9","of its own"]', 0), (f'["{__version__}"]', 1), ("[7]", 1), ("7", 1), ("?", 1)],
)
def test_files_of_other_versions_are_not_damaged(
    description: str, status: int, tmp_path: Path, capsys: Capture
) -> None:
    text = description.encode()
    sections = [len(text).to_bytes(8, "little"), bytes(8), text, bytes(4096 - 16 - len(text))]
    ArtifactStore(tmp_path).store(bytes(32), sections)
    assert in_folder(tmp_path, "--verify") == status
    seen = capsys.readouterr().out
    assert ("0.0.9" in seen and "none damaged" in seen) == (status == 0)
    assert in_folder(tmp_path) == 0


def test_limits_and_clearing_leave_what_is_not_litegpus(tmp_path: Path, capsys: Capture) -> None:
    store = ArtifactStore(tmp_path)
    for number in range(3):
        key = bytes([number]) * 32
        store.store(key, [bytes(1 << 20)])
        os.utime(store.path(key), (number, number))
    other, mine = tmp_path / "mine.txt", tmp_path / "mine.artifact"
    kernels = tmp_path / f"{'0' * 64}.cubin"
    for path in (other, mine, kernels):
        path.write_text("")
    os.utime(mine, (0, 0))
    assert in_folder(tmp_path, "--limit=2") == 0
    assert [entry.path for entry in entries(tmp_path)] == [store.path(bytes([2]) * 32)]
    assert "removed: 2 files, 2.0 MB" in capsys.readouterr().err.replace("MiB", "MB")
    capsys.readouterr()
    assert in_folder(tmp_path, "--clear", "--json") == 0
    gone = [str(store.path(bytes([2]) * 32)), str(kernels)]
    assert json.loads(capsys.readouterr().out)["removed"] == gone
    assert {*tmp_path.iterdir()} == {other, mine}


def test_files_of_weights_are_counted_and_verified(tmp_path: Path, capsys: Capture) -> None:
    digest = hashlib.sha256(bytes(2 << 20)).hexdigest()
    path = tmp_path / f"{digest}.block"
    path.write_bytes(bytes(2 << 20))
    path.chmod(0o600)
    assert in_folder(tmp_path, "--verify") == 0
    assert "1 file, 2.0 MB of weights, none damaged" in shown(capsys)
    path.write_bytes(bytes(1))
    assert in_folder(tmp_path, "--verify") == 1
    assert "1 file, 1 B of weights, 1 damaged" in shown(capsys)
    assert in_folder(tmp_path, "--verify", "--json") == 1
    found = json.loads(capsys.readouterr().out)["weights"]
    assert found == {"files": 1, "bytes": 1, "damaged": [str(path)]}
    assert in_folder(tmp_path, "--clear") == 0
    assert "removed: 1 file" in capsys.readouterr().err and not path.exists()


def test_kernels_by_themselves_are_counted(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / f"{'0' * 64}.glbin").write_bytes(bytes(2 << 20))
    assert in_folder(tmp_path) == 0
    assert "1 file of kernels and choices, 2.0 MB" in shown(capsys)
    assert in_folder(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["kernels"] == {"files": 1, "bytes": 2 << 20}
    assert in_folder(tmp_path, "--limit=1") == 0
    assert "is empty." in shown(capsys)


def shown(capsys: Capture) -> str:
    return capsys.readouterr().out.replace("MiB", "MB")


def test_models_that_make_room_for_later_ones_are_not_warm(
    tmp_path: Path, model: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other.tflite"
    other.write_bytes(chain(["ABS"]))
    with monkeypatch.context() as limited:
        limited.setattr("litegpu.config.cache_limit", lambda: 10_000)
        assert in_folder(tmp_path / "kept", f"--warm={model},{other}", "--backend=opencl") == 1
    assert (
        "1 file removed, because the size of all files is limited to 9.8 KiB."
        in capsys.readouterr().err
    )
    assert in_folder(tmp_path / "kept", f"--warm={model},{other}", "--backend=opencl") == 0
    assert "removed, because" not in capsys.readouterr().err


def test_a_model_with_more_weights_than_the_cache_may_have_is_not_warm(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "weights.tflite"
    model.write_bytes(fully_convolutional())
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "0")
    assert in_folder(tmp_path / "kept", f"--warm={model}", "--backend=opencl") == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "A partition is not cached: its weights have" in said
    assert "1 partition on" in said and ", which cannot be cached" in said


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such modes")
def test_a_folder_that_is_not_used_is_told(tmp_path: Path, capsys: Capture) -> None:
    tmp_path.chmod(0o777)
    assert in_folder(tmp_path) == 0
    assert (
        f"'{tmp_path}' is not used: other users may write to the folder" in capsys.readouterr().err
    )
    assert in_folder(tmp_path, "--json") == 0
    assert json.loads(capsys.readouterr().out)["refused"].startswith("other users may write")
    assert in_folder(tmp_path, "--unsafe_cache") == 0
    assert "is not used" not in capsys.readouterr().err


def test_what_cannot_be_removed_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    ArtifactStore(tmp_path).store(bytes(32), [b""])
    monkeypatch.setattr(cache, "clear", lambda _: [])
    assert in_folder(tmp_path, "--clear") == 1
    assert "cannot be removed. Check who owns the folder." in capsys.readouterr().err


def test_a_cache_that_keeps_nothing_is_a_mistake(tmp_path: Path, capsys: Capture) -> None:
    assert in_folder(tmp_path, "--cache=false") == 2
    assert "--cache=false disables the cache. Leave the flag out to list" in capsys.readouterr().err


def test_a_file_is_no_folder(model: Path, capsys: Capture) -> None:
    assert in_folder(model) == 1
    seen = capsys.readouterr().err
    assert f"'{model}' cannot be read: Not a directory. Name a folder with --serial" in seen


def test_a_file_that_goes_meanwhile_is_told(tmp_path: Path) -> None:
    store = ArtifactStore(tmp_path)
    store.store(bytes(32), [b""])
    (entry,) = entries(tmp_path)
    entry.path.unlink()
    assert cache._look(entry, whole=True).fault == "it is gone"
