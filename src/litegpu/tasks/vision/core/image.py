"""The picture class of the inputs and results of tasks."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from litegpu.errors import TaskError
from litegpu.pictures.images import require_pillow, unreadable


class ImageFormat(enum.IntEnum):
    """The type and the channels of a picture; the numbers are MediaPipe's."""

    UNKNOWN = 0
    SRGB = 1
    SRGBA = 2
    GRAY8 = 3
    GRAY16 = 4
    SRGB48 = 7
    SRGBA64 = 8
    VEC32F1 = 9
    SBGRA = 11
    VEC32F2 = 12
    VEC32F4 = 13


_LAYOUTS: dict[ImageFormat, tuple[type[np.generic], int]] = {
    ImageFormat.SRGB: (np.uint8, 3),
    ImageFormat.SRGBA: (np.uint8, 4),
    ImageFormat.SBGRA: (np.uint8, 4),
    ImageFormat.GRAY8: (np.uint8, 1),
    ImageFormat.GRAY16: (np.uint16, 1),
    ImageFormat.SRGB48: (np.uint16, 3),
    ImageFormat.SRGBA64: (np.uint16, 4),
    ImageFormat.VEC32F1: (np.float32, 1),
    ImageFormat.VEC32F2: (np.float32, 2),
    ImageFormat.VEC32F4: (np.float32, 4),
}
_MODES = {"RGB": ImageFormat.SRGB, "RGBA": ImageFormat.SRGBA, "L": ImageFormat.GRAY8}
_WITH_ALPHA = ("LA", "PA", "La", "RGBa")


class Image:
    """An immutable picture: its format and its values.

    `data` is `[height, width]` or `[height, width, channels]`, of the format's type. The
    constructor copies `data`, so the caller may change the array afterwards.
    """

    def __init__(self, image_format: ImageFormat, data: ArrayLike) -> None:
        """Copy the values. Raises TaskError if their type or channels do not match the format."""
        array = np.asarray(data)
        self._format = ImageFormat(image_format)
        if self._format not in _LAYOUTS:
            names = ", ".join(each.name for each in _LAYOUTS)
            raise TaskError(f"Images of the format {self._format.name} have no data. Use {names}.")
        dtype, channels = _LAYOUTS[self._format]
        found = array.shape[2:] or (1,)
        if array.ndim not in (2, 3) or found != (channels,) or array.dtype != dtype:
            shape = ", ".join(["height", "width", *([str(channels)] if channels > 1 else [])])
            raise TaskError(
                f"The data are {array.dtype} {list(array.shape)}. An image of the format "
                f"{self._format.name} takes {np.dtype(dtype).name} [{shape}]."
            )
        if 0 in array.shape:
            raise TaskError(f"The data, {list(array.shape)}, have no pixels. Give a picture.")
        self._height, self._width = int(array.shape[0]), int(array.shape[1])
        view = np.array(array[:, :, 0] if channels == 1 and array.ndim == 3 else array, order="C")
        view.flags.writeable = False
        self._data: NDArray[Any] | None = view
        self._compute: Callable[[], NDArray[Any]] | None = None

    @classmethod
    def computed(
        cls,
        image_format: ImageFormat,
        size: tuple[int, int],
        compute: Callable[[], NDArray[Any]],
    ) -> Image:
        """Return a picture of `size` (width, height); the first access computes the values."""
        image = cls.__new__(cls)
        image._format, image._data, image._compute = image_format, None, compute
        image._width, image._height = size
        return image

    @classmethod
    def create_from_file(cls, file_name: str | os.PathLike[str]) -> Image:
        """Read a picture: SRGB, SRGBA if it has transparency, or GRAY8, in the file's orientation.

        Raises:
            FileError: the file is missing, or is not a picture.
            MissingDependencyError: pillow is not installed.
        """
        require_pillow()
        from PIL import Image as Pillow

        try:
            with Pillow.open(file_name) as picture:
                mode = picture.mode
                if mode not in _MODES:
                    transparent = mode in _WITH_ALPHA or "transparency" in picture.info
                    mode = "RGBA" if transparent else "RGB"
                return cls(_MODES[mode], np.asarray(picture.convert(mode)))
        except Exception as error:  # Pillow's readers raise all kinds of errors
            why = str(error) or type(error).__name__
            raise unreadable(os.fspath(file_name), why) from error

    @property
    def image_format(self) -> ImageFormat:
        """The format."""
        return self._format

    @property
    def width(self) -> int:
        """The number of columns."""
        return self._width

    @property
    def height(self) -> int:
        """The number of rows."""
        return self._height

    @property
    def channels(self) -> int:
        """The number of values per pixel."""
        return _LAYOUTS[self._format][1]

    @property
    def step(self) -> int:
        """The number of bytes per row."""
        size: int = np.dtype(_LAYOUTS[self._format][0]).itemsize
        return self._width * self.channels * size

    def numpy_view(self) -> NDArray[Any]:
        """Return the values as a read-only array.

        The shape is `[height, width]` or, for several channels, `[height, width, channels]`.
        """
        if self._data is None:
            assert self._compute is not None
            data = self._compute()
            data.flags.writeable = False
            self._data, self._compute = data, None
        return self._data

    def is_contiguous(self) -> bool:
        """Return True: rows have no padding."""
        return True

    def is_empty(self) -> bool:
        """Return False: a picture has at least one pixel."""
        return False

    def uses_gpu(self) -> bool:
        """Return False: the values are stored in host memory."""
        return False

    def __getitem__(self, index: Any) -> Any:
        """Return elements of `numpy_view` by index."""
        return self.numpy_view()[index]

    def __repr__(self) -> str:
        return f"<Image {self._format.name} {self._width}×{self._height}>"
