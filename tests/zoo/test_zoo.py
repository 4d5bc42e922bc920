"""The model zoo: every network runs, has the documented properties, and has constant bytes."""

from __future__ import annotations

import collections
import functools
import hashlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import litegpu
from litegpu import CompiledModel, zoo
from litegpu.errors import CompiledModelError, ModelError, OptionsError
from litegpu.zoo import schema, weights
from litegpu.zoo.weights import Moments
from real_models import find

interpreter = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="needs the package ai-edge-litert"
)

Array = npt.NDArray[Any]

MOBILENET_V1_OPS = {
    "CONV_2D": 15,
    "DEPTHWISE_CONV_2D": 13,
    "AVERAGE_POOL_2D": 1,
    "RESHAPE": 1,
    "SOFTMAX": 1,
}
OPS = {
    "zoo:mobilenet_v1_1.0_224": MOBILENET_V1_OPS,
    "zoo:mobilenet_v1_0.25_128": MOBILENET_V1_OPS,
    "zoo:mobilenet_v2_1.0_224": {
        "CONV_2D": 36,
        "DEPTHWISE_CONV_2D": 17,
        "ADD": 10,
        "AVERAGE_POOL_2D": 1,
        "RESHAPE": 1,
        "SOFTMAX": 1,
    },
    "zoo:ssd_mobilenet_v1_300": {
        "CONV_2D": 34,
        "DEPTHWISE_CONV_2D": 13,
        "RESHAPE": 13,
        "CONCATENATION": 2,
        "LOGISTIC": 1,
        "CUSTOM": 1,
    },
    "zoo:deeplab_v3_257": {
        "CONV_2D": 38,
        "DEPTHWISE_CONV_2D": 17,
        "ADD": 10,
        "AVERAGE_POOL_2D": 1,
        "CONCATENATION": 1,
        "RESIZE_BILINEAR": 3,
    },
    "zoo:posenet_mobilenet_v1_257": {"CONV_2D": 18, "DEPTHWISE_CONV_2D": 13},
    "zoo:resnet50": {
        "CONV_2D": 53,
        "ADD": 16,
        "PAD": 2,
        "MAX_POOL_2D": 1,
        "MEAN": 1,
        "FULLY_CONNECTED": 1,
        "SOFTMAX": 1,
    },
}
OUTPUTS: dict[str, list[tuple[int, ...]]] = {
    "zoo:mobilenet_v1_1.0_224": [(1, 1001)],
    "zoo:mobilenet_v1_0.25_128": [(1, 1001)],
    "zoo:mobilenet_v2_1.0_224": [(1, 1001)],
    "zoo:ssd_mobilenet_v1_300": [(1, 10, 4), (1, 10), (1, 10), (1,)],
    "zoo:deeplab_v3_257": [(1, 257, 257, 21)],
    "zoo:posenet_mobilenet_v1_257": [(1, 9, 9, 17), (1, 9, 9, 34), (1, 9, 9, 32), (1, 9, 9, 32)],
    "zoo:resnet50": [(1, 1000)],
}
TRANSFORMERS = ["zoo:vit_tiny", "zoo:mobilevit_xxs", "zoo:whisper_tiny_encoder"]
"""Those of test_transformers.py."""
CLASSIFIERS = [name for name, shapes in OUTPUTS.items() if shapes[0][1] >= 1000]
SMALL = "zoo:mobilenet_v1_0.25_128"

Operation = tuple[str, list[tuple[int, ...]], list[tuple[int, ...]], dict[str, Any]]


def operations(data: bytes) -> list[Operation]:
    """Return name, input shapes, output shapes and options of each operation."""
    tables = schema.tables()
    model = tables.ModelT.InitFromObj(tables.Model.GetRootAs(data, 0))
    named = {number: name for name, number in schema.members("BuiltinOperator").items()}
    (graph,) = model.subgraphs

    def shapes(indices: Any) -> list[tuple[int, ...]]:
        found = [graph.tensors[i].shape for i in indices]
        return [() if shape is None else tuple(shape.tolist()) for shape in found]

    result = []
    for op in graph.operators:
        code = model.operatorCodes[op.opcodeIndex]
        name = named[max(code.builtinCode, code.deprecatedBuiltinCode)]
        options = vars(op.builtinOptions) if op.builtinOptions else {}
        result.append((name, shapes(op.inputs), shapes(op.outputs), options))
    return result


def noise(shape: tuple[int, ...], seed: int = 0) -> Array:
    """Return a noisy picture with some structure, values in [-1, 1]."""
    random = np.random.default_rng(seed)
    batch, height, width, channels = shape
    coarse = random.uniform(-1, 1, (batch, 8, 8, channels))
    rows, columns = np.arange(height) * 8 // height, np.arange(width) * 8 // width
    fine = random.uniform(-1, 1, shape)
    smooth = coarse[:, rows][:, :, columns]
    return (0.7 * smooth + 0.3 * fine).astype(np.float32)


def run(data: bytes, *pictures: Array) -> list[list[Array]]:
    """Return the outputs for each picture; one batch of noise if none is given."""
    resolver = interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    model = interpreter.Interpreter(
        model_content=data, experimental_op_resolver_type=resolver, num_threads=2
    )
    model.allocate_tensors()
    (detail,) = model.get_input_details()
    results = []
    for picture in pictures or [noise(tuple(detail["shape"]))]:
        model.set_tensor(detail["index"], picture)
        model.invoke()
        results.append([model.get_tensor(d["index"]) for d in model.get_output_details()])
    return results


@functools.cache
def two_runs(name: str) -> list[list[Array]]:
    """Return the outputs of a model for two different pictures."""
    data = zoo.load(name)
    shape = operations(data)[0][1][0]
    return run(data, noise(shape, 1), noise(shape, 2))


def distance(a: Array, b: Array) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def test_the_tables_of_this_file_cover_the_zoo() -> None:
    """That of test_language.py is the last one."""
    assert [*OPS, *TRANSFORMERS] == [*OUTPUTS, *TRANSFORMERS] == zoo.names()[:-1]


@pytest.mark.parametrize("name", OPS)
def test_operations_are_those_of_the_architecture(name: str) -> None:
    assert dict(collections.Counter(op[0] for op in operations(zoo.load(name)))) == OPS[name]


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_finite_and_depend_on_the_picture(name: str) -> None:
    first, second = two_runs(name)
    assert [a.shape for a in first] == OUTPUTS[name]
    assert all(np.isfinite(a).all() for a in first)
    for a, b in zip(first, second, strict=True):
        if a.size > 1:
            assert distance(a, b) > 1e-3


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_class_probabilities_have_a_winner_that_is_not_the_only_one(name: str) -> None:
    for (scores,) in two_runs(name):
        assert scores.sum() == pytest.approx(1, abs=1e-4)
        assert 10 / scores.size < scores.max() < 0.8
        assert np.median(scores) > 1e-6


def test_detections_are_sorted_and_spread() -> None:
    for boxes, classes, scores, count in two_runs("zoo:ssd_mobilenet_v1_300"):
        assert count == 10
        assert (np.diff(scores) <= 0).all()
        assert 0.3 < scores.min() < scores.max() - 0.05 < 0.95
        assert len(np.unique(classes)) > 2
        assert (boxes[..., 2:] > boxes[..., :2]).all()


def test_a_picture_is_segmented_into_several_classes() -> None:
    for (scores,) in two_runs("zoo:deeplab_v3_257"):
        shares = np.bincount(scores.argmax(-1).ravel(), minlength=21) / (257 * 257)
        assert (shares > 0.01).sum() >= 3
        assert shares.max() < 0.95


def test_poses_have_hot_and_cold_spots() -> None:
    for heatmaps, offsets, *displacements in two_runs("zoo:posenet_mobilenet_v1_257"):
        assert heatmaps.min() < -2 < 0 < heatmaps.max() < 20
        assert all(1 < a.std() < 100 for a in (offsets, *displacements))


@pytest.mark.parametrize("name", ["zoo:mobilenet_v2_1.0_224?size=96", "zoo:resnet50?size=64"])
def test_activations_stay_in_range_to_the_end(name: str) -> None:
    data = zoo.load(name)
    model = interpreter.Interpreter(
        model_content=data,
        experimental_preserve_all_tensors=True,
        experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
    )
    model.allocate_tensors()
    (detail,) = model.get_input_details()
    model.set_tensor(detail["index"], noise(tuple(detail["shape"])))
    model.invoke()
    activated = [t for t in model.get_tensor_details() if t["name"].endswith(("/Relu", "/Relu6"))]
    assert len(activated) > 30
    for tensor in activated:
        values = model.get_tensor(tensor["index"])
        assert 0.5 < values.mean() < 3, tensor["name"]
        assert 0.2 < np.mean(values > 0) < 0.95, tensor["name"]


def test_a_name_is_the_same_bytes_each_time() -> None:
    assert zoo.load(SMALL) == zoo.load(SMALL) == zoo.load(f"{SMALL}?seed=0&weights=float32")
    assert zoo.load(SMALL) != zoo.load(f"{SMALL}?seed=1")


def test_weights_are_the_same_everywhere() -> None:
    pairs = [
        weights.dense("key", (4, 3, 3, 2), Moments(1.391, 2.172), Moments(0.5, 2.0)),
        weights.depthwise("key", 5, Moments(1.391, 2.172), Moments(1.0, 4.0)),
    ]
    little = [array.astype("<f4").tobytes() for pair in pairs for array in pair]
    digest = hashlib.sha256(b"".join(little)).hexdigest()
    assert digest == "94b8c82359d418b165119d494d2863207a1ac69ae1d4ca1f529b5a765fa1e2c2"


def test_layers_do_not_share_weights() -> None:
    firsts = {
        weights.dense(key, (8, 8), Moments(0, 1), Moments(0, 1))[0].tobytes()
        for key in ("model/0/a", "model/0/b", "model/1/a")
    }
    assert len(firsts) == 3


def test_a_batch_has_the_weights_of_the_single_picture() -> None:
    pictures = noise((3, 64, 64, 3))
    ((batch,),) = run(zoo.load(f"{SMALL}?batch=3&size=64"), pictures)
    singles = run(zoo.load(f"{SMALL}?size=64"), *(pictures[i : i + 1] for i in range(3)))
    for i, (single,) in enumerate(singles):
        np.testing.assert_allclose(batch[i : i + 1], single, rtol=1e-4, atol=1e-6)


def test_float16_weights_are_smaller_and_nearly_as_good() -> None:
    full, half = zoo.load(SMALL), zoo.load(f"{SMALL}?weights=float16")
    counts = collections.Counter(op[0] for op in operations(half))
    assert dict(counts) == {**MOBILENET_V1_OPS, "DEQUANTIZE": 2 * 28}
    assert len(half) < 0.55 * len(full)
    picture = noise((1, 128, 128, 3))
    ((a,),), ((b,),) = run(half, picture), run(full, picture)
    assert 0 < distance(a, b) < 0.02


@pytest.mark.parametrize("name", OPS)
def test_int8_networks_keep_what_the_float_ones_tell(name: str) -> None:
    size = 257 if name == "zoo:deeplab_v3_257" else 97
    full, small = (zoo.load(f"{name}?size={size}&weights={kind}") for kind in ("float32", "int8"))
    assert len(small) < 0.4 * len(full)
    (detail,) = loaded(small).get_input_details()
    stored = np.random.default_rng(1).integers(-127, 128, detail["shape"]).astype(np.int8)
    real = stored * np.float32(detail["quantization"][0])
    ((a, *_),), ((b, *_),) = run(full, real), run(small, stored)
    (scale, zero) = loaded(small).get_output_details()[0]["quantization"]
    approximate = (b - np.float32(zero)) * scale if scale else b
    assert distance(approximate, a) < 0.8
    ends = np.abs(b.astype(np.int32) + 0.5) > 127 if scale else np.zeros(1, bool)
    classes = "SOFTMAX" in {op[0] for op in operations(small)}
    assert classes or ends.mean() < 0.05


def loaded(data: bytes) -> Any:
    """Return an interpreter with tensors allocated."""
    model = interpreter.Interpreter(model_content=data)
    model.allocate_tensors()
    return model


@pytest.mark.parametrize(
    ("parameters", "shape"),
    [
        ("batch=2&size=33", (2, 2, 2, 17)),
        ("size=129&stride=32&width=0.5", (1, 5, 5, 17)),
        ("size=129&stride=16&width=0.5", (1, 9, 9, 17)),
    ],
)
def test_parameters_shape_the_outputs(parameters: str, shape: tuple[int, ...]) -> None:
    (outputs,) = run(zoo.load(f"zoo:posenet_mobilenet_v1_257?{parameters}"))
    assert outputs[0].shape == shape


@pytest.mark.parametrize(
    ("name", "dilations"),
    [
        ("zoo:posenet_mobilenet_v1_257?stride=16", [1] * 12 + [2]),
        ("zoo:deeplab_v3_257", [1] * 7 + [2] * 7 + [4] * 3),
    ],
)
def test_strides_beyond_the_output_stride_become_dilation(name: str, dilations: list[int]) -> None:
    found = [op[3] for op in operations(zoo.load(name)) if op[0] == "DEPTHWISE_CONV_2D"]
    assert [options["dilationHFactor"] for options in found] == dilations
    assert [options["dilationWFactor"] for options in found] == dilations


def test_widths_scale_channels_as_the_networks_say() -> None:
    def channels(name: str) -> list[int]:
        found = operations(zoo.load(name))
        return [op[2][0][3] for op in found if op[0] == "CONV_2D"]

    assert channels(SMALL)[:3] == [8, 16, 32]
    assert channels("zoo:mobilenet_v2_1.0_224?width=0.35")[:2] == [16, 8]
    assert channels("zoo:mobilenet_v2_1.0_224?width=1.4")[-2] == 1792
    assert channels("zoo:mobilenet_v2_1.0_224?width=0.35")[-2] == 1280


def test_default_boxes_cover_the_picture() -> None:
    operation = operations(zoo.load("zoo:ssd_mobilenet_v1_300"))[-1]
    assert operation[1] == [(1, 1917, 4), (1, 1917, 91), (1917, 4)]


REAL = [
    ("mobilenet_v1_0.25_128_float32", "zoo:mobilenet_v1_0.25_128"),
    ("mobilenet_v1_0.25_128_float16", "zoo:mobilenet_v1_0.25_128?weights=float16"),
    ("mobilenet_v2_1.0_224_float32", "zoo:mobilenet_v2_1.0_224"),
    ("deeplabv3_257_mv_gpu", "zoo:deeplab_v3_257"),
    ("ssd_mobilenet_v1_coco_float32", "zoo:ssd_mobilenet_v1_300?width=0.75"),
]


@pytest.mark.real_model
@pytest.mark.parametrize(("real", "name"), REAL)
def test_real_model_has_the_same_operations(real: str, name: str) -> None:
    """The same operations with the same shapes (the order of independent ones is free)."""
    content = find(real).read_bytes()

    def described(data: bytes) -> collections.Counter[str]:
        return collections.Counter(str(op[:3]) for op in operations(data))

    assert described(zoo.load(name)) == described(content)


@pytest.mark.parametrize("text", ["zoo:", "zoo:anything", *OPS])
def test_zoo_names_are_told_from_paths(text: str) -> None:
    assert zoo.is_zoo_name(text)
    assert not zoo.is_zoo_name(text.removeprefix("zoo:"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "zoo:mobilenet_v1_1.0_225",
            "Unknown zoo model 'zoo:mobilenet_v1_1.0_225'. "
            "Did you mean 'zoo:mobilenet_v1_1.0_224'? Known: zoo:mobilenet_v1_1.0_224, ",
        ),
        ("zoo:", "Unknown zoo model 'zoo:'. Known: "),
        ("zoo:mobilnet_v1", "Did you mean 'zoo:mobilenet_v1_1.0_224'?"),
        ("zoo:mobilenet_v2", "Did you mean 'zoo:mobilenet_v2_1.0_224'?"),
        ("zoo:deeplab", "Did you mean 'zoo:deeplab_v3_257'?"),
        ("zoo:vit", "Did you mean 'zoo:vit_tiny'?"),
        (
            f"{SMALL}?bach=2",
            f"Zoo model '{SMALL}?bach=2' has no parameter 'bach'. Did you mean 'batch'? "
            "Known: weights, seed, batch, size, width.",
        ),
        ("zoo:ssd_mobilenet_v1_300?batch=2", "has no parameter 'batch'."),
        (f"{SMALL}?seed=1&seed=2", "has 'seed' twice. Give it once."),
        (f"{SMALL}?batch=0", "batch cannot be '0'. Use a whole number from 1 to 1024."),
        (f"{SMALL}?batch", "batch cannot be ''. Use a whole number from 1 to 1024."),
        (f"{SMALL}?size=1e3", "size cannot be '1e3'. Use a whole number from 32 to 2048."),
        (f"{SMALL}?width=nan", "width cannot be 'nan'. Use a number from 0.1 to 4.0."),
        (f"{SMALL}?weights=int4", "weights cannot be 'int4'. Use float32 or float16 or int8."),
        ("zoo:posenet_mobilenet_v1_257?stride=8", "stride cannot be '8'. Use 16 or 32."),
        ("zoo:vit_tiny?weights=int8", "weights cannot be 'int8'. Use float32 or float16."),
    ],
)
def test_names_that_cannot_be_loaded(name: str, message: str) -> None:
    with pytest.raises(OptionsError, match=re.escape(message)):
        zoo.load(name)


def test_a_model_is_resolved_from_path_or_name(tmp_path: Path) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(zoo.resolve_model(SMALL))
    assert zoo.resolve_model(path) == zoo.resolve_model(str(path)) == zoo.load(SMALL)


def test_a_model_file_that_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "absent.tflite"
    message = f"Model file '{path}' does not exist. Check the path, or use a built-in model such as"
    with pytest.raises(ModelError, match=re.escape(message)):
        zoo.resolve_model(path)


def test_a_zoo_name_without_its_prefix() -> None:
    with pytest.raises(ModelError, match=r"does not exist\. Did you mean 'zoo:resnet50'\?"):
        zoo.resolve_model("resnet50")
    with pytest.raises(ModelError, match=r"does not exist\. Did you mean 'zoo:vit_tiny'\?"):
        zoo.resolve_model("vit-tiny")


@pytest.mark.parametrize("given", [b"TFL3", None, 3])
def test_what_is_no_path_of_a_model(given: Any) -> None:
    message = f"A model's path or zoo name is text, not {type(given).__name__}. "
    for call, advice in (
        (zoo.resolve_model, "Give the path of a .tflite file or `zoo:NAME`."),
        (CompiledModel.from_file, "CompiledModel.from_buffer takes the bytes of a .tflite file."),
    ):
        with pytest.raises((ModelError, CompiledModelError), match=re.escape(message + advice)):
            call(given)
    if given != b"TFL3":
        with pytest.raises(ModelError, match=r"Give the path .*, or the bytes of a .tflite file\."):
            litegpu.check(given)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_model_may_be_any_bytes(kind: Callable[[bytes], Any]) -> None:
    assert zoo.model_bytes(kind(b"1234TFL3")) == b"1234TFL3"
    with pytest.raises(ModelError, match="The runtime itself, without litegpu, rejects this model"):
        litegpu.check(kind(b"1234TFL4"))


def test_a_model_file_that_is_a_folder(tmp_path: Path) -> None:
    message = f"Model file '{tmp_path}' cannot be read: "
    with pytest.raises(ModelError, match=re.escape(message)):
        zoo.resolve_model(tmp_path)


@pytest.mark.parametrize("content", [b"", b"PNG\x03rest of it"])
def test_a_file_that_is_no_model(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"is not a TensorFlow Lite model: .* b'TFL3'"):
        zoo.resolve_model(path)
