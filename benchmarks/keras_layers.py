"""Small Keras models of further layers and published architectures.

`LAYERS` are layers that keras_architectures.py does not use. `HUB` are small configurations of
KerasHub's backbones. Keras and KerasHub are imported when a model is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Model: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A Keras model with fixed shapes, and example inputs in the order of its arguments."""

_WORDS = 64
"""Words of a vocabulary."""


def _keras() -> Any:
    return importlib.import_module("keras")


def _floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)


def _whole_numbers(*shape: int) -> Any:
    return np.random.default_rng(0).integers(1, _WORDS, (1, *shape), np.int32)


def _chain(
    build: Callable[[Any, Any], Any], *shape: int, words: bool = False
) -> Callable[[], Model]:
    """Return a builder of a model with one input: `build` gets Keras and the input."""

    def whole() -> Model:
        keras = _keras()
        x = keras.Input(shape, batch_size=1, dtype="int32" if words else "float32")
        example = _whole_numbers(*shape) if words else _floats(*shape)
        return keras.Model(x, build(keras, x)), (example,)

    return whole


def _joined(keras: Any, parts: Sequence[Any]) -> Any:
    """Return results as one vector, so that each of them is compared."""
    ops = keras.ops
    return ops.concatenate([ops.reshape(ops.cast(x, "float32"), (1, -1)) for x in parts], -1)


def _pools(keras: Any, x: Any) -> Any:
    of = keras.layers
    return _joined(
        keras,
        [
            of.AdaptiveAveragePooling2D((3, 2))(x),
            of.AdaptiveMaxPooling2D((3, 2))(x),
            of.GlobalMaxPooling2D()(x),
            of.AveragePooling2D((3, 2), strides=1, padding="same")(x),
            of.MaxPooling2D((2, 3), strides=(1, 2))(x),
        ],
    )


def _random(keras: Any, x: Any) -> Any:
    """Return layers that change nothing when a model runs, around a convolution."""
    of = keras.layers
    kinds = (of.RandomRotation, of.RandomContrast, of.RandomZoom)
    for layer in (of.RandomFlip(), *(kind(0.2) for kind in kinds)):
        x = layer(x)
    x = of.SpectralNormalization(of.Conv2D(8, 3))(x)
    for layer in (of.Dropout(0.5), of.GaussianNoise(0.1), of.SpatialDropout2D(0.2)):
        x = layer(x)
    return x


def _merged(keras: Any, x: Any) -> Any:
    of = keras.layers
    first, second = of.Dense(8)(x), of.Dense(8)(x)
    pair = [first, second]
    kinds = (of.Average, of.Maximum, of.Minimum, of.Subtract)
    parts = [kind()(pair) for kind in kinds]
    parts += [of.Dot(axes=(2, 2), normalize=True)(pair), of.PReLU(shared_axes=[1])(first)]
    return _joined(keras, [*parts, of.ReLU(max_value=2.0, negative_slope=0.1, threshold=0.3)(x)])


def _masked(keras: Any, x: Any) -> Any:
    of = keras.layers
    x = of.Embedding(_WORDS, 12, mask_zero=True)(x)
    x = of.Bidirectional(of.GRU(8, return_sequences=True))(x)
    return of.LSTM(8, go_backwards=True)(x)


def _cells(keras: Any, x: Any) -> Any:
    of = keras.layers
    cells = of.StackedRNNCells([of.LSTMCell(8), of.GRUCell(8)])
    return of.RNN(cells, return_sequences=True, unroll=True)(x)


def _conv_lstms(keras: Any, x: Any) -> Any:
    return keras.layers.ConvLSTM1D(6, 3, strides=2, return_sequences=True)(x)


def _one_dimension(keras: Any, x: Any) -> Any:
    of = keras.layers
    x = of.DepthwiseConv1D(3, depth_multiplier=2, padding="same")(x)
    x = of.UpSampling1D(2)(of.ZeroPadding1D((1, 2))(x))
    return of.GlobalAveragePooling1D()(of.AveragePooling1D(3, strides=2)(of.Cropping1D(1)(x)))


def _own_int4() -> Model:
    """Return layers whose weights Keras itself quantizes."""
    keras = _keras()
    x = keras.Input((6, 16), batch_size=1)
    hidden = keras.layers.Dense(32, activation="relu")(x)
    spread = keras.layers.EinsumDense("abc,cde->abde", output_shape=(None, 2, 8))(hidden)
    model = keras.Model(x, keras.layers.Dense(8)(keras.layers.Reshape((6, 16))(spread)))
    model.quantize("int4")
    return model, (_floats(6, 16),)


LAYERS: Mapping[str, Callable[[], Model]] = {
    "pools": _chain(_pools, 9, 8, 6),
    "random": _chain(_random, 12, 10, 3),
    "merged": _chain(_merged, 6, 10),
    "masked": _chain(_masked, 10, words=True),
    "cells": _chain(_cells, 5, 6),
    "conv_lstm_1d": _chain(_conv_lstms, 4, 12, 3),
    "conv_lstm_3d": _chain(
        lambda keras, x: keras.layers.ConvLSTM3D(4, 2, padding="same")(x), 3, 4, 4, 4, 2
    ),
    "one_dimension": _chain(_one_dimension, 12, 6),
    "own_int4": _own_int4,
}
"""A builder for each model of further layers."""


def _hub(kind: str, **options: Any) -> Callable[[], Model]:
    """Return a builder of one of KerasHub's backbones."""

    def whole() -> Model:
        models = importlib.import_module("keras_hub.models")
        return _with_examples(getattr(models, kind)(**options))

    return whole


def _with_examples(model: Any) -> Model:
    """Return a model whose inputs have fixed shapes: one example, 12 words."""
    keras = _keras()
    inputs = model.input if isinstance(model.input, dict) else {"x": model.input}
    fixed, arrays = {}, []
    for name, each in sorted(inputs.items()):
        shape = tuple(12 if size is None else size for size in each.shape[1:])
        dtype = keras.backend.standardize_dtype(each.dtype)
        fixed[name] = keras.Input(shape, batch_size=1, dtype=dtype, name=name)
        if "mask" in name:
            arrays.append(np.ones((1, *shape), dtype))
        elif dtype.startswith("int"):
            few = 2 if "segment" in name else _WORDS
            arrays.append((_whole_numbers(*shape) % few).astype(dtype))
        else:
            arrays.append(_floats(*shape).astype(dtype))
    result = model(fixed if isinstance(model.input, dict) else fixed["x"])
    results = keras.tree.flatten(result)
    return keras.Model(fixed, results[0] if len(results) == 1 else results), tuple(arrays)


_TEXT = {"num_layers": 1, "hidden_dim": 32, "intermediate_dim": 48}
_VOCABULARY = {"vocabulary_size": _WORDS}
_BERT = {**_TEXT, **_VOCABULARY, "num_heads": 2}
_GROUPED = {**_TEXT, **_VOCABULARY, "num_query_heads": 4, "num_key_value_heads": 2}
_PICTURE = (64, 64, 3)
_LINEAR = {
    "num_layers": 2, "layer_types": ["linear_attention", "full_attention"], "head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}  # fmt: skip

HUB: Mapping[str, Callable[[], Model]] = {
    "bert": _hub("BertBackbone", **_BERT, max_sequence_length=16),
    "albert": _hub("AlbertBackbone", **_BERT, embedding_dim=16, max_sequence_length=16),
    "deberta_v3": _hub("DebertaV3Backbone", **_BERT, max_sequence_length=16,
                       bucket_size=8),
    "electra": _hub("ElectraBackbone", vocab_size=_WORDS, num_heads=2, **_TEXT,
                    embedding_dim=16, max_sequence_length=16),
    "esm": _hub("ESMBackbone", **_BERT, max_sequence_length=16),
    "roformer_v2": _hub("RoformerV2Backbone", **_BERT, head_size=16),
    "xlnet": _hub("XLNetBackbone", **_BERT),
    "bart": _hub("BartBackbone", **_BERT, max_sequence_length=16),
    "t5": _hub("T5Backbone", **_BERT, key_value_dim=16),
    "bloom": _hub("BloomBackbone", **_BERT),
    "opt": _hub("OPTBackbone", **_BERT, max_sequence_length=16),
    "gpt_neox": _hub("GPTNeoXBackbone", **_BERT, max_sequence_length=16),
    "gemma": _hub("GemmaBackbone", **_GROUPED, head_dim=16),
    "gemma3": _hub("Gemma3Backbone", **_GROUPED, head_dim=16, image_size=None,
                   use_sliding_window_attention=True, sliding_window_size=4),
    "llama": _hub("LlamaBackbone", **_GROUPED),
    "mistral": _hub("MistralBackbone", **_GROUPED, sliding_window=4),
    "mixtral": _hub("MixtralBackbone", **_GROUPED, num_experts=4, top_k=2),
    "phi3": _hub("Phi3Backbone", **_GROUPED, max_sequence_length=16,
                 pretraining_sequence_length=16),
    "qwen3": _hub("Qwen3Backbone", **_GROUPED, head_dim=16),
    "qwen3_5": _hub("Qwen3_5Backbone", **{**_GROUPED, **_LINEAR}),
    "qwen3_5_moe": _hub("Qwen3_5MoeBackbone", hidden_dim=32, num_query_heads=4,
                        num_key_value_heads=2, moe_intermediate_dim=16,
                        shared_expert_intermediate_size=16, num_experts=4, top_k=2,
                        **_VOCABULARY, **_LINEAR),
    "gpt_oss": _hub("GptOssBackbone", **_GROUPED, num_experts=4, head_dim=16),
    "whisper": _hub("WhisperBackbone", **_BERT, num_mels=16,
                    max_encoder_sequence_length=24, max_decoder_sequence_length=16),
    "edrec": _hub("EdRecBackbone", vocab_size=_WORDS, num_layers_enc=1, num_layers_dec=1,
                  hidden_dim=32, intermediate_dim=48, num_heads=2),
    "mit": _hub("MiTBackbone", layerwise_depths=[1, 1], num_layers=2,
                layerwise_num_heads=[1, 2], layerwise_sr_ratios=[4, 1], max_drop_path_rate=0.1,
                layerwise_patch_sizes=[7, 3], layerwise_strides=[4, 2], image_shape=_PICTURE,
                hidden_dims=[16, 32]),
    "vit_det": _hub("ViTDetBackbone", hidden_size=32, num_layers=2, intermediate_dim=48,
                    num_heads=2, global_attention_layer_indices=[1], image_shape=_PICTURE,
                    window_size=2, num_output_channels=16),
    "swin": _hub("SwinTransformerBackbone", image_shape=_PICTURE, embed_dim=16,
                 depths=(2, 2), num_heads=(1, 2), window_size=4),
    "dinov3": _hub("DINOV3Backbone", patch_size=16, num_layers=2, hidden_dim=32,
                   num_heads=2, intermediate_dim=48, image_shape=_PICTURE),
    "densenet": _hub("DenseNetBackbone", stackwise_num_repeats=[2, 2],
                     image_shape=_PICTURE, growth_rate=8),
    "video_prism": _hub("VideoPrismBackbone", num_frames=2, patch_size=16,
                        hidden_dim=32, intermediate_dim=48, num_heads=2, num_spatial_layers=1,
                        num_temporal_layers=1, num_auxiliary_layers=0, image_shape=(32, 32, 3)),
}  # fmt: skip
"""A builder for each backbone."""
