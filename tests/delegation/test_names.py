"""Names in models are untrusted: they never reach a terminal unescaped."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from litegpu import GpuDelegate
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools import cli
from litegpu.wording import printable
from litegpu.zoo.writer import ModelWriter

ESCAPES = "\x1b[2J\x1b]8;;http://evil\x07x"
TRICKS = f"a{ESCAPES}\rb\nInjected\u202egnp\u2066\x00[bold]d[/bold]\x9b31m"
LONG = "n" * 5000


def hostile(custom: bool) -> bytes:
    """Return a model whose tensors, and with `custom` an operation, have such names."""
    name = TRICKS.replace("\0", "")
    writer = ModelWriter()
    x = writer.input((1, 4, 4, 4), name=f"in {name}")
    y = writer.op("NEG", [x], [(1, 4, 4, 4)], name=f"mid {name}")
    if custom:
        (y,) = writer.custom(f"op {name}", [y], [(1, 4, 4, 4)])
    z = writer.op("ABS", [y], [(1, 4, 4, 4)], name=f"out {name}{LONG}")
    writer.output(z)
    return writer.build()


def assert_harmless(text: str) -> None:
    """All control characters are escaped; only litegpu itself writes line ends."""
    assert text
    assert {each for each in text if not each.isprintable()} <= {"\n"}
    assert "\nInjected" not in text


def test_printable() -> None:
    assert printable("é größer 漢字 µs [x]") == "é größer 漢字 µs [x]"
    assert printable("a\x1b[31m\n\u202eb\x9b") == r"a\x1b[31m\n\u202eb\x9b"
    assert printable("x" * 300) == "x" * 199 + "…"
    assert printable("\udc80") == r"\udc80"


def test_the_report_and_the_log(caplog: pytest.LogCaptureFixture) -> None:
    delegate = GpuDelegate(precision="fp32")
    with caplog.at_level(logging.INFO, "litegpu"):
        runtime.interpreter(hostile(custom=True), delegate, allocate=False)
    report = delegate.report
    assert report is not None and len(report.rejected) == 1
    assert_harmless(str(report))
    assert r"op a\x1b[2J" in str(report) and r"\u202e" in str(report)
    for record in caplog.records:
        assert_harmless(record.getMessage())
    assert r"CUSTOM op a\x1b[2J" in caplog.text
    assert all(each.isascii() for each in json.dumps(report.to_dict()))


@pytest.mark.parametrize(
    ("tool", "custom"), [("check", True), ("check", False), ("profile", False), ("run", False)]
)
def test_tools(tool: str, custom: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(hostile(custom))
    assert cli.main([tool, str(path)]) in (0, 1)  # whether anything is worth a GPU
    said = capfd.readouterr()
    own = [line for line in said.err.splitlines() if line.startswith("litegpu: ")]
    assert_harmless(said.out + "\n".join(own))


def test_the_runtimes_own_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names an unknown operation."""
    path = tmp_path / "model.tflite"
    path.write_bytes(hostile(custom=True))
    assert cli.main(["run", str(path)]) == 1
    text = capsys.readouterr().err
    assert "The runtime rejects this model" in text and r"\x1b[2J" in text
    assert_harmless(text)


def test_a_trace_is_plain_json(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(hostile(custom=False))
    trace = tmp_path / "trace.json"
    assert cli.main(["profile", str(path), f"--trace={trace}"]) == 0
    assert trace.read_text("utf-8").isascii()
