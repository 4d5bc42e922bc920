"""`litegpu batch` that is interrupted, has a full disk, or resumes: files are always whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.tools import cli
from litegpu.tools.batch import writer as batch_writer
from litegpu.tools.batch.writer import PartedTable
from places import SOURCE
from small_models import chain

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

ROWS = 100


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with a model and samples that make several parts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_writer, "_PART_ROWS", 16)
    Path("model.tflite").write_bytes(chain(["ABS"], (1, 4)))
    values = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    pq.write_table(pa.table({"x": tensors}), "x.parquet", row_group_size=30)
    return tmp_path


def batch(*arguments: str, output: str = "out.parquet") -> int:
    command = ["batch", "model.tflite", "--input=x.parquet", "--cpu", f"--output={output}"]
    return cli.main([*command, *arguments])


def interrupt_part(number: int, monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    add = PartedTable.add

    def failing(self: PartedTable, table: Any) -> None:
        if self.done == number:
            raise error
        add(self, table)

    monkeypatch.setattr(PartedTable, "add", failing)


@pytest.mark.parametrize("output", ["out.parquet", "out"])
def test_what_was_interrupted_goes_on(
    output: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_part(3, patch, KeyboardInterrupt())
        assert batch(output=output) == 130
    assert not Path(output).exists()
    partial = Path(f"{output}.partial")
    assert sorted(each.name for each in partial.glob("*.parquet")) == [
        f"part-0000{number}.parquet" for number in range(3)
    ]
    assert f"48 of {ROWS} samples are saved in {output}.partial; --resume continues" in (
        capsys.readouterr().err
    )
    assert batch(output=output) == 1
    assert "has 3 parts of an unfinished run. Continue the run by --resume" in (
        capsys.readouterr().err
    )
    assert batch("--batch=8", "--resume", output=output) == 1
    assert "belongs to another run: its batch is 16, now 8. Repeat" in capsys.readouterr().err
    assert batch("--resume", output=output) == 0
    assert f"48 of {ROWS} samples are done; continuing" in capsys.readouterr().err
    assert not partial.exists()
    assert batch(output="whole.parquet") == 0
    assert pq.read_table(output).equals(pq.read_table("whole.parquet"))
    if output.endswith(".parquet"):
        assert Path(output).read_bytes() == Path("whole.parquet").read_bytes()


def test_all_of_it_may_be_done_already(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PartedTable, "finish", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))
        assert batch() == 130
    assert batch("--resume") == 0
    assert pq.read_table("out.parquet").num_rows == ROWS


def test_it_may_begin_anew(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        interrupt_part(3, patch, KeyboardInterrupt())
        assert batch() == 130
    Path("out.parquet.partial/batch.json").write_text("damaged", encoding="utf-8")
    assert batch("--resume") == 1
    assert "batch.json cannot be read: " in capsys.readouterr().err
    assert batch("--resume=false") == 0
    assert "are done" not in capsys.readouterr().err
    assert pq.read_table("out.parquet").num_rows == ROWS


def test_without_a_part_nothing_stays_behind(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_part(0, monkeypatch, KeyboardInterrupt())
    assert batch() == 130
    assert "are saved" not in capsys.readouterr().err
    assert sorted(each.name for each in folder.iterdir()) == ["model.tflite", "x.parquet"]


@pytest.mark.parametrize("output", ["out.parquet", "out"])
def test_the_old_table_stays_until_the_new_one_is_whole(
    output: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert batch(output=output) == 0
    old = pq.read_table(output)
    with pytest.MonkeyPatch.context() as patch:
        interrupt_part(3, patch, KeyboardInterrupt())
        assert batch("--overwrite", "--dequantize", output=output) == 130
    assert pq.read_table(output) == old
    assert batch("--resume", "--dequantize", output=output) == 2
    assert (
        f"--output={output}: it exists. Replace the output by --overwrite"
        in capsys.readouterr().err
    )
    assert batch("--resume", "--overwrite", "--dequantize", output=output) == 0
    flags = pq.read_table(output).schema.metadata[b"litegpu.flags"]
    assert b"'dequantize': True" in flags, "it is the new table"


def test_a_folder_is_replaced_with_the_old_table_in_reach(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails, or ends the program, while it appears loses neither table."""
    assert batch(output="out") == 0
    old, replace, lost = pq.read_table("out"), os.replace, list[str]()

    def fail(source: Any, target: Any) -> None:
        if str(source).endswith(".partial"):
            lost.extend(each.name for each in folder.glob("out*"))
            raise OSError("the disk is gone")
        replace(source, target)

    with monkeypatch.context() as broken:
        broken.setattr(os, "replace", fail)
        assert batch("--overwrite", "--dequantize", output="out") == 1
    assert sorted(lost) == ["out.partial", "out.replaced"]
    assert pq.read_table("out") == old
    (folder / "out").rename(folder / "out.replaced")  # as where the program ended there
    assert batch("--overwrite", "--resume=false", "--dequantize", output="out") == 0
    assert batch("--overwrite", "--dequantize", output="out") == 0
    assert not [*folder.glob("out.*")]


def run(*arguments: str, before: str = "") -> subprocess.Popen[str]:
    """Begin the tool in a process of its own, in a group of its own."""
    code = f"import sys\n{before}\nfrom litegpu.tools import cli\nsys.exit(cli.main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, "batch", *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        start_new_session=True,
    )


@pytest.mark.skipif(sys.platform == "win32", reason="a limit of file sizes is POSIX's")
def test_a_full_disk_is_an_error_with_nothing_half_written(folder: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))"
    arguments = ("model.tflite", "--input=x.parquet", "--cpu", "--output=out.parquet")
    with run(*arguments, before=limit) as process:
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1, error
    assert "--output=out.parquet: the file cannot be written: " in error
    assert not Path("out.parquet").exists()
    assert not Path("out.parquet.partial").exists(), "there is nothing to go on with"


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C for one process group is POSIX's")
@pytest.mark.parametrize(
    ("workers", "decode_in"), [(1, "threads"), (2, "threads"), (2, "processes")]
)
def test_ctrl_c_ends_at_once_and_keeps_what_is_done(
    workers: int, decode_in: str, folder: Path
) -> None:
    Path("large.tflite").write_bytes(chain(["ABS", "SIN"], (1, 512, 512, 1)))
    Path("many").mkdir()
    np.save("many/0000.npy", np.zeros((512, 512, 1), np.float32))
    for number in range(1, 3000):
        os.link("many/0000.npy", f"many/{number:04}.npy")
    arguments = ("large.tflite", "--input=many", "--cpu", "--output=out.parquet")
    more = (f"--workers={workers}", "--decode_threads=1", "--batch=4", f"--decode_in={decode_in}")
    with run(*arguments, *more) as process:
        first = Path("out.parquet.partial/part-00000.parquet")
        deadline = time.monotonic() + 60
        while not first.exists() and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        start = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert time.monotonic() - start < 10
    assert process.returncode == 130, error
    assert "Traceback" not in error
    assert "of 3000 samples are saved in out.parquet.partial" in error
    assert pq.read_table(first).num_rows == 60
    assert not Path("out.parquet").exists()
