"""Serves models with batched inference on separate threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from litegpu.compiled_model import CompiledModel
from litegpu.compiled_model.batcher import Batcher
from litegpu.compiled_model.signatures import PLACEHOLDER, Signature, Tensor
from litegpu.errors import CompiledModelError, ModelError, RequestError, did_you_mean
from litegpu.pictures.images import Scale, is_image_input, read_picture, to_tensor
from litegpu.tools.console import note
from litegpu.tools.serve.tensors import (
    BYTES,
    Array,
    Call,
    Given,
    Output,
    answer_of,
    datatype,
    described,
    parse_call,
    wanted_outputs,
)
from litegpu.tools.serve.web import Model

_THREADS = 4
"""Number of threads per model for parsing, formatting, and inference without batching."""
_Result = TypeVar("_Result")


class Threads:
    """A thread pool for an event loop."""

    def __init__(self, name: str, count: int) -> None:
        """Create the pool; threads start on demand."""
        self._pool = ThreadPoolExecutor(count, thread_name_prefix=f"litegpu-{name}")

    def run(self, work: Callable[..., _Result], *given: Any) -> Awaitable[_Result]:
        """Call a function with these arguments in a thread, and return the result."""
        return asyncio.wrap_future(self._pool.submit(work, *given))

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown()


@dataclass(frozen=True, slots=True)
class Batching:
    """The settings for combining requests to batches."""

    max_batch: int
    """The maximum batch; 1 for no batching."""
    max_delay_ms: float


class GraphModel(Model):
    """A served .tflite model, with arrays as inputs and outputs."""

    platform = "tflite"

    def __init__(
        self,
        name: str,
        version: str,
        model: CompiledModel,
        batching: Batching,
        mean: Scale,
        std: Scale,
    ) -> None:
        """Serve a compiled model, which `close` closes. Raises as Batcher does."""
        super().__init__(name, version)
        self.model = model
        self._mean, self._std = mean, std
        self._batcher = self._batched(batching)
        self._threads = Threads(name, _THREADS)

    def _batched(self, batching: Batching) -> Batcher | None:
        if batching.max_batch == 1:
            return None
        try:
            return Batcher(self.model, batching.max_batch, batching.max_delay_ms)
        except (CompiledModelError, ModelError) as error:
            note(f"{self.name}: requests run one by one. {error}")
            return None

    @property
    def batched(self) -> bool:
        """Whether simultaneous requests are combined into one run."""
        return self._batcher is not None

    def metadata(self) -> dict[str, Any]:
        """Return the metadata of inputs and outputs, for all signatures if there are several."""
        first, *others = self.model.signatures
        found = {"platform": self.platform, **self._described(first)}
        if others:
            found["signatures"] = {
                each.key: self._described(each) for each in self.model.signatures
            }
        return found

    def _described(self, signature: Signature) -> dict[str, Any]:
        batched = self._is_batched(signature)
        return {
            "inputs": [described(tensor, batched) for tensor in signature.inputs],
            "outputs": [described(tensor, batched) for tensor in signature.outputs],
        }

    def _is_batched(self, signature: Signature) -> bool:
        return self.batched and signature.key == self.model.signature.key

    async def answer(self, body: memoryview, header: str | None) -> tuple[bytes, int | None]:
        """Answer a request's body; return the body, and the length of its JSON before binary data.

        Raises RequestError and the errors of the model.
        """
        call = await self._threads.run(parse_call, body, header)
        wanted, found = await self.infer(call)
        start = {"model_name": self.name, "model_version": self.version}
        if call.id:
            start["id"] = call.id
        return await self._threads.run(answer_of, start, wanted, found)

    async def infer(self, call: Call) -> tuple[list[Output], Mapping[str, Array]]:
        """Run a request; return the requested outputs, and all outputs by name.

        Raises RequestError and the errors of the model.
        """
        signature = self._signature(call.signature)
        wanted = wanted_outputs(call, [tensor.key for tensor in signature.outputs])
        try:
            found = await asyncio.wait_for(self._run(signature, call.inputs), call.timeout)
        except asyncio.TimeoutError as error:
            raise RequestError(
                f"The request was not answered within its timeout of {call.timeout:g} seconds.", 504
            ) from error
        return wanted, found

    async def _run(self, signature: Signature, inputs: Sequence[Given]) -> Mapping[str, Array]:
        if self._batcher is None or not self._is_batched(signature):
            return await self._threads.run(self._call, signature, inputs)
        future = await self._threads.run(self._submit, self._batcher, signature, inputs)
        found = await asyncio.wrap_future(future)
        return found if isinstance(found, dict) else {signature.outputs[0].key: found}

    def _signature(self, name: str | None) -> Signature:
        known = {each.key: each for each in self.model.signatures}
        if name is None:
            return self.model.signature
        if name not in known:
            raise RequestError(
                f"The model '{self.name}' has no signature '{name}'.{did_you_mean(name, known)}"
            )
        return known[name]

    def _submit(
        self, batcher: Batcher, signature: Signature, inputs: Sequence[Given]
    ) -> Future[Any]:
        return batcher.submit(self._arrays(signature, inputs))

    def _call(self, signature: Signature, inputs: Sequence[Given]) -> Mapping[str, Array]:
        given = self._arrays(signature, inputs)
        key = None if signature.key == PLACEHOLDER else signature.key
        found: Mapping[str, Array] = self.model(given, signature=key, by_name=True)
        return found

    def _arrays(self, signature: Signature, inputs: Sequence[Given]) -> dict[str, Array]:
        tensors = {tensor.key: tensor for tensor in signature.inputs}
        for given in inputs:
            if given.name not in tensors:
                raise RequestError(
                    f"The model '{self.name}' has no input '{given.name}'."
                    f"{did_you_mean(given.name, tensors)}"
                )
        if missing := sorted(set(tensors) - {given.name for given in inputs}):
            raise RequestError(f"The request lacks the inputs {missing}. Give all of {[*tensors]}.")
        return {given.name: self._array(tensors[given.name], given) for given in inputs}

    def _array(self, tensor: Tensor, given: Given) -> Array:
        wanted = datatype(tensor.dtype)
        if isinstance(given.data, np.ndarray):
            if given.datatype != wanted:
                raise RequestError(
                    f"Input '{tensor.key}' is {wanted}, and was given {given.datatype}. Convert it."
                )
            return given.data
        shape = (1, *tensor.shape[1:])
        detail = {"name": tensor.key, "dtype": tensor.dtype, "shape": shape}
        if not is_image_input(detail):
            raise RequestError(
                f"Input '{tensor.key}' is {wanted} {[*tensor.shape]}, and was given {BYTES}, which "
                "only inputs for pictures take. Give numbers."
            )
        if not given.data:
            raise RequestError(f"Input '{tensor.key}' was given no picture. Give one or more.")
        pictures = map(read_picture, given.data)
        return np.concatenate([to_tensor(each, detail, self._mean, self._std) for each in pictures])

    def close(self) -> None:
        """Answer all submitted requests, and release the model."""
        if self._batcher is not None:
            self._batcher.close()
        self._threads.close()
        self.model.close()
