"""A language model gives the same answers on each device as on the CPU."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from cuda_emulator import needs_emulator
from every_backend import device_of, on_backends
from litegpu import LanguageModel, TensorBuffer, zoo
from litegpu.backends import BACKENDS
from litegpu.backends.buffers import DeviceBuffer
from litegpu.backends.direct_updates import DirectUpdates, direct_updates
from litegpu.backends.shared_blocks import SharedBlock, SharedBlocks
from litegpu.runtime_abi import interpreter as runtime
from simulated_cuda import SimulatedDriver

CONTEXT = 320
NAME = f"zoo:tiny_lm?layers=1&context={CONTEXT}"
PROMPTS = (
    [1, *range(40, 47)],  # exactly the smaller prefill and the last token
    [1, 277],
    [1, *(5 + 7 * n % 250 for n in range(50))],  # two prefills
    [1, *range(5, 13)],
    [1, *range(260, 292), 7],
)
LIMIT = 1e-3
Logits = npt.NDArray[np.float32]


class Reference:
    """The decoder in an interpreter without a delegate, token by token."""

    def __init__(self) -> None:
        self._run = runtime.interpreter(zoo.load(NAME), builtin_kernels=True).get_signature_runner(
            "decode"
        )
        details = self._run.get_input_details()
        self._caches = {
            name: np.zeros(each["shape"], each["dtype"])
            for name, each in details.items()
            if "cache" in name
        }
        self._position = 0

    def logits(self, token: int) -> Logits:
        hidden = np.where(np.arange(CONTEXT) <= self._position, 0, -1e9).astype(np.float32)
        found = self._run(
            tokens=np.array([[token]], np.int32),
            input_pos=np.array([self._position], np.int32),
            mask=hidden.reshape(1, 1, 1, CONTEXT),
            **self._caches,
        )
        self._caches = {name: found[name] for name in self._caches}
        self._position += 1
        row: Logits = found["logits"].reshape(-1)
        return row


@functools.cache
def expected(prompt: tuple[int, ...], count: int) -> list[tuple[int, Logits]]:
    """Return the most probable tokens after a prompt, each with the logits that it is from."""
    reference, found = Reference(), []
    for token in prompt:
        row = reference.logits(token)
    for _ in range(count):
        found.append((int(row.argmax()), row))
        row = reference.logits(found[-1][0])
    return found


@pytest.fixture(scope="module", params=[name for name in BACKENDS if name != "opengl"])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    device_of(request.param)
    pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
    with LanguageModel(NAME, backend=request.param, min_nodes_per_partition=1) as found:
        yield found


@needs_emulator
def test_cuda_in_the_emulator(driver: SimulatedDriver) -> None:
    with LanguageModel(NAME, backend="cuda", min_nodes_per_partition=1) as model:
        assert all(model._executor.model.runs_directly(n) for n in range(3))
        check(model, PROMPTS[0], 3)


def check(model: LanguageModel, prompt: Sequence[int], count: int) -> None:
    with model.session() as session:
        session.append(prompt)
        for token, wanted in expected(tuple(prompt), count):
            found = session.logits()
            np.testing.assert_allclose(found, wanted, atol=LIMIT, rtol=LIMIT)
            assert int(found.argmax()) == token
            session.append([token])


@pytest.mark.parametrize("prompt", PROMPTS, ids=len)
def test_the_most_probable_tokens_are_those_of_the_cpu(
    model: LanguageModel, prompt: list[int]
) -> None:
    assert all(model._executor.model.runs_directly(n) for n in range(3))
    check(model, prompt, 256)


def test_no_cache_leaves_the_device(model: LanguageModel) -> None:
    """The host writes a token, its position and the mask, and reads logits."""
    with model.session() as session:
        session.append(PROMPTS[0])
        session.logits()
        with contextlib.ExitStack() as stack:
            reads, writes = (
                stack.enter_context(
                    mock.patch.object(TensorBuffer, name, autospec=True, side_effect=each)
                )
                for name, each in (("read", TensorBuffer.read), ("write", TensorBuffer.write))
            )
            for token in range(5, 9):
                session.append([token])
                session.logits()
        read, written = (
            sorted(call.args[0].nbytes for call in each.call_args_list) for each in (reads, writes)
        )
        number = np.dtype(np.int32).itemsize
        assert read == [model.vocabulary * number] * 4
        assert written == sorted([number, number, CONTEXT * number] * 4)
        assert session.nbytes > 10 * CONTEXT * number


def test_kernels_update_the_caches_where_they_are(model: LanguageModel) -> None:
    found = []

    def noted(*arguments: Any) -> DirectUpdates:
        found.append(direct_updates(*arguments))
        return found[-1]

    report = model.report
    assert report is not None
    if report.backend == "cuda":
        pytest.skip("its graphs are tested by how many copies the driver makes")
    module = f"litegpu.backends.{report.backend}.context.direct_updates"
    with mock.patch(module, noted), model.session() as session:
        session.append(PROMPTS[0])
        session.logits()
    assert len(found) == 2, "a prefill and a step of the decoder"
    for direct in found:
        assert set(direct.inputs.values()) == {None}
        assert len(direct.outputs) == len(model._executor.decoder.caches)


def test_sessions_do_not_disturb_each_other(model: LanguageModel) -> None:
    """They are used in turns, one of them is a copy of another, and one goes back."""
    with model.session() as first, model.session() as second:
        first.append(PROMPTS[0])
        second.append(PROMPTS[2])
        wanted = {len(p): expected(tuple(p), 8) for p in PROMPTS}
        first.logits()
        with mock.patch.object(DeviceBuffer, "read", side_effect=AssertionError):
            copied = first.fork()
        with copied:
            for number in range(4):
                for session, prompt in ((first, 0), (second, 2), (copied, 0)):
                    token, row = wanted[len(PROMPTS[prompt])][number]
                    np.testing.assert_allclose(session.logits(), row, atol=LIMIT, rtol=LIMIT)
                    session.append([token])
            copied.rewind(2)
            copied.append([277, 9])
            copied.rewind(3)
            assert copied.tokens == (1, PROMPTS[0][1], 277)
        first.rewind(1)
        first.append(PROMPTS[1][1:])
        token, row = wanted[2][0]
        np.testing.assert_allclose(first.logits(), row, atol=LIMIT, rtol=LIMIT)


@on_backends(("opencl", "webgpu"))
def test_embedders_and_per_layer_embedders(backend: str) -> None:
    device_of(backend)
    found = []
    for each in ("cpu", backend):
        with (
            LanguageModel("zoo:tiny_lm?embedder=2", backend=each) as model,
            model.session() as session,
        ):
            session.append(PROMPTS[3])
            found.append(session.logits())
            session.append([8])
            found.append(session.logits())
    np.testing.assert_allclose(found[2:], found[:2], rtol=0, atol=LIMIT)


def test_signatures_share_their_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[SharedBlock] = []
    upload = SharedBlocks.upload

    def noted(self: SharedBlocks, *arguments: Any) -> list[SharedBlock]:
        found = upload(self, *arguments)
        uploaded.extend(found)
        return found

    monkeypatch.setattr(SharedBlocks, "upload", noted)
    monkeypatch.setattr("litegpu.engine.lowering.BLOCK_BYTES", 1 << 10)
    with LanguageModel(NAME, backend="opencl", cache=False):
        assert len(uploaded) >= 3, "two prefills and a decoder"
        assert len(set(uploaded)) < len(uploaded)
