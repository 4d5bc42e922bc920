"""Files of language models: metadata, tokenizers and chat templates, valid and damaged."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from containers import bundle, language_parts, tokenizer_json
from litegpu import (
    LanguageModel,
    LanguageModelError,
    MissingDependencyError,
    ModelError,
    OptionsError,
)
from litegpu.files.wire import message, varints
from litegpu.language_model.chat import chat_text
from litegpu.language_model.metadata import Metadata, read_metadata
from litegpu.language_model.prompts import padding_token
from litegpu.language_model.tokenizer import read_tokenizer
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.containers import Section, litertlm
from litegpu.zoo.writer import ModelWriter, TensorRef

NAME = "zoo:tiny_lm?layers=1&context=32"
METADATA = b"".join(
    (
        message((1, message((2, "<bos>")))),
        message((2, message((1, message((1, 2), (1, 300)))))),
        message((2, message((1, message((1, varints([4, 5]))))))),
        message((2, message((2, "<end>\n")))),
        message((3, message((1, message((1, "<u>"), (2, "</u>"))), (2, message((1, "<m>")))))),
        message((4, message((1, 2), (2, 40), (3, np.float32(0.5)), (4, np.float32(2.0))))),
        message((5, 1024), (7, "{{ messages }}"), (8, b""), (10, -3)),
        message((9, message((1, 7)))),
        message((13, message((1, message((1, 8)))))),
    )
)
EXECUTOR = message(
    (
        1,
        message(
            (1, 0),
            (2, message((3, "kv_cache_c_0"), (6, 5))),
            (2, message((3, "kv_cache_k_1"), (6, 3), (7, 2))),
            (3, message((1, 1), (2, 3), (3, 512))),
        ),
    )
)
MESSAGES = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]


def test_metadata_are_read() -> None:
    assert read_metadata(METADATA) == Metadata(
        "<bos>",
        ((2, 300), (4, 5), "<end>\n"),
        "{{ messages }}",
        {"user": ("<u>", "</u>"), "model": ("<m>", "")},
        1024,
        2.0,
        40,
        0.5,
        (7,),
        -3,
        (8,),
    )
    assert read_metadata(b"") == Metadata()
    states = frozenset({"kv_cache_c_0"})
    assert read_metadata(b"", EXECUTOR) == Metadata(window=512, states=states)
    greedy = message((4, message((1, 3), (4, np.float32(2.0)))))
    assert read_metadata(greedy).temperature == 0


PARAMETERS = b"".join(
    (
        message((1, message((1, 4))), (2, 256000), (4, 9)),
        message((5, "<eos>"), (5, "<turn>"), (8, message((2, "<u>"), (3, "</u><m>")))),
    )
)


def test_parameters_of_older_bundles_are_read() -> None:
    affixes = {"user": ("<u>", "</u><m>"), "model": ("", "")}
    assert read_metadata(PARAMETERS) == Metadata((9,), ("<eos>", "<turn>"), affixes=affixes)
    start = message((2, 7), (6, "<bos>"))
    assert read_metadata(start) == Metadata("<bos>")
    messages = [{"role": "user", "content": "Hi"}]
    assert chat_text(messages, read_metadata(PARAMETERS), "") == "<u>Hi</u><m>"
    for content in (METADATA, b""):
        assert read_metadata(content).affixes != affixes


@pytest.mark.parametrize("metadata", [METADATA, PARAMETERS], ids=["new", "old"])
def test_bundles_have_metadata(metadata: bytes, tmp_path: Path) -> None:
    parts = language_parts(NAME)
    members = {"TF_LITE_PREFILL_DECODE": parts[2], "METADATA": metadata}
    (tmp_path / "model.task").write_bytes(bundle(members))
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_bytes(tokenizer_json())
    with LanguageModel(tmp_path / "model.task", tokenizer=tokenizer, backend="cpu") as language:
        assert language._prompts.metadata == read_metadata(metadata)


def test_damaged_metadata_are_an_error() -> None:
    for content in (METADATA[:-1], message((1, 5)), message((3, 5)), message((7, b"\xff"))):
        with pytest.raises(ModelError, match=r"metadata are damaged .*Download or convert"):
            read_metadata(content)
    dice = random.Random(0)
    for number, content in enumerate((METADATA, EXECUTOR, PARAMETERS)):
        damaged = 0
        for _ in range(400):
            altered = bytearray(content)
            for _ in range(dice.randrange(1, 4)):
                altered[dice.randrange(len(altered))] = dice.randrange(256)
            part = bytes(altered[: dice.randrange(len(altered) + 1)])
            try:
                read_metadata(*((b"", part) if number == 1 else (part,)))
            except ModelError:
                damaged += 1
        assert 100 < damaged < 400


def test_models_whose_tokens_see_later_ones_are_refused() -> None:
    for number in (1, 2):
        content = message((1, message((3, message((number, 2))))))
        with pytest.raises(
            ModelError, match=r"tokens see the tokens after them.*Use CompiledModel"
        ):
            read_metadata(b"", content)


def test_the_padding_token_is_that_of_the_metadata() -> None:
    _, compressed, _ = language_parts(NAME)
    tokenizer = read_tokenizer(compressed)
    for padding, number in (((7,), 7), ("<eos>", 2), ("<eos><bos>", None), ((), None)):
        assert padding_token(tokenizer, Metadata(padding=padding)) == number
    assert padding_token(None, Metadata(padding="<eos>")) is None


def test_chats_without_a_template_have_affixes() -> None:
    metadata = Metadata(affixes={"user": ("<u>", "</u>"), "model": ("<m>", "</m>")})
    assert chat_text(MESSAGES, metadata, "") == "<u>Hi</u><m>Yes</m><m>"
    with pytest.raises(LanguageModelError, match=r"no role 'tool'. Use one of \['user', 'model'\]"):
        chat_text([{"role": "tool", "content": ""}], metadata, "")
    with pytest.raises(LanguageModelError, match=r"The file has no chat template. Give the prompt"):
        chat_text(MESSAGES, Metadata(), "")


@pytest.mark.parametrize(
    ("template", "error", "text"),
    [
        ("{% for", ModelError, "template of the file fails .*Give the prompt as text"),
        ("{{ 1 / 0 }}", ModelError, "ZeroDivisionError"),
        ("{{ messages.pop() }}", ModelError, "SecurityError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", ModelError, "SecurityError"),
        ("{{ raise_exception('no') }}", LanguageModelError, "template rejects the messages: no"),
    ],
)
def test_templates_are_strangers(template: str, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        chat_text(MESSAGES, Metadata(template=template), "")


def test_templates_have_what_those_of_hugging_face_use() -> None:
    template = (
        "{{ bos_token }}{% for message in messages %}{% if loop.index > 1 %}{% break %}{% endif %}"
        "\n{{ message.role }}: {{ message['content'] | trim }}{% endfor %}"
        "{% if add_generation_prompt and not tools %}>{{ strftime_now('%Y') | length }}{% endif %}"
    )
    assert chat_text(MESSAGES, Metadata(template=template), "<s>") == "<s>user: Hi>4"


def test_damaged_tokenizers_are_an_error() -> None:
    _, compressed, _ = language_parts(NAME)
    whole = read_tokenizer(compressed)
    assert whole.size == read_tokenizer(tokenizer_json()).size == 296
    assert (whole.name(1), whole.name(10**6)) == ("<bos>", "")
    longer = (int.from_bytes(compressed[:8], "little") + 1).to_bytes(8, "little")
    for content in (
        *(b"{}", b"\xff\xff", b"", compressed[:8], compressed[:40], longer + compressed[8:]),
        *(compressed[:8] + b"\x78" + bytes(20), tokenizer_json()[:-20]),
    ):
        with pytest.raises(ModelError, match=r"tokenizer is damaged .*Download or convert it"):
            read_tokenizer(content)


def sentence_pieces(folder: Path) -> bytes:
    """Return a model of SentencePiece, trained on the words of this file."""
    library = pytest.importorskip("sentencepiece", reason="needs litegpu[llm]")
    library.SentencePieceTrainer.train(
        input=__file__,
        model_prefix=str(folder / "pieces"),
        vocab_size=296,
        byte_fallback=False,
        hard_vocab_limit=False,
        control_symbols=["<turn>"],
        minloglevel=2,
    )
    return (folder / "pieces.model").read_bytes()


def test_sentence_pieces(tmp_path: Path) -> None:
    tokenizer = read_tokenizer(sentence_pieces(tmp_path))
    tokens = tokenizer.encode("<turn>the model<turn>")
    assert [tokenizer.name(tokens[0]), tokenizer.name(tokens[-1])] == ["<turn>", "<turn>"]
    assert tokenizer.decode(tokens) == "the model"
    assert tokenizer.name(-1) == ""


def test_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    """Of a .tflite file, a bundle, and in the place of the file's."""
    pieces, model = sentence_pieces(tmp_path), language_parts(NAME)[2]
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_json())
    (tmp_path / "model.tflite").write_bytes(model)
    (tmp_path / "model.task").write_bytes(
        bundle({"TF_LITE_PREFILL_DECODE": model, "TOKENIZER_MODEL": pieces})
    )
    file = tmp_path / "model.litertlm"
    file.write_bytes(litertlm([Section(model), Section(pieces, 4, "")]))
    tokens = [1, 20, 30]
    found = []
    for path, tokenizer in (
        ("model.tflite", "tokenizer.json"),
        ("model.litertlm:prefill_decode.tflite", "tokenizer.json"),
        ("model.litertlm", "tokenizer.json"),
        ("model.litertlm", None),
        ("model.task", None),
    ):
        given = None if tokenizer is None else tmp_path / tokenizer
        with LanguageModel(tmp_path / path, tokenizer=given, backend="cpu") as language:
            found.append(language.generate(tokens, max_tokens=5))
            assert language.tokenize("the") == read_tokenizer(
                pieces if tokenizer is None else tokenizer_json()
            ).encode("the")
    assert len({each.tokens for each in found}) == 1
    assert found[0].text == found[1].text == found[2].text != found[3].text == found[4].text
    with LanguageModel(tmp_path / "model.tflite", backend="cpu") as language:
        with pytest.raises(LanguageModelError, match=r"The file has no tokenizer. Give one, as"):
            language.generate("the")
        with language.session() as session:
            session.append(tokens)
            assert int(session.logits().argmax()) == found[0].tokens[0]


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contents = {"tokenizers": tokenizer_json(), "sentencepiece": sentence_pieces(tmp_path)}
    for package, content in contents.items():
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, package, None)
            with pytest.raises(
                MissingDependencyError, match=rf"'{package}'.*pip install 'litegpu\[llm\]'"
            ):
                read_tokenizer(content)


def decoder(inputs: Mapping[str, tuple[tuple[int, ...], str]], logits: bool = True) -> bytes:
    """Return a model of one signature with a cache, other inputs, and logits if wanted."""
    writer = ModelWriter()
    inputs_of: dict[str, TensorRef] = {"cache": writer.input((1, 8), name="c")}
    for name, (shape, dtype) in inputs.items():
        inputs_of[name] = writer.input(shape, dtype, name=name)
    given = {"cache": writer.op("ABS", [inputs_of["cache"]], [(1, 8)])}
    if logits:
        given["logits"] = writer.op("NEG", [inputs_of["cache"]], [(1, 8)])
    writer.output(*given.values())
    writer.signature("decode", inputs_of, given)
    return writer.build()


TOKENS = {"tokens": ((1, 1), "int32")}
EMBEDDINGS = {"embeddings": ((1, 1, 4), "float32")}
NO_MODEL: tuple[tuple[bytes, str], ...] = (
    (decoder(TOKENS, logits=False), "no signature that takes one token and caches, and returns"),
    (decoder({"tokens": ((1, 2), "int32")}), "no signature that takes one token and caches"),
    (decoder({"x": ((1,), "int32")}), "'decode' has caches, and no input of tokens or embeddings"),
    (
        decoder({**TOKENS, "x": ((1, 1), "float32")}),
        "takes 'x float32 .1, 1.', but litegpu supports only",
    ),
    (decoder({**TOKENS, "x": ((1, 1), "int32")}), "but litegpu supports only these inputs"),
    (
        decoder(EMBEDDINGS),
        "takes embeddings, but the file has no embedder for them. Give a .litertlm",
    ),
)


@pytest.mark.parametrize(("content", "text"), NO_MODEL, ids=range(len(NO_MODEL)))
def test_other_models_are_refused(content: bytes, text: str, tmp_path: Path) -> None:
    (tmp_path / "model.tflite").write_bytes(content)
    with pytest.raises(ModelError, match=text):
        LanguageModel(tmp_path / "model.tflite", backend="cpu")


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"is not a language model. Use zoo:tiny_lm"):
        LanguageModel("zoo:resnet50")
    with pytest.raises(ModelError, match=r"none.litertlm' cannot be read: No such file.*Check the"):
        LanguageModel(tmp_path / "none.litertlm")
    with pytest.raises(ModelError, match=r"none.json' cannot be read"):
        LanguageModel(NAME, tokenizer=tmp_path / "none.json")
    model = language_parts(NAME)[2]
    contents: tuple[tuple[list[Section], str], ...] = (
        ([Section(b"", 5, "")], "has no .tflite model"),
        (
            [Section(decoder(EMBEDDINGS)), Section(model, 3, "tf_lite_embedder")],
            "The embedder of the language model has no signature that takes tokens and returns",
        ),
    )
    for sections, text in contents:
        (tmp_path / "file.litertlm").write_bytes(litertlm(sections))
        with pytest.raises(ModelError, match=text):
            LanguageModel(tmp_path / "file.litertlm", backend="cpu")


def test_embeddings_for_each_layer(tmp_path: Path) -> None:
    """A prompt of two prefills gives the logits that the interpreter's decode gives."""
    name = "zoo:tiny_lm?layers=2&context=64&embedder=2"
    *_, main, embedder, per_layer = language_parts(name)
    run, *embed = (
        runtime.interpreter(each).get_signature_runner(key)
        for each, key in (
            (main, "decode"),
            (embedder, "decode_embedder"),
            (per_layer, "decode_per_layer_embedder"),
        )
    )
    details = run.get_input_details()
    state = {k: np.zeros(v["shape"], v["dtype"]) for k, v in details.items() if "cache" in k}
    tokens = [1, *range(40, 80)]
    for position, token in enumerate(tokens):
        rows = {
            k: v for each in embed for k, v in each(token_ids=np.array([[token]], np.int32)).items()
        }
        hidden = np.where(np.arange(64) <= position, 0, -1e9).astype(np.float32)
        mask = hidden.reshape(1, 1, 1, 64)
        found = run(**rows, input_pos=np.array([position], np.int32), mask=mask, **state)
        state = {key: found[key] for key in state}
    with LanguageModel(name, backend="cpu") as model, model.session() as session:
        session.append(tokens)
        np.testing.assert_allclose(session.logits(), found["logits"].reshape(-1), atol=1e-3)
    narrow = language_parts(name.replace("layers=2", "layers=3"))[-1]
    own = "tf_lite_per_layer_embedder"
    encoder = Section(embedder, 3, "tf_lite_vision_encoder_adapter")
    sections = [encoder, Section(main), Section(embedder, 3, "tf_lite_embedder")]
    (tmp_path / "file.litertlm").write_bytes(litertlm([*sections, Section(per_layer, 3, own)]))
    path = tmp_path / "file.litertlm"
    with LanguageModel(path, backend="cpu") as model, model.session() as session:
        session.append([1, 40])
        assert session.logits().shape == (model.vocabulary,)
    for others, text in (
        ([], "takes embeddings for each layer, but the file has no embedder for them. Give"),
        (
            [Section(narrow, 3, own)],
            "has 128 values per token, .* returns 192",
        ),
    ):
        sections = [Section(main), Section(embedder, 3, "tf_lite_embedder"), *others]
        (tmp_path / "file.litertlm").write_bytes(litertlm(sections))
        with pytest.raises(ModelError, match=text):
            LanguageModel(tmp_path / "file.litertlm", backend="cpu")


def test_an_embedder_of_other_lengths(tmp_path: Path) -> None:
    """Rows of tokens are a multiple of what it takes, or an error."""
    writer = ModelWriter()
    tokens = writer.input((1, 2), "int32", name="t")
    table = writer.constant(np.ones((9, 4), np.float32))
    flat = writer.op("RESHAPE", [tokens, writer.constant([2], "int32")], [(2,)], dtype="int32")
    rows = writer.op("EMBEDDING_LOOKUP", [flat, table], [(2, 4)])
    writer.output(rows)
    writer.signature("embed", {"t": tokens}, {"rows": rows})
    sections = [Section(decoder(EMBEDDINGS)), Section(writer.build(), 3, "tf_lite_embedder")]
    (tmp_path / "file.litertlm").write_bytes(litertlm(sections))
    with LanguageModel(tmp_path / "file.litertlm", backend="cpu") as model:
        embedder: Any = model._executor._embedders["embeddings"]
        assert embedder.embed(np.arange(4, dtype=np.int32)).shape == (4, 4)
        with pytest.raises(ModelError, match=r"takes \[2\] tokens, not 1"):
            embedder.embed(np.arange(1, dtype=np.int32))
