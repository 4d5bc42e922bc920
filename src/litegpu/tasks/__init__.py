"""MediaPipe Tasks' Python API on litegpu: names, options, results and running modes."""

from litegpu.tasks import audio, components, vision
from litegpu.tasks.core.base_options import BaseOptions
from litegpu.tasks.vision.core.image import Image, ImageFormat

__all__ = ["BaseOptions", "Image", "ImageFormat", "audio", "components", "vision"]
