"""Warm starts give the same bits as cold starts, and trust nothing in a file."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from every_backend import first_devices
from litegpu import GpuDelegate
from litegpu.backends.base import DeviceInfo
from litegpu.backends.constant_blocks import ConstantBlock
from litegpu.backends.opencl.device import OpenCLDevice
from litegpu.cache.artifact import Artifact
from litegpu.cache.checks import check
from litegpu.cache.partitions import CachedPartitions
from litegpu.cache.store import KEY, ArtifactStore, DamagedError, blocks, entries, read
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.partition import compile_partition
from litegpu.errors import CompilationError
from litegpu.graph import Graph
from litegpu.host import disk_cache
from litegpu.options import InferencePriority
from litegpu.zoo.writer import ModelWriter
from small_models import (
    Array,
    assert_close,
    convolution,
    fully_convolutional,
    interpreter,
    random,
    reference,
    run,
)

Bytes = npt.NDArray[np.uint8]
ALL_HALF: dict[str, Any] = {
    "precision": "fp16",
    "inference_priority1": InferencePriority.MIN_MEMORY_USAGE,
}


@pytest.fixture(autouse=True)
def nothing_reported_yet(caplog: pytest.LogCaptureFixture) -> None:
    disk_cache._reported.clear()
    caplog.set_level(logging.INFO, "litegpu")


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """The partitions that are compiled from their graphs."""
    found: list[Graph] = []
    compile_anew = PartitionKernel._compile_graph

    def noted(self: PartitionKernel, graph: Graph) -> CompiledPartition:
        found.append(graph)
        return compile_anew(self, graph)

    monkeypatch.setattr(PartitionKernel, "_compile_graph", noted)
    return found


def started(folder: Path, content: bytes, **options: Any) -> tuple[Any, GpuDelegate]:
    """Return an interpreter with a delegate that caches compiled partitions."""
    given = {"backend": "opencl", "serialization_dir": folder, "model_token": "m", **options}
    delegate = GpuDelegate(given)  # type: ignore[arg-type]
    target = interpreter(content, delegate)
    assert delegate.error is None and delegate.report is not None and delegate.report.partitions
    return target, delegate


def outputs(folder: Path, content: bytes, *inputs: Array, **options: Any) -> list[Array]:
    return run(started(folder, content, **options)[0], *inputs)


def equal(left: list[Array], right: list[Array]) -> bool:
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[12345] ^= 1
    path.write_bytes(data)


def product(changed: bool = False, then: str = "") -> bytes:
    """Return a model that multiplies a matrix of 18 MiB; `changed` changes a byte of the matrix."""
    writer = ModelWriter()
    x = writer.input((1, 2048))
    matrix = random(2304, 2048)
    matrix.view(np.uint8)[1000, 1002] ^= 64 * changed
    weights = writer.constant(matrix, name="weights")
    result = writer.op("FULLY_CONNECTED", [x, weights, None], [(1, 2304)])
    writer.output(writer.op(then, [result], [(1, 2304)]) if then else result)
    return writer.build()


def test_the_host_keeps_no_copy_of_large_constants(tmp_path: Path) -> None:
    """After a cold and after a warm start; a file of the cache has all of them."""
    model, data = product(), random(1, 2048)
    expected = reference(model, data)
    for start in ("cold", "warm"):
        target, delegate = started(tmp_path, model, precision="fp32")
        (kernel,) = delegate._kernels
        (block,) = kernel.compiled.program.blocks
        assert block.nbytes >= 2304 * 2048 * 4 and not block.read().any(), start
        assert_close(run(target, data), expected)
    (file,) = blocks(tmp_path)
    assert file.nbytes == block.nbytes and file.path.stem == block.digest
    assert entries(tmp_path)[0].nbytes < 1 << 20


def test_partitions_share_the_files_of_large_constants(
    tmp_path: Path, compiled: list[Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit applies to the files, not to the sum of the partitions' constants."""
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "20")
    x = random(1, 2048)
    models = [product(), product(then="ABS")]
    expected = [outputs(tmp_path, model, x, precision="fp32") for model in models]
    assert len(entries(tmp_path)) == 2 and len(blocks(tmp_path)) == 1
    for model, answer in zip(models, expected, strict=True):
        assert equal(outputs(tmp_path, model, x, precision="fp32"), answer)
    assert len(compiled) == 2


def test_one_byte_of_large_constants_makes_another_block(
    tmp_path: Path, compiled: list[Graph]
) -> None:
    """Both models run at a time; the second start of each loads its own block."""
    x, models = random(1, 2048), [product(), product(changed=True)]
    running = [started(tmp_path, model, precision="fp32")[0] for model in models]
    expected = [run(target, x) for target in running]
    assert not equal(*expected)
    del running
    assert len(entries(tmp_path)) == len(blocks(tmp_path)) == 2
    for model, answer in zip(models, expected, strict=True):
        assert equal(outputs(tmp_path, model, x, precision="fp32"), answer)
    assert len(compiled) == 2


def test_weights_that_changed_before_they_were_packed_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiled: list[Graph]
) -> None:
    """Nor does another interpreter share them."""
    model, x = product(), random(1, 2048)
    monkeypatch.setattr("litegpu.cache.fingerprint.Fingerprint.holds", lambda _: False)
    living = [started(tmp_path, model, precision="fp32") for _ in range(2)]
    assert len(compiled) == 2 and not entries(tmp_path)
    for target, _ in living:
        assert_close(run(target, x), reference(model, x))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "blocks of its constants are missing"),
        (lambda path: path.write_bytes(b"short"), "blocks of its constants are missing"),
        (flip_a_bit, "cannot be read: the checksum is wrong: the file was truncated or changed"),
    ],
    ids=["missing", "short", "changed"],
)
def test_damaged_blocks_are_replaced(
    change: Callable[[Path], None],
    reason: str,
    tmp_path: Path,
    compiled: list[Graph],
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk_cache._reported.clear()
    caplog.set_level("INFO", "litegpu")
    model, x = product(), random(1, 2048)
    expected = outputs(tmp_path, model, x, precision="fp32")
    (file,) = blocks(tmp_path)
    whole = file.path.read_bytes()
    change(file.path)
    for _ in range(2):
        assert equal(outputs(tmp_path, model, x, precision="fp32"), expected)
    assert len(compiled) == 2 and reason in caplog.text
    assert file.path.read_bytes() == whole


def test_improved_code_needs_no_bytes_of_blocks(tmp_path: Path, compiled: list[Graph]) -> None:
    model, x = product(), random(1, 2048)
    expected = outputs(tmp_path, model, x, precision="fp32")
    (entry,), (file,) = entries(tmp_path), blocks(tmp_path)
    key, time = entry.path.read_bytes()[KEY], os.stat(file.path).st_ino
    found = read(entry.path, key)
    assert found is not None
    binaries = Artifact.read(found).binaries
    cached = CachedPartitions.__new__(CachedPartitions)
    cached._store = ArtifactStore(tmp_path, "m")
    cached.improve(key, binaries)
    assert os.stat(file.path).st_ino == time
    assert equal(outputs(tmp_path, model, x, precision="fp32"), expected) and len(compiled) == 1
    file.path.unlink()
    cached.improve(key, binaries)
    assert not blocks(tmp_path)


def test_more_constants_than_the_cache_may_have_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("LITEGPU_CACHE_LIMIT", "17")
    caplog.set_level("INFO", "litegpu")
    model, data = product(), random(1, 2048)
    target, _ = started(tmp_path, model, precision="fp32")
    assert_close(run(target, data), reference(model, data))
    assert not entries(tmp_path)
    assert "A partition is not cached: its weights have 18.0 MiB, and the cache" in caplog.text
    assert caplog.records[-1].levelname == "WARNING"


def test_a_stored_block_of_a_negative_size(stored: tuple[Bytes, Graph, DeviceInfo]) -> None:
    artifact = Artifact.read(stored[0])
    block = ConstantBlock(-5, lambda: np.zeros(0, np.uint8), "0" * 64)
    program = replace(artifact.program, blocks=(block,))
    sections = replace(artifact, program=program).sections()
    with pytest.raises(ValueError, match="a block of constants has -5 bytes"):
        Artifact.read(np.frombuffer(b"".join(sections), np.uint8))


def test_a_warm_start_gives_the_same_bits_and_the_same_report(
    device: DeviceInfo, tmp_path: Path, compiled: list[Graph], caplog: pytest.LogCaptureFixture
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    options = {"backend": device.backend, "device": device.index}
    target, cold = started(tmp_path, model, **options)
    expected = run(target, x)
    assert len(compiled) == 1 and len(entries(tmp_path)) == 1
    profile = cold.profile(repeats=1, peaks=False).to_dict()
    target, warm = started(tmp_path, model, **options)
    assert len(compiled) == 1
    assert equal(run(target, x), expected)
    assert warm.report == cold.report
    again = warm.profile(repeats=1, peaks=False).to_dict()
    kernels = [
        [{**each, "seconds": 0, "flops_per_second": 0, "bytes_per_second": 0} for each in part]
        for found in (profile, again)
        for part in [found["partitions"][0]["kernels"]]
    ]
    assert kernels[0] == kernels[1] and kernels[0]
    assert "replaced" not in caplog.text


def test_new_shapes_are_kept_beside_the_old_ones(tmp_path: Path, compiled: list[Graph]) -> None:
    model = fully_convolutional()
    for _ in range(2):
        target, _delegate = started(tmp_path, model)
        for shape in ((1, 9, 7, 3), (2, 5, 6, 3)):
            target.resize_tensor_input(0, shape)
            target.allocate_tensors()
            x = random(*shape)
            target.set_tensor(0, x)
            target.invoke()
    assert len(compiled) == 2 and len(entries(tmp_path)) == 2


def narrow() -> bytes:
    """Return a model whose values overflow half if its second input is large."""
    writer = ModelWriter()
    x, up = writer.input((1, 8, 8, 12)), writer.input((1, 1, 1, 1))
    x = convolution(writer, x, 16)
    large = writer.op("MUL", [x, up], [x.shape], name="large")
    size = {"stride_h": 2, "stride_w": 2, "filter_height": 2, "filter_width": 2}
    pooled = writer.op(
        "AVERAGE_POOL_2D", [large], [(1, 4, 4, 16)], options={"padding": "SAME", **size}
    )
    writer.output(writer.op("LOGISTIC", [pooled], [(1, 4, 4, 16)]))
    return writer.build()


def test_values_that_half_cannot_hold_are_kept_as_float32_on_both_sides(
    tmp_path: Path, compiled: list[Graph]
) -> None:
    model, values = narrow(), (random(1, 8, 8, 12), np.full((1, 1, 1, 1), 1e6, np.float32))
    found = []
    for _ in range(2):
        target, delegate = started(tmp_path, model, **ALL_HALF)
        found.append(run(target, *values))
        assert delegate.report is not None and delegate.report.partitions[0].kept_float32
    assert equal(*found)
    assert len(compiled) == 2, "one without, one with float32: the second process has both"
    assert_close(found[1], reference(model, *values), 1e-2)


@pytest.mark.parametrize(
    "options",
    [{"precision": "fp16"}, {"model_token": "other"}, {"inference_preference": 2}],
    ids=str,
)
def test_other_options_are_other_files(
    options: dict[str, Any], tmp_path: Path, compiled: list[Graph]
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    for each in ({}, options, {}, options):
        outputs(tmp_path, model, x, **each)
    assert len(compiled) == 2 and len(entries(tmp_path)) == 2


def test_files_that_were_swapped_are_rebuilt(
    tmp_path: Path, compiled: list[Graph], caplog: pytest.LogCaptureFixture
) -> None:
    """A start finds the cache file of another model, option or device, and rejects it."""
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    starts: list[tuple[bytes, dict[str, Any]]] = [
        *(
            (model, {"backend": device.backend, "device": device.index})
            for device in first_devices()
        ),
        *((model, {"precision": "fp16"}), (fully_convolutional(float16_weights=True), {})),
    ]
    expected = [outputs(tmp_path, content, x, **options) for content, options in starts]
    paths = [entry.path for entry in entries(tmp_path)]
    before = [path.read_bytes() for path in paths]
    assert len(before) == len(starts)
    for number, path in enumerate(paths):
        path.write_bytes(before[number - 1])
    for (content, options), answer in zip(starts, expected, strict=True):
        assert equal(outputs(tmp_path, content, x, **options), answer)
    assert len(compiled) == 2 * len(starts)
    assert caplog.text.count("the file belongs to another model, device, version or opt") == len(
        starts
    )
    assert [path.read_bytes()[KEY] for path in paths] == [whole[KEY] for whole in before]


def test_no_change_of_a_file_is_overlooked(tmp_path: Path) -> None:
    """Flip a bit at 500 positions after the header, and truncate the file at all section ends."""
    outputs(tmp_path, fully_convolutional(), random(1, 9, 7, 3))
    (path,) = (entry.path for entry in entries(tmp_path))
    whole = path.read_bytes()
    with path.open("r+b", buffering=0) as file:
        for position in np.linspace(KEY.stop, len(whole) - 1, 500).astype(int).tolist():
            file.seek(position)
            file.write(bytes([whole[position] ^ 1 << position % 8]))
            with pytest.raises(DamagedError, match="the checksum is wrong"):
                read(path)
            file.seek(position)
            file.write(whole[position : position + 1])
        for end in reversed(section_ends(whole)):
            file.truncate(end - 1)
            with pytest.raises(DamagedError, match=r"the file (is|was) truncated"):
                read(path)


def section_ends(whole: bytes) -> list[int]:
    """Return where the header of a file, its description, constants and binaries end."""
    data = np.frombuffer(whole, np.uint8)[KEY.stop + 40 :]
    text = 16 + int.from_bytes(data[:8].tobytes(), "little")
    constants = text + -text % 4096 + int.from_bytes(data[8:16].tobytes(), "little")
    sizes = map(len, Artifact.read(data).binaries.values())
    ends = [0, 16, text, text + -text % 4096, *itertools.accumulate(sizes, initial=constants)]
    assert ends[-1] == len(data)
    return [KEY.stop + 40 + end for end in ends]


def test_damage_anywhere_is_mended(tmp_path: Path, compiled: list[Graph]) -> None:
    """A few positions with whole starts; the previous test has hundreds of positions."""
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    expected = outputs(tmp_path, model, x)
    (path,) = (entry.path for entry in entries(tmp_path))
    whole = path.read_bytes()
    damaged = [
        whole[:position] + bytes([whole[position] ^ 64]) + whole[position + 1 :]
        for position in (0, 20, 90, 2000, len(whole) // 2, len(whole) - 1)
    ]
    damaged += [whole[:end] for end in section_ends(whole)[:-1]]
    for content in damaged:
        path.write_bytes(content)
        disk_cache._reported.clear()
        assert equal(outputs(tmp_path, model, x), expected)
    assert len(compiled) == 1 + len(damaged)
    assert equal(outputs(tmp_path, model, x), expected) and len(compiled) == 1 + len(damaged)


def test_binaries_that_the_driver_refuses_are_replaced(
    tmp_path: Path,
    compiled: list[Graph],
    opencl_device: OpenCLDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    expected = outputs(tmp_path, model, x)

    def refuse(*_: Any) -> None:
        raise CompilationError("of another driver")

    with monkeypatch.context() as patched:
        patched.setattr(opencl_device, "load", refuse)
        assert equal(outputs(tmp_path, model, x), expected)
    assert "is unusable and will be replaced: of another driver" in caplog.text
    assert len(compiled) == 2
    assert equal(outputs(tmp_path, model, x), expected) and len(compiled) == 2


@pytest.mark.skipif(os.name == "nt", reason="a folder is read-only otherwise there")
def test_a_folder_that_cannot_be_written_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    assert_close(outputs(tmp_path / "file" / "new", model, x), reference(model, x))
    assert "Compiled partitions cannot be cached in" in caplog.text


# What a file says, with a right checksum


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bytes, Graph, DeviceInfo]:
    """Return the sections of an artifact, its graph and the device's facts."""
    folder, seen = tmp_path_factory.mktemp("kept"), list[Graph]()
    with pytest.MonkeyPatch.context() as patched:

        def noted(graph: Graph, *args: Any, **options: Any) -> CompiledPartition:
            seen.append(graph)
            return compile_partition(graph, *args, **options)

        patched.setattr("litegpu.engine.partition.compile_partition", noted)
        patched.setattr("litegpu.engine.lowering.BLOCK_BYTES", 256)
        _target, delegate = started(
            folder,
            narrow(),
            precision="fp16",
            inference_priority1=InferencePriority.MIN_MEMORY_USAGE,
        )
    (entry,) = entries(folder)
    data = read(entry.path)
    assert data is not None
    return data, seen[0], delegate.device


def described(data: Bytes) -> list[Any]:
    end = 16 + int.from_bytes(data[:8].tobytes(), "little")
    found: list[Any] = json.loads(data[16:end].tobytes())
    return found


def with_description(data: Bytes, description: list[Any]) -> Bytes:
    """Return sections with another description; constants and binaries as they were."""
    old = 16 + int.from_bytes(data[:8].tobytes(), "little")
    text = json.dumps(description, separators=(",", ":")).encode()
    rest = data[old + -old % 4096 :].tobytes()
    head = len(text).to_bytes(8, "little") + data[8:16].tobytes() + text
    return np.frombuffer(head + bytes(-len(head) % 4096) + rest, np.uint8)


def leaves(tree: list[Any], at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for index, item in enumerate(tree):
        if isinstance(item, list):
            yield from leaves(item, (*at, index))
        else:
            yield (*at, index)


def changed(tree: list[Any], at: tuple[int, ...], item: Any) -> list[Any]:
    found = json.loads(json.dumps(tree))
    inner = found
    for position in at[:-1]:
        inner = inner[position]
    inner[at[-1]] = item
    assert isinstance(found, list)
    return found


def test_what_was_kept_passes(stored: tuple[Bytes, Graph, DeviceInfo]) -> None:
    data, graph, info = stored
    again = with_description(data, described(data))
    assert again.tobytes() == data.tobytes()
    artifact = Artifact.read(again)
    assert artifact.facts.words is not None and artifact.binaries
    check(artifact, graph, info)


def test_no_number_of_a_file_is_believed(stored: tuple[Bytes, Graph, DeviceInfo]) -> None:
    """Each number is replaced by a much too large one, a negative one, and a text."""
    data, graph, info = stored
    tree = described(data)
    positions = [at for at in leaves(tree)]
    refused = 0
    for at in positions:
        for item in (1 << 40, -3, "x", None):
            try:
                artifact = Artifact.read(with_description(data, changed(tree, at, item)))
                check(artifact, graph, info)
            except ValueError:
                refused += 1
                continue
            assert_stays_inside(artifact)
    assert refused > 2 * len(positions)


def assert_stays_inside(artifact: Artifact) -> None:
    """Assert that nothing is bound or copied beyond the memory of the program."""
    program = artifact.program
    for part in (
        *program.inputs,
        *program.outputs,
        *(p for x in program.launches for p in x.ranges),
    ):
        assert program.contains(part)
    for launch in program.launches:
        assert all(0 < items < 1 << 31 for items in (*launch.global_size, *launch.local_size))


def test_sections_lie_within_the_file(stored: tuple[Bytes, Graph, DeviceInfo]) -> None:
    data, _, _ = stored
    for position in (0, 8):
        for number in (0, 1 << 20, (1 << 64) - 1):
            wrong = data.copy()
            wrong[position : position + 8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
            with pytest.raises(ValueError, match=r"sections need|Expecting|delimiter|expected"):
                Artifact.read(wrong)
    for length in (0, 15, 16, 4096, len(data) - 1):
        with pytest.raises(ValueError, match=r"the file is truncated|sections need"):
            Artifact.read(data[:length])


def test_a_hostile_file_with_a_right_checksum_is_rebuilt(
    tmp_path: Path, compiled: list[Graph], caplog: pytest.LogCaptureFixture
) -> None:
    model, x = fully_convolutional(), random(1, 9, 7, 3)
    expected = outputs(tmp_path, model, x)
    (entry,) = entries(tmp_path)
    key = entry.path.read_bytes()[KEY]
    data = read(entry.path, key)
    assert data is not None
    artifact = Artifact.read(data)
    first, *others = artifact.program.launches
    far = dataclasses.replace(first.ranges[0], offset=1 << 30, constant=False)
    launch = dataclasses.replace(first, ranges=(far, *first.ranges[1:]))
    program = dataclasses.replace(artifact.program, launches=(launch, *others))
    hostile = dataclasses.replace(artifact, program=program)
    ArtifactStore(tmp_path, "m").store(key, hostile.sections())
    assert equal(outputs(tmp_path, model, x), expected)
    assert len(compiled) == 2 and "is unusable and will be replaced" in caplog.text
    assert equal(outputs(tmp_path, model, x), expected) and len(compiled) == 2
