"""The portable kernel dialect and the languages it is written out in."""

from litegpu.codegen.dialect import Argument, Dialect, KernelText
from litegpu.codegen.render import Epilogue, StageText, render
from litegpu.codegen.storage import Position, Storage, TensorRef, round_up

__all__ = [
    "Argument",
    "Dialect",
    "Epilogue",
    "KernelText",
    "Position",
    "StageText",
    "Storage",
    "TensorRef",
    "render",
    "round_up",
]
