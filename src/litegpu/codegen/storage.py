"""Describes the storage of a value in device memory, and generates loads and stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.codegen.half_range import note_range, note_size, size_to_note
from litegpu.codegen.registers import INT, KINDS, Register, register_of
from litegpu.graph import DType

Shape4 = tuple[int, int, int, int]


def round_up(number: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `number`."""
    return -(-number // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Storage:
    """The storage of one value inside an allocation (`base`), in elements of `dtype`.

    `shape` is the shape [N, H, W, C] of the value. `strides` are the strides of N, H and W;
    channels are contiguous. `padded_channels` is the number of channels that a writer fills: C for
    an unpadded value, otherwise C and its zero padding. `vector`: whether every channel block
    starts at a multiple of 4 elements.
    """

    base: int
    dtype: DType
    shape: Shape4
    strides: tuple[int, int, int]
    offset: int
    padded_channels: int
    vector: bool

    @classmethod
    def create(cls, base: int, dtype: DType, shape: Shape4, alignment: int) -> Storage:
        """Return a storage at the start of `base`, with rows padded to `alignment` channels."""
        _, height, width, channels = shape
        pitch = round_up(channels, alignment)
        strides = (height * width * pitch, width * pitch, pitch)
        return cls(base, dtype, shape, strides, 0, pitch, pitch % 4 == 0)

    @property
    def channels(self) -> int:
        return self.shape[3]

    @property
    def pitch(self) -> int:
        """Number of elements from one row of channels to the next."""
        return self.strides[2]

    @property
    def channel_blocks(self) -> int:
        """Number of channel blocks that a writer fills, including zero padding."""
        return -(-self.padded_channels // 4)

    @property
    def rows(self) -> int:
        return self.shape[0] * self.shape[1] * self.shape[2]

    @property
    def contiguous(self) -> bool:
        """Whether row r of the value starts at `offset + r * pitch`."""
        n, h, w, _ = self.shape
        lines = h == 1 or self.strides[1] == w * self.pitch
        return lines and (n == 1 or self.strides[0] == h * w * self.pitch)

    def aligned(self, width: int) -> bool:
        """Whether every row of the value starts and ends at a multiple of `width` elements."""
        return not any(
            length % width for length in (*self.strides, self.offset, self.padded_channels)
        )

    @property
    def elements(self) -> int:
        """Number of elements from `offset` to the end of the last row."""
        n, h, w, _ = self.shape
        last = (n - 1) * self.strides[0] + (h - 1) * self.strides[1] + (w - 1) * self.strides[2]
        return last + self.padded_channels

    @property
    def nbytes(self) -> int:
        return self.elements * self.dtype.size

    def split(self, alignment: int) -> tuple[int, Storage]:
        """Return the bytes before this value, a multiple of `alignment`, and the remaining storage.

        The split moves no channel blocks: the bytes before the value are also whole blocks of 4
        elements.
        """
        size = self.dtype.size
        nbytes = self.offset * size // alignment * alignment
        if nbytes % (4 * size):
            return 0, self
        return nbytes, replace(self, offset=self.offset - nbytes // size)

    def reshaped(self, shape: Shape4) -> Storage | None:
        """Return this storage seen as `shape`; None if the strides do not permit that."""
        same = shape[3] == self.channels
        if 0 in shape or (not same and self.padded_channels != self.channels):
            return None
        padded_channels = self.padded_channels if same else shape[3]
        if self.contiguous and (same or self.pitch == self.channels):
            pitch = self.pitch if same else shape[3]
            strides = (shape[1] * shape[2] * pitch, shape[2] * pitch, pitch)
        else:
            rows = list(zip(self.shape[:3], self.strides, strict=True))
            found = _steps(rows, shape[:3]) if same else _steps([*rows, (self.channels, 1)], shape)
            if found is None or found[3:] > [1]:
                return None
            strides = (found[0], found[1], found[2])
        vector = not any(length % 4 for length in (*strides, self.offset))
        return replace(
            self, shape=shape, strides=strides, padded_channels=padded_channels, vector=vector
        )

    def region(self, shape: Shape4, axis: int, start: int, padded_channels: int) -> Storage:
        """Return the part of `shape` that starts at `start` along `axis`."""
        offset = self.offset + start * (*self.strides, 1)[axis]
        padded_channels = padded_channels if axis == 3 else self.padded_channels
        vector = self.vector and offset % 4 == 0
        # The stride of an axis of size 1 must not make equal storages differ.
        image, line, pitch = self.strides
        line = line if shape[1] > 1 else shape[2] * pitch
        image = image if shape[0] > 1 else shape[1] * line
        strides = (image, line, pitch)
        return replace(
            self,
            shape=shape,
            strides=strides,
            offset=offset,
            padded_channels=padded_channels,
            vector=vector,
        )

    def every(self, step: tuple[int, int], start: tuple[int, int]) -> Storage:
        """Return the storage of the pixels (y, x) from `start` on, `step` apart."""
        n, height, width, channels = self.shape
        image, line, pitch = self.strides
        rows, columns = -(-(height - start[0]) // step[0]), -(-(width - start[1]) // step[1])
        return replace(
            self,
            shape=(n, rows, columns, channels),
            strides=(image, line * step[0], pitch * step[1]),
            offset=self.offset + start[0] * line + start[1] * pitch,
        )


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a kernel's output: texts of its coordinates, and of its row if known."""

    n: str
    y: str
    x: str
    row: str | None = None

    @classmethod
    def of_row(cls, row: str, shape: Shape4) -> Position:
        """Return the position of a row of channels in a value of `shape`, from the row's number."""
        n, height, width, _ = shape
        y = f"(({row}) / {width})" if width > 1 else f"({row})"
        image = height * width
        return cls(
            n=f"(({row}) / {image})" if n > 1 else "0",
            y=("0" if height == 1 else y if n == 1 else f"({y} % {height})"),
            x=("0" if width == 1 else f"(({row}) % {width})" if n * height > 1 else f"({row})"),
            row=row,
        )


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A bound buffer in a kernel, which generates the text of loads and stores.

    All texts use the functions of the portable dialect (`LOAD4_F32` and similar). If `extend`,
    missing channels of an operand read as zero and are not broadcast. If `noted`, the kernel
    records the range of the values that it stores in the buffer as half.
    """

    name: str
    storage: Storage
    extend: bool = False
    noted: bool = False

    @property
    def shape(self) -> Shape4:
        return self.storage.shape

    @property
    def channels(self) -> int:
        return self.storage.channels

    @property
    def channel_blocks(self) -> int:
        return self.storage.channel_blocks

    @property
    def rows(self) -> int:
        return self.storage.rows

    @property
    def kind(self) -> str:
        """Suffix of the dialect's load and store functions, such as F32."""
        return KINDS[self.storage.dtype]

    @property
    def register(self) -> Register:
        """The register type of loads and stores."""
        return register_of(self.storage.dtype)

    def _row_offset(
        self, at: Position, scale: int, like: Shape4 | None, inside: bool = True
    ) -> str:
        """Return the text of the offset of a row of channels, in units of `scale` elements.

        If `inside`, coordinates along axes of size 1 are known to be zero.
        """
        storage = self.storage
        terms: list[str] = []
        same = like is None or like[:3] == storage.shape[:3]
        if at.row is not None and storage.contiguous and same:
            parts: list[tuple[str, int]] = [(at.row, storage.pitch)] if storage.rows > 1 else []
        else:
            dims = zip((at.n, at.y, at.x), storage.strides, storage.shape[:3], strict=True)
            parts = [
                (text, stride)
                for text, stride, size in dims
                if text != "0" and not (inside and size == 1)
            ]
        for text, stride in parts:
            step = stride // scale
            terms.append(f"({text})" if step == 1 else f"({text}) * {step}")
        if storage.offset:
            terms.append(str(storage.offset // scale))
        return " + ".join(terms) or "0"

    def index(self, at: Position, part: str, width: int) -> str:
        """Return the text of the start of part number `part` of a row; parts have `width` channels.

        The unit of the result is `width` elements; the storage must be `aligned` to `width`.
        """
        return _plus(self._row_offset(at, width, None), part)

    def origin(self, at: Position, part: str, width: int) -> str:
        """Return the text of a window's start, which may be outside, in the unit of `index`."""
        return _plus(self._row_offset(at, width, None, inside=False), part)

    def place(self, at: Position, s: str) -> str:
        """Return the text of the offset of channel block `s`, in the units of `load`."""
        base = self._row_offset(at, 4 if self.storage.vector else 1, None)
        return _plus(base, self._channels_before(s))

    def load(self, place: str, s: str) -> str:
        """Return the text of channel block `s` at the offset `place`, in a register."""
        if self.storage.vector:
            return f"LOAD4_{self.kind}({self.name}, {place})"
        return self._gather(place, s)

    def _channels_before(self, s: str) -> str:
        """Return the text of the distance of block `s` from the first, in the units of `place`."""
        return s if self.storage.vector or s == "0" else f"({s}) * 4"

    def read(
        self, at: Position, s: str, like: Shape4 | None = None, reach: int | None = None
    ) -> str:
        """Return the text of the 4 channels of channel block `s`, in a register.

        `like` is the shape to which the kernel broadcasts the value. `reach` is the exclusive upper
        bound of `s`. Channel blocks beyond the last channel read as zero, without a memory access.
        """
        if like is not None and self.channels == 1 and like[3] > 1 and not self.extend:
            return self.register.splat(self.read1(at, "0", like))
        base = self._row_offset(at, 4 if self.storage.vector else 1, like)
        text = self.load(_plus(base, self._channels_before(s)), s)
        if reach is not None and reach > self.channel_blocks:
            return f"(({s}) < {self.channel_blocks} ? {text} : {self.register.zeros})"
        return text

    def _gather(self, start: str, s: str) -> str:
        """Return the text of 4 scalar loads from `start`, with zero beyond the last channel."""
        elements, zero = [], self.register.zero
        for k in range(4):
            text = self._load1(_plus(start, str(k)))
            if self.channels < 4 and k >= self.channels:
                text = zero
            elif self.channels > 4 and self.channels % 4:
                text = f"(({s}) * 4 + {k} < {self.channels} ? {text} : {zero})"
            elements.append(text)
        return self.register.call("MAKE4", *elements)

    def load_word(self, place: str, s: str) -> str:
        """Return the text of channel block `s` (bytes) at the offset `place`, as a 32-bit word."""
        if self.storage.vector:
            return f"WORD4_{self.kind}({self.name}, {place})"
        return f"TO_WORD4_{self.kind}({self._gather(place, s)})"

    def read_word(self, at: Position, s: str) -> str:
        """Return the text of channel block `s` (bytes) at a position, as a 32-bit word."""
        return self.load_word(self.place(at, s), s)

    @property
    def holds_words(self) -> bool:
        """Whether the 4 bytes of each channel block form an aligned word in memory."""
        return self.storage.vector and self.storage.dtype.size == 1 and self.register is INT

    @property
    def limits_of_stores(self) -> tuple[int, int] | None:
        """Return the lowest and highest integer of a byte type, to which stores clamp."""
        limits = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}
        return limits.get(self.storage.dtype) if self.holds_words else None

    def of_word(self, word: str) -> str:
        """Return the text that converts a word of `read_word` to the register type of `read`."""
        return f"FROM_WORD4_{self.kind}({word})"

    def read1(self, at: Position, c: str, like: Shape4 | None = None) -> str:
        """Return the text of channel `c` at a position."""
        return self._load1(_plus(self._row_offset(at, 1, like), c))

    def linear1(self, index: str) -> str:
        """Return the text of the element at an index that does not count padding channels."""
        storage = self.storage
        if storage.pitch == storage.channels and storage.contiguous:
            return self._load1(_plus(index, str(storage.offset)))
        at = Position.of_row(f"(({index}) / {self.channels})", storage.shape)
        return self.read1(at, f"(({index}) % {self.channels})")

    def _load1(self, index: str) -> str:
        word = "LANE4" if self.storage.vector else "LOAD1"
        return f"{word}_{self.kind}({self.name}, {index})"

    def size_to_note(self, value: str, bounded: bool) -> str:
        """Return the text of the finite magnitude of a float4, as an argument of `note`."""
        return size_to_note(value, bounded, self.storage.elements)

    def note(self, size: str) -> str:
        """Return a statement that records the finite magnitude of a value stored here as half."""
        return note_size(self.name, size)

    def write(self, at: Position, s: str, value: str, bounded: bool = False) -> str:
        """Return statements that store variable `value` as channel block `s`; padding becomes zero.

        `bounded` values are finite and within the range of half.
        """
        storage = self.storage
        base = self._row_offset(at, 4 if storage.vector else 1, None)
        if storage.vector:
            mask = ""
            if storage.channels % 4 or storage.channel_blocks * 4 > round_up(storage.channels, 4):
                own = self.register.call("MASK4", value, f"{storage.channels} - ({s}) * 4")
                mask = f"{value} = {own}; "
            word = f"STORE4_{self.kind}{'_BOUNDED' if bounded and self.kind == 'F16' else ''}"
            note = (
                note_range(self.name, value, bounded, storage.elements) + " " if self.noted else ""
            )
            return f"{mask}{note}{word}({self.name}, {_plus(base, s)}, {value});"
        start = _plus(base, f"({s}) * 4")
        stores = []
        if self.noted:
            own = (
                f"MASK4({value}, {storage.channels} - ({s}) * 4)" if storage.channels % 4 else value
            )
            stores.append(note_range(self.name, own, bounded, storage.elements))
        for k, lane in enumerate("xyzw"):
            guard = (
                "" if storage.channels % 4 == 0 else f"if (({s}) * 4 + {k} < {storage.channels}) "
            )
            index = _plus(start, str(k))
            stores.append(f"{guard}STORE1_{self.kind}({self.name}, {index}, {value}.{lane});")
        return " ".join(stores)


def _steps(digits: Sequence[tuple[int, int]], sizes: Sequence[int]) -> list[int] | None:
    """Return the steps of digits with `sizes` that enumerate the same elements in the same order.

    `digits` are pairs (size, step), outermost first. The result is None if there are no such steps.
    """
    runs: list[tuple[int, int]] = []
    for size, step in digits:
        if size == 1:
            continue
        if runs and runs[-1][1] == size * step:
            size *= runs.pop()[0]
        runs.append((size, step))
    found: list[int] = []
    left, step = 1, 1
    for size in reversed(sizes):
        if left == 1 and runs:
            left, step = runs.pop()
        if left % size:
            return None
        found.append(step)
        left, step = left // size, step * size
    return found[::-1]


def _plus(left: str, right: str) -> str:
    """Return the text of a sum, without the terms that are zero."""
    terms = [term for term in (left, right) if term != "0"]
    return " + ".join(terms) or "0"
