"""The model zoo: well-known architectures with seeded random weights, without a download.

The models have the same ops as the published architectures; only their weights are random.
"""

from litegpu.zoo.files import model_bytes, resolve_model
from litegpu.zoo.registry import (
    has_random_weights,
    is_language_model,
    is_zoo_name,
    load,
    load_language_model,
    names,
)
from litegpu.zoo.writer import ModelWriter, TensorRef

__all__ = [
    "ModelWriter",
    "TensorRef",
    "has_random_weights",
    "is_language_model",
    "is_zoo_name",
    "load",
    "load_language_model",
    "model_bytes",
    "names",
    "resolve_model",
]
