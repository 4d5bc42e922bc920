"""Draws networks: convolutions, common blocks, and every family of random cases."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from cases.attention import Attention
from cases.base import Case, Range, Shape
from cases.conv_2d import Conv
from cases.depthwise_conv_2d import Depthwise
from cases.elementwise import Binary, Unary
from cases.fully_connected import Dense
from cases.index_maps import IndexMap
from cases.lstm import IntegerLstm, Lstm
from cases.normalize import APPLIED, ROOTS, SQUARES, Normalization
from cases.pool_2d import AveragePool, MaxPool
from cases.reduce import Reduce
from cases.reshape import Reshape
from cases.resize_bilinear import Resize
from cases.transpose_conv import TransposeConv
from dice import Dice, Seeded
from fuzzing.network import Builder, Key, Layer, UnfitError
from random_cases import MOVES
from random_elements import ELEMENTS
from random_layers import fitting_padding

_ACTIVATIONS = ("NONE", "RELU", "RELU6", "RELU_N1_TO_1")
_SMOOTH = ("LOGISTIC", "TANH", "HARD_SWISH", "GELU", "ELU")
_ANY = Range()


@dataclass(frozen=True)
class Size:
    """How large a network may be: elements of a value, products of a layer and of all of them."""

    elements: int
    first: int
    products: int
    side: int
    channels: int
    batch: int


SMALL = Size(1 << 13, 1 << 10, 1 << 17, 24, 40, 4)
LARGE = Size(1_500_000, 250_000, 100_000_000, 200, 400, 64)
HUGE = Size(5_000_000, 2_000_000, 300_000_000, 256, 400, 64)
"""What memory is short for: such values are stored as half at fp16, and some kernels want them."""


class Drawing(Dice):
    """Chance for the next layer, whose first input is the current value."""

    def __init__(self, kind: str, seed: int) -> None:
        """Draw by a seed."""
        self._dice, self.size = Seeded(seed), size_of(kind, seed)
        self.is_simulated = kind.endswith("int8")
        self.builder = Builder(kind, seed, self.size.elements)
        self.current: Key | None = None
        self._first = self._first_shape()

    def number(self, low: int, high: int) -> int:
        """Draw a whole number."""
        return self._dice.number(low, high)

    def spread(self, low: int, high: int) -> int:
        """Draw a whole number, small ones as often as large ones."""
        if high < low:
            raise UnfitError("no room")
        return round(math.exp(math.log(low) + math.log(high / low) * self.number(0, 1000) / 1000))

    def rarely(self, odds: int = 8) -> bool:
        """Draw a truth value that is seldom true."""
        return self.number(1, odds) == 1

    @property
    def value(self) -> Shape:
        """The shape of the current value."""
        return self._first if self.current is None else self.builder.values[self.current].shape

    def image(self) -> Shape:
        """Return the current value's shape, if it is a batch of images."""
        return self.shape(4, 4)

    def shape(self, lowest: int = 0, highest: int = 5) -> Shape:
        """Return the current value's shape, if it has such a rank."""
        if not lowest <= len(self.value) <= highest:
            raise UnfitError(f"rank {len(self.value)}")
        return self.value

    def channels(self) -> int:
        """Draw a number of channels."""
        count = self.spread(1, self.size.channels)
        whole = self.one_of(1, 1, 8, 8, 16, 32)
        return -(-count // whole) * whole if count > 4 else count

    def most_channels(self, each: int) -> int:
        """Draw a number of channels that each take so many products."""
        most = min(self.size.products // max(each, 1), self.size.channels)
        if most < 1:
            raise UnfitError("too much work")
        return min(self.channels(), most)

    def divisor(self, number: int) -> int:
        """Draw a divisor."""
        low = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
        return self.one_of(*low, *(number // n for n in low))

    def add(self, case: Case, *sources: Key | None) -> None:
        """Add a layer that reads the current value, if no sources are given."""
        left = list(sources) or [self.current]

        def choose(shape: Shape, values: Range) -> Key | None:
            if left and self._is_like(left[0], shape):
                return left.pop(0)
            others = [key for key in self.builder.values if self._is_equal(key, shape)]
            return self.one_of(*others, None) if others and values.dtype == "float32" else None

        keys = self.builder.add(Layer(len(self.builder.layers), case), choose)
        floats = [k for k in keys if self.builder.values[k].elements.dtype == "float32"]
        if floats:
            self.current = self.one_of(*floats)

    def _is_like(self, key: Key | None, shape: Shape) -> bool:
        found = None if key is None else self.builder.values.get(key)
        return found is not None and found.elements.size == math.prod(shape)

    def _is_equal(self, key: Key, shape: Shape) -> bool:
        found = self.builder.values[key]
        return found.shape == shape and found.elements.dtype == "float32"

    def choose_source(self) -> None:
        """Go on from the last value mostly, at times from an earlier one."""
        keys = [k for k, v in self.builder.values.items() if v.elements.dtype == "float32"]
        if not keys:
            return
        if self.rarely(5):
            self.current = self.one_of(*keys)
        if len(self.value) < 4 and self.rarely(3):
            images = [key for key in keys if len(self.builder.values[key].shape) == 4]
            self.current = self.one_of(*images) if images else self.current

    def _first_shape(self) -> Shape:
        size = self.size
        while True:
            batch = self.one_of(1, 1, 1, 2, self.spread(1, size.batch))
            height = self.spread(min(5, size.side), size.side)
            width = height if self.flag() else self.spread(min(5, size.side), size.side)
            shape = (batch, height, width, self.one_of(3, self.channels(), self.channels()))
            # Most drawn shapes are too large; those that are left are small ones, mostly.
            if size.first // self.one_of(2, 8, 100, size.first) <= math.prod(shape) <= size.first:
                return shape


Grow = Callable[[Drawing], None]


def _kernel(net: Drawing) -> tuple[int, int]:
    square = net.one_of(1, 1, 3, 3, 3, 5, 7, 9)
    return (square, square) if not net.rarely(4) else net.pair(1, 7)


def _products(image: Shape, case: Conv | Depthwise) -> int:
    """Return the products of one filter and one channel."""
    place = math.prod(-(-n // s) for n, s in zip(image[1:3], case.stride, strict=True))
    return image[0] * place * math.prod(case.kernel)


def convolution(net: Drawing) -> None:
    """Any window, groups, and weights of half now and then."""
    _conv(net, _kernel(net), net.one_of((1, 1), (1, 1), (2, 2), net.pair(1, 3)))


def _conv(
    net: Drawing,
    kernel: tuple[int, int],
    stride: tuple[int, int] = (1, 1),
    filters: int = 0,
    activation: str | None = None,
) -> None:
    image = net.image()
    dilation = net.pair(1, 4) if net.rarely(6) and stride == (1, 1) and not filters else (1, 1)
    groups = net.divisor(image[3]) if net.rarely(8) and not filters else 1
    case = Conv(
        image=image,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        groups=groups,
        padding=fitting_padding(net, image, kernel, dilation),
        activation=net.one_of(*_ACTIVATIONS) if activation is None else activation,
        weights="half" if net.rarely() else "constant",
    )
    each = _products(image, case) * image[3] // groups
    if filters and filters * each > net.size.products:
        raise UnfitError("too much work")
    filters = filters or max(net.most_channels(each) // groups, 1) * groups
    net.add(Conv(**{**vars(case), "filters": filters}))


def depthwise(net: Drawing) -> None:
    """Any window and multiplier."""
    stride = net.one_of((1, 1), (1, 1), (2, 2), net.pair(1, 3))
    _depthwise(net, _kernel(net), stride, net.one_of(1, 1, 1, 1, 2, 3))


def _depthwise(
    net: Drawing,
    kernel: tuple[int, int],
    stride: tuple[int, int],
    multiplier: int = 1,
    activation: str | None = None,
) -> None:
    image = net.image()
    dilation = net.pair(1, 3) if net.rarely(6) and stride == (1, 1) else (1, 1)
    case = Depthwise(
        image=image,
        multiplier=multiplier,
        kernel=kernel,
        stride=stride,
        dilation=dilation,
        padding=fitting_padding(net, image, kernel, dilation),
        activation=net.one_of(*_ACTIVATIONS) if activation is None else activation,
    )
    if _products(image, case) * image[3] * multiplier > net.size.products:
        raise UnfitError("too much work")
    net.add(case)


def inverted(net: Drawing) -> None:
    """Pointwise, depthwise and pointwise convolutions, and the sum with what they began from."""
    start, image = net.current, net.image()
    expanded = min(image[3] * net.one_of(2, 3, 4, 6), net.size.channels)
    activation = net.one_of("RELU6", "RELU6", "RELU", "NONE")
    size = 3 if net.rarely(8) else 1
    _conv(net, (size, size), filters=expanded, activation=activation)
    if net.rarely(8):
        net.add(Unary(op="HARD_SWISH", shape=net.value))
    kernel = net.one_of(3, 3, 5, net.number(2, 7))
    stride = net.one_of((1, 1), (1, 1), (2, 2))
    _depthwise(net, (kernel, kernel), stride, activation=activation)
    if net.rarely(5):
        squeeze(net)
    residual = start is not None and net.value[:3] == image[:3] and net.flag()
    _conv(net, (1, 1), filters=image[3] if residual else net.channels(), activation="NONE")
    if residual:
        _sum(net, start)


def separable(net: Drawing) -> None:
    """A depthwise and a pointwise convolution, now and then with a sum."""
    start, image = net.current, net.image()
    kernel = net.one_of(3, 3, 5, net.number(1, 7))
    _depthwise(net, (kernel, kernel), net.one_of((1, 1), (1, 1), (2, 2)))
    residual = start is not None and net.value[:3] == image[:3] and net.flag()
    _conv(net, (1, 1), filters=image[3] if residual else 0)
    if residual:
        _sum(net, start)


def residual(net: Drawing) -> None:
    """Two convolutions and the sum with what they began from."""
    start, image = net.current, net.image()
    if start is None:
        raise UnfitError("nothing to add")
    narrow = max(image[3] // net.one_of(1, 2, 4), 1)
    _conv(net, net.one_of((1, 1), (3, 3)), filters=narrow)
    _conv(net, net.one_of((1, 1), (3, 3)), filters=image[3], activation="NONE")
    _sum(net, start)


def _sum(net: Drawing, other: Key | None) -> None:
    """Add an earlier value to the current one."""
    if other is None or net.builder.values[other].shape != net.value:
        raise UnfitError("other shapes")
    pair = (net.current, other) if net.flag() else (other, net.current)
    activation = net.one_of("NONE", "NONE", "RELU", "RELU6")
    net.add(Binary(op="ADD", first=net.value, second=net.value, activation=activation), *pair)


def squeeze(net: Drawing) -> None:
    """Squeeze and excite: a factor for each channel from the mean of all pixels."""
    start, image = net.current, net.image()
    if start is None:
        raise UnfitError("nothing to scale")
    if net.flag():
        net.add(Reduce(op="MEAN", shape=image, axes=(1, 2), keep=True, values=_ANY))
    else:
        net.add(AveragePool(image=image, kernel=(image[1], image[2]), padding="VALID", values=_ANY))
    _conv(net, (1, 1), filters=max(image[3] // 4, 1), activation="RELU")
    _conv(net, (1, 1), filters=image[3], activation="NONE")
    net.add(Unary(op=net.one_of("LOGISTIC", "HARD_SWISH", "RELU6"), shape=net.value))
    gate = net.current
    pair = (start, gate) if net.flag() else (gate, start)
    shapes = [net.builder.values[key].shape for key in pair if key is not None]
    net.add(Binary(op="MUL", first=shapes[0], second=shapes[1]), *pair)


def transposed(net: Drawing) -> None:
    """A transposed convolution."""
    image = net.image()
    kernel = net.one_of((2, 2), (3, 3), (4, 4), net.pair(1, 5))
    stride = net.one_of((2, 2), (2, 2), (1, 1), net.pair(1, 3))
    each = math.prod(image) * math.prod(kernel)
    net.add(
        TransposeConv(
            image=image,
            filters=net.most_channels(each),
            kernel=kernel,
            stride=stride,
            padding=net.one_of("SAME", "VALID"),
            activation=net.one_of(*_ACTIVATIONS),
        )
    )


def dense(net: Drawing) -> None:
    """A fully connected layer of the last dimension, or of all but the first."""
    shape = net.shape(2)
    whole = len(shape) > 2 and math.prod(shape[1:]) <= 4096 and net.flag()
    net.add(
        Dense(
            shape=shape,
            units=net.most_channels(math.prod(shape)),
            depth=math.prod(shape[1:]) if whole else 0,
            keep_num_dims=not whole and net.flag(),
            activation=net.one_of(*_ACTIVATIONS),
            weights="half" if net.rarely() else "constant",
        )
    )


def normalization(net: Drawing) -> None:
    """A normalization of channels, of pixels or of both, as exporters spell them."""
    shape = net.shape(2, 4)
    last = len(shape) - 1
    net.add(
        Normalization(
            shape=shape,
            axes=net.one_of((last,), (last,), (1, 2) if last == 3 else (last,)),
            squares=net.one_of(*SQUARES),
            root=net.one_of(*ROOTS),
            applied=net.one_of(*APPLIED),
            centred=not net.rarely(5),
            affine=net.one_of("constant", "constant", ""),
            keep=net.flag(),
            residual=net.rarely(6),
            values=_ANY,
        )
    )


def attention(net: Drawing) -> None:
    """A block of a transformer: attention of heads, then two layers, with sums around both."""
    shape = net.shape(3, 4)
    batch, tokens, width = shape[0], math.prod(shape[1:-1]), shape[-1]
    if batch * tokens * width * width > net.size.products:
        raise UnfitError("too much work")
    if batch * tokens * tokens * max(width, 16) > net.size.products:
        raise UnfitError("too many tokens")
    rows = (batch, tokens, width)
    if shape != rows:
        net.add(Reshape(shape=shape, to=rows))
    start = net.current
    if net.flag():
        normalization(net)
    read = net.current
    projected = []
    for _ in range(3):
        net.current = read
        net.add(Dense(shape=rows, units=width, keep_num_dims=True))
        projected.append(net.current)
    heads = net.divisor(width)
    mask = net.one_of(None, None, (batch, 1, 1, tokens))
    net.add(
        Attention(
            batch=batch,
            heads=heads,
            queries=tokens,
            keys=tokens,
            depth=width // heads,
            across=True,
            rows=mask is None and net.rarely(4),
            scale=(width // heads) ** -0.5,
            mask=mask,
            rotary=net.one_of("", "joined", "apart") if width // heads % 2 == 0 else "",
        ),
        *projected,
    )
    net.add(Dense(shape=rows, units=width, keep_num_dims=True))
    if start is not None:
        _sum(net, start)
    if net.flag():
        middle = net.current
        net.add(Dense(shape=rows, units=min(4 * width, net.size.channels), keep_num_dims=True))
        net.add(Unary(op=net.one_of("GELU", "RELU", "HARD_SWISH"), shape=net.value))
        net.add(Dense(shape=net.value, units=width, keep_num_dims=True))
        _sum(net, middle)


def pool(net: Drawing) -> None:
    """An average or maximum over a window, or over all pixels."""
    image = net.image()
    whole = image[1], image[2]
    kernel = net.one_of((2, 2), (2, 2), (3, 3), whole, net.pair(1, 7))
    if math.prod(image) * math.prod(kernel) > net.size.products:
        raise UnfitError("too much work")
    stride = net.one_of((1, 1), (2, 2), (2, 2), net.pair(1, 4))
    family = net.one_of(AveragePool, MaxPool)
    padding = fitting_padding(net, image, kernel)
    activation = net.one_of(*_ACTIVATIONS)
    net.add(
        family(
            image=image,
            kernel=kernel,
            stride=stride,
            padding=padding,
            activation=activation,
            values=_ANY,
        )
    )


def resize(net: Drawing) -> None:
    """Twice as large, half as large, or any size."""
    n, h, w, c = net.image()
    size = net.one_of((2 * h, 2 * w), (max(h // 2, 1), max(w // 2, 1)), net.pair(1, net.size.side))
    if n * math.prod(size) * c > net.size.elements:
        raise UnfitError("too large")
    op = net.one_of("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
    corners, centers = net.one_of((False, False), (True, False), (False, True))
    net.add(Resize(op=op, image=(n, h, w, c), size=size, corners=corners, centers=centers))


def mirrored(net: Drawing) -> None:
    """Mirrored rows and columns around images, as before a convolution."""
    image = net.image()
    mode = net.one_of("REFLECT", "SYMMETRIC")
    most = [min(size - (mode == "REFLECT"), 4) for size in image[1:3]]
    pads = ((0, 0), net.pair(0, most[0]), net.pair(0, most[1]), (0, 0))
    net.add(IndexMap(op="MIRROR_PAD", shape=image, operands=(pads,), options=(("mode", mode),)))


def activation(net: Drawing) -> None:
    """A smooth activation, or one that has no fused form."""
    net.add(Unary(op=net.one_of(*_SMOOTH), shape=net.value))


def lstm(net: Drawing) -> None:
    """An LSTM over rows, seldom of integers."""
    batch, steps, inputs = net.shape(3, 3)
    cells = net.spread(1, min(64, net.size.channels))
    if steps > 24 or batch * steps * 4 * cells * (inputs + cells) > net.size.products:
        raise UnfitError("too much work")
    # The simulation of integers as floats has no LSTMs of integers.
    if net.is_simulated or not net.rarely(3):
        net.add(Lstm(batch=batch, steps=steps, inputs=inputs, cells=cells))
        return
    net.add(
        IntegerLstm(
            batch=batch,
            steps=steps,
            inputs=inputs,
            cells=cells,
            floats=True,
            normalized=net.flag(),
            peephole=net.flag(),
        )
    )


def _simple(family: Callable[[Dice], Case]) -> Grow:
    def grow(net: Drawing) -> None:
        net.add(family(net))

    return grow


_MOVES = tuple(map(_simple, MOVES))
_ELEMENTS = tuple(map(_simple, ELEMENTS))


def move(net: Drawing) -> None:
    """Any family of operations that move elements."""
    net.one_of(*_MOVES)(net)


def element(net: Drawing) -> None:
    """Any family of operations on elements, reductions and choices."""
    net.one_of(*_ELEMENTS)(net)


_LAYERS: tuple[Grow, ...] = (convolution, depthwise, transposed, pool, resize, mirrored)
_REST: tuple[Grow, ...] = (
    *(squeeze, transposed, dense, normalization, attention, lstm, resize, mirrored, activation),
    *(move, move, move, element, element, element),
)
STYLES: tuple[tuple[Grow, ...], ...] = (
    # Networks for images: convolutions and blocks of them, and now and then anything.
    (
        *(convolution, convolution, convolution, depthwise, inverted, inverted, separable),
        *(separable, residual, residual, squeeze, pool, *_LAYERS, activation, move, element),
    ),
    # Transformers.
    (*(attention, attention, normalization, dense, dense, activation, convolution, move, element),),
    # Anything.
    (*_LAYERS, *_REST, *_REST, convolution, inverted, separable, residual),
)
"""Blocks that a network is made of, by its kind."""

_TRIES = 4


def draw(kind: str, seed: int) -> Builder:
    """Draw a network of 3 to 10 layers or blocks, seldom up to 25."""
    net = Drawing(kind, seed)
    wanted = net.number(3, 25 if net.rarely(10) else 10)
    blocks = net.one_of(STYLES[0], STYLES[0], STYLES[0], *STYLES)
    for _ in range(wanted * _TRIES):
        net.choose_source()
        try:
            net.one_of(*blocks)(net)
        except UnfitError:
            continue
        if len(net.builder.layers) >= wanted:
            break
    if not net.builder.layers:
        net.add(Unary(op="TANH", shape=net.value))
    return net.builder


_HUGE = 8
"""One of so many large networks is huge."""


def size_of(kind: str, seed: int) -> Size:
    """Return how large a network of a kind is."""
    if kind.startswith("small"):
        return SMALL
    return LARGE if seed % _HUGE else HUGE
