"""The table of the zoo's models, and the parser of their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from litegpu.errors import OptionsError, did_you_mean
from litegpu.zoo import (
    deeplab,
    language,
    mobilenet,
    mobilevit,
    posenet,
    resnet,
    ssd,
    vit,
    whisper,
)
from litegpu.zoo.language_file import language_file
from litegpu.zoo.layers import Net
from litegpu.zoo.quantized import QuantizedNet
from litegpu.zoo.transformer import TransformerNet
from litegpu.zoo.writer import ModelWriter

PREFIX = "zoo:"
"""The prefix of zoo names, which distinguishes them from paths."""
_DESCRIPTION = f"litegpu {PREFIX}"
"""The start of the description in a file of the zoo."""

Value = int | float | str


_NETS: Mapping[str, type[Net]] = {"float32": Net, "float16": Net, "int8": QuantizedNet}
_TRANSFORMERS: Mapping[str, type[Net]] = {"float32": TransformerNet, "float16": TransformerNet}
_LANGUAGE: Mapping[str, type[Net]] = {"float32": language.LanguageNet}


@dataclass(frozen=True, slots=True)
class Model:
    """A zoo model: its parameters, and the function `build`, which adds its layers to a net.

    `nets` maps each supported value of the parameter `weights` to a net class.
    """

    build: Callable[..., None]
    defaults: Mapping[str, Value]
    nets: Mapping[str, type[Net]] = field(default_factory=lambda: _NETS)


_MODELS = {
    "mobilenet_v1_1.0_224": Model(mobilenet.build_v1, {"batch": 1, "size": 224, "width": 1.0}),
    "mobilenet_v1_0.25_128": Model(mobilenet.build_v1, {"batch": 1, "size": 128, "width": 0.25}),
    "mobilenet_v2_1.0_224": Model(mobilenet.build_v2, {"batch": 1, "size": 224, "width": 1.0}),
    "ssd_mobilenet_v1_300": Model(ssd.build, {"size": 300, "width": 1.0}),
    "deeplab_v3_257": Model(deeplab.build, {"batch": 1, "size": 257, "width": 0.5}),
    "posenet_mobilenet_v1_257": Model(
        posenet.build, {"batch": 1, "size": 257, "width": 1.0, "stride": 32}
    ),
    "resnet50": Model(resnet.build, {"batch": 1, "size": 224}),
    "vit_tiny": Model(vit.build, {"batch": 1, "size": 224, "layers": 12}, _TRANSFORMERS),
    "mobilevit_xxs": Model(mobilevit.build, {"batch": 1, "size": 256, "layers": 4}, _TRANSFORMERS),
    "whisper_tiny_encoder": Model(
        whisper.build, {"batch": 1, "frames": 3000, "layers": 4}, _TRANSFORMERS
    ),
    "tiny_lm": Model(
        language.build, {"layers": 2, "context": 512, "embedder": 0, "window": 0}, _LANGUAGE
    ),
}

# Parameters of every model: they change the weights or how they are stored, not the network.
_COMMON: Mapping[str, Value] = {"weights": "float32", "seed": 0}


@dataclass(frozen=True, slots=True)
class _Number:
    """A parameter that is a decimal number from `low` to `high`."""

    kind: type[int] | type[float]
    low: float
    high: float

    def parse(self, text: str) -> Value | None:
        pattern = r"\d+" if self.kind is int else r"\d+(\.\d+)?"
        value = self.kind(text) if re.fullmatch(pattern, text, re.ASCII) else -1
        return value if self.low <= value <= self.high else None

    def __str__(self) -> str:
        kind = "a whole number" if self.kind is int else "a number"
        return f"{kind} from {self.low} to {self.high}"


@dataclass(frozen=True, slots=True)
class _Variants:
    """A parameter that is one of a few words or numbers."""

    values: tuple[Value, ...]

    def parse(self, text: str) -> Value | None:
        return {str(value): value for value in self.values}.get(text)

    def __str__(self) -> str:
        return " or ".join(str(value) for value in self.values)


_PARAMETERS: Mapping[str, _Number | _Variants] = {
    "batch": _Number(int, 1, 1024),
    "size": _Number(int, 32, 2048),
    "width": _Number(float, 0.1, 4.0),
    "stride": _Variants((16, 32)),
    "layers": _Number(int, 1, 64),
    "context": _Number(int, 32, 32768),
    "embedder": _Number(int, 0, 2),
    "window": _Number(int, 0, 32768),
    "frames": _Number(int, 2, 30000),
    "seed": _Number(int, 0, 2**32 - 1),
}


def names() -> list[str]:
    """Return the names of all zoo models, in the form that `load` accepts."""
    return [PREFIX + name for name in _MODELS]


def is_zoo_name(text: str) -> bool:
    """Return whether `text` has the form of a zoo model's name, even of an unknown model."""
    return text.startswith(PREFIX)


def has_random_weights(content: bytes) -> bool:
    """Return whether a .tflite file is a zoo model, according to its description."""
    return _DESCRIPTION.encode() in content


def is_language_model(name: str) -> bool:
    """Return whether a zoo name is a language model's. Raises OptionsError for an unknown name."""
    return _named(name)[1].nets is _LANGUAGE


def load(name: str) -> bytes:
    """Build a model of the zoo and return it as the bytes of a .tflite file.

    Args:
        name: One of `names()`, then parameters if any, as in
            `zoo:mobilenet_v1_1.0_224?batch=8&weights=float16&seed=1`. All models have the
            parameters `weights` and `seed`. `weights` is float32, float16 (with DEQUANTIZE), or
            int8, which also makes activations, inputs and outputs int8. Most models have `batch`
            and `size` (pixels). Some models have `width` (multiplies the channels) or `stride` (of
            the output). `tiny_lm` has `layers`, `context` (tokens), `embedder` (1: a separate
            model for embeddings; 2: also one for the embeddings of each layer) and `window` (the
            tokens that every other layer sees, 0 for all). The same name gives the same bytes on
            every machine.

    Raises:
        OptionsError: Unknown model or parameter, or a value that a parameter cannot have.
        MissingDependencyError: The packages of the extra `zoo` are not installed.
    """
    return _build(*_named(name))


def load_language_model(name: str) -> bytes:
    """Build a language model of the zoo and return it as the bytes of a .litertlm file.

    The file also contains the model's tokenizer and chat template. Raises OptionsError if the model
    is not a language model, and the errors of `load`.
    """
    key, model, values = _named(name)
    if not is_language_model(name):
        known = [PREFIX + each for each in _MODELS if _MODELS[each].nets is _LANGUAGE]
        raise OptionsError(f"'{name}' is not a language model. Use {' or '.join(known)}.")
    common = {name: values[name] for name in _COMMON}
    alone = Model(language.build_embedder, {}, _LANGUAGE)
    embedders = [
        _build(key, alone, common | layers)
        for layers in ({}, {"layers": values["layers"]})[: int(values["embedder"])]
    ]
    return language_file(
        _build(key, model, values), int(values["context"]), *embedders, window=int(values["window"])
    )


def _named(name: str) -> tuple[str, Model, Mapping[str, Value]]:
    """Return the key, the Model and the parameters for a name. Raises OptionsError."""
    key, _, query = name.removeprefix(PREFIX).partition("?")
    if key not in _MODELS:
        raise OptionsError(f"Unknown zoo model '{name}'.{did_you_mean(PREFIX + key, names())}")
    model = _MODELS[key]
    values = {**_COMMON, **model.defaults}
    if query:
        values.update(_parse(name, query, values, model))
    return key, model, values


def _build(key: str, model: Model, parameters: Mapping[str, Value]) -> bytes:
    values = dict(parameters)
    weights, seed = values.pop("weights"), values.pop("seed")
    writer = ModelWriter(f"{_DESCRIPTION}{key}", float16_weights=weights == "float16")
    net = model.nets[str(weights)]
    model.build(net(f"{key}/{seed}", writer), **values)
    return writer.build()


def _parse(name: str, query: str, known: Mapping[str, Value], model: Model) -> dict[str, Value]:
    """Return the parameters written in `query`, converted and checked."""
    kinds = {**_PARAMETERS, "weights": _Variants(tuple(model.nets))}
    values: dict[str, Value] = {}
    for part in query.split("&"):
        parameter, _, text = part.partition("=")
        if parameter not in known:
            hint = did_you_mean(parameter, known)
            raise OptionsError(f"Zoo model '{name}' has no parameter '{parameter}'.{hint}")
        if parameter in values:
            raise OptionsError(f"Zoo model '{name}' has '{parameter}' twice. Give it once.")
        value = kinds[parameter].parse(text)
        if value is None:
            raise OptionsError(
                f"Zoo model '{name}': {parameter} cannot be '{text}'. Use {kinds[parameter]}."
            )
        values[parameter] = value
    return values
