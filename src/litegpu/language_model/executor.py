"""Runs the signatures of a language model on tokens and caches."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.compiled_model import CompiledModel
from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import DeviceLostError, ModelError
from litegpu.language_model.caches import Caches
from litegpu.language_model.metadata import Metadata
from litegpu.language_model.roles import Step, steps_of
from litegpu.language_model.sampling import Logits
from litegpu.tensor_buffer import TensorBuffer

_HIDDEN = -45824.0
"""The mask value of a hidden position: softmax maps it to 0, and float16 can represent it."""


class Embedder:
    """A separate model that computes the embeddings of tokens."""

    def __init__(self, model: CompiledModel) -> None:
        """Use the compiled model. Raises ModelError if no signature's only input is tokens."""
        self._model = model
        self._signatures = {
            each.inputs[0].shape[-1]: each
            for each in model.signatures
            if len(each.inputs) == 1
            and each.inputs[0].nbytes
            and each.inputs[0].dtype.kind == "i"
            and len(each.outputs) == 1
            and each.outputs[0].dtype.kind == "f"
        }
        if not self._signatures:
            raise ModelError(
                "The embedder of the language model has no signature that takes tokens and returns "
                "embeddings. Convert the model again."
            )

    @property
    def channels(self) -> int:
        """The number of values per token."""
        size, signature = next(iter(self._signatures.items()))
        return int(np.prod(signature.outputs[0].shape)) // size

    def embed(self, tokens: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        """Return the embeddings of tokens, `[count, channels]`."""
        count = len(tokens)
        size = max((n for n in self._signatures if n <= count and not count % n), default=0)
        if not size:
            raise ModelError(
                f"The embedder of the language model takes {[*self._signatures]} tokens, not "
                f"{count}. Convert the model again."
            )
        signature = self._signatures[size]
        tensor = signature.inputs[0]
        rows = [
            self._model(
                part.reshape(tensor.shape).astype(tensor.dtype), signature=signature.key
            ).reshape(size, -1)
            for part in np.split(tokens, count // size)
        ]
        return np.concatenate(rows)

    def close(self) -> None:
        """Release the model."""
        self._model.close()


class Executor:
    """Runs the prefill and decode signatures for sessions; one run at a time, from any thread."""

    def __init__(
        self, model: CompiledModel, embedders: Mapping[str, Embedder], metadata: Metadata
    ) -> None:
        """Use the compiled model, and the embedders of its inputs.

        The keys are the names of roles in Step: `embeddings` and `per_layer`. Raises ModelError if
        the signatures are not those of a language model, or if an embedder is missing or does not
        fit.
        """
        self.model, self._embedders = model, embedders
        steps = steps_of(model.signatures)
        decoders = [each for each in steps if each.count == 1 and each.logits]
        if not decoders:
            raise ModelError(
                "The model has no signature that takes one token and caches, and returns logits "
                "and the caches. LanguageModel is for models with `prefill` and `decode` "
                "signatures, as litert-torch writes them; use CompiledModel for others."
            )
        self.decoder = decoders[0]
        self.prefills = sorted(
            (each for each in steps if set(each.caches) == set(self.decoder.caches)),
            key=lambda each: each.count,
        )
        """All signatures with the same caches, including the decoder, sorted by token count."""
        self._check_embedders()
        self._lock = threading.RLock()
        self._buffers: dict[str, tuple[dict[str, TensorBuffer], dict[str, TensorBuffer]]] = {}
        self.context = self._context_of(metadata)
        self.cache_start = metadata.cache_start
        self.losses = 0
        """The number of device losses; caches from before the last loss are invalid."""
        self.vocabulary = int(self._tensors(self.decoder)[1][self.decoder.logits].shape[-1])

    def _check_embedders(self) -> None:
        for step in self.prefills:
            for role in ("embeddings", "per_layer"):
                if not (name := getattr(step, role)):
                    continue
                if role not in self._embedders:
                    kind = "embeddings" if role == "embeddings" else "embeddings for each layer"
                    raise ModelError(
                        f"The model takes {kind}, but the file has no embedder for them. Give a "
                        ".litertlm file with both."
                    )
                tensor = self._tensors(step)[0][name]
                wanted, found = math.prod(tensor.shape[2:]), self._embedders[role].channels
                if wanted != found:
                    raise ModelError(
                        f"'{tensor}' of the model has {wanted} values per token, but the embedder "
                        f"returns {found}. Convert the model again."
                    )

    def _tensors(self, step: Step) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        signature = self.model.signatures[step.index]
        return (
            {each.key: each for each in signature.inputs},
            {each.key: each for each in signature.outputs},
        )

    def _context_of(self, metadata: Metadata) -> int:
        """Return the number of positions in the caches."""
        inputs, _ = self._tensors(self.decoder)
        if self.decoder.mask:
            return int(inputs[self.decoder.mask].shape[-1])
        return metadata.context or max(max(inputs[name].shape) for name in self.decoder.caches)

    @property
    def can_rewind(self) -> bool:
        """Whether each cache stores all positions; a shorter cache is a ring buffer."""
        inputs, _ = self._tensors(self.decoder)
        return all(self.context in inputs[name].shape for name in self.decoder.caches)

    def new_caches(self) -> Caches:
        """Allocate the caches of a session, in device memory if the GPU runs whole signatures."""
        direct = all(self.model.runs_directly(each.index) for each in self.prefills)
        kind = "device" if direct and self.model.report is not None else None
        names, key = self.decoder.caches, self.decoder.key
        sides = [
            {name: self.model.create_input_buffer_by_name(key, name, kind) for name in names}
            for _ in range(1 if self.can_rewind else 2)
        ]
        caches = Caches(sides[0], sides[-1])
        if self.cache_start:
            caches.fill(self.cache_start)
        return caches

    def prefill_of(self, count: int, begin: int) -> Step:
        """Return the smallest signature for `count` tokens, else the largest that fits the caches.

        A signature for N tokens writes N cache positions, starting at `begin`, even if some tokens
        are padding.
        """
        fitting = [each for each in self.prefills if begin + each.count <= self.context]
        enough = (each for each in fitting if each.count >= count)
        return next(enough, (fitting or [self.decoder])[-1])

    def prefill(self, tokens: Sequence[int], begin: int, caches: Caches) -> None:
        """Add tokens to caches, starting at position `begin`, in chunks."""
        rest = [*tokens]
        while rest:
            step = self.prefill_of(len(rest), begin)
            part, rest = rest[: step.count], rest[step.count :]
            self._run(step, part, begin, caches)
            begin += len(part)

    def decode(self, token: int, position: int, caches: Caches) -> Logits:
        """Add a token to caches, and return the logits [vocabulary] of the next token."""
        return self._run(self.decoder, [token], position, caches, logits=True)

    def _run(
        self, step: Step, tokens: Sequence[int], begin: int, caches: Caches, logits: bool = False
    ) -> Logits:
        with self._lock:
            inputs, outputs = self._buffers_of(step)
            self._fill(step, inputs, tokens, begin)
            inputs = {**inputs, **caches.present}
            outputs = {**outputs, **caches.following}
            signature = self.model.signatures[step.index]
            try:
                self.model.run_by_index(
                    step.index,
                    [inputs[each.key] for each in signature.inputs],
                    [outputs[each.key] for each in signature.outputs],
                )
            except DeviceLostError:
                self._buffers.clear()
                self.losses += 1
                raise
            caches.turn()
            if not logits:
                return np.empty(0, np.float32)
            return outputs[step.logits].read().reshape(-1).astype(np.float32, copy=False)

    def _buffers_of(self, step: Step) -> tuple[dict[str, TensorBuffer], dict[str, TensorBuffer]]:
        """Return the buffers of all inputs and outputs except the caches."""
        if step.key not in self._buffers:
            inputs, outputs = self._tensors(step)
            model, key = self.model, step.key
            self._buffers[key] = (
                {
                    name: model.create_input_buffer_by_name(key, name)
                    for name in inputs
                    if name not in step.caches
                },
                {
                    name: model.create_output_buffer_by_name(key, name)
                    for name in outputs
                    if name not in step.caches
                },
            )
        return self._buffers[step.key]

    def _fill(
        self, step: Step, inputs: dict[str, TensorBuffer], tokens: Sequence[int], begin: int
    ) -> None:
        """Write the inputs of a run; the causal mask hides the padding after the tokens."""
        padded = np.zeros(step.count, np.int32)
        padded[: len(tokens)] = tokens
        positions = np.arange(begin, begin + step.count)
        if step.tokens:
            _write(inputs[step.tokens], padded)
        for role, embedder in self._embedders.items():
            if name := getattr(step, role):
                _write(inputs[name], embedder.embed(padded))
        if step.positions:
            _write(inputs[step.positions], positions)
        if step.span:
            span = np.zeros(inputs[step.span].shape, np.int32)
            end = begin + len(tokens)
            span.reshape(-1)[:3] = begin, end, end
            _write(inputs[step.span], span)
        if step.mask:
            visible = np.arange(self.context)[None, :] <= positions[:, None]
            buffer = inputs[step.mask]
            _write(buffer, visible if buffer.dtype == bool else np.where(visible, 0.0, _HIDDEN))

    def close(self) -> None:
        """Release the compiled models."""
        with self._lock:
            self.model.close()
            for each in self._embedders.values():
                each.close()


def _write(buffer: TensorBuffer, values: npt.NDArray[Any]) -> None:
    buffer.write(np.ascontiguousarray(values.reshape(buffer.shape), buffer.dtype))
