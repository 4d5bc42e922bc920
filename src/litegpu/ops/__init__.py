"""Operations: one module per op or family. Importing this package registers them all."""

from importlib import import_module
from pkgutil import iter_modules

from litegpu.ops.base import all_ops, find

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["all_ops", "find"]
