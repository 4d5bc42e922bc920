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
from litegpu.language_model.masks import Visible, causal, local
from litegpu.language_model.metadata import Metadata
from litegpu.language_model.roles import Step, decoder_of, steps_of
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
        self,
        model: CompiledModel,
        embedders: Mapping[str, Embedder],
        metadata: Metadata,
        padding: int | None = None,
    ) -> None:
        """Use the compiled model, and the embedders of its inputs.

        The keys are the names of roles in Step: `embeddings` and `per_layer`. `padding` is the
        token that the model's graph ignores; None if unknown. Raises ModelError if the signatures
        are not those of a language model, or if an embedder is missing or does not fit.
        """
        self.model, self._embedders = model, embedders
        self.prefills = steps_of(model.signatures)
        """All signatures with the same caches, including the decoder, sorted by token count."""
        self.decoder = decoder_of(self.prefills)
        self._check_embedders()
        self._lock = threading.RLock()
        self._buffers: dict[str, tuple[dict[str, TensorBuffer], dict[str, TensorBuffer]]] = {}
        self.context = self._context_of(metadata)
        self._window = metadata.window
        self._padding = padding
        self._whole = {
            name
            for name, tensor in self._tensors(self.decoder)[0].items()
            if name in self.decoder.caches
            and name not in metadata.states
            and self.context in _positions_of(tensor)
        }
        """The names of caches with all positions; other caches overwrite positions."""
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
        """Whether each cache stores all positions; a shorter cache is a ring buffer or a state."""
        return len(self._whole) == len(self.decoder.caches)

    def new_caches(self) -> Caches:
        """Allocate the caches of a session, in device memory if the GPU runs whole signatures."""
        direct = all(self.model.runs_directly(each.index) for each in self.prefills)
        kind = "device" if direct and self.model.report is not None else None

        def new(name: str) -> TensorBuffer:
            return self.model.create_input_buffer_by_name(self.decoder.key, name, kind)

        present = {name: new(name) for name in self.decoder.caches}
        others = {name: new(name) for name in self.decoder.caches if name not in self._whole}
        caches = Caches(present, {**present, **others})
        if self.cache_start:
            caches.fill(self.cache_start)
        return caches

    def prefill_of(self, count: int, begin: int) -> Step:
        """Return the smallest signature for `count` tokens, else the largest that fits the caches.

        A signature for N tokens writes N cache positions, starting at `begin`, even if some tokens
        are padding.
        """
        fitting = [
            each
            for each in self.prefills
            # More tokens than a ring buffer has positions would overwrite each other.
            if begin + each.count <= self.context and each.count <= (each.ring or each.count)
        ]
        enough = (each for each in fitting if each.count >= count and self._pads(each, count))
        full = (each for each in reversed(fitting) if each.count <= count)
        return next(enough, next(full, self.decoder))

    def _pads(self, step: Step, count: int) -> bool:
        """Return whether a signature ignores the padding after `count` tokens.

        A graph ignores positions that do not increase, or a token that the metadata name. Padding
        in a cache with all positions is hidden by masks and overwritten later.
        """
        return (
            step.count == count
            or self.can_rewind
            or not step.tokens
            or bool(step.span)
            or self._padding is not None
        )

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
        padded = np.full(step.count, self._padding or 0, np.int32)
        padded[: len(tokens)] = tokens
        positions = np.arange(begin, begin + step.count)
        if step.tokens:
            _write(inputs[step.tokens], padded)
        for role, embedder in self._embedders.items():
            if name := getattr(step, role):
                _write(inputs[name], embedder.embed(padded))
        if step.positions:
            # Caches that overwrite positions ignore tokens whose positions do not increase.
            shown = positions if self.can_rewind else positions * (positions < begin + len(tokens))
            _write(inputs[step.positions], shown)
        if step.span:
            span = np.zeros(inputs[step.span].shape, np.int32)
            end = begin + len(tokens)
            span.reshape(-1)[:3] = begin, end, end
            _write(inputs[step.span], span)
        if step.mask:
            _write_mask(inputs[step.mask], causal(positions, self.context))
        if step.local_mask:
            buffer = inputs[step.local_mask]
            columns, window = buffer.shape[-1], self._window or step.ring
            _write_mask(buffer, local(positions, step.ring, columns, window))

    def close(self) -> None:
        """Release the compiled models."""
        with self._lock:
            self.model.close()
            for each in self._embedders.values():
                each.close()


def _write(buffer: TensorBuffer, values: npt.NDArray[Any]) -> None:
    buffer.write(np.ascontiguousarray(values.reshape(buffer.shape), buffer.dtype))


def _write_mask(buffer: TensorBuffer, visible: Visible) -> None:
    _write(buffer, visible if buffer.dtype == bool else np.where(visible, 0.0, _HIDDEN))


def _positions_of(cache: Tensor) -> tuple[int, ...]:
    """Return the sizes of two axes of a key-value cache; one is the number of positions.

    The cache has the shape `[1, heads, positions, depth]` or `[1, heads, depth, positions]`.
    """
    return cache.shape[2:] if len(cache.shape) == 4 else ()
