"""Text decoded from tokens: characters and stop texts across token boundaries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from containers import tokenizer_json
from litegpu.language_model.text import StopTexts, StopTokens, TextDecoder
from litegpu.language_model.tokenizer import HuggingFaceTokenizer, Tokenizer

pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
PARTIAL = "\N{REPLACEMENT CHARACTER}"


TOKENIZER = HuggingFaceTokenizer(tokenizer_json())
BYTES = range(5, 5 + 256)


def parts_of(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    decoder = TextDecoder(tokenizer)
    return [*map(decoder.add, tokens), decoder.end()]


@given(st.text(max_size=30))
def test_characters_come_whole(text: str) -> None:
    text = text.replace(PARTIAL, "")
    tokens = TOKENIZER.encode(text)
    parts = parts_of(TOKENIZER, tokens)
    assert "".join(parts) == TOKENIZER.decode(tokens)
    assert not any(PARTIAL in part for part in parts)


def test_a_character_of_four_tokens() -> None:
    tokens = TOKENIZER.encode("é🎉!")
    assert len(tokens) == 2 + 4 + 1
    assert parts_of(TOKENIZER, tokens) == ["", "é", "", "", "", "🎉", "!", ""]


@given(st.lists(st.sampled_from([*BYTES, 0, 1, 265, 280]), max_size=40))
def test_bytes_that_are_no_text_are_replaced(tokens: list[int]) -> None:
    parts = parts_of(TOKENIZER, tokens)
    assert "".join(parts) == TOKENIZER.decode(tokens)


def test_bytes_that_are_no_text_do_not_wait_for_the_end() -> None:
    tokens = TOKENIZER.encode("é")[1:] * 20
    parts = parts_of(TOKENIZER, tokens)
    assert all(parts[3:-1])


@given(
    st.lists(st.text("ab", max_size=3), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
)
def test_text_ends_before_the_first_stop(parts: list[str], stops: list[str]) -> None:
    ends = StopTexts(stops)
    found = "".join(map(ends.add, parts)) + ends.end()
    text = "".join(parts)
    # The first stop that is complete ends the text; of two at once, the one that begins first.
    for end in range(len(text) + 1):
        places = [text[:end].find(stop) for stop in stops]
        complete = [place for place in places if place >= 0]
        if complete and all(len(p) <= 1 for p in parts):
            assert found == text[: min(complete)]
            break
    else:
        if not any(stop in text for stop in stops):
            assert (found, ends.found) == (text, False)
    assert not any(stop in found for stop in stops)
    assert ends.found == any(stop in text for stop in stops)


def test_nothing_is_held_that_cannot_be_a_stop() -> None:
    ends = StopTexts(["</end>", ""])
    assert [ends.add(each) for each in ("a", "</", "b", "</e", "nd>", "c")] == [
        *("a", "", "</b", "", "", "")
    ]
    assert ends.found


def test_rows_of_stop_tokens() -> None:
    ends = StopTokens([(7,), (1, 2), (5, 1, 2), ()])
    assert [ends.add(each) for each in (1, 1, 3, 5, 1, 2)] == [[], [1], [1, 3], [], [], [5]]
    assert ends.found
    waiting = StopTokens([(1, 2)])
    assert (waiting.add(1), waiting.end(), waiting.found) == ([], [1], False)
