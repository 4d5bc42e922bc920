"""The portable kernel dialect, a C-like language, and its translation to each GPU language."""

from litegpu.codegen.dialect import PLAIN_LAUNCH, Argument, Dialect, KernelText, LaunchAttributes
from litegpu.codegen.half_range import HALF_MAX, HALF_TINY, RANGE, RANGE_WORDS
from litegpu.codegen.registers import FLOAT, INT, KINDS, LONG, Register, literal, register_of
from litegpu.codegen.render import Epilogue, EpilogueText, add_template, render
from litegpu.codegen.storage import Position, Storage, TensorRef, round_up

__all__ = [
    "FLOAT",
    "HALF_MAX",
    "HALF_TINY",
    "INT",
    "KINDS",
    "LONG",
    "PLAIN_LAUNCH",
    "RANGE",
    "RANGE_WORDS",
    "Argument",
    "Dialect",
    "Epilogue",
    "EpilogueText",
    "KernelText",
    "LaunchAttributes",
    "Position",
    "Register",
    "Storage",
    "TensorRef",
    "add_template",
    "literal",
    "register_of",
    "render",
    "round_up",
]
