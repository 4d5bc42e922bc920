"""The zoo's language model: signatures and operations as litert-torch writes them."""

from __future__ import annotations

import collections

import pytest

from containers import language_parts
from litegpu import OptionsError, zoo
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import objects, schema

NAME = "zoo:tiny_lm?layers=2&context=64"
NORM = ["MUL", "MEAN", "ADD", "RESHAPE", "RSQRT", "MUL"]
ROPE = ["SLICE", "SLICE", "MUL", "CONCATENATION", "MUL", "MUL", "ADD"]
HEADS = ["FULLY_CONNECTED", "RESHAPE", "TRANSPOSE"]
CACHES = [*NORM, *HEADS, *ROPE, *HEADS, "TRANSPOSE", *["DYNAMIC_UPDATE_SLICE"] * 2]
ATTENTION = ["MUL", "RESHAPE", "BATCH_MATMUL", "CONCATENATION", "ADD", "SOFTMAX", "BATCH_MATMUL"]
JOINED = ["RESHAPE", "TRANSPOSE", "RESHAPE", "FULLY_CONNECTED", "ADD"]
MLP = [*NORM, *["FULLY_CONNECTED"] * 2, "LOGISTIC", "MUL", "MUL", "FULLY_CONNECTED", "ADD"]
LAYER = [*CACHES, *HEADS, *ROPE, *ATTENTION, *JOINED, *MLP]
ANGLES = ["RESHAPE", "CAST", "MUL", "CONCATENATION", "COS", "SIN"]
START = ["RESHAPE", "EMBEDDING_LOOKUP", "RESHAPE", *ANGLES, "SLICE", "RESHAPE", "PACK", "PACK"]


def test_operations_are_those_of_the_exporter() -> None:
    """Of a prefill's last layer nothing is left but the caches."""
    model = objects.parse(zoo.load(NAME))
    names = {number: name for name, number in schema.members("BuiltinOperator").items()}
    found = []
    for graph in model.subgraphs:
        codes = [model.operatorCodes[each.opcodeIndex] for each in graph.operators]
        numbers = (max(each.builtinCode, each.deprecatedBuiltinCode) for each in codes)
        found.append(collections.Counter(names[number] for number in numbers))
    prefill = collections.Counter([*START, *LAYER, *CACHES])
    decode = collections.Counter([*START, *LAYER, *LAYER, *NORM, "FULLY_CONNECTED"])
    assert found == [prefill, prefill, decode]


def test_signatures_are_those_of_the_exporter() -> None:
    interpreter = runtime.interpreter(zoo.load(NAME))
    assert [*interpreter.get_signature_list()] == ["prefill_8", "prefill_32", "decode"]
    caches = {f"kv_cache_{kind}_{layer}" for kind in "kv" for layer in (0, 1)}
    shapes = {"k": [1, 2, 64, 16], "v": [1, 2, 16, 64]}
    for name, count in (("prefill_8", 8), ("prefill_32", 32), ("decode", 1)):
        runner = interpreter.get_signature_runner(name)
        inputs, outputs = runner.get_input_details(), runner.get_output_details()
        assert inputs.keys() == {"tokens", "input_pos", "mask"} | caches
        assert outputs.keys() == caches | ({"logits"} if count == 1 else set())
        assert [*inputs["tokens"]["shape"]] == [1, count]
        assert [*inputs["mask"]["shape"]] == [1, 1, count, 64]
        for cache in caches:
            assert [*inputs[cache]["shape"]] == [*outputs[cache]["shape"]] == shapes[cache[9]]


def test_weights_are_stored_once_and_the_file_is_small() -> None:
    content = zoo.load_language_model("zoo:tiny_lm")
    assert len(content) < 1 << 20
    assert content == zoo.load_language_model("zoo:tiny_lm")
    assert len(language_parts(f"{NAME}&embedder=1")) == 4
    with pytest.raises(OptionsError, match=r"'zoo:vit_tiny' is not a language model. Use zoo:tiny"):
        zoo.load_language_model("zoo:vit_tiny")
