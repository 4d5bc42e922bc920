"""Reads videos as upright pictures, and writes videos, with FFmpeg's libraries (PyAV)."""

from __future__ import annotations

import contextlib
import importlib
import mimetypes
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from litegpu.errors import FileError, missing_dependency
from litegpu.wording import counted

if TYPE_CHECKING:
    from PIL import Image

_H264 = ("libx264", "libopenh264", "h264_videotoolbox", "mpeg4")
CODECS = {
    ".mp4": _H264,
    ".mov": _H264,
    ".mkv": _H264,
    ".avi": ("mpeg4",),
    ".webm": ("libvpx-vp9", "libvpx"),
}
"""Codecs by suffix; the first available one is used."""
_PIXELS = "yuv420p"
_RATE = Fraction(25)
"""Default frame rate for videos that do not specify one."""
_COARSE = "mpeg4"
_QUALITY = {"libx264": {"crf": "20"}, "libvpx-vp9": {"crf": "30", "b:v": "0"}}


def is_video(path: str) -> bool:
    """Return whether a file has the suffix of a video."""
    kind, _ = mimetypes.guess_type(path)
    return Path(path).suffix.lower() in CODECS or bool(kind and kind.startswith("video/"))


class Frame(NamedTuple):
    """A frame of a video: picture, index, and time in ticks and in seconds."""

    number: int
    ticks: int
    seconds: float
    picture: Image.Image


class Film:
    """Reads a video; `damaged` counts the packets so far that could not be decoded."""

    def __init__(self, path: str, strict: bool) -> None:
        self.damaged = self._decoded_frames = 0
        self._av = _library("Reading a video")
        self._path, self._strict = path, strict
        try:
            self._container = self._av.open(path)
        except (OSError, self._av.error.FFmpegError) as error:
            raise self._unreadable(error.strerror or str(error)) from error
        streams = self._container.streams.video
        if not streams:
            self.close()
            raise self._unreadable("the file has no pictures")
        self._stream = streams[0]
        self._stream.thread_type = "AUTO"
        self.rate = self._stream.average_rate or self._stream.guessed_rate or _RATE
        self.tick: Fraction = self._stream.time_base or 1 / self.rate

    @property
    def count(self) -> int:
        """The number of frames according to the file's header; 0 if unknown."""
        seconds = (self._container.duration or 0) / 1e6
        return int(self._stream.frames or seconds * self.rate)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames as displayed: upright, with square pixels.

        Damaged packets are skipped and counted.

        Raises:
            FileError: no frame can be decoded or, if strict, a frame cannot be decoded.
        """
        number, last = 0, -1
        for found in self._decoded():
            ticks = found.pts if found.pts is not None else int(number / self.rate / self.tick)
            last = max(ticks, last + 1)  # times increase, even in a damaged file
            yield Frame(number, last, float(last * self.tick), self._upright(found))
            number += 1
        if not number:
            raise self._unreadable("no picture of the file can be decoded")

    def close(self) -> None:
        """Close the file."""
        self._container.close()

    def _decoded(self) -> Iterator[Any]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets, None)
                if packet is None:
                    return
                decoded = packet.decode()
            except (EOFError, self._av.error.EOFError):
                return
            except self._av.error.FFmpegError as error:
                if self._strict:
                    why = f"the data after {counted(self._decoded_frames, 'frame')} are damaged"
                    raise self._unreadable(f"{why}: {error.strerror}") from error
                self.damaged += 1
                if self.damaged > _MAX_DAMAGED:
                    return
                continue
            self._decoded_frames += len(decoded)
            yield from decoded

    def _upright(self, frame: Any) -> Image.Image:
        picture: Image.Image = frame.to_image()
        ratio = self._stream.sample_aspect_ratio
        if ratio and ratio != 1:
            picture = picture.resize((max(round(picture.width * ratio), 1), picture.height))
        turn = getattr(frame, "rotation", 0)  # older releases of PyAV do not report it
        return picture.rotate(turn, expand=True) if turn % 360 else picture

    def _unreadable(self, why: str) -> FileError:
        return FileError(
            f"The video '{self._path}' cannot be read: {why.rstrip('.')}. "
            "Give a video that FFmpeg plays, such as an MP4 file."
        )


_MAX_DAMAGED = 10_000
"""Number of errors after which reading stops."""


class FilmWriter:
    """Writes a video, whose size is that of the first frame."""

    def __init__(self, path: Path, rate: Fraction, tick: Fraction) -> None:
        self.frames = 0
        self._av = _library("Writing a video")
        self._rate, self._read_tick, self._last = rate, tick, -1
        names = CODECS[path.suffix.lower()]
        there = [name for name in names if name in self._av.codecs_available]
        if not there:
            raise FileError(
                f"A {path.suffix} video takes one of the codecs {', '.join(names)}, and this build "
                f"of PyAV has none. Name a video of another kind: {', '.join(CODECS)}."
            )
        self._codec = there[0]
        # MPEG-4 part 2 supports only coarse ticks, and AVI fills each tick without a frame.
        self._tick = 1 / rate if self._codec == _COARSE else tick
        with self._as_os_errors():
            self._container = self._av.open(str(path), "w")
        self._stream: Any = None

    def add(self, picture: Image.Image, ticks: int) -> None:
        """Append a frame, with its time in ticks of the source video. Raises OSError."""
        with self._as_os_errors():
            if self._stream is None:
                self._begin(picture)
            width, height = self._stream.width, self._stream.height
            if picture.size != (width, height):
                picture = picture.crop((0, 0, width, height))
            frame = self._av.VideoFrame.from_image(picture)
            self._last = max(round(ticks * self._read_tick / self._tick), self._last + 1)
            frame.pts, frame.time_base = self._last, self._tick
            self._container.mux(self._stream.encode(frame))
            self.frames += 1

    def close(self) -> None:
        """Finish the file, which makes it playable. Raises OSError."""
        with self._as_os_errors():
            try:
                if self._stream is not None:
                    self._container.mux(self._stream.encode(None))
            finally:
                self._container.close()

    def _begin(self, picture: Image.Image) -> None:
        stream = self._container.add_stream(self._codec, rate=self._rate)
        # Two by two pixels share their chroma.
        stream.width, stream.height = (size + size % 2 for size in picture.size)
        stream.pix_fmt = _PIXELS
        stream.codec_context.time_base = self._tick
        stream.options = _QUALITY.get(self._codec, {})
        self._stream = stream

    @contextlib.contextmanager
    def _as_os_errors(self) -> Iterator[None]:
        """Convert FFmpeg's errors to OSError with the error number."""
        try:
            yield
        except self._av.error.FFmpegError as error:
            raise OSError(error.errno, error.strerror or str(error)) from error


def _library(purpose: str) -> Any:
    """Return the module of PyAV. Raises MissingDependencyError if PyAV is not installed."""
    try:
        return importlib.import_module("av")
    except ImportError as error:
        raise missing_dependency("av", "video", purpose) from error
