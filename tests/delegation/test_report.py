"""The report: its table, its JSON form, and what the delegate logs of it."""

from __future__ import annotations

import json
import logging

import pytest

from litegpu import DelegationReport, GpuDelegate, backends
from litegpu.delegation.report import Partition, RejectedNode
from litegpu.zoo.writer import ModelWriter
from made_up import REPORT
from small_models import CPU_ONLY, WHY_ON_CPU, chain, interpreter, spectrogram, step

TABLE = """\
litegpu on Some GPU (opencl, fp16)
4 operations will run on the GPU, and the remaining 12 operations will run on the CPU.

partition  nodes  kernels  memory (lower bound)    weights   ops
        0      3        2  3.0 MiB (2.9 KiB)       5.0 GiB   CONV_2D x3
        1      1        1  100 B (100 B)           0 B       CONV_2D
odml.rms_norm: 3 composites with 21 nodes in all, 1 on the GPU
odml.rope: 1 composite with 0 nodes in all, 0 on the GPU

the split: 2 round trips and 2.5 KiB copied between CPU and GPU, about 41 us per invoke on a GPU

on the CPU
  TOPK_V2 v2 (nodes 6, 7, 8, 9, 10, 11 and 1 more): Operation is not supported.
  PAD v1 (node 13): The paddings must not be negative.
  ADD v1 (nodes 14, 15): tensor 7 (and 1 more) is UINT8 instead of FLOAT32.
  ABS x2 (nodes 4, 5): Others are worth more.
  One more thing."""


def test_the_table() -> None:
    assert str(REPORT) == TABLE


def test_the_table_of_nothing() -> None:
    nothing = DelegationReport("opencl", "Some GPU", "fp32", 3, {})
    assert str(nothing) == (
        "litegpu on Some GPU (opencl, fp32)\n"
        "No operations will run on the GPU, and all 3 operations will run on the CPU."
    )


def test_json() -> None:
    data = json.loads(json.dumps(REPORT.to_dict()))
    assert data == {
        "backend": "opencl",
        "device": "Some GPU",
        "precision": "fp16",
        "graph": 0,
        "total_nodes": 16,
        "delegated_nodes": [0, 1, 2, 3],
        "rejected": [
            *(
                {"index": i, "op": "TOPK_V2", "version": 2, "reason": "Operation is not supported."}
                for i in range(6, 13)
            ),
            {
                "index": 13,
                "op": "PAD",
                "version": 1,
                "reason": "The paddings must not be negative.",
            },
            *(
                {
                    "index": i + 7,
                    "op": "ADD",
                    "version": 1,
                    "reason": f"tensor {i} is UINT8 instead of FLOAT32.",
                }
                for i in (7, 8)
            ),
        ],
        "partitions": [
            {
                "nodes": [0, 1, 2],
                "kernels": 2,
                "arena_bytes": 3 << 20,
                "lower_bound_bytes": 3000,
                "constant_bytes": 5 << 30,
                "inputs": ["image"],
                "outputs": ["scores"],
                "estimate": {"cpu_seconds": 3e-3, "gpu_seconds": 2e-4, "copied_bytes": 4096},
                "kept_float32": [],
                "replaced": [],
                "on_cpu": "",
                "loop_passes": 0,
            },
            {
                "nodes": [3],
                "kernels": 1,
                "arena_bytes": 100,
                "lower_bound_bytes": 100,
                "constant_bytes": 0,
                "inputs": [],
                "outputs": [],
                "estimate": None,
                "kept_float32": [],
                "replaced": [],
                "on_cpu": "",
                "loop_passes": 0,
            },
        ],
        "left_out": [
            {
                "nodes": [4, 5],
                "reason": "Others are worth more.",
                "estimate": {"cpu_seconds": 1e-6, "gpu_seconds": 4e-5, "copied_bytes": 64},
            }
        ],
        "split": {"round_trips": 2, "copied_bytes": 2560, "seconds": 4.1e-5},
        "advice": [{"kind": "lanes", "text": "Fewer channels.", "nodes": [0], "seconds": None}],
        "notes": ["One more thing."],
        "quantized": [],
        "composites": [
            {"name": "odml.rms_norm", "nodes": [3, 6, 7], "inner_nodes": 21},
            {"name": "odml.rope", "nodes": [8], "inner_nodes": 0},
        ],
        "subgraphs": [],
    }


@pytest.mark.parametrize(
    ("nodes", "total", "whole"),
    [([(0, 1, 2)], 3, True), ([(0, 1)], 3, False), ([(0, 1), (2,)], 3, False), ([], 0, False)],
)
def test_whole_graph(nodes: list[tuple[int, ...]], total: int, whole: bool) -> None:
    parts = tuple(Partition(part, 1, 1, 1, 1) for part in nodes)
    report = DelegationReport("opencl", "d", "fp32", total, {}, partitions=parts)
    assert report.whole_graph == whole


def messages(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    """Return what was logged, but for the remark about software devices."""
    assert {record.name for record in caplog.records} <= {"litegpu"}
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    return [line for line in found if "is a software device" not in line[1]]


def mixed_model() -> bytes:
    writer = ModelWriter()
    x = writer.input((1, 8))
    y = step(writer, CPU_ONLY, step(writer, "NEG", x))
    shape = writer.constant([1, 8], "int32")
    drawn = writer.op("RANDOM_UNIFORM", [shape], [(1, 8)])
    writer.output(y, step(writer, CPU_ONLY, drawn))
    return writer.build()


def test_a_real_report_and_the_messages_that_users_know(caplog: pytest.LogCaptureFixture) -> None:
    delegate = GpuDelegate()
    interpreter(mixed_model(), delegate)
    assert messages(caplog) == [
        (logging.WARNING, "WARNING: op code #18 cannot be handled by this delegate."),
        (logging.WARNING, "WARNING: op code #148 cannot be handled by this delegate."),
        (
            logging.WARNING,
            "Following operations are not supported by GPU delegate:\n"
            f"{CPU_ONLY}: {WHY_ON_CPU}\n"
            "RANDOM_UNIFORM: Operation is not supported: random numbers, which would not be those "
            "of the CPU.\n"
            "1 operation will run on the GPU, and the remaining 3 operations will run on the CPU.",
        ),
    ]
    report = delegate.report
    assert report is not None
    assert (report.backend, report.device) == (delegate.device.backend, delegate.device.name)
    assert report.partitions[0].inputs == ("input",)
    assert report.partitions[0].outputs == ("NEG_0:0",)
    assert json.loads(json.dumps(report.to_dict()))["delegated_nodes"] == [0]
    assert "NEG" in str(report)


def test_nothing_on_the_gpu(caplog: pytest.LogCaptureFixture) -> None:
    interpreter(chain([CPU_ONLY]), GpuDelegate())
    assert messages(caplog)[-1][1] == (
        "Following operations are not supported by GPU delegate:\n"
        f"{CPU_ONLY}: {WHY_ON_CPU}\n"
        "No operations will run on the GPU, and the only one will run on the CPU."
    )


def test_custom_operations_are_named_as_such(caplog: pytest.LogCaptureFixture) -> None:
    writer = ModelWriter()
    sound = step(writer, "ABS", writer.input((16, 1)))
    writer.output(spectrogram(writer, sound, (1, 2, 5)))
    delegate = GpuDelegate()
    interpreter(writer.build(), delegate)
    assert messages(caplog) == [
        (logging.WARNING, "WARNING: op code #32 cannot be handled by this delegate."),
        (
            logging.WARNING,
            "Following operations are not supported by GPU delegate:\n"
            "CUSTOM AudioSpectrogram: Operation is not supported.\n"
            "1 operation will run on the GPU, and the remaining 1 operation will run on the CPU.",
        ),
    ]


def test_whole_models_are_announced_by_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    delegate = GpuDelegate()
    interpreter(chain(["ABS", "NEG"]), delegate)
    assert messages(caplog) == []
    assert delegate.report is not None and delegate.report.whole_graph


def test_codes_that_litegpu_has_no_name_for(caplog: pytest.LogCaptureFixture) -> None:
    delegate = GpuDelegate()
    node = RejectedNode(0, "BUILTIN_250", 1, "Operation is not supported.")
    delegate._announce(DelegationReport("opencl", "d", "fp32", 1, {}, (node,)))
    assert "WARNING: op code #250 cannot be handled by this delegate." in caplog.text


def test_every_backend_is_known_to_the_report() -> None:
    for device in backends.list_devices():
        assert GpuDelegate(backend=device.backend, device=device.index).device == device
