"""The portable kernel dialect and the languages it is written out in."""

from litegpu.codegen.dialect import PLAIN_LAUNCH, Argument, Dialect, KernelText, LaunchAttributes
from litegpu.codegen.half_range import HALF_MAX, HALF_TINY, RANGE, RANGE_WORDS
from litegpu.codegen.render import Epilogue, StageText, render
from litegpu.codegen.storage import FLOAT_TYPES, KINDS, Position, Storage, TensorRef, round_up

__all__ = [
    "FLOAT_TYPES",
    "HALF_MAX",
    "HALF_TINY",
    "KINDS",
    "PLAIN_LAUNCH",
    "RANGE",
    "RANGE_WORDS",
    "Argument",
    "Dialect",
    "Epilogue",
    "KernelText",
    "LaunchAttributes",
    "Position",
    "StageText",
    "Storage",
    "TensorRef",
    "render",
    "round_up",
]
