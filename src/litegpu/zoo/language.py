"""A small language model with the structure of litert-torch's models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.graph.ir import Quantization
from litegpu.zoo import weights
from litegpu.zoo.language_file import WORDS
from litegpu.zoo.layers import Net
from litegpu.zoo.weights import Floats, Moments
from litegpu.zoo.writer import ModelWriter, TensorRef

_RING_STEP = 8
"""The number of positions of a ring buffer is a multiple of this number."""
PREFILL = (8, 32)
"""The token counts N of the signatures `prefill_N`."""
_EPSILON = 1e-5
_PER_LAYER = "per_layer_embeddings"
_STANDARD, _BRANCH = Moments(0.0, 1.0), Moments(0.0, 0.5)
_LOGITS = Moments(0.0, 4.0)
_GATED = Moments(0.0, 0.35)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a decoder, and the storage type of its weights."""

    channels: int = 64
    heads: int = 4
    cache_heads: int = 2
    """The number of key and value heads; the number of query heads is a multiple of it."""
    depth: int = 16
    """The number of channels per head."""
    rotary: int = 16
    """The number (even) of leading channels per head with rotary position embeddings."""
    hidden: int = 128
    weights: str = "float32"
    """The type of the matrices of linear layers: float32, int8 or int4, with a scale per row."""
    words: int = WORDS
    """The number of tokens of the vocabulary."""


class LanguageNet(Net):
    """Adds the layers of a decoder with rotary positions and grouped queries."""

    sizes = Sizes()

    def linear(
        self, x: TensorRef, units: int, name: str, source: Moments, result: Moments
    ) -> TensorRef:
        """Add FULLY_CONNECTED on each token, without a bias."""
        matrix = weights.dense(f"{self.key}/{name}", (units, x.shape[-1]), source, result)[0]
        operands = [x, self._matrix(matrix, f"{name}/weight"), None]
        options = {"keep_num_dims": True}
        shape = (*x.shape[:-1], units)
        return self.op("FULLY_CONNECTED", operands, shape, name, options, version=5)

    def _matrix(self, matrix: Floats, name: str) -> TensorRef:
        kind = self.sizes.weights
        if kind == "float32":
            return self.writer.weights(matrix, name=name)
        most = {"int8": 127, "int4": 7}[kind]
        scales = np.abs(matrix).max(axis=1) / np.float32(most)
        rounded = np.rint(matrix / scales[:, None]).astype(np.int8)
        quantization = Quantization(tuple(scales.tolist()), (0,) * len(scales))
        return self.writer.constant(rounded, kind, name=name, quantization=quantization)

    def op(
        self,
        builtin: str,
        inputs: Sequence[TensorRef | None],
        shape: Sequence[int],
        name: str,
        options: Mapping[str, Any] | None = None,
        *,
        version: int = 1,
        dtype: str = "float32",
    ) -> TensorRef:
        """Add an operation with one result."""
        return self.writer.op(
            builtin, inputs, [shape], options=options, version=version, dtype=dtype, name=name
        )

    def numbers(self, values: Sequence[int], name: str) -> TensorRef:
        """Return a constant of integers."""
        return self.writer.constant(values, "int32", name=name)

    def reshaped(self, x: TensorRef, shape: Sequence[int], name: str) -> TensorRef:
        """Add RESHAPE to a constant shape."""
        sizes = self.numbers(shape, f"{name}/shape")
        return self.op("RESHAPE", [x, sizes], shape, name, dtype=x.dtype)

    def binary(self, builtin: str, a: TensorRef, b: TensorRef, name: str) -> TensorRef:
        """Add an elementwise operation; the result has the shape of `a`."""
        return self.op(builtin, [a, b], a.shape, name)

    def norm(self, x: TensorRef, name: str) -> TensorRef:
        """Add a root mean square normalization."""
        squares = self.binary("MUL", x, x, f"{name}/square")
        axis = self.numbers([len(x.shape) - 1], f"{name}/axis")
        means = self.op("MEAN", [squares, axis], x.shape[:-1], f"{name}/mean")
        small = self.writer.constant(_EPSILON, "float32", name=f"{name}/epsilon")
        means = self.binary("ADD", means, small, f"{name}/add")
        means = self.reshaped(means, (*x.shape[:-1], 1), f"{name}/unsqueeze")
        inverse = self.op("RSQRT", [means], means.shape, f"{name}/rsqrt")
        return self.binary("MUL", x, inverse, f"{name}/mul")

    def transpose(self, x: TensorRef, order: Sequence[int], name: str) -> TensorRef:
        """Add TRANSPOSE."""
        shape = [x.shape[axis] for axis in order]
        return self.op("TRANSPOSE", [x, self.numbers(order, f"{name}/perm")], shape, name)

    def rotated(self, x: TensorRef, angles: tuple[TensorRef, TensorRef], name: str) -> TensorRef:
        """Rotate the channels of `[1, heads, tokens, depth]` by cosines and sines of angles."""
        rotary, rest = self.sizes.rotary, x.shape[-1] - self.sizes.rotary
        if rest:
            first, last = (self._channels(x, *e, name) for e in ((0, rotary), (rotary, rest)))
            both = [self.rotated(first, angles, name), last]
            return self.op("CONCATENATION", both, x.shape, f"{name}/all", {"axis": 3})
        half = (*x.shape[:-1], x.shape[-1] // 2)
        parts = []
        for number in range(2):
            begin = self.numbers([0, 0, 0, number * half[-1]], f"{name}/begin_{number}")
            size = self.numbers(half, f"{name}/size")
            parts.append(self.op("SLICE", [x, begin, size], half, f"{name}/slice_{number}"))
        minus = self.writer.constant(-1.0, "float32", name=f"{name}/minus")
        turned = [self.binary("MUL", parts[1], minus, f"{name}/neg"), parts[0]]
        other = self.op("CONCATENATION", turned, x.shape, f"{name}/cat", {"axis": 3})
        same = self.binary("MUL", x, angles[0], f"{name}/cos")
        return self.binary("ADD", same, self.binary("MUL", other, angles[1], f"{name}/sin"), name)

    def _channels(self, x: TensorRef, first: int, count: int, name: str) -> TensorRef:
        """Add SLICE of some channels."""
        shape = (*x.shape[:-1], count)
        begin = self.numbers([0, 0, 0, first], f"{name}/from_{first}")
        ends = [begin, self.numbers(shape, f"{name}/part_{first}")]
        return self.op("SLICE", [x, *ends], shape, f"{name}/channels_{first}")


def build(
    net: LanguageNet,
    *,
    layers: int,
    context: int,
    embedder: int,
    window: int = 0,
    prefill: Sequence[int] = PREFILL,
) -> None:
    """Add the signatures `decode` and `prefill_N`, N of `prefill`, each with its own graph.

    The inputs of each signature are `tokens`, `input_pos`, `mask` and the KV caches of each layer.
    The caches have `context` positions: keys `[1, heads, context, depth]`, values `[1, heads,
    depth, context]`. The outputs are the caches and, in `decode`, the logits of the token. With
    `embedder`, the signatures have the input `embeddings` `[1, tokens, channels]` instead of
    `tokens`; with 2 also `per_layer_embeddings` `[1, tokens, layers, channels]`, of which each
    layer adds its own to its input.

    With `window`, the first layer and every other one after it have local attention. Their caches
    are ring buffers of at least `window` positions. The graph then has an additional input, the
    mask `local_mask`. In a prefill this mask has the columns of the cache before the run, and one
    column for each token. In `decode` the mask has the columns of the cache after the run.
    """
    ring = -(-window // _RING_STEP) * _RING_STEP
    signatures = [*((f"prefill_{count}", count) for count in prefill), ("decode", 1)]
    for number, (name, tokens) in enumerate(signatures):
        writer = net.writer.subgraph() if number else net.writer
        inner = _like(net, writer)
        if embedder:
            key, x = (
                "embeddings",
                writer.input((1, tokens, net.sizes.channels), name=f"{name}_embeddings"),
            )
            rows = x
        else:
            key, x = "tokens", writer.input((1, tokens), "int32", name=f"{name}_tokens")
            rows = _embedded(inner, x)
        first = {key: x}
        if embedder > 1:
            shape = (1, tokens, layers, net.sizes.channels)
            first[_PER_LAYER] = writer.input(shape, name=f"{name}_{_PER_LAYER}")
        _signature(inner, name, first, rows, layers, context, ring)


def build_embedder(net: LanguageNet, *, layers: int = 0) -> None:
    """Add the model that computes the embeddings for the signatures of `build`.

    With `layers`, the model computes the embeddings for each layer.
    """
    kind, key = ("per_layer_embedder", _PER_LAYER) if layers else ("embedder", "embeddings")
    for number, count in enumerate((1, *PREFILL)):
        name = f"prefill_{kind}_{count}" if count > 1 else f"decode_{kind}"
        inner = _like(net, net.writer.subgraph() if number else net.writer)
        tokens = inner.writer.input((1, count), "int32", name=f"{name}_tokens")
        rows = _embedded(inner, tokens, layers)
        inner.writer.output(rows)
        inner.writer.signature(name, {"token_ids": tokens}, {key: rows})


def _like(net: LanguageNet, writer: ModelWriter) -> LanguageNet:
    """Return a net with the same settings for another graph."""
    return type(net)(net.key, writer)


def _signature(
    net: LanguageNet,
    name: str,
    first: Mapping[str, TensorRef],
    x: TensorRef,
    layers: int,
    context: int,
    ring: int,
) -> None:
    """Add a signature; `first` is its token or embedding input, `x` are the embeddings."""
    writer, tokens = net.writer, x.shape[1]
    decodes = tokens == 1
    inputs = {
        **first,
        "input_pos": writer.input((tokens,), "int32", name=f"{name}_input_pos"),
        "mask": writer.input((1, 1, tokens, context), name=f"{name}_mask"),
    }
    if ring:
        shape = (1, 1, tokens, ring if decodes else ring + tokens)
        inputs["local_mask"] = writer.input(shape, name=f"{name}_local_mask")
    places = {0: _places(net, inputs["input_pos"])}
    if ring:
        places[ring] = _places(net, inputs["input_pos"], ring)
    results: dict[str, TensorRef] = {}
    angles = _angles(net, inputs["input_pos"])
    for layer in range(layers):
        local = 0 if layer % 2 else ring
        shapes = {
            "k": (1, net.sizes.cache_heads, local or context, net.sizes.depth),
            "v": (1, net.sizes.cache_heads, net.sizes.depth, local or context),
        }
        for kind, shape in shapes.items():
            key = f"kv_cache_{kind}_{layer}"
            inputs[key] = writer.input(shape, name=f"{name}_{key}")
        if _PER_LAYER in inputs:
            x = _with_own(net, x, inputs[_PER_LAYER], layer)
        # A prefill needs nothing from its last layer but what that adds to the caches.
        whole = decodes or layer < layers - 1
        x = _layer(net, x, inputs, angles, places[local], layer, results, whole, local)
    if decodes:
        last = net.norm(x, "norm")
        results["logits"] = net.linear(last, net.sizes.words, "lm_head", _STANDARD, _LOGITS)
    writer.output(*results.values())
    writer.signature(name, inputs, results)


def _embedded(net: LanguageNet, tokens: TensorRef, layers: int = 0) -> TensorRef:
    """Add the embeddings `[1, tokens, channels]`, or `[1, tokens, layers, channels]`."""
    sizes = [*[layers] * (layers > 0), net.sizes.channels]
    shape = (net.sizes.words, max(layers, 1) * net.sizes.channels)
    name = "per_layer_embed" if layers else "embed"
    table = weights.dense(f"{net.key}/{name}", shape, _STANDARD, _STANDARD)[0]
    # The moments are those of a row's sum, so each element has a fraction of them.
    table = np.float32(shape[1] ** 0.5) * table
    count = tokens.shape[1]
    operands = [net.reshaped(tokens, (count,), "embed/tokens"), net.writer.weights(table, name="e")]
    rows = net.op("EMBEDDING_LOOKUP", operands, (count, shape[1]), "embed")
    return net.reshaped(rows, (1, count, *sizes), "embed/rows")


def _with_own(net: LanguageNet, x: TensorRef, rows: TensorRef, layer: int) -> TensorRef:
    """Add a layer's own embeddings, one of `[1, tokens, layers, channels]`, to its input."""
    name, shape = f"layers.{layer}/own", (*x.shape[:2], 1, x.shape[2])
    ends = [net.numbers([0, 0, layer, 0], f"{name}/begin"), net.numbers(shape, f"{name}/size")]
    own = net.op("SLICE", [rows, *ends], shape, f"{name}/slice")
    return net.binary("ADD", x, net.reshaped(own, x.shape, f"{name}/rows"), f"{name}/add")


def _angles(net: LanguageNet, positions: TensorRef) -> tuple[TensorRef, TensorRef]:
    """Add the cosines and sines `[1, tokens, depth]`; their frequencies are powers of 2."""
    count = positions.shape[0]
    column = net.reshaped(positions, (1, count, 1), "rope/positions")
    column = net.op("CAST", [column], column.shape, "rope/cast")
    powers = np.ldexp(np.float32(1), -np.arange(net.sizes.rotary // 2)).astype(np.float32)
    frequencies = net.writer.constant(powers.reshape(1, 1, -1), name="rope/frequencies")
    half = net.op("MUL", [column, frequencies], (1, count, net.sizes.rotary // 2), "rope/angles")
    shape = (1, count, net.sizes.rotary)
    angles = net.op("CONCATENATION", [half, half], shape, "rope/both", {"axis": 2})
    cosines, sines = (net.op(each, [angles], shape, f"rope/{each}") for each in ("COS", "SIN"))
    return cosines, sines


def _places(net: LanguageNet, positions: TensorRef, ring: int = 0) -> Mapping[str, TensorRef]:
    """Add the positions at which caches are updated: the first position of the tokens.

    With `ring` and several tokens, the result is the matrix of `_routes` for keys and values.
    """
    if ring and positions.shape[0] > 1:
        return dict.fromkeys("kv", _routes(net, positions, ring))
    if ring:
        size = net.numbers([ring], "place/ring")
        positions = net.op("FLOOR_MOD", [positions, size], (1,), "place/slot", dtype="int32")
    ends = [net.numbers([each], f"place/{each}") for each in (0, 1)]
    first = net.op("SLICE", [positions, *ends], (1,), "place/first", dtype="int32")
    first = net.reshaped(first, (), "place/scalar")
    zero = net.writer.constant(0, "int32", name="place/zero")
    places = {"k": [zero, zero, first, zero], "v": [zero, zero, zero, first]}
    options = {"values_count": 4, "axis": 0}
    return {
        kind: net.op("PACK", each, (4,), f"place/{kind}", options, dtype="int32")
        for kind, each in places.items()
    }


def _routes(net: LanguageNet, positions: TensorRef, ring: int) -> TensorRef:
    """Add the matrix `[1, 1, tokens, ring]` with 1 where a ring buffer stores a token.

    Tokens whose positions do not follow the first one are padding, and are not stored.
    """
    count, name = positions.shape[0], "route"
    ends = [net.numbers([each], f"{name}/{each}") for each in (0, 1)]
    first = net.op("SLICE", [positions, *ends], (1,), f"{name}/first", dtype="int32")
    steps = net.numbers(range(count), f"{name}/steps")
    wanted = net.op("ADD", [steps, first], (count,), f"{name}/wanted", dtype="int32")
    valid = net.op("EQUAL", [positions, wanted], (count,), f"{name}/valid", dtype="bool")
    size = net.numbers([ring], f"{name}/ring")
    slots = net.op("FLOOR_MOD", [positions, size], (count,), f"{name}/slots", dtype="int32")
    column = net.reshaped(slots, (count, 1), f"{name}/column")
    row = net.writer.constant(np.arange(ring, dtype=np.int32)[None], name=f"{name}/row")
    hits = net.op("EQUAL", [column, row], (count, ring), f"{name}/hits", dtype="bool")
    factors = [
        net.op("CAST", [each], each.shape, f"{name}/cast_{number}")
        for number, each in enumerate((hits, net.reshaped(valid, (count, 1), f"{name}/rows")))
    ]
    both = net.op("MUL", factors, (count, ring), f"{name}/both")
    return net.reshaped(both, (1, 1, count, ring), f"{name}/matrix")


def _stored(
    net: LanguageNet, cache: TensorRef, rows: TensorRef, routes: TensorRef, kind: str, name: str
) -> TensorRef:
    """Add the ring buffer of keys (`k`) or values (`v`) that has the rows at `routes`."""
    ring = routes.shape[-1]
    operands, sides = {
        "k": ([routes, rows], {"adj_x": True, "adj_y": False}),
        "v": ([rows, routes], {"adj_x": False, "adj_y": False}),
    }[kind]
    moved = net.op("BATCH_MATMUL", operands, cache.shape, f"{name}/moved", sides)
    axis = net.numbers([2], f"{name}/axis")
    used = net.op("SUM", [routes, axis], (1, 1, ring), f"{name}/used")
    used = net.reshaped(used, (1, 1, ring, 1) if kind == "k" else (1, 1, 1, ring), f"{name}/of")
    zero = net.writer.constant(0.0, "float32", name=f"{name}/zero")
    where = net.op("GREATER", [used, zero], used.shape, f"{name}/where", dtype="bool")
    return net.op("SELECT_V2", [where, moved, cache], cache.shape, f"{name}/cache")


def _layer(
    net: LanguageNet,
    x: TensorRef,
    inputs: Mapping[str, TensorRef],
    angles: tuple[TensorRef, TensorRef],
    places: Mapping[str, TensorRef],
    layer: int,
    results: dict[str, TensorRef],
    whole: bool,
    ring: int,
) -> TensorRef:
    """Add a layer, and its caches to `results`; unless `whole`, only the cache update.

    `ring` is the number of positions of a layer with local attention, else 0.
    """
    name, count = f"layers.{layer}", x.shape[1]
    inner = net.norm(x, f"{name}/input_norm")

    def heads(number: int, part: str) -> TensorRef:
        units = number * net.sizes.depth
        rows = net.linear(inner, units, f"{name}/{part}_proj", _STANDARD, _STANDARD)
        rows = net.reshaped(rows, (1, count, number, net.sizes.depth), f"{name}/{part}/split")
        return net.transpose(rows, (0, 2, 1, 3), f"{name}/{part}/heads")

    new = {"k": net.rotated(heads(net.sizes.cache_heads, "k"), angles, f"{name}/k/rope")}
    new["v"] = net.transpose(heads(net.sizes.cache_heads, "v"), (0, 1, 3, 2), f"{name}/v/turned")
    joins = ring > 0 and count > 1
    read: dict[str, list[TensorRef]] = {}
    for kind, rows in new.items():
        key, part = f"kv_cache_{kind}_{layer}", f"{name}/{kind}"
        if joins:
            read[kind] = [inputs[key], rows]
            results[key] = _stored(net, inputs[key], rows, places[kind], kind, part)
            continue
        operands = [inputs[key], rows, places[kind]]
        shape = inputs[key].shape
        results[key] = net.op("DYNAMIC_UPDATE_SLICE", operands, shape, f"{part}/cache")
        read[kind] = [results[key]]
    if not whole:
        return x
    query = net.rotated(heads(net.sizes.heads, "q"), angles, f"{name}/q/rope")
    mask = inputs["local_mask" if ring else "mask"]
    attended = _attended(net, query, read["k"], read["v"], mask, name)
    branch = net.linear(attended, net.sizes.channels, f"{name}/o_proj", _BRANCH, _BRANCH)
    x = net.binary("ADD", x, branch, f"{name}/add")
    inner = net.norm(x, f"{name}/mlp_norm")
    gate = net.linear(inner, net.sizes.hidden, f"{name}/gate_proj", _STANDARD, _STANDARD)
    chance = net.op("LOGISTIC", [gate], gate.shape, f"{name}/sigmoid")
    up = net.linear(inner, net.sizes.hidden, f"{name}/up_proj", _STANDARD, _STANDARD)
    gate = net.binary("MUL", gate, chance, f"{name}/silu")
    gated = net.binary("MUL", gate, up, f"{name}/gated")
    branch = net.linear(gated, net.sizes.channels, f"{name}/down_proj", _GATED, _BRANCH)
    return net.binary("ADD", x, branch, f"{name}/add_1")


def _attended(
    net: LanguageNet,
    query: TensorRef,
    keys: Sequence[TensorRef],
    values: Sequence[TensorRef],
    mask: TensorRef,
    name: str,
) -> TensorRef:
    """Add grouped-query attention: queries of heads that share keys are rows of one matrix.

    The keys and values are a cache, or a cache and new tokens.
    """
    count, columns, group = query.shape[2], mask.shape[3], net.sizes.heads // net.sizes.cache_heads
    rows = (1, net.sizes.cache_heads, group * count)
    scale = net.writer.constant(net.sizes.depth**-0.5, "float32", name=f"{name}/scale")
    query = net.binary("MUL", query, scale, f"{name}/scaled")
    query = net.reshaped(query, (*rows, net.sizes.depth), f"{name}/grouped")
    right = {"adj_x": False, "adj_y": True}
    parts = [
        net.op("BATCH_MATMUL", [query, each], (*rows, each.shape[2]), f"{name}/qk_{part}", right)
        for part, each in enumerate(keys)
    ]
    scores = _joined(net, parts, 3, f"{name}/scores")
    masks = _joined(net, [mask] * group, 2, f"{name}/masks")
    scores = net.binary("ADD", scores, masks, f"{name}/masked")
    chances = net.op("SOFTMAX", [scores], scores.shape, f"{name}/softmax", {"beta": 1.0})
    found, begin = None, 0
    for part, each in enumerate(values):
        weights_of, size = chances, each.shape[3]
        if size < columns:
            ends = [(0, 0, 0, begin), (*rows, size)]
            sides = [net.numbers(one, f"{name}/end_{part}_{n}") for n, one in enumerate(ends)]
            weights_of = net.op("SLICE", [chances, *sides], ends[1], f"{name}/part_{part}")
        begin += size
        shape = (*rows, net.sizes.depth)
        one = net.op("BATCH_MATMUL", [weights_of, each], shape, f"{name}/av_{part}", right)
        found = one if found is None else net.binary("ADD", found, one, f"{name}/sum")
    assert found is not None
    found = net.reshaped(found, (1, net.sizes.heads, count, net.sizes.depth), f"{name}/ungrouped")
    found = net.transpose(found, (0, 2, 1, 3), f"{name}/tokens")
    return net.reshaped(found, (1, count, net.sizes.heads * net.sizes.depth), f"{name}/joined")


def _joined(net: LanguageNet, parts: Sequence[TensorRef], axis: int, name: str) -> TensorRef:
    """Add CONCATENATION of one value or more along an axis."""
    if len(parts) == 1:
        return parts[0]
    shape = [*parts[0].shape]
    shape[axis] = sum(each.shape[axis] for each in parts)
    return net.op("CONCATENATION", parts, shape, name, {"axis": axis})
