"""Functions that the OpenGL and WebGPU backends share."""

from __future__ import annotations

from litegpu.backends.shaders import Recent


def test_what_was_asked_for_recently_is_kept() -> None:
    recent: Recent[str] = Recent(2)
    output: list[str] = []

    def ask(text: str) -> str:
        return recent.get(text, lambda: output.append(text) or text.upper())  # type: ignore[func-returns-value]

    assert [ask(text) for text in "abacab"] == list("ABACAB")
    assert output == ["a", "b", "c", "b"]
    recent.clear()
    ask("b")
    assert output[-1] == "b" and len(output) == 5
