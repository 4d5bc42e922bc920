"""`litegpu batch`: its rows, columns and output lines, failing samples, and errors."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.tools import cli
from litegpu.tools.batch import columns as batch_columns
from litegpu.tools.picture_flag import (
    default_picture,
)
from litegpu.zoo.writer import ModelWriter
from real_models import find
from small_models import chain, reference, step

pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
pq = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")

PICTURE_MODEL = chain(["ABS"], (1, 8, 6, 3))
ARRAY_MODEL = chain(["ABS"], (1, 3, 2))


def two_inputs() -> bytes:
    writer = ModelWriter()
    left, right = writer.input((1, 3), name="left"), writer.input((1, 3), name="right")
    writer.output(writer.op("SUB", [left, right], [(1, 3)], name="difference"))
    return writer.build()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with models and a folder of pictures."""
    for name, content in (
        ("picture", PICTURE_MODEL),
        ("array", ARRAY_MODEL),
        ("two", two_inputs()),
    ):
        (tmp_path / f"{name}.tflite").write_bytes(content)
    pictures = tmp_path / "pictures"
    (pictures / "more").mkdir(parents=True)
    for number in range(5):
        color = (50 * number, 10, 200)
        Image.new("RGB", (9, 7), color).save(pictures / f"{number}.png")
    Image.new("L", (20, 20), 128).save(pictures / "more" / "0.jpg")
    (pictures / "notes.txt").write_text("no picture")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def batch(*arguments: str, output: str = "out.parquet") -> int:
    return cli.main(["batch", *arguments, f"--output={output}", "--overwrite", "--cpu"])


def column(table: Any, name: str) -> Any:
    found = table[name].combine_chunks()
    if hasattr(found, "to_numpy_ndarray"):
        return found.to_numpy_ndarray()
    shape = json.loads(table.field(name).metadata[b"litegpu"])["shape"]
    return found.flatten().to_numpy().reshape(-1, *shape)


def written(path: str = "out.parquet") -> Any:
    return pq.read_table(path)


def output_of(table: Any) -> str:
    (name,) = (each for each in table.schema.names if each not in ("name", "error"))
    return str(name)


STEPS = [
    "load the model, try batches",
    "start workers, compile kernels",
    "run the samples",
    "finish the table",
]


# Rows


def test_pictures_become_rows_in_order(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert batch("picture.tflite", "--input=pictures", "--batch=4", "--decode_threads=2") == 0
    found = written()
    names = ["0.png", "1.png", "2.png", "3.png", "4.png", "more/0.jpg"]
    assert found["name"].to_pylist() == names
    assert found["error"].null_count == 6
    field = found.schema.field(output_of(found))
    if batch_columns._holds_missing_tensors():
        assert str(field.type).endswith("[value_type=float, shape=[8,6,3]]>")
    about = json.loads(field.metadata[b"litegpu"])
    assert about | {"tensor": ""} == {
        "tensor": "",
        "shape": [8, 6, 3],
        "dtype": "float32",
        "quantization": None,
    }
    for number, values in enumerate(column(found, field.name)[:5]):
        pixels = np.abs((np.array([50 * number, 10, 200], np.float32) - 127.5) / 127.5)
        np.testing.assert_allclose(values, np.broadcast_to(pixels, (8, 6, 3)), atol=1e-6)
    captured = capsys.readouterr()
    assert "Skipped, because they are not pictures or arrays: .txt (1)\n" in captured.err
    masked = re.sub(r" +[\d.]+\b", " N", captured.out.replace(field.name, "OUTPUT"))
    masked = masked.replace("list<item: float>", "float[8, N, N]")  # of older versions of pyarrow
    assert (
        masked
        == (
            "out.parquet: name string, OUTPUT float[8, N, N], error string\n"
            "\n"
            "where   samples\n"
            "───────────────\n"
            "CPU N\n"
            "\n"
            "stage    workers   busy s   samples/s by itself\n"
            "───────────────────────────────────────────────\n"
            "decode N N N\n"
            "infer N N N\n"
            "write N N N\n"
            "\n"
        )
        + masked[masked.index("6 samples in") :]
    )
    assert "6 samples in N s: N samples/s. " in masked
    ends = "".join(f"{step} N\n" for step in (*STEPS, "in all"))
    assert masked.endswith(f"s\n{'─' * 37}\n{ends}")
    assert not Path("out.parquet.partial").exists()


def test_arrays_by_file(folder: Path) -> None:
    Path("arrays").mkdir()
    random = np.random.default_rng(0).normal(size=(3, 3, 2))
    np.save("arrays/0.npy", random[0])
    np.save("arrays/1.npy", random[1].reshape(1, 3, 2).astype(np.float32))
    np.savez("arrays/2.npz", anything=random[2].astype(np.float16))
    assert batch("array.tflite", "--input=arrays") == 0
    found = written()
    expected = np.abs(random).astype(np.float32)
    np.testing.assert_allclose(column(found, output_of(found)), expected, rtol=1e-3)


def test_two_inputs_by_file(folder: Path) -> None:
    np.savez("pair.npz", left=np.array([3, 2, 1]), right=np.array([1.0, 1, 1]))
    np.savez("half.npz", left=np.array([3, 2, 1]))
    assert batch("two.tflite", "--input=pair.npz") == 0
    assert column(written(), "difference").tolist() == [[2, 1, 0]]
    assert batch("two.tflite", "--input=half.npz") == 1
    assert "has no array 'right'; it has left" in written()["error"][0].as_py()


def rows(count: int, groups: int = 7) -> Any:
    random = np.random.default_rng(1)
    left = random.normal(size=(count, 3)).astype(np.float32)
    right = random.integers(-5, 5, (count, 3))
    table = pa.table(
        {
            "key": [f"row {number}" for number in range(count)],
            "label": pa.array(range(count), pa.int16()),
            "left": pa.FixedSizeListArray.from_arrays(pa.array(left.reshape(-1)), 3),
            "right": pa.array(list(right)),
        }
    )
    pq.write_table(table, "rows.parquet", row_group_size=groups)
    return left - right


def test_inputs_by_column(folder: Path) -> None:
    """Chunks and parts span row groups; other columns go along."""
    expected = rows(150)
    assert batch("two.tflite", "--input=rows.parquet", "--keep=label", "--batch=4") == 0
    found = written()
    assert found.schema.names == ["name", "label", "difference", "error"]
    assert found.schema.field("label").type == pa.int16()
    assert found["name"].to_pylist() == [f"row {number}" for number in range(150)]
    assert found["label"].to_pylist() == list(range(150))
    np.testing.assert_allclose(column(found, "difference"), expected, rtol=1e-6)


def test_columns_of_other_names(folder: Path) -> None:
    expected = rows(5)
    columns = "--columns=left=right,right=left"
    assert batch("two.tflite", "--input=rows.parquet", columns, "--name_column=label") == 0
    np.testing.assert_allclose(column(written(), "difference"), -expected, rtol=1e-6)
    assert written()["name"].to_pylist() == ["0", "1", "2", "3", "4"]


def test_a_folder_of_tables_with_pictures_inside(folder: Path) -> None:
    """As bytes, as a data set of Hugging Face has them, as paths, and none at all."""
    Path("tables").mkdir()
    content = Path("pictures/1.png").read_bytes()
    shutil.copy("pictures/1.png", "tables/1.png")
    for number, values in enumerate(
        [
            pa.array([content, None, b"no picture"]),
            pa.array([content]).cast(pa.large_binary()),
        ]
    ):
        pq.write_table(pa.table({"image": values}), f"tables/{number}.parquet")
    assert batch("picture.tflite", "--input=tables") == 0
    found = written()
    assert found["name"].to_pylist() == [*(f"0.parquet:{i}" for i in range(3)), "1.parquet:0"]
    errors = found["error"].to_pylist()
    assert errors[0] is errors[3] is None
    assert errors[1] == "The column 'image' has no value in this row."
    assert "The picture '(10 bytes)' cannot be read" in errors[2]
    value = found[output_of(found)][0].as_py()
    for other in (
        [{"bytes": content, "path": None}],
        [{"bytes": None, "path": "1.png"}],
        ["1.png"],
    ):
        for each in Path("tables").glob("*.parquet"):
            each.unlink()
        pq.write_table(pa.table({"image": other}), "tables/0.parquet")
        assert batch("picture.tflite", "--input=tables/0.parquet") == 0
        assert written()[output_of(found)][0].as_py() == value


def test_tensors_and_lists_are_read_alike(folder: Path) -> None:
    values = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    kinds = {
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(values),
        "flat": pa.array([row.reshape(-1) for row in values]),
        "nested": pa.array(values.tolist()),
        "half": pa.array(values.tolist(), pa.list_(pa.list_(pa.float32(), 2), 3)),
    }
    for name, array in kinds.items():
        pq.write_table(pa.table({name: array}), "kinds.parquet")
        assert batch("array.tflite", "--input=kinds.parquet") == 0
        found = written()
        np.testing.assert_array_equal(column(found, output_of(found)), values)


def test_outputs_that_change_their_shape_are_lists(folder: Path) -> None:
    writer = ModelWriter()
    x = writer.input((1, 4), "float32")
    zero = writer.constant(np.zeros((1, 4), np.float32))
    where = writer.op("GREATER", [x, zero], [(1, 4)], dtype="bool")
    writer.output(writer.op("WHERE", [where], [(-1, 2)], dtype="int64", name="where"))
    Path("where.tflite").write_bytes(writer.build())
    pq.write_table(pa.table({"x": [[1.0, 0, 2, 3], [0.0, 0, 0, 0], [0.0, 0]]}), "x.parquet")
    assert batch("where.tflite", "--input=x.parquet") == 0
    found = written()
    assert found["where"].to_pylist() == [[0, 0, 0, 2, 0, 3], [], None]
    assert found["where_shape"].to_pylist() == [[3, 2], [0, 2], None]
    assert "takes arrays of shape [1, 4], not [2]" in found["error"][2].as_py()


@pytest.mark.real_model
def test_quantized_outputs_in_both_forms_on_real_model(folder: Path) -> None:
    name = find("mobilenet_v1_0.25_128_quant").name
    shutil.copy(default_picture(), "person.jpg")
    assert batch(name, "--input=person.jpg", "--batch=1") == 0
    raw = written()
    field = raw.schema.field(output_of(raw))
    about = json.loads(field.metadata[b"litegpu"])["quantization"]
    assert batch(name, "--input=person.jpg", "--batch=1", "--dequantize") == 0
    real = column(written(), field.name)
    steps = column(raw, field.name)
    assert steps.dtype == np.uint8
    np.testing.assert_allclose(real, (steps - np.float32(about["zero_point"])) * about["scale"])


def test_two_processes_write_the_same_file(folder: Path) -> None:
    rows(150)
    assert batch("two.tflite", "--input=rows.parquet", "--keep=label") == 0
    again = ("two.tflite", "--input=rows.parquet", "--keep=label", "--workers=2")
    assert batch(*again, "--decode_threads=1", output="again.parquet") == 0
    assert Path("out.parquet").read_bytes() == Path("again.parquet").read_bytes()


def test_the_delegate_runs_what_the_cpu_runs(folder: Path) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    rows(20)
    command = ["batch", "two.tflite", "--input=rows.parquet", "--backend=cl", "--json=told.json"]
    assert cli.main([*command, "--output=gpu"]) == 0
    reported = json.loads(Path("told.json").read_text(encoding="utf-8"))
    (position,) = reported["places"]
    assert position.endswith("(opencl fp32, 1 of 1 operations)")
    assert reported["samples"] == reported["places"][position] == 20
    assert [stage["name"] for stage in reported["stages"]] == ["decode", "infer", "write"]
    assert list(reported["steps"]) == STEPS
    assert reported["total_seconds"] == pytest.approx(sum(reported["steps"].values()))
    assert reported["total_seconds"] >= reported["seconds"] > 0
    assert sorted(each.name for each in Path("gpu").iterdir()) == ["part-00000.parquet"]
    assert batch("two.tflite", "--input=rows.parquet") == 0
    np.testing.assert_allclose(
        column(written("gpu"), "difference"), column(written(), "difference"), atol=1e-6
    )


# Failing samples


def test_failing_samples_are_named_counted_and_recorded(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("pictures/2.png").write_bytes(b"no picture")
    Path("pictures/2.npy").write_bytes(b"no array")
    assert batch("picture.tflite", "--input=pictures") == 0
    errors = dict(zip(*(written()[name].to_pylist() for name in ("name", "error")), strict=True))
    assert [name for name, error in errors.items() if error] == ["2.npy", "2.png"]
    assert "cannot be read" in errors["2.png"]
    captured = capsys.readouterr().err
    assert "2.png: The picture 'pictures/2.png' cannot be read: cannot identify" in captured
    assert "2 samples failed.\n" in captured


@pytest.mark.parametrize("version", ["25.0.1", "26.0.0"])
def test_older_versions_hold_no_missing_tensors(
    folder: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    if int(pa.__version__.split(".")[0]) < int(version[:2]):
        pytest.skip("pyarrow is older here")
    monkeypatch.setattr(pa, "__version__", version)
    Path("pictures/0.png").write_bytes(b"no picture")
    assert batch("picture.tflite", "--input=pictures") == 0
    found = written()
    field = found.schema.field(output_of(found))
    assert pa.types.is_list(field.type) == (version == "25.0.1")
    assert json.loads(field.metadata[b"litegpu"])["shape"] == [8, 6, 3]
    assert found[output_of(found)].null_count == 1
    assert column(found.slice(1), output_of(found)).shape == (5, 8, 6, 3)


def test_failing_samples_can_be_left_out(folder: Path) -> None:
    Path("pictures/2.png").write_bytes(b"no picture")
    assert batch("picture.tflite", "--input=pictures", "--on_error=skip", "--json=told.json") == 0
    assert written()["name"].to_pylist() == ["0.png", "1.png", "3.png", "4.png", "more/0.jpg"]
    reported = json.loads(Path("told.json").read_text(encoding="utf-8"))
    assert [each["name"] for each in reported["failures"]] == ["2.png"]


def test_a_failing_sample_can_end_the_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("pictures/2.png").write_bytes(b"no picture")
    assert batch("picture.tflite", "--input=pictures", "--on_error=fail") == 1
    assert "error: The sample '2.png' failed: The picture 'pictures/2.png'" in (
        capsys.readouterr().err
    )
    assert not Path("out.parquet").exists()


def test_many_failing_samples_are_not_all_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("bad").mkdir()
    for number in range(12):
        Path(f"bad/{number:02}.png").write_bytes(b"no picture")
    assert batch("picture.tflite", "--input=bad") == 1, "none has outputs"
    error = capsys.readouterr().err
    assert error.count("cannot be read") == 10
    assert "More samples failed; the output's column 'error' has all reasons." in error
    assert written()["error"].null_count == 0


# What is refused


def refused(arguments: Sequence[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(["batch", *arguments])
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ("array.tflite --output=o.parquet", 2, "--input is missing. Give --input=PATH"),
        ("array.tflite --input=pictures", 2, "--output is missing"),
        ("array.tflite --input=none --output=o.parquet", 1, "--input=none: there is no such"),
        ("array.tflite --input=pictures --output=o.parquet", 1, "the files are pictures, and the"),
        ("two.tflite --input=empty --output=o.parquet", 1, "the folder has no pictures (.avif"),
        ("picture.tflite --input=pictures --output=full", 1, "has 'file', which is not a part"),
        ("picture.tflite --input=pictures --output=full --overwrite", 1, "has 'file', which"),
        (
            "picture.tflite --input=pictures --output=t.parquet",
            2,
            "Replace the output by --overwrite, or",
        ),
        ("picture.tflite --input=pictures --output=uneven", 1, "has 'a.parquet', which is not"),
        ("picture.tflite --input=pictures --output=array.tflite", 1, "its name does not end in"),
        ("picture.tflite --input=pictures --output=d.parquet", 1, "d.parquet: it is a folder"),
        ("picture.tflite --input=pictures --output=no/o.parquet", 1, "the file cannot be written"),
        ("picture.tflite --input=pictures --output=o.parquet --keep=a", 2, "files have no columns"),
        (
            "picture.tflite --input=pictures --output=o.parquet --on_error=x",
            2,
            "is not one of record",
        ),
        (
            "picture.tflite --input=pictures --output=o.parquet --engine=r",
            2,
            "argument --engine: 'r' is not one of local, ray",
        ),
        ("picture.tflite --input=pictures --output=o.parquet --batch=-1", 2, "at least 0"),
        ("two.tflite --input=t.parquet --output=o.parquet", 1, "no column for the input 'left'"),
        ("two.tflite --input=t.parquet --columns=left=z --output=o.parquet", 1, "no column 'z'"),
        ("array.tflite --input=t.parquet --columns=left --output=o.parquet", 2, "not of the form"),
        ("array.tflite --input=t.parquet --keep=b --output=o.parquet", 1, "has no column 'b'"),
        ("array.tflite --input=t.parquet --name_column=b --output=o.parquet", 1, "no column 'b'"),
        (
            "array.tflite --input=t.parquet --keep=name --output=o.parquet",
            2,
            "the output already has a column 'name'. Rename",
        ),
        ("array.tflite --input=s.parquet --output=o.parquet", 1, "is read as pictures, but the"),
        ("array.tflite --input=broken.parquet --output=o.parquet", 1, "cannot be read as Parquet"),
        (
            "array.tflite --input=uneven --output=uneven/o.parquet",
            2,
            "where the next run would read it",
        ),
        ("array.tflite --input=uneven --output=o.parquet", 1, "b.parquet has no column 'x'"),
    ],
)
def test_impossible_wishes_are_named(
    arguments: str, status: int, message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("empty", "full", "d.parquet", "uneven"):
        Path(name).mkdir()
    Path("full/file").touch()
    Path("broken.parquet").write_bytes(b"no table")
    pq.write_table(pa.table({"x": [[1.0] * 6], "name": ["a"]}), "t.parquet")
    pq.write_table(pa.table({"x": ["text"]}), "s.parquet")
    pq.write_table(pa.table({"x": [[1.0] * 6]}), "uneven/a.parquet")
    pq.write_table(pa.table({"y": [[1.0] * 6]}), "uneven/b.parquet")
    got, error = refused(arguments.split(), capsys)
    assert (got, message in error) == (status, True), error
    assert not Path("o.parquet").exists()
    assert not Path("o.parquet.partial").exists()


def test_without_pyarrow_the_command_to_type_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert batch("picture.tflite", "--input=pictures") == 1
    assert "pip install 'litegpu[batch]'" in capsys.readouterr().err


def test_outputs_without_a_type_in_tables_are_refused() -> None:
    from litegpu.errors import ModelError
    from litegpu.tools import engines
    from litegpu.tools.batch.columns import OutputColumns

    complex_output = engines.Tensor("wave", (2,), np.dtype(np.complex64))
    plan = engines.BatchPlan((), (complex_output,), 1, True, b"")
    with pytest.raises(ModelError, match="'wave' has the type complex64, which Parquet does not"):
        OutputColumns(plan, ["wave"], [], False)


def test_names_of_columns_are_never_taken_twice() -> None:
    from litegpu.tools import engines
    from litegpu.tools.batch.columns import OutputColumns

    tensors = tuple(engines.Tensor("t", (), np.dtype(np.float32)) for _ in range(4))
    plan = engines.BatchPlan((), tensors, 1, True, b"")
    columns = OutputColumns(plan, ["name", "x", "x", ""], ["x"], False)
    assert [each.name for each in columns.fields()] == ["name_1", "x_1", "x_2", "output"]


def test_the_reference_is_met(folder: Path) -> None:
    """By a model of whole arrays, one sample at once."""
    writer = ModelWriter()
    x = writer.input((2, 3))
    y = step(writer, "ABS", x)
    writer.output(writer.op("MEAN", [y, writer.constant(np.array([0], np.int32))], [(3,)]))
    Path("mean.tflite").write_bytes(writer.build())
    values = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    pq.write_table(pa.table({"x": tensors}), "x.parquet")
    assert batch("mean.tflite", "--input=x.parquet") == 0
    expected = [reference(writer.build(), each)[0] for each in values]
    found = written()
    np.testing.assert_allclose(column(found, output_of(found)), expected, rtol=1e-5)
