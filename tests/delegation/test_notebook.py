"""Reports and profiles as tables in notebooks."""

from __future__ import annotations

import re
from dataclasses import replace

from litegpu.delegation import notebook
from litegpu.delegation.report import RejectedNode
from made_up import REPORT, made_up_profile


def cells(text: str) -> list[list[str]]:
    rows = re.findall(r"<tr>(.*?)</tr>", text)
    return [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in rows]


def test_a_report() -> None:
    text = REPORT._repr_html_()
    assert text.startswith("<p><b>litegpu on Some GPU (opencl, fp16)</b></p><p>4 operations will")
    assert cells(text) == [
        ["partition", "nodes", "kernels", "memory", "weights", "operations"],
        ["0", "3", "2", "3.0 MiB", "5.0 GiB", "CONV_2D x3"],
        ["1", "1", "1", "100 B", "0 B", "CONV_2D"],
        ["on the CPU"],
        ["TOPK_V2 v2 (nodes 6, 7, 8, 9, 10, 11 and 1 more): Operation is not supported."],
        ["PAD v1 (node 13): The paddings must not be negative."],
        ["ADD v1 (nodes 14, 15): tensor 7 (and 1 more) is UINT8 instead of FLOAT32."],
        ["ABS x2 (nodes 4, 5): Others are worth more."],
        ["One more thing."],
    ]
    assert text.endswith(
        "<details><summary>advice</summary><ol><li>Fewer channels.</li></ol></details>"
    )


def test_reports_on_subgraphs_come_after_it() -> None:
    text = replace(REPORT, subgraphs=(REPORT,))._repr_html_()
    assert "<b>subgraph 1 (another signature" in text
    assert text.count("Fewer channels.") == 2


def test_names_of_strangers_are_text() -> None:
    node = RejectedNode(0, "<script>alert(1)</script>", 1, "\x1b[2J & no")
    text = replace(REPORT, rejected=(node,))._repr_html_()
    assert "<script>" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt; v1 (node 0): \\x1b[2J &amp; no" in text


def test_a_profile() -> None:
    text = made_up_profile()._repr_html_()
    assert text.startswith("<p><b>litegpu on A GPU (cuda, fp16)</b></p>")
    rows = cells(text)
    assert ["2 kernels, each measured alone", "160.0"] in rows
    assert ["their floors", "50.0"] in rows
    assert ["CONV_2D", "1", "100.0", "62%"] in rows
    assert ["conv_2d", "CONV_2D", "4", "100.0", "62%", "25.0"] in rows
    assert ["copy", "COPY", "", "60.0", "38%", "25.0"] in rows
    assert not any("device, with copies" in row for row in rows), "nobody could tell"
    without = cells(made_up_profile(peaks=False)._repr_html_())
    assert ["conv_2d", "CONV_2D", "4", "100.0", "62%", ""] in without


def test_nothing_is_shown_of_nothing() -> None:
    assert notebook.table(("a",), []) == ""
    assert notebook.folded("advice", "") == ""
    assert notebook.listed([]) == ""
