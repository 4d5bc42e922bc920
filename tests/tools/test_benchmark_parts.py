"""Parts of benchmark_model: statistics, the loop of runs, tables, inputs, memory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from litegpu.errors import FileError, ModelError, OptionsError
from litegpu.tools import stats
from litegpu.tools.benchmark_model import memory
from litegpu.tools.benchmark_model.inputs import Layer, Stream, input_values, parse_layers
from litegpu.tools.benchmark_model.op_tables import Block, Row, block_text
from litegpu.tools.benchmark_model.plan import delegate_nodes, print_placement
from litegpu.tools.registrar import Applied, Delegates
from litegpu.tools.stats import Pace, Stats, timed_runs

# Statistics


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ((), "count=0 p5=0 median=0 p95=0"),
        ((7,), "count=1 curr=7 p5=7 median=7 p95=7"),
        ((7, 7), "count=2 curr=7(all same) p5=7 median=7 p95=7"),
        (
            (5, 9, 1, 2),
            "count=4 first=5 curr=2 min=1 max=9 avg=4.25 std=3 p5=1 median=5 p95=9",
        ),
        (
            (1_234_567, 1_234_568),
            "count=2 first=1234567 curr=1234568 min=1234567 max=1234568 avg=1.23457e+06 std=0 "
            "p5=1234567 median=1234568 p95=1234568",
        ),
    ],
)
def test_a_line_of_statistics(values: tuple[int, ...], line: str) -> None:
    found = Stats(values)
    assert found.line() == line
    assert line.startswith(found.text())
    assert "p5" not in found.text()


class Clock:
    """A time that passes only where it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.starts: list[float] = []
        monkeypatch.setattr(stats, "time", self)

    def perf_counter(self) -> float:
        return self.now

    def perf_counter_ns(self) -> int:
        return round(self.now * 1e9)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def prepare(self) -> None:
        self.now += 0.25

    def run(self) -> None:
        self.starts.append(self.now - 100)
        self.now += 0.5


@pytest.mark.parametrize(
    ("pace", "starts"),
    [
        (Pace(2, 0, 150), [0.25, 1.0]),
        (Pace(1, 1.6, 150), [0.25, 1.0, 1.75]),
        (Pace(0, 0, 150), []),
        (Pace(0, -1, 150), []),
        (Pace(9, 0, 1), [0.25, 1.0]),
        (Pace(2, 0, 150, delay=2), [0.25, 3.0]),
        (Pace(3, 0, 150, delay=9, frequency=0.5), [0.25, 2.25, 4.25]),
        (Pace(3, 0, 150, frequency=100), [0.25, 1.0, 1.75]),
    ],
)
def test_how_long_runs_go_on(
    pace: Pace, starts: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)
    found = timed_runs(pace, clock.prepare, clock.run)
    assert clock.starts == pytest.approx(starts)
    assert found.values == (500_000,) * len(starts)


# Tables

BLOCK = Block(
    (Row("CONV_2D", "[a]:0", 3.0), Row("ADD", "[b]:1", 0.25), Row("CONV_2D", "[c]:2", 0.75)),
    Stats((4100, 4000)),
)


def test_tables_of_operations() -> None:
    top = (
        "\t             [node type]\t  [first]\t [avg ms]\t     [%]\t  [cdf%]"
        "\t  [mem KB]\t[times called]\t[Name]"
    )
    rows = [
        "\t                 CONV_2D\t    3.000\t    3.000\t 75.000%\t 75.000%"
        "\t     0.000\t        1\t[a]:0",
        "\t                     ADD\t    0.250\t    0.250\t  6.250%\t 81.250%"
        "\t     0.000\t        1\t[b]:1",
        "\t                 CONV_2D\t    0.750\t    0.750\t 18.750%\t100.000%"
        "\t     0.000\t        1\t[c]:2",
    ]
    assert block_text(BLOCK).split("\n") == [
        "============================== Run Order ==============================",
        *(top, *rows, ""),
        "============================== Top by Computation Time ==============================",
        top,
        rows[0],
        rows[2].replace("100.000%", " 93.750%"),
        rows[1].replace(" 81.250%", "100.000%"),
        "",
        "Number of nodes executed: 3",
        "============================== Summary by node type ==============================",
        "\t             [Node type]\t  [count]\t  [avg ms]\t    [avg %]"
        "\t    [cdf %]\t  [mem KB]\t[times called]",
        "\t                 CONV_2D\t        2\t     3.750\t    93.750%"
        "\t    93.750%\t     0.000\t        2",
        "\t                     ADD\t        1\t     0.250\t     6.250%"
        "\t   100.000%\t     0.000\t        1",
        "",
        "Timings (microseconds): count=2 first=4100 curr=4000 min=4000 max=4100 avg=4050 std=50",
        "Memory (bytes): count=0",
        "3 nodes observed",
        "",
    ]


def test_tables_as_csv() -> None:
    lines = block_text(BLOCK, csv=True).split("\n")
    assert lines[:3] == [
        "============================== Run Order ==============================",
        "node type, first, avg_ms, %, cdf%, mem KB, times called, name",
        "CONV_2D, 3.000, 3.000, 75.000%, 75.000%, 0.000, 1, [a]:0",
    ]
    position = lines.index("node type, count, avg_ms, avg %, cdf %, mem KB, times called")
    assert lines[position + 2] == "ADD, 1, 0.250, 6.250%, 100.000%, 0.000, 1"


def test_ten_operations_are_the_top() -> None:
    rows = tuple(Row("ADD", f"[{index}]:{index}", index) for index in range(12))
    text = block_text(Block(rows, Stats()))
    top = text[text.index("Top by") : text.index("Number of nodes executed: 12")]
    assert [line.split("\t")[-1] for line in top.split("\n")[2:-2]] == [
        f"[{index}]:{index}" for index in range(11, 1, -1)
    ]


# Inputs


def test_random_numbers_are_those_of_the_c_library() -> None:
    # what a C++ program with std::mt19937 and libstdc++'s distributions prints
    assert Stream().words(1).tolist() == [3499211612]
    assert Stream().words(10000)[-1] == 4123659995  # by the C++ standard
    stream = Stream()
    singles = [0.31472367, -0.364522994, 0.405791938, 0.335008562]
    assert stream.reals(4, wide=False).tolist() == np.array(singles, np.float32).tolist()
    assert stream.integers(8, 0, 99).tolist() == [12, 96, 91, 22, 63, 30, 9, 54]
    doubles = [-0.3116180239528189, 0.49288130191780666, 0.4964613255480087]
    assert stream.reals(3, wide=True).tolist() == doubles
    wide = stream.integers(8, -5, 2 * 10**9).tolist()
    assert wide[:4] == [1929777068, 1935389874, 315226148, 1451677925]
    every = stream.integers(3, -(2**31), 2**31 - 1).tolist()
    assert every == [-62811112, 1280354905, 1289694812]
    # of these words every fifth or so is passed over
    assert stream.integers(1000, -(2**31), 10**9).sum() == -573693761745


def detail(kind: Any, *shape: int, name: str = "x") -> dict[str, Any]:
    return {"name": name, "dtype": kind, "shape": np.array(shape, np.int32)}


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        *((kind, 0, 99) for kind in (np.int32, np.int64, np.uint32, np.uint64)),
        *((np.uint8, 0, 254), (np.int8, -127, 127), (np.bool_, 0, 1)),
        *((np.int16, 0, 0), (np.uint16, 0, 0)),
        *((kind, -0.5, 0.5) for kind in (np.float16, np.float32, np.float64)),
    ],
)
def test_values_of_each_type(kind: Any, low: float, high: float) -> None:
    (values,) = input_values([detail(kind, 100, 40)], [])
    assert (values.dtype, values.shape) == (kind, (100, 40))
    span = high - low
    assert low <= values.min() <= low + span / 50
    assert high - span / 50 <= values.max() <= high


def test_values_of_further_types() -> None:
    found = input_values([detail(np.complex64, 50), detail(np.str_, 2, 3)], [])
    assert found[0].dtype == np.complex64
    assert np.abs(found[0].imag).max() <= 0.5
    assert found[1].shape == (2, 3)
    assert len(set(found[1].ravel().tolist())) == 1


def test_inputs_share_one_stream() -> None:
    one, two = input_values([detail(np.float32, 3), detail(np.float32, 3, name="y")], [])
    assert [*one, *two] == Stream().reals(6, wide=False).tolist()


def test_types_without_values() -> None:
    message = "Don't know how to populate tensor x of type void32"
    with pytest.raises(ModelError, match=message):
        input_values([detail(np.dtype("V4"), 2)], [])


def test_ranges(capsys: pytest.CaptureFixture[str]) -> None:
    layers = parse_layers("x,y", "500:3", "x,-3,4:y,0,9", "")
    found = input_values([detail(np.int8, 500), detail(np.float32, 3, name="y")], layers)
    assert sorted(set(found[0].tolist())) == list(range(-3, 5))
    assert "WARN: The value range of input y is not used: its type is float32." in (
        capsys.readouterr().out
    )


def test_flags_of_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_layers("", "", "", "") == []
    found = parse_layers("a:0,b", "1,2:3", "b,1,2", "a::0:c::\\x,b:y")
    assert found == [Layer("a:0", (1, 2), None, "c:\\x"), Layer("b", (3,), (1, 2), "y")]
    assert (
        capsys.readouterr().out
        == "WARN: The file of input b takes precedence over its value range.\n"
    )


COUNTS = (
    r"The number of items in --input_layer_shape \(1,2:3, with 2 items\) must match the number of "
    r"items in --input_layer \(a, with 1 items\)\. For example --input_layer=input1,input2 "
    r"--input_layer_shape=1,224,224,4:1,20"
)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("a", "1,2:3", "", ""), COUNTS),
        (("a", "1,-1", "", ""), "'1,-1' is not a shape. Any unknown sizes in the shapes"),
        (("a", "1,x", "", ""), "'1,x' is not a shape"),
        (("a", "1", "a,1", ""), "'a,1' is not name,low,high"),
        (("a", "1", "a,2,1", ""), "'a,2,1' is not name,low,high"),
        (("a", "1", "a,0,0.5", ""), "'a,0,0.5' is not name,low,high"),
        (("a", "1", "a,0,9999999999", ""), "whole numbers of 32 bits"),
        (("a", "1", "b,0,1", ""), "'b' is not among --input_layer=a. Add the input to that flag"),
        (("a", "1", "", "b:file"), "--input_layer_value_files=b:file: 'b' is not among"),
        (("a", "1", "", "a"), "'a' names no file. Write name:path"),
    ],
)
def test_malformed_flags_of_inputs(flags: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(OptionsError, match=message):
        parse_layers(*flags)


def test_files_of_values(tmp_path: Path) -> None:
    path = tmp_path / "values"

    def read(kind: Any, content: bytes) -> Any:
        path.write_bytes(content)
        return input_values([detail(kind, 2)], [Layer("x", (2,), None, str(path))])[0].tolist()

    assert read(np.int16, b"\1\0\2\0") == [1, 2]
    assert read(np.bytes_, b"one\0two\0") == [b"one", b"two"]
    with pytest.raises(FileError, match="is 3 bytes, but the tensor x needs 4 bytes"):
        read(np.int16, b"abc")
    with pytest.raises(FileError, match="is 1 strings, but the tensor x needs 2 strings"):
        read(np.bytes_, b"one")
    path.unlink()
    with pytest.raises(FileError, match=r"Failed to read the input_layer_value_file .*values: No "):
        input_values([detail(np.int16, 2)], [Layer("x", (2,), None, str(path))])


# What runs where


class Graph:
    """Operations of an interpreter as (name, inputs, outputs)."""

    def __init__(self, *ops: tuple[str, list[int], list[int]]) -> None:
        self.ops = ops

    def _get_ops_details(self) -> list[dict[str, Any]]:
        return [
            {"index": index, "op_name": name, "inputs": takes, "outputs": makes}
            for index, (name, takes, makes) in enumerate(self.ops)
        ]


OPS = (("ADD", [0], [1]), ("MUL", [1], [2]), ("SUB", [2, 1], [3]))
OTHERS = Delegates((Applied("EXTERNAL", object()),), None, False)


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        ((("DELEGATE", [0], [3]),), "completely executed by the delegate."),
        ((("DELEGATE", [1], [3]),), "partially executed by the delegate w/ 1 delegate kernels."),
        (
            (("DELEGATE", [0], [1]), ("DELEGATE", [2, 1], [3])),
            "partially executed by the delegate w/ 2 delegate kernels.",
        ),
        ((), "the model graph will not be executed by the delegate."),
    ],
)
def test_what_another_delegate_runs(
    nodes: tuple[Any, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = Graph(*OPS, *nodes)
    print_placement(OTHERS, delegate_nodes(graph), graph, must_be_whole=False)
    text = capsys.readouterr().out
    assert "EXTERNAL delegate" in text
    assert text.endswith(f"{line}\n")


# Memory


def test_the_peak_is_seen_while_it_lasts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file as Linux has it, so that every system sees the same."""
    status = tmp_path / "status"
    monkeypatch.setattr(memory, "_STATUS", status)
    status.write_text("VmPeak:\t 999999 kB\nVmRSS:\t  1024 kB\nRssAnon:\t  512 kB\n")
    assert memory.resident_kb() == {"VmRSS": 1024, "RssAnon": 512}
    monkeypatch.setattr(memory, "peak_kb", lambda: 0)
    with memory.PeakMonitor(1) as monitor:
        status.write_text("VmRSS:\t 65536 kB\n")
        deadline = time.monotonic() + 30
        while monitor.peak_mb < 64 and time.monotonic() < deadline:
            time.sleep(0.001)
        status.write_text("VmRSS:\t  2048 kB\n")
    assert monitor.peak_mb == 64


def test_systems_that_do_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_STATUS", tmp_path / "none")
    monkeypatch.setattr(memory, "_has_peak", False)
    with memory.PeakMonitor(1) as monitor:
        pass
    assert (memory.peak_kb(), memory.resident_kb(), monitor.peak_mb) == (None, {}, 0)
