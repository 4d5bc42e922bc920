"""Transformers of the zoo have the nodes that converters write for the same layers."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from litegpu import zoo
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import schema

pytest.importorskip("ai_edge_litert.interpreter", reason="needs the package ai-edge-litert")

# What the converter of TensorFlow 2.21 made of the layers; of nodes that do not need each other the
# order is its own. First keras.layers.LayerNormalization of Keras 3, then tf.nn.moments and
# tf.nn.batch_normalization, as Keras 2 calls them below an epsilon of 1.001e-5.
DEVIATION = ["SQUARED_DIFFERENCE", "MEAN", "ADD", "RSQRT"]
KERAS_NORM = ["MEAN", "NEG", *DEVIATION, "MUL", "MUL", "ADD", "MUL", "ADD"]
TF_NORM = ["MEAN", *DEVIATION, "MUL", "MUL", "SUB", "MUL", "ADD"]
HEAD = ["FULLY_CONNECTED", "RESHAPE", "TRANSPOSE"]
JOINED = ["TRANSPOSE", "RESHAPE", "FULLY_CONNECTED", "ADD"]
# Heads by tf.matmul(query, key, transpose_b=True) / sqrt(depth), or by keras' MultiHeadAttention.
ATTENTION = [*HEAD * 3, "BATCH_MATMUL", "MUL", "SOFTMAX", "BATCH_MATMUL", *JOINED]
# Queries are scaled, and heads are rows of the batch.
ROWS = [
    *("FULLY_CONNECTED", "MUL", "FULLY_CONNECTED", "FULLY_CONNECTED"),
    *("RESHAPE", "TRANSPOSE", "RESHAPE") * 3,
    *("BATCH_MATMUL", "SOFTMAX", "BATCH_MATMUL", "RESHAPE", *JOINED),
]
# Every spelling of GELU, with erf, tanh or a polynomial, is one operation.
MLP = ["FULLY_CONNECTED", "GELU", "FULLY_CONNECTED", "ADD"]
CONV_1D = ["RESHAPE", "CONV_2D", "RESHAPE", "GELU"]
SWISH = ["LOGISTIC", "MUL"]
CONV = ["CONV_2D", *SWISH]
INVERTED = [*CONV, "DEPTHWISE_CONV_2D", *SWISH, "CONV_2D"]
UNFOLD = ["TRANSPOSE", "RESHAPE", "TRANSPOSE", "RESHAPE", "TRANSPOSE", "RESHAPE"]
SWISH_MLP = ["FULLY_CONNECTED", *SWISH, "FULLY_CONNECTED", "ADD"]
HEAD_OF_CLASSES = ["FULLY_CONNECTED", "SOFTMAX"]


def mobilevit_block(layers: int) -> list[str]:
    layer = [*KERAS_NORM, *ATTENTION, *KERAS_NORM, *SWISH_MLP]
    fold = UNFOLD[::-1]
    return [*CONV, "CONV_2D", *UNFOLD, *layer * layers, *KERAS_NORM, *fold, *CONV, "CONCATENATION"]


SEQUENCES = {
    "zoo:vit_tiny": [
        *("CONV_2D", "RESHAPE", "CONCATENATION", "ADD"),
        *[*KERAS_NORM, *ATTENTION, *KERAS_NORM, *MLP] * 12,
        *(*KERAS_NORM, "STRIDED_SLICE", *HEAD_OF_CLASSES),
    ],
    "zoo:mobilevit_xxs": [
        *(*CONV, *INVERTED, "ADD", *INVERTED, *[*INVERTED, "ADD"] * 2),
        *(*INVERTED, *mobilevit_block(2), *CONV),
        *(*INVERTED, *mobilevit_block(4), *CONV),
        *(*INVERTED, *mobilevit_block(3), *CONV),
        *(*CONV, "MEAN", *HEAD_OF_CLASSES),
    ],
    "zoo:whisper_tiny_encoder": [
        *("TRANSPOSE", *CONV_1D, *CONV_1D, "ADD"),
        *[*TF_NORM, *ROWS, *TF_NORM, *MLP] * 4,
        *TF_NORM,
    ],
}
SMALL = {
    "zoo:vit_tiny?size=32&layers=1": (1, 1000),
    "zoo:mobilevit_xxs?size=33&batch=2&layers=1": (2, 1000),
    "zoo:whisper_tiny_encoder?frames=31&layers=1&batch=2": (2, 16, 384),
}


def nodes(name: str) -> list[str]:
    tables = schema.tables()
    model = tables.ModelT.InitFromObj(tables.Model.GetRootAs(zoo.load(name), 0))
    named = {number: each for each, number in schema.members("BuiltinOperator").items()}
    codes = [named[max(c.builtinCode, c.deprecatedBuiltinCode)] for c in model.operatorCodes]
    return [codes[op.opcodeIndex] for op in model.subgraphs[0].operators]


@pytest.mark.parametrize("name", SEQUENCES)
def test_nodes_are_those_of_the_converter(name: str) -> None:
    found, wanted = nodes(name), SEQUENCES[name]
    assert collections.Counter(found) == collections.Counter(wanted)
    assert [op for op in found if op not in ("TRANSPOSE", "RESHAPE")] == [
        op for op in wanted if op not in ("TRANSPOSE", "RESHAPE")
    ]


@pytest.mark.parametrize("name", SMALL)
def test_results_are_finite_and_depend_on_the_input(name: str) -> None:
    model = runtime.interpreter(zoo.load(name), builtin_kernels=True)
    (detail,), (result,) = model.get_input_details(), model.get_output_details()
    random, outputs = np.random.default_rng(1), []
    for _ in range(2):
        given = random.uniform(-1, 1, detail["shape"]).astype(np.float32)
        model.set_tensor(detail["index"], given)
        model.invoke()
        outputs.append(model.get_tensor(result["index"]))
    assert outputs[0].shape == SMALL[name]
    assert np.isfinite(outputs).all()
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3
