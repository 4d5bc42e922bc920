"""Small Keras models of many kinds, with random weights, for TensorFlow's own converter.

Keras is imported when a model is built. `MODES` are the quantizations of the converter.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from keras_layers import HUB, LAYERS

Model: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A Keras model with fixed shapes, and example inputs as NumPy arrays."""

MODES = ("float", "float16", "dynamic", "int8", "int16x8")
"""Quantizations: none, weights as halves, weights only, weights and activations as int8,
activations as int16."""

_WORDS = 64
"""Words of a vocabulary."""


def _keras() -> Any:
    return importlib.import_module("keras")


def _floats(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)


def _chain(build: Callable[[Any, Any], Any], *shape: int) -> Callable[[], Model]:
    """Return a builder of a model with one input: `build` gets the layers and the input."""

    def whole() -> Model:
        keras = _keras()
        x = keras.Input(shape, batch_size=1)
        return keras.Model(x, build(keras.layers, x)), (_floats(*shape),)

    return whole


def _application(name: str, size: int, **options: Any) -> Callable[[], Model]:
    """Return a builder of one of Keras' applications, which gives logits."""

    def whole() -> Model:
        keras = _keras()
        shape = (size, size, 3)
        settings = {"weights": None, "classes": 10, "classifier_activation": None, **options}
        inner = getattr(keras.applications, name)(input_shape=shape, **settings)
        _measure_statistics(inner, np.random.default_rng(2).standard_normal((2, *shape)))
        x = keras.Input(shape, batch_size=1)
        return keras.Model(x, inner(x)), (_floats(*shape),)

    return whole


def _measure_statistics(model: Any, pictures: Any) -> None:
    """Set the statistics of batch normalizations, so that activations do not vanish in depth."""
    for layer in model.layers:
        if hasattr(layer, "moving_mean"):
            layer.momentum = 0.0
    model(pictures.astype(np.float32), training=True)


def _words(build: Callable[[Any, Any], Any], length: int = 12) -> Callable[[], Model]:
    """Return a builder of a model of words: `build` gets the layers and their embeddings."""

    def whole() -> Model:
        keras = _keras()
        x = keras.Input((length,), batch_size=1, dtype="int32")
        embedded = keras.layers.Embedding(_WORDS, 24)(x)
        words = np.random.default_rng(0).integers(0, _WORDS, (1, length), np.int32)
        return keras.Model(x, build(keras.layers, embedded)), (words,)

    return whole


def _transformer(of: Any, x: Any, causal: bool = False, blocks: int = 2) -> Any:
    for _ in range(blocks):
        attended = of.MultiHeadAttention(3, 8)(x, x, use_causal_mask=causal)
        x = of.LayerNormalization()(of.Add()([x, attended]))
        wide = of.Dense(48, activation="gelu")(x)
        x = of.LayerNormalization()(of.Add()([x, of.Dense(24)(wide)]))
    return x


def _grouped_query(of: Any, x: Any) -> Any:
    attended = of.GroupQueryAttention(8, 4, 2)(x, x)
    return of.RMSNormalization()(of.Add()([x, attended]))


def _vit(of: Any, x: Any) -> Any:
    patches = of.Conv2D(24, 8, strides=8)(x)
    patches = of.Reshape((-1, 24))(patches)
    return of.Dense(10, activation="softmax")(
        of.GlobalAveragePooling1D()(_transformer(of, patches))
    )


def _squeeze(of: Any, x: Any) -> Any:
    x = of.Conv2D(24, 3, strides=2, padding="same", activation="swish")(x)
    gate = of.GlobalAveragePooling2D(keepdims=True)(x)
    gate = of.Conv2D(6, 1, activation="relu")(gate)
    return of.Multiply()([x, of.Conv2D(24, 1, activation="sigmoid")(gate)])


def _u_net(of: Any, x: Any) -> Any:
    first = of.Conv2D(8, 3, padding="same", activation="relu")(x)
    down = of.MaxPooling2D()(first)
    down = of.BatchNormalization()(of.Conv2D(16, 3, padding="same")(down))
    down = of.LeakyReLU()(down)
    up = of.Conv2DTranspose(8, 2, strides=2)(down)
    up = of.Concatenate()([up, first, of.UpSampling2D(interpolation="bilinear")(down)])
    return of.Conv2D(3, 1, activation="sigmoid")(up)


def _activations(of: Any, x: Any) -> Any:
    names = (
        *("relu", "relu6", "elu", "selu", "gelu", "silu", "mish", "softplus", "softsign", "tanh"),
        *("sigmoid", "hard_sigmoid", "hard_swish", "log_softmax", "leaky_relu", "celu", "glu"),
        *("tanh_shrink", "hard_tanh", "soft_shrink", "squareplus", "sparse_plus", "log_sigmoid"),
    )
    return of.Concatenate()([of.Activation(name)(of.Dense(8)(x)) for name in names])


def _normalizations(of: Any, x: Any) -> Any:
    x = of.Conv2D(12, 3)(x)
    parts = [
        of.GroupNormalization(3)(x),
        of.LayerNormalization(axis=(1, 2))(x),
        of.RMSNormalization()(x),
        of.UnitNormalization()(x),
        of.BatchNormalization()(x),
    ]
    return of.Concatenate()(parts)


def _separable(of: Any, x: Any) -> Any:
    x = of.SeparableConv2D(16, 3, padding="same", dilation_rate=2)(x)
    x = of.DepthwiseConv2D(5, strides=2, depth_multiplier=2)(x)
    return of.Conv2D(8, 3, groups=4, padding="same")(x)


def _images(of: Any, x: Any) -> Any:
    x = of.Rescaling(1 / 127.5, offset=-1)(of.ZeroPadding2D(((1, 2), (0, 3)))(x))
    x = of.Resizing(20, 14)(of.CenterCrop(18, 22)(x))
    x = of.Cropping2D(1)(x)
    return of.Permute((3, 1, 2))(of.AveragePooling2D(3, strides=2, padding="same")(x))


def _sequences(of: Any, x: Any) -> Any:
    x = of.Conv1D(12, 3, padding="causal", dilation_rate=2, activation="relu")(x)
    x = of.Conv1DTranspose(12, 4, strides=2, padding="same")(x)
    x = of.MaxPooling1D(2)(of.SeparableConv1D(12, 3, padding="same")(x))
    return of.Flatten()(of.RepeatVector(3)(of.GlobalMaxPooling1D()(x)))


def _volumes(of: Any, x: Any) -> Any:
    x = of.Conv3D(8, 3, padding="same", activation="relu")(x)
    x = of.UpSampling3D()(of.Conv3D(8, 2, strides=2)(x))
    return of.GlobalAveragePooling3D()(of.Conv3DTranspose(4, 2, strides=2)(x))


def _einsum(of: Any, x: Any) -> Any:
    x = of.EinsumDense("abc,cde->abde", output_shape=(None, 3, 4), bias_axes="de")(x)
    return of.EinsumDense("abde,def->abf", output_shape=(None, 10))(x)


def _attention(of: Any, x: Any) -> Any:
    first, second = of.Dense(24)(x), of.Dense(24)(x)
    scaled = of.Attention(use_scale=True)([first, second])
    return of.Concatenate()([scaled, of.AdditiveAttention()([first, second])])


def _mixture(of: Any, x: Any) -> Any:
    """Return experts that are weighted by a softmax over them."""
    gates = of.Reshape((-1, 3, 1))(of.Softmax()(of.Dense(3)(x)))
    experts = of.Reshape((-1, 3, 8))(of.Dense(24, activation="relu")(x))
    return of.Multiply()([experts, gates])


BUILDERS: Mapping[str, Callable[[], Model]] = {
    "mobilenet_v3": _application("MobileNetV3Small", 64, minimalistic=False),
    "efficientnet_v2": _application("EfficientNetV2B0", 64),
    "convnext": _application("ConvNeXtTiny", 64),
    "nasnet": _application("NASNetMobile", 64),
    "densenet": _application("DenseNet121", 64),
    "xception": _application("Xception", 96),
    "inception_resnet": _application("InceptionResNetV2", 96),
    "inception_v3": _application("InceptionV3", 96),
    "mobilenet": _application("MobileNet", 64, alpha=0.25),
    "mobilenet_v2": _application("MobileNetV2", 64, alpha=0.35),
    "efficientnet": _application("EfficientNetB0", 64),
    "resnet": _application("ResNet50", 64),
    "resnet_v2": _application("ResNet50V2", 64),
    "vgg": _application("VGG16", 64),
    "squeeze_excite": _chain(_squeeze, 32, 24, 3),
    "u_net": _chain(_u_net, 16, 24, 3),
    "separable": _chain(_separable, 17, 15, 8),
    "activations": _chain(_activations, 5, 12),
    "normalizations": _chain(_normalizations, 9, 11, 3),
    "image_layers": _chain(_images, 21, 25, 3),
    "sequences": _chain(_sequences, 20, 6),
    "volumes": _chain(_volumes, 8, 8, 8, 3),
    "einsum": _chain(_einsum, 7, 12),
    "vit": _chain(_vit, 32, 32, 3),
    "encoder": _words(_transformer),
    "decoder": _words(lambda of, x: of.Dense(_WORDS)(_transformer(of, x, causal=True))),
    "grouped_query": _words(_grouped_query),
    "attention": _words(_attention),
    "mixture": _words(_mixture),
    "lstm": _words(lambda of, x: of.LSTM(16)(of.LSTM(16, return_sequences=True)(x))),
    "gru": _words(lambda of, x: of.GRU(16, return_sequences=True)(x)),
    "gru_before": _words(lambda of, x: of.GRU(16, reset_after=False)(x)),
    "simple_rnn": _words(lambda of, x: of.SimpleRNN(16)(x)),
    "bidirectional": _words(
        lambda of, x: of.Bidirectional(of.LSTM(12, return_sequences=True), merge_mode="ave")(x)
    ),
    "conv_lstm": _chain(lambda of, x: of.ConvLSTM2D(6, 3, padding="same")(x), 4, 8, 8, 3),
    "time_distributed": _chain(
        lambda of, x: of.LSTM(8)(of.TimeDistributed(of.Dense(8, activation="relu"))(x)), 6, 10
    ),
}
"""A builder for each model."""

KERAS_ARCHITECTURES: Mapping[str, tuple[Callable[[], Model], str]] = {
    f"keras_{name}_{mode}": (build, mode)
    for name, build in (
        *BUILDERS.items(),
        *LAYERS.items(),
        *((f"hub_{name}", build) for name, build in HUB.items()),
    )
    for mode in MODES
}
"""The builder and the mode of each converted model."""


def convert(name: str) -> tuple[bytes, tuple[Any, ...]]:
    """Return the file of a model, and inputs for it in the types of the file."""
    tf = importlib.import_module("tensorflow")
    keras = _keras()
    build, mode = KERAS_ARCHITECTURES[name]
    keras.utils.set_random_seed(0)
    model, inputs = build()
    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    if mode != "float":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if mode == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if mode in ("int8", "int16x8"):
        generator = np.random.default_rng(1)

        def samples() -> Any:
            yield [*inputs]
            for _ in range(7):
                yield [
                    generator.standard_normal(x.shape).astype(x.dtype)
                    if x.dtype.kind == "f"
                    else generator.integers(0, _WORDS, x.shape, x.dtype)
                    for x in inputs
                ]

        converter.representative_dataset = samples
        sets = tf.lite.OpsSet
        converter.target_spec.supported_ops = [
            sets.TFLITE_BUILTINS_INT8
            if mode == "int8"
            else sets.EXPERIMENTAL_TFLITE_BUILTINS_ACTIVATIONS_INT16_WEIGHTS_INT8,
            sets.TFLITE_BUILTINS,
        ]
    content = converter.convert()
    return content, _ordered(content, inputs)


def _ordered(content: bytes, inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return the inputs, which are in the order of their names, in the order of the file."""
    tf = importlib.import_module("tensorflow")
    details = tf.lite.Interpreter(model_content=content).get_input_details()
    names = [each["name"] for each in details]
    return tuple(inputs[sorted(names).index(name)] for name in names)
