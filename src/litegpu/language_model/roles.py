"""Determines the role of each input and output of a language model's signatures.

Converters name inputs and outputs differently. The module therefore recognizes a cache as an input
and an output with the same name, shape and dtype. All other inputs are recognized by dtype and
shape. Two masks are told apart by the shapes that they have in several signatures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
    local_mask: str = ""
    """The name of the mask of local attention, `[1, 1, count, columns]`; empty if there is none."""
    ring: int = 0
    """The number of cache positions of local attention, if there is a local mask.

    The local mask has a column for each of these positions. If the graph reads the cache before it
    adds the new tokens, the mask has another column for each new token.
    """
    span: str = ""
    """The name of the input with the first and last position, `[1, 1, 1, 7]`, for composites that
    update caches; empty if there is none."""
    logits: str = ""
    """The name of the logits output; empty if there is none."""
    rows: int = 1
    """The number of tokens that the logits belong to."""
    caches: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Found:
    """A signature with caches, before its masks are told apart."""

    step: Step
    masks: Mapping[str, int]
    """The number of columns of each mask."""
    caches: frozenset[tuple[str, tuple[int, ...], str]]
    """The name, shape and type of each cache."""
    nbytes: int
    """The size of all caches."""


def steps_of(signatures: Sequence[Signature]) -> list[Step]:
    """Return the signatures that share one set of caches, sorted by token count.

    If the signatures have several sets of caches, the largest set is used. Signatures with unknown
    inputs (such as weights of adapters) are left out. Raises ModelError if none remains that takes
    one token and returns logits.
    """
    groups: dict[Any, list[_Found]] = {}
    errors = []
    for index, signature in enumerate(signatures):
        try:
            found = _step(index, signature)
        except ModelError as error:
            errors.append(error)
            continue
        if found is not None:
            groups.setdefault(found.caches, []).append(found)
    complete = [each for each in groups.values() if any(_decodes(one.step) for one in each)]
    if not complete:
        raise (
            errors[0]
            if errors
            else ModelError(
                "The model has no signature that takes one token and caches, and returns logits "
                "and the caches. LanguageModel is for models with `prefill` and `decode` "
                "signatures, as litert-torch writes them; use CompiledModel for others."
            )
        )
    largest = max(complete, key=lambda each: each[0].nbytes)
    steps = sorted(_with_masks(largest), key=lambda each: each.count)
    # A signature with the logits of each token verifies guesses; as a prefill it wastes work.
    plain = [each for each in steps if each.rows == 1 or each.count == 1]
    return plain if any(each.count > 1 for each in plain) else steps


def decoder_of(steps: Iterable[Step]) -> Step:
    """Return the signature that takes one token and returns its logits."""
    return next(filter(_decodes, steps))


def _decodes(step: Step) -> bool:
    return step.count == 1 and bool(step.logits)


def _step(index: int, signature: Signature) -> _Found | None:
    """Return a signature with caches; None without caches. Raises ModelError for other inputs."""
    results = {each.key: each for each in signature.outputs}
    caches = {
        each.key: each
        for each in signature.inputs
        if each.key in results and _alike(each, results[each.key])
    }
    if not caches:
        return None
    names: dict[str, Tensor] = {}
    masks: dict[str, int] = {}
    inputs = [each for each in signature.inputs if each.key not in caches]
    count = next((t.shape[1] for t in inputs if _role(t, 0) in ("tokens", "embeddings")), 0)
    for tensor in inputs:
        role = _role(tensor, count)
        if role == "mask" and len(masks) < 2:
            masks[tensor.key] = tensor.shape[-1]
            continue
        if not role or role in names or role == "mask":
            raise ModelError(
                f"The signature '{signature.key}' takes '{tensor}', but litegpu supports only "
                "these inputs of language models: tokens or embeddings, embeddings for each layer, "
                "positions, a mask, a mask for local attention, caches."
            )
        names[role] = tensor
    if not {"tokens", "embeddings"} & names.keys():
        raise ModelError(
            f"The signature '{signature.key}' has caches, and no input of tokens or embeddings."
        )
    logits = _logits([each for each in signature.outputs if each.key not in caches])
    roles: dict[str, Any] = {role: tensor.key for role, tensor in names.items()}
    if logits:
        roles |= {"logits": logits.key, "rows": int(np.prod(logits.shape[:-1]))}
    step = Step(signature.key, index, count, caches=tuple(caches), **roles)
    return _Found(
        step,
        masks,
        frozenset((key, each.shape, each.dtype.str) for key, each in caches.items()),
        sum(each.nbytes for each in caches.values()),
    )


def _alike(a: Tensor, b: Tensor) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype)


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


def _logits(outputs: Sequence[Tensor]) -> Tensor | None:
    """Return the float output with the longest rows; None if there is none."""
    floats = [each for each in outputs if each.dtype.kind == "f" and each.shape]
    return max(floats, key=lambda each: each.shape[-1], default=None)


def _with_masks(group: Sequence[_Found]) -> list[Step]:
    """Return the steps of signatures, with the roles of their masks. Raises ModelError."""
    columns: dict[str, dict[int, int]] = {}
    for each in group:
        for name, width in each.masks.items():
            columns.setdefault(name, {})[each.step.count] = width
    rings = {name: ring for name, widths in columns.items() if (ring := _ring(widths))}
    steps = []
    for each in group:
        local = [name for name in each.masks if name in rings]
        if not local and len(each.masks) == 2:
            local = _local_of_alike(each)
            rings |= {name: each.masks[name] for name in local}
        others = [name for name in each.masks if name not in local]
        if len(local) > 1:
            raise ModelError(
                f"The signature '{each.step.key}' has two masks for local attention, {local[0]} "
                f"and {local[1]}. litegpu supports one. Use CompiledModel."
            )
        mask, local_mask = next(iter(others), ""), next(iter(local), "")
        ring = rings.get(local_mask, 0)
        steps.append(replace(each.step, mask=mask, local_mask=local_mask, ring=ring))
    return steps


def _ring(widths: Mapping[int, int]) -> int:
    """Return the cache positions of local attention that a mask is for; 0 for a global mask.

    `widths` are the columns of the mask by token count. Signatures for several tokens have the
    columns of the cache and one for each token. A signature for one token has the columns of the
    cache, or one more.
    """
    rings = {width - count for count, width in widths.items() if count > 1}
    if len(rings) != 1 or len({*widths.values()}) == 1:
        return 0
    ring = rings.pop()
    return ring if widths.get(1, ring) in (ring, ring + 1) else 0


def _local_of_alike(found: _Found) -> list[str]:
    """Return the local one of two masks that have the same columns in all signatures.

    The narrower mask is local. Only the name distinguishes masks of the same size.
    """
    narrow, wide = sorted(found.masks, key=lambda name: found.masks[name])
    if found.masks[narrow] < found.masks[wide]:
        return [narrow]
    named = [name for name in found.masks if "local" in name.lower()]
    if len(named) != 1:
        raise ModelError(
            f"The signature '{found.step.key}' has two masks of {found.masks[narrow]} columns, "
            f"{narrow} and {wide}. Name the mask for local attention 'local_mask'."
        )
    return named
