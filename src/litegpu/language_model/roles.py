"""Determines the role of each input and output of a language model's signatures.

Converters name inputs and outputs differently. The module therefore recognizes a cache as an input
and an output with the same name, shape and dtype. All other inputs are recognized by dtype and
shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.compiled_model.signatures import Signature, Tensor
from litegpu.errors import ModelError


@dataclass(frozen=True)
class Step:
    """A signature that processes the next tokens of a sequence."""

    key: str
    index: int
    """The number of the signature in the model."""
    count: int
    """The number of tokens that a run of the signature processes."""
    tokens: str = ""
    """The name of the token input, `[1, count]`; empty if the input is embeddings."""
    embeddings: str = ""
    """The name of the embedding input, `[1, count, channels]`."""
    per_layer: str = ""
    """The name of the input of embeddings for each layer, `[1, count, layers, channels]`; empty if
    there is none."""
    positions: str = ""
    """The name of the position input, `[count]`; empty if there is none."""
    mask: str = ""
    """The name of the mask input, `[1, 1, count, context]`; empty if there is none."""
    span: str = ""
    """The name of the input with the first and last position, `[1, 1, 1, 7]`, for composites that
    update caches; empty if there is none."""
    logits: str = ""
    """The name of the logits output; empty if there is none."""
    caches: tuple[str, ...] = ()


def steps_of(signatures: Iterable[Signature]) -> list[Step]:
    """Return the signatures that have caches. Raises ModelError for an unknown input."""
    found = []
    for index, signature in enumerate(signatures):
        results = {each.key: each for each in signature.outputs}
        caches = tuple(
            each.key
            for each in signature.inputs
            if each.key in results and _alike(each, results[each.key])
        )
        if caches:
            found.append(_step(index, signature, caches))
    return found


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype)


def _step(index: int, signature: Signature, caches: tuple[str, ...]) -> Step:
    names: dict[str, Tensor] = {}
    inputs = [each for each in signature.inputs if each.key not in caches]
    count = next((t.shape[1] for t in inputs if _role(t, 0) in ("tokens", "embeddings")), 0)
    for tensor in inputs:
        role = _role(tensor, count)
        if not role or role in names:
            raise ModelError(
                f"The signature '{signature.key}' takes '{tensor}', but litegpu supports only "
                "these inputs of language models: tokens or embeddings, embeddings for each layer, "
                "positions, one mask, caches."
            )
        names[role] = tensor
    if not {"tokens", "embeddings"} & names.keys():
        raise ModelError(
            f"The signature '{signature.key}' has caches, and no input of tokens or embeddings."
        )
    return Step(
        signature.key,
        index,
        count,
        logits=_logits([each for each in signature.outputs if each.key not in caches]),
        caches=caches,
        **{role: tensor.key for role, tensor in names.items()},
    )


def _role(tensor: Tensor, count: int) -> str:
    """Return the role of an input of a signature for `count` tokens; empty if it has none."""
    kind, rank = tensor.dtype.kind, len(tensor.shape)
    if kind == "i" and tensor.dtype.itemsize >= np.dtype(np.int32).itemsize:
        return {1: "positions", 2: "tokens", 4: "span"}.get(rank, "")
    if kind == "f" and rank == 3:
        return "embeddings"
    if kind not in "bf" or rank != 4:
        return ""
    if tensor.shape[1:3] == (1, count):
        return "mask"
    return "per_layer" if kind == "f" and tensor.shape[1] == count else ""


def _logits(outputs: Sequence[Tensor]) -> str:
    """Return the name of the float output with the longest rows; empty if there is none."""
    floats = [each for each in outputs if each.dtype.kind == "f" and each.shape]
    return max(floats, key=lambda each: each.shape[-1]).key if floats else ""
