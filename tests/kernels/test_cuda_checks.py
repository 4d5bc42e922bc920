"""Kernels have no races and no accesses out of bounds, as checked by the emulator."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest

import cases
import turns
from backend_suite import FLOATS, GROUP, REVERSE, cell, floats, kernel, program, ready, run
from cases.attention import Attention
from cases.base import LARGE, SMALL, Case, NumpyCase
from cases.batch_matmul import Matmul
from cases.conv_2d import Conv
from cases.depthwise_conv_2d import Depthwise
from cases.fully_connected import Dense
from cases.lstm import BasicLstm
from cases.separable import Separable
from cuda_emulator import INFO, ORDERS, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.backends.program import Launch
from litegpu.codegen import KernelText, LaunchAttributes
from litegpu.kernels.cuda import conv_tile
from litegpu.kernels.cuda.conv_tile.tile import WideProblem, WideTile, candidates
from litegpu.kernels.portable import attention as portable_attention
from litegpu.kernels.portable import conv
from op_runner import MODES, Mode, forced, problem_of
from op_runner import run as run_cases

pytestmark = needs_emulator
PLAIN = dataclasses.replace(INFO, compute_capability=None)
"""Gets the portable kernels."""

# What is found

SCRATCH = (("float", "scratch", 64),)
OUTSIDE = "    STORE4_F32(dst, GLOBAL_X, LOAD4_F32(src, GLOBAL_X + 1));\n"
BEYOND = "    STORE4_F32(dst, GLOBAL_X + 1, LOAD4_F32(src, GLOBAL_X));\n"
TWICE = "    STORE4_F32(dst, GLOBAL_X / 2, LOAD4_F32(src, GLOBAL_X));\n"
AGAIN = REVERSE + "    scratch[LOCAL_X] = LOAD1_F32(src, GLOBAL_X);\n"
CROOKED = "    STORE4_F32(dst, GLOBAL_X, *(const float4 *)((const float *)src + GLOBAL_X % 2));\n"
LONG = REVERSE.replace("scratch[LOCAL_X]", "scratch[LOCAL_X + 1]")
OF_A_WARP = """\
    scratch[LOCAL_X] = LOAD1_F32(src, GLOBAL_X);
    __syncwarp();
    STORE1_F32(dst, GLOBAL_X, scratch[LOCAL_X ^ {}]);
"""
OWN = """\
    float own[3] = {{1.0f, 2.0f, 3.0f}};
    STORE1_F32(dst, GLOBAL_X, own[LOCAL_X % {}]);
"""
GATED = """\
    unsigned long long *const gate = (unsigned long long *)scratch;
    if (LOCAL_X == 0) gate_begin(gate, 1);
    BARRIER();
    if (LOCAL_X < 32) {
        scratch[LOCAL_X + 2] = LOAD1_F32(src, GLOBAL_X);
        gate_arrive(gate);
        STORE1_F32(dst, GLOBAL_X, 0.0f);
    } else {
        gate_wait(gate, 0);
        STORE1_F32(dst, GLOBAL_X, scratch[LOCAL_X - 30]);
    }
"""
SOME = """\
    if (LOCAL_X < 32) {
        scratch[LOCAL_X] = LOAD1_F32(src, GLOBAL_X);
        some_sync<1, 32>();
        STORE1_F32(dst, GLOBAL_X, scratch[31 - LOCAL_X] + (some_sync_or<1, 32>(LOCAL_X == 3)));
    } else STORE1_F32(dst, GLOBAL_X, (float)of_lane(LOCAL_X, LOCAL_X % 2));
"""
AFTER = "        STORE1_F32(dst, GLOBAL_X, 0.0f);\n"
WRONG = {
    "no barrier since another thread read: byte 132 of shared": GATED.replace("gate_wait", "//"),
    "no barrier since another thread wrote: byte 8 of shared": GATED.replace(
        AFTER, AFTER + "        gate_wait(gate, 0);\n        scratch[LOCAL_X + 2] = 0.0f;\n"
    ),
    "no barrier since another thread read: byte 64 of shared": SOME.replace("some_sync<", "//"),
    "no barrier since another thread read: byte 128 of shared": REVERSE.replace("BARRIER();", ""),
    "no barrier since another thread wrote: byte 252 of shared": AGAIN,
    "no barrier since another thread read: byte 252 of shared": OF_A_WARP.format(32),
    "two threads write different things, no barrier in between": TWICE,
    "read, outside of the launch's buffers: byte .* of device memory, thread 63": OUTSIDE,
    "written, outside of the launch's buffers: byte .* of device memory, thread 63": BEYOND,
    "outside of all arrays: byte 256 of shared memory, thread 63": LONG,
    "not aligned: byte .* of device memory": CROOKED,
    "outside of an array: byte 3 of elements, thread 3": OWN.format(4),
}


def run_on_few(body: str, device: EmulatedDevice | None = None) -> list[Any]:
    """Run a kernel of one block of 64 threads, or of more for vectors, and return its outputs."""
    vector = "STORE4" in body
    text: KernelText = kernel("kernel", body, vector=vector, shared=SCRATCH)
    size = (FLOATS // 4 if vector else FLOATS, 1, 1)
    whole = program([text], [Launch("kernel", (cell(4), cell(1)), size, GROUP)], [1], [4])
    return run(ready(device or EmulatedDevice(checked=True), whole), [floats()])


FEW_WAIT = "    if (LOCAL_X < 60) BARRIER();\n    STORE1_F32(dst, GLOBAL_X, 1.0f);\n"
"""Four threads end before the others are through."""


@pytest.mark.parametrize("order", ORDERS)
def test_threads_that_wait_in_vain_are_a_fault(order: int) -> None:
    for checked in (False, True):
        device = EmulatedDevice(checked=checked, order=order)
        with pytest.raises(AssertionError, match="32 of 64 threads wait for others that do not"):
            run_on_few(GATED.replace("gate_arrive", "//"), device)
        with pytest.raises(AssertionError, match="60 of 64 threads wait for others that do not"):
            run_on_few(FEW_WAIT, EmulatedDevice(checked=checked, order=order))
        run_on_few(REVERSE, EmulatedDevice(checked=checked, order=order))


def test_threads_take_turns_in_several_orders() -> None:
    """What no barrier orders differs then, where nothing looks for it, too."""
    unordered = REVERSE.replace("BARRIER();", "")
    ordered, backwards, drawn = (
        run_on_few(unordered, EmulatedDevice(order=order))[0].tobytes() for order in ORDERS
    )
    assert len({ordered, backwards, drawn}) == 3


@pytest.mark.parametrize(("message", "body"), WRONG.items(), ids=[*WRONG])
def test_faults_are_found(message: str, body: str) -> None:
    with pytest.raises(AssertionError, match=f"kernel: {message}"):
        run_on_few(body)


COPIED = "    copy_async((uint4 *)({}), (const uint4 *)src, 16);\n"
BEGUN = "    if (LOCAL_X == 0) gate_begin((unsigned long long *)(scratch + 64), 1);\n"
MATRIX = "    unsigned int a[4];\n    load_matrix(a, scratch + LOCAL_X * 4);\n"
UNCHECKED = {
    "written, outside of all arrays: byte 256 of shared memory of block 0": LONG,
    "written, outside of all arrays: byte -4 of": LONG.replace("LOCAL_X + 1", "LOCAL_X - 1"),
    "outside of all arrays: byte 256 of shared memory, thread 63": COPIED.format(
        "scratch + LOCAL_X / 63 * 64"
    ),
    "not aligned: byte 4 of shared memory, thread 5": COPIED.format("scratch + LOCAL_X / 5"),
    "no shared memory: byte .* of memory, modulo 256, thread 0": COPIED.format("dst"),
    "outside of all arrays: byte 256 of shared memory, thread 16": MATRIX,
    "outside of all arrays: byte 256 of shared memory, thread 0": BEGUN,
    "a barrier is overwritten: byte 8 of shared memory": GATED.replace("scratch;", "scratch + 1;"),
}
"""What is found even where nothing looks at every access."""


@pytest.mark.parametrize("number", range(len(UNCHECKED)), ids=[*UNCHECKED])
def test_shared_memory_has_bounds_on_every_device(number: int) -> None:
    bodies = enumerate(UNCHECKED.values())
    texts = [kernel(f"k{n}", body, vector=False, shared=SCRATCH) for n, body in bodies]
    launch = Launch(f"k{number}", (cell(4), cell(1)), (FLOATS, 1, 1), GROUP)
    with pytest.raises(AssertionError, match=f"k{number}: {[*UNCHECKED][number]}"):
        run(ready(EmulatedDevice(), program(texts, [launch], [1], [4])), [floats()])


@pytest.mark.parametrize(
    "body",
    [
        REVERSE,
        OF_A_WARP.format(1),
        AGAIN.replace("    scr", "    BARRIER();\n    scr"),
        GATED,
        SOME,
    ],
)
def test_nothing_is_found_where_all_is_well(body: str) -> None:
    run_on_few(body)


# The kernels


def mixed() -> dict[str, tuple[Case, ...]]:
    """Return models of some cases of each kind: the first, and others far from it.

    What the CPU has no kernels for goes into models of its own. So does BASIC_LSTM, whose kernel
    on the CPU reads what others leave in its memory.
    """
    some = [case for case in cases.TABLE.values() if case.items is None]
    kinds = [list(each) for _, each in itertools.groupby(some, type)]
    apart, most = (3, 4) if turns.ALL else (2, 2)
    picked = [case for kind in kinds for case in kind[:: max(1, len(kind) // apart)][:most]]
    by_numpy = tuple(case for case in picked if isinstance(case, NumpyCase))
    basic = tuple(case for case in picked if isinstance(case, BasicLstm))
    others = [case for case in picked if not isinstance(case, NumpyCase | BasicLstm)]
    models = [*(tuple(others[start::8]) for start in range(8)), by_numpy, basic]
    return {f"{len(model)} from {model[0].name}": model for model in models}


def check(
    group: tuple[Case, ...], mode: Mode, device: EmulatedDevice, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """Run cases, and return the kernels that were run."""
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    kernels: list[str] = []
    for name, outcome in run_cases(group, device.info, mode).items():
        if isinstance(outcome, Exception):
            raise outcome
        case = next(case for case in group if case.name == name)
        assert not problem_of(case, outcome, mode), name
        kernels += outcome.kernels
    return kernels


MIXED = mixed()


@pytest.mark.parametrize("group", MIXED.values(), ids=[*MIXED])
def test_portable_kernels(group: tuple[Case, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = check(group, MODES[1], EmulatedDevice(PLAIN, checked=True), monkeypatch)
    assert not any(name.startswith("cuda_") for name in kernels)


@pytest.mark.parametrize(
    "case",
    [
        *(Conv(image=(2, 5, 7, 9), filters=size, kernel=(3, 2), items=SMALL) for size in (20, 33)),
        Conv(image=(1, 3, 3, 70), filters=17, items=SMALL),
        Dense(shape=(3, 520), units=12),
        Depthwise(image=(1, 7, 9, 21), items=SMALL),
    ],
    ids=lambda case: case.name,
)
def test_portable_tiles(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(3):
        with forced(number):
            check((case,), MODES[1], EmulatedDevice(PLAIN, checked=True), monkeypatch)


@pytest.mark.parametrize("number", [0, 3])
def test_tiles_in_local_memory(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv, "_MAX_RATIO", math.inf)
    monkeypatch.setattr(portable_attention, "_MIN_KEYS", 1)
    case = Conv(image=(1, 7, 6, 20), filters=36, kernel=(3, 2))
    other = Attention(batch=2, heads=3, queries=20, keys=33, depth=12, across=True)
    with forced(number):
        kernels = check((case, other), MODES[1], EmulatedDevice(PLAIN, checked=True), monkeypatch)
    assert {"conv_2d_tiles", "attention_tiles"} <= {name.rpartition("_")[0] for name in kernels}


@pytest.mark.parametrize("items", [SMALL, LARGE])
def test_attention(items: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few queries, on a device with tensor cores, too; one by one thread, or by several."""
    case = Attention(batch=2, heads=3, queries=3, keys=70, depth=12, across=True, items=items)
    kernels = check((case,), MODES[2], EmulatedDevice(checked=True), monkeypatch)
    assert [name for name in kernels if name.startswith("attention")]


@pytest.mark.parametrize("lying", [False, True])
def test_attention_of_few_queries(lying: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work groups divide the keys, and work items keys and channels that do not fill them."""
    fields: dict[str, Any] = {"queries": 3, "depth": 44, "columns": 20, "lying_values": lying}
    cases = tuple(Attention(keys=keys, mask=(1, 1, 3, keys), **fields) for keys in (45, 301))
    kernels = check(cases, MODES[1], EmulatedDevice(PLAIN, checked=True), monkeypatch)
    names = [name.rpartition("_")[0] for name in kernels]
    assert (names.count("attention_split"), names.count("join_attention")) == (2, 1)


SENT = """\
    unsigned long long *const inbox = (unsigned long long *)(scratch + 48);
    inbox_begin(inbox);
    cluster_wait();
    if (LOCAL_X == 0) inbox_expect(inbox, 128);
    if (LOCAL_X < 32) send(scratch + LOCAL_X, GROUP_X ^ 1, __float_as_uint((float)LOCAL_X), inbox);
    inbox_wait(inbox);
    STORE1_F32(dst, GLOBAL_X, LOCAL_X < 32 ? scratch[31 - LOCAL_X] : 0.0f);
"""


@pytest.mark.every_other
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("", "", ""),
        ("inbox_wait", "//", "no barrier since|may still use it|its block has ended"),
        ("cluster_wait", "//", "may not have begun|has no inbox there yet"),
        (", 128)", ", 124)", "-4 bytes were not sent, or too many"),
        ("if (LOCAL_X == 0)", "if (false)", "threads wait for others"),
        ("LOCAL_X < 32) send", "LOCAL_X < 16) send", "threads wait for others"),
        ("GROUP_X ^ 1", "GROUP_X + 1", "no block of the cluster: byte 2 of"),
        (
            "send(scratch +",
            "send(scratch + 33 +",
            "outside of all arrays: byte 256 of shared memory",
        ),
        ("scratch + 48)", "scratch + 64)", "outside of all arrays: byte 256 of shared memory"),
        ("send(scratch +", "send(scratch + 32 +", "a barrier is overwritten: byte 192 of shared"),
    ],
)
def test_what_blocks_send_each_other(old: str, new: str, fault: str, order: int) -> None:
    text = kernel("kernel", SENT.replace(old, new), vector=False, shared=SCRATCH)
    text = dataclasses.replace(text, attributes=LaunchAttributes(cluster_size=2))
    launch = Launch("kernel", (cell(4), cell(1)), (128, 1, 1), GROUP)
    whole = program([text], [launch], [1], [4])
    device = EmulatedDevice(checked=True, order=order)
    if fault:
        with pytest.raises(AssertionError, match=fault):
            run(ready(device, whole), [floats()])
    else:
        (found,) = run(ready(device, whole), [floats()])
        assert list(found[:32]) == list(range(31, -1, -1))


@pytest.mark.parametrize("number", [1, 4, 99])
def test_blocks_that_share_memory(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Operands that the blocks of a cluster make for each other, and sums that they add up."""
    case = Conv(image=(1, 4, 4, 260), filters=24, kernel=(3, 3))
    with forced(number):
        kernels = check((case,), MODES[0], EmulatedDevice(checked=True), monkeypatch)
    assert all(name.startswith("cuda_conv_mma") for name in kernels)


@pytest.mark.parametrize("pixels", [128, 192])
def test_blocks_that_are_alone(pixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def alone(problem: WideProblem, warp_groups: bool) -> list[WideTile]:
        found = candidates(problem, warp_groups)
        return [tile for tile in found if tile.alone and tile.pixels == pixels]

    monkeypatch.setattr(conv_tile, "candidates", alone)
    case = Conv(image=(1, 14, 15, 64), filters=140, kernel=(3, 3), items=SMALL)
    kernels = check((case,), MODES[-1], EmulatedDevice(checked=True), monkeypatch)
    assert all(name.startswith("cuda_conv_tile") for name in kernels)


@pytest.mark.parametrize("mode", [MODES[0], *MODES[2:]], ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "case",
    [
        Conv(image=(2, 5, 4, 33), filters=20, kernel=(3, 3)),
        Conv(image=(1, 4, 4, 160), filters=24, kernel=(3, 3)),
        Conv(image=(1, 10, 5, 3), filters=20, kernel=(3, 3), items=SMALL),
        Conv(image=(2, 9, 8, 72), filters=65, kernel=(1, 1), items=SMALL),
        Conv(image=(1, 12, 11, 64), filters=40, kernel=(3, 3), items=SMALL),
        Separable(image=(1, 14, 14, 96), filters=130, items=SMALL),
        Separable(image=(1, 7, 7, 40), filters=24),
        Matmul(rows=33, depth=70, columns=41, batch=(1,)),
        Attention(queries=17, keys=70, depth=16, across=True, mask=(1, 1, 1, 70)),
        Attention(queries=9, keys=16, depth=20, columns=9),
        Attention(queries=17, keys=17, depth=20, across=True, projected=True),
    ],
    ids=lambda case: case.name,
)
def test_kernels_of_cuda(case: Case, mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = check((case,), mode, EmulatedDevice(checked=True), monkeypatch)
    assert all(name.startswith("cuda_") for name in kernels)
