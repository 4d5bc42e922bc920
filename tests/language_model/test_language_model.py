"""Answers, sessions and streams on the CPU; test_devices.py compares devices with it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from litegpu import CacheFullError, DeviceLostError, LanguageModel, LanguageModelError
from litegpu.language_model import Session
from litegpu.language_model.sampling import Sampler, Sampling

CONTEXT = 96
NAME = f"zoo:tiny_lm?layers=1&context={CONTEXT}"
CHAT = [{"role": "user", "content": "Hello"}]
PROMPT = "The model"


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
    with LanguageModel(NAME, backend="cpu") as found:
        yield found


def test_it_says_what_it_is(model: LanguageModel) -> None:
    assert (model.context, model.vocabulary, model.report) == (CONTEXT, 296, None)
    assert model.place == "on the CPU"
    assert f"{NAME}: 296 tokens, context of 96" in repr(model)


def test_an_answer_has_its_text_and_tokens(model: LanguageModel) -> None:
    answer = model.generate(PROMPT, max_tokens=12)
    assert str(answer) == answer.text == model.detokenize(answer.tokens)
    assert (len(answer.tokens), answer.reason) == (12, "length")
    assert answer.prompt_tokens == len(model.tokenize(PROMPT))
    assert answer.prefill_seconds > 0 and answer.tokens_per_second > 0
    again = model.generate(np.array(model.tokenize(PROMPT)), max_tokens=12)
    assert again.tokens == answer.tokens
    assert model.generate(PROMPT, max_tokens=1).tokens_per_second == 0


def test_parts_are_the_answer(model: LanguageModel) -> None:
    answer = model.generate(PROMPT, max_tokens=30)
    stream = model.stream(PROMPT, max_tokens=30)
    parts = [*stream]
    assert len(parts) > 5
    assert "".join(parts) == answer.text
    assert stream.so_far().tokens == answer.tokens


def test_a_prompt_of_half_characters_is_rejected(model: LanguageModel) -> None:
    for prompt in ("a\ud800", [{"role": "user", "content": "\udfff"}]):
        with pytest.raises(LanguageModelError, match=r"an unpaired surrogate .*\. Give valid"):
            model.generate(prompt)


def test_logprobs_are_those_of_the_logits(model: LanguageModel) -> None:
    answer = model.generate(PROMPT, max_tokens=6, temperature=2, seed=3, logprobs=4)
    assert [each.token for each in answer.logprobs] == [*answer.tokens]
    with model.session() as session:
        session.append(PROMPT)
        for each in answer.logprobs:
            chances = np.exp(session.logits().astype(np.float64))
            wanted = np.log(chances / chances.sum())
            best = np.argsort(-wanted, kind="stable")[:4]
            assert [token for token, _ in each.top] == [*best]
            np.testing.assert_allclose([value for _, value in each.top], wanted[best], atol=1e-5)
            assert each.logprob == pytest.approx(wanted[each.token], abs=1e-5)
            session.append([each.token])
    assert model.generate(PROMPT, max_tokens=2).logprobs == ()
    assert [each.top for each in model.generate(PROMPT, max_tokens=1, logprobs=0).logprobs] == [()]
    for wrong in (-1, True, 0.5):
        with pytest.raises(LanguageModelError, match=r"logprobs is .*\. Use a whole number from 0"):
            model.generate(PROMPT, logprobs=wrong)


def test_a_chat_is_in_the_words_of_the_template(model: LanguageModel) -> None:
    text = model.chat_text(CHAT)
    assert text == ("<bos><start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n")
    assert model.tokenize(CHAT) == model.tokenize(text)
    assert model.generate(CHAT, max_tokens=5).tokens == model.generate(text, max_tokens=5).tokens


def test_an_empty_prompt_is_the_start_token(model: LanguageModel) -> None:
    assert model.tokenize("") == [1]
    assert model.generate("", max_tokens=3).prompt_tokens == 1


def test_any_split_of_a_prompt_gives_the_same_logits(model: LanguageModel) -> None:
    """Prefills of every size are chunks of it, the last of which may be padded."""
    tokens = [1, *range(10, 60)]
    with model.session() as whole, model.session() as split:
        whole.append(tokens)
        for begin, end in ((0, 1), (1, 10), (10, 18), (18, len(tokens))):
            split.append(tokens[begin:end])
            split.logits()
        np.testing.assert_allclose(split.logits(), whole.logits(), atol=1e-5)
        assert whole.tokens == tuple(tokens)


def test_prefills_are_the_smallest_that_fit(model: LanguageModel) -> None:
    executor = model._executor
    chosen = [executor.prefill_of(*each).count for each in ((1, 0), (2, 0), (9, 0), (50, 0))]
    assert chosen == [1, 8, 32, 32]
    ends = [executor.prefill_of(5, begin).count for begin in (CONTEXT - 8, CONTEXT - 7)]
    assert ends == [8, 1]


def test_a_full_cache_is_an_error_or_an_end(model: LanguageModel) -> None:
    with model.session() as session:
        session.append([5] * (CONTEXT - 2))
        assert session.room == 2
        with pytest.raises(CacheFullError, match=r"97 tokens do not fit the cache of 96. Shorten"):
            session.append([5] * 3)
        assert len(session.tokens) == CONTEXT - 2
        answer = session.generate()
        assert (answer.reason, len(answer.tokens), session.room) == ("context", 3, 0)
        with pytest.raises(CacheFullError, match="97 tokens"):
            session.append([5])
    with pytest.raises(CacheFullError, match="200 tokens do not fit"):
        model.generate([5] * 200)
    assert model.generate(PROMPT, max_tokens=500).reason in ("context", "stop")


def test_the_last_positions_are_as_without_chunks(model: LanguageModel) -> None:
    tokens = [1, *(5 + 3 * n % 250 for n in range(CONTEXT - 1))]
    with model.session() as chunks, model.session() as single:
        chunks.append(tokens)
        for each in tokens:
            single.append([each])
            single.logits()
        np.testing.assert_allclose(chunks.logits(), single.logits(), atol=1e-5)


def test_a_fork_goes_on_by_itself(model: LanguageModel) -> None:
    with model.session() as session:
        session.append(PROMPT)
        with session.fork() as other:
            np.testing.assert_array_equal(other.logits(), session.logits())
            wanted = session.generate(max_tokens=6).tokens
            other.append(" the")
            other.generate(max_tokens=3)
        with session.fork() as other:
            assert other.tokens == session.tokens
            assert other.nbytes == session.nbytes == 2 * CONTEXT * 2 * 16 * 4
        session.rewind(len(model.tokenize(PROMPT)))
        assert session.generate(max_tokens=6).tokens == wanted


def test_a_rewound_session_gives_the_logits_of_its_last_token(model: LanguageModel) -> None:
    with model.session() as session:
        session.append([1, 20])
        wanted = session.logits()
        session.append([30, 40])
        session.logits()
        session.rewind(2)
        np.testing.assert_allclose(session.logits(), wanted, atol=1e-5)
        with pytest.raises(LanguageModelError, match="has 2 tokens and cannot be rewound to 3"):
            session.rewind(3)


def test_a_longer_chat_computes_what_is_new(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    run = model._executor._run

    def counted(step: Any, tokens: list[int], *others: Any, **named: Any) -> Any:
        computed.extend(tokens)
        return run(step, tokens, *others, **named)

    monkeypatch.setattr(model._executor, "_run", counted)
    with model.session() as session:
        answer = session.generate(CHAT, max_tokens=4)
        before = len(computed)
        longer = [
            *CHAT,
            {"role": "model", "content": answer.text},
            {"role": "user", "content": "And?"},
        ]
        wanted = model.tokenize(longer)
        session.append(longer)
        assert session.tokens == tuple(wanted)
        session.logits()
        assert computed[before:][-1] == wanted[-1]
        assert len(computed) - before <= len(wanted) - len(model.tokenize(CHAT))
        with model.session() as fresh:
            fresh.append(longer)
            np.testing.assert_allclose(session.logits(), fresh.logits(), atol=1e-5)


def test_a_failed_run_leaves_the_session_as_it_was(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model.session() as session, model.session() as other:
        for each in (session, other):
            each.append([1, *range(30, 50)])
        with monkeypatch.context() as patch:
            patch.setattr(model._executor, "decode", lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                session.logits()
        np.testing.assert_array_equal(session.logits(), other.logits())


def test_sessions_survive_the_loss_of_a_device(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each computes its tokens again, with caches on the device that is opened next."""
    executor = model._executor
    with model.session() as first, model.session() as second, model.session() as whole:
        for each in (first, second, whole):
            each.append([1, *range(30, 50)])
        second.logits()
        run, calls = executor.model.run_by_index, iter(range(100))
        lost = [
            caches for session in (first, second) for caches in session._caches.present.values()
        ]

        def failing(index: int, inputs: Any, outputs: Any) -> None:
            assert next(calls) == 0 or not {*map(id, inputs)} & {*map(id, lost)}
            if not executor.losses:
                raise DeviceLostError("The device is lost.")
            run(index, inputs, outputs)

        monkeypatch.setattr(executor.model, "run_by_index", failing)
        found = first.logits()
        assert executor.losses == 1
        second.append([60])
        second.logits()
        second.rewind(21)
        monkeypatch.undo()
        with second.fork() as other:
            np.testing.assert_allclose(other.logits(), whole.logits(), atol=1e-5)
        np.testing.assert_allclose(found, whole.logits(), atol=1e-5)


def test_a_device_that_is_lost_again_is_an_error(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise DeviceLostError("The device is lost.")

    with model.session() as session:
        session.append([1, 2])
        with monkeypatch.context() as patch:
            patch.setattr(model._executor.model, "run_by_index", failing)
            with pytest.raises(DeviceLostError, match=r"The device is lost\."):
                session.logits()
        assert session.logits().shape == (296,)


def test_stop_texts_end_an_answer_wherever_tokens_end(model: LanguageModel) -> None:
    whole = model.generate(PROMPT, max_tokens=40)
    for begin in range(0, len(whole.text) - 4, 3):
        stop = whole.text[begin : begin + 3]
        first = whole.text.index(stop)
        stream = model.stream(PROMPT, max_tokens=40, stop=[stop, "never"])
        assert "".join(stream) == whole.text[:first]
        assert stream.so_far().reason == "stop"
    assert model.generate(PROMPT, max_tokens=40, stop="never").text == whole.text


def test_stop_tokens_of_the_file_end_an_answer(model: LanguageModel) -> None:
    """They are no part of it, and those of the answer before them are in the session."""
    with model.session() as session:
        session.append([1])
        queue = [40, 41, 4, 42]

        def choose(_sampler: Sampler, _logits: Any) -> int:
            return queue.pop(0)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Sampler, "choose", choose)
            answer = session.generate()
        assert (answer.tokens, answer.reason) == ((40, 41), "stop")
        assert session.tokens == (1, 40, 41)
        assert queue == [42]


def test_a_stream_can_end_early(model: LanguageModel) -> None:
    with model.session() as session:
        stream = session.stream(PROMPT, max_tokens=40)
        next(stream)
        assert stream.so_far().reason == ""
        stream.close()
        assert (stream.so_far().reason, [*stream]) == ("cancelled", [])
        assert 0 < len(session.tokens) < 40
        session.generate(max_tokens=2)
    with model.stream(PROMPT, max_tokens=40) as other:
        next(other)
    assert other.so_far().reason == "cancelled"
    assert other._session._closed  # type: ignore[attr-defined]


def test_async_streams(model: LanguageModel) -> None:
    async def read(prompt: str, most: int) -> list[str]:
        found = []
        async for part in model.astream(prompt, max_tokens=20):
            found.append(part)
            if len(found) == most:
                break
        return found

    async def both() -> tuple[list[str], list[str]]:
        return await asyncio.gather(read(PROMPT, 1000), read("of", 2))

    whole, cancelled = asyncio.run(both())
    assert "".join(whole) == model.generate(PROMPT, max_tokens=20).text
    assert model.generate("of", max_tokens=20).text.startswith("".join(cancelled))


def test_a_cancelled_task_ends_its_answer(
    model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be cancelled while a thread computes the next part."""
    decode, ended = model._executor.decode, []

    def slow(*arguments: Any) -> Any:
        time.sleep(0.02)
        return decode(*arguments)

    monkeypatch.setattr(model._executor, "decode", slow)
    monkeypatch.setattr(Session, "close", lambda session: ended.append(session))

    async def read() -> None:
        async for _ in model.astream(PROMPT):
            pass

    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(read(), 0.05))
    (session,) = ended
    assert 0 < len(session.tokens) < model.context


def test_threads_share_a_model(model: LanguageModel) -> None:
    wanted = {prompt: model.generate(prompt, max_tokens=20).text for prompt in ("a", "b", "c")}
    found: dict[str, str] = {}

    def work(prompt: str) -> None:
        found[prompt] = model.generate(prompt, max_tokens=20).text

    threads = [threading.Thread(target=work, args=(each,)) for each in wanted]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == wanted


def test_seeds_give_the_same_answer_again(model: LanguageModel) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0, "top_k": 100, "top_p": 0.95}
    found = [model.generate(PROMPT, seed=seed, **options).tokens for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert model.generate(PROMPT, seed=3, **{**options, "top_k": 1}).tokens == (
        model.generate(PROMPT, max_tokens=12).tokens
    )


def test_an_embedder_is_a_model_of_its_own(model: LanguageModel) -> None:
    with LanguageModel(f"{NAME}&embedder=1", backend="cpu") as other:
        for prompt in (PROMPT, "The model is in the model of the model"):
            found, wanted = (each.generate(prompt, max_tokens=20) for each in (other, model))
            assert found == pytest.approx(wanted) or found.tokens == wanted.tokens


def test_wrong_arguments_have_a_remedy(model: LanguageModel) -> None:
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (5, {}, r"A prompt is 5. Give text, messages such as"),
        ([], {}, r"A prompt is \[\]"),
        ([1, "a"], {}, r"A prompt is \[1, 'a'\]"),
        ([1, 296], {}, "296 is no token of the model. Use numbers from 0 to 295."),
        ([{"role": "user"}], {}, "A message is {'role': 'user'}. Give a dict with 'role'"),
        (PROMPT, {"max_tokens": 0}, "max_tokens is 0. Use a whole number from 1, or None."),
        (PROMPT, {"max_tokens": True}, "max_tokens is True"),
        (PROMPT, {"temperature": -1}, "temperature is -1. Use 0 or more."),
        (PROMPT, {"top_k": 1.5}, "top_k is 1.5. Use a whole number from 0."),
        (PROMPT, {"top_p": 0}, "top_p is 0. Use above 0, up to 1."),
        (PROMPT, {"seed": -1}, "seed is -1. Use a whole number from 0."),
        (PROMPT, {"stop": ["a", 3]}, "stop has 3. Give a text, or several."),
    ]
    for prompt, options, message in wrong:
        with pytest.raises(LanguageModelError, match=message):
            model.generate(prompt, **options)
    session = model.session()
    with pytest.raises(LanguageModelError, match=r"The session has no tokens. Append a prompt"):
        session.logits()
    session.close()
    session.close()
    with pytest.raises(LanguageModelError, match=r"The session was closed. Start another session."):
        session.append(PROMPT)


def test_chances_follow_the_logits() -> None:
    """Counted over many draws: temperature, the most probable ones, and their sum."""
    chances = np.array([0.5, 0.3, 0.15, 0.05])
    logits = np.log(chances).astype(np.float32)

    def counts(sampling: Sampling) -> np.ndarray[Any, Any]:
        sampler = Sampler(sampling)
        drawn = [sampler.choose(logits) for _ in range(1500)]
        return np.bincount(drawn, minlength=4) / len(drawn)

    np.testing.assert_allclose(counts(Sampling(1.0, seed=0)), chances, atol=0.05)
    squared = chances**2 / (chances**2).sum()
    np.testing.assert_allclose(counts(Sampling(0.5, seed=0)), squared, atol=0.05)
    first = np.array([0.625, 0.375, 0, 0])
    np.testing.assert_allclose(counts(Sampling(1.0, top_k=2, seed=0)), first, atol=0.05)
    np.testing.assert_allclose(counts(Sampling(1.0, top_p=0.8, seed=0)), first, atol=0.05)
    assert counts(Sampling(1.0, top_p=1e-9, seed=0))[0] == 1
    assert Sampler(Sampling()).choose(np.array([1, 3, 3], np.float32)) == 1


@pytest.mark.parametrize(
    ("top_k", "top_p", "temperature"),
    [(0, 0.5, 0.1), (0, 0.9, 1.0), (0, 0.999, 3.0), (0, 1.0, 1.0), (40, 1.0, 1.0), (7, 0.6, 0.5)],
)
def test_candidates_are_those_of_a_full_sort(top_k: int, top_p: float, temperature: float) -> None:
    # Rounded logits: many tokens are as probable as others.
    logits = np.random.default_rng(1).normal(size=5000).astype(np.float32).round(2)
    order = np.argsort(-logits, kind="stable")[: top_k or None]
    chances = np.exp((logits[order].astype(np.float64) - logits.max()) / temperature)
    chances /= chances.sum()
    likely = np.cumsum(chances) - chances < top_p
    draws = Counter(
        Sampler(Sampling(temperature, top_k, top_p, seed)).choose(logits) for seed in range(300)
    )
    assert set(draws) <= set(order[likely].tolist())
    tokens, weights = Sampler(Sampling(temperature, top_k, top_p))._candidates(logits)
    if top_p < 1 or top_k:
        assert abs(len(tokens) - likely.sum()) <= 1  # rounding at the last one
        assert tokens.tolist() == order[: len(tokens)].tolist()
    np.testing.assert_allclose(
        np.sort(weights / weights.sum())[::-1][:99],
        (chances / chances[: len(tokens)].sum())[: min(99, len(tokens))],
        rtol=1e-4,
    )
