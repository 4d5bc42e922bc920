"""Models with picture inputs: raw bytes of a camera or a decoder, of any size."""

from litegpu.pictures.surgery import with_picture_input

KEYWORDS = ("input_format", "size", "mean", "std", "resize", "colors", "input")
"""The keyword arguments of `with_picture_input`."""

__all__ = ["KEYWORDS", "with_picture_input"]
