"""Pages in a headless browser: charts are drawn, links to nodes work, light and dark mode."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from litegpu.tools import cli
from made_up import hostile_model
from small_models import fully_convolutional

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--hide-scrollbars", "--enable-logging=stderr", "--virtual-time-budget=4000"),
)
DARK = "--blink-settings=preferredColorScheme=0"

pytestmark = pytest.mark.skipif(BROWSER is None, reason="there is no Chromium here")


def browse(page: Path, *flags: str, node: str = "") -> str:
    """Open a page; return what is in it once its scripts have run. Fail for what they complain of.

    Refused loads and scripts are among the complaints.
    """
    profile = page.parent / f"profile{len(list(page.parent.iterdir()))}"
    command = [str(BROWSER), *FLAGS, f"--user-data-dir={profile}", *flags]
    address = f"{page.as_uri()}{f'#{node}' * bool(node)}"
    done = subprocess.run([*command, address], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()
    complaints = [line for line in done.stderr.decode().splitlines() if ":CONSOLE" in line]
    assert not complaints, "\n".join(complaints)
    return done.stdout.decode()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    model = folder / "model.tflite"
    model.write_bytes(fully_convolutional())
    path = folder / "page.html"
    assert cli.main(["profile", str(model), "--repeats=1", f"--report={path}"]) == 0
    return path


def test_charts_are_drawn_and_a_link_leads_to_a_node(page: Path) -> None:
    text = browse(page, "--dump-dom", node="node-1")
    assert text.count('class="plot js-plotly-plot') == 3
    aside = re.findall(r'<aside class="details".*?</aside>', text)[0]
    assert "<h3>#1 CONV_2D</h3>" in aside
    assert "kernel conv_2d" in aside
    chosen = re.findall(r'<g class="([^"]*chosen[^"]*)" data-key="(\d+)"', text)
    assert chosen == [("box gpu0 chosen", "1")]
    moved = re.findall(r'<g class="moved" transform="translate\(\S+ \S+\) scale\((\S+)\)"', text)
    assert float(moved[0]) > 0


PLAY = """
const found = {};
const moved = document.querySelector(".moved");
const at = () => moved.getAttribute("transform").match(/-?[0-9][0-9.]*/g);
const [view, graph] = [document.querySelector(".view"), document.querySelector(".graph")];
const press = name => document.querySelector(`[data-zoom=${name}]`).click();
const chosen = () => document.querySelector(".chosen")?.dataset.key;
const turn = () => view.dispatchEvent(new WheelEvent("wheel", {deltaY: -400, bubbles: true}));
const pointer = (kind, x, y) => graph.dispatchEvent(
  new PointerEvent(kind, {pointerId: 1, clientX: x, clientY: y, bubbles: true}));

graph.setPointerCapture = () => {};  // there is no such pointer
press("fit");
found.least = +at()[2];
press("in");
found.enlarged = at()[2] / found.least;
const before = +at()[2];
turn();
found.withoutFocus = at()[2] / before;
view.focus();
turn();
found.turned = at()[2] / before;
const [x, y] = at();
pointer("pointerdown", 300, 300);
pointer("pointermove", 280, 290);
pointer("pointerup", 280, 290);
graph.dispatchEvent(new MouseEvent("click", {bubbles: true}));
found.dragged = [at()[0] - x, at()[1] - y].map(Math.round);
found.chosenByDragging = chosen() ?? null;
pointer("pointerdown", 300, 300);
document.querySelector('[data-key="2"]').dispatchEvent(new MouseEvent("click", {bubbles: true}));
found.clicked = [chosen(), location.hash];
const search = document.querySelector(".drawing input");
const find = text => {
  search.value = text;
  search.dispatchEvent(new Event("input"));
  search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
  return chosen();
};
found.byNumber = find("#1");
found.byName = find("relu6");
search.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter"}));
found.next = chosen();
find("nothing of the kind");
found.none = search.classList.contains("none");
const by = document.querySelector(".drawing select");
by.value = "time";
by.dispatchEvent(new Event("change"));
found.warm = document.querySelectorAll(".box.warm").length;
found.hottest = Math.max(...[...document.querySelectorAll(".box")].map(
  box => +box.style.getPropertyValue("--h")));
found.scale = document.querySelector(".scale .high").textContent;
const heading = [...document.querySelectorAll("th")].find(each => each.textContent === "µs");
const cells = () => [...heading.closest("table").tBodies[0].rows].map(
  row => parseFloat(row.children[heading.cellIndex].textContent.replace(",", "")));
heading.click();
found.falling = cells();
heading.click();
found.rising = cells();
document.title = JSON.stringify(found);
"""
"""What a person does with a page, and what that changes."""


def test_what_a_person_does(page: Path, tmp_path: Path) -> None:
    text = page.read_text(encoding="utf-8")
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    played = tmp_path / "page.html"
    played.write_text(text.replace("</body>", f"<script>{PLAY}</script></body>"), encoding="utf-8")
    title = re.findall(r"<title>(.*?)</title>", browse(played, "--dump-dom"))[0]
    found = json.loads(html.unescape(title))
    assert found["enlarged"] == pytest.approx(1.4)
    assert found["withoutFocus"] == 1, "the wheel moves the page unless the graph was clicked"
    assert found["turned"] == pytest.approx(2.718, abs=1e-3)
    assert found["dragged"] == [-20, -10]
    assert found["chosenByDragging"] is None
    assert found["clicked"] == ["2", "#node-2"]
    assert found["byNumber"] == "1"
    assert [found["byName"], found["next"]] == ["0", "1"], "nodes with that activation"
    assert found["none"]
    assert found["warm"] == 3, "LOGISTIC is fused, inputs and outputs take no time"
    assert found["hottest"] == 1
    assert found["scale"].endswith("µs")
    assert found["falling"] == sorted(found["falling"], reverse=True)
    assert found["rising"] == found["falling"][::-1]
    assert len(found["rising"]) == 3


def test_names_of_strangers_run_nothing(tmp_path: Path) -> None:
    model, page = tmp_path / "model.tflite", tmp_path / "page.html"
    model.write_bytes(hostile_model())
    assert cli.main(["profile", str(model), "--repeats=1", f"--report={page}"]) == 0
    text = browse(page, "--dump-dom", node="node-0")
    assert "<title>model · profile</title>" in text
    aside = re.findall(r'<aside class="details".*?</aside>', text)[0]
    assert "&lt;/script&gt;&lt;script&gt;document.title='taken'" in aside, "it is shown as text"


def test_light_and_dark(page: Path) -> None:
    brightness = []
    for flags in ((), (DARK,)):
        shot = page.parent / "shot.png"
        browse(page, f"--screenshot={shot}", "--window-size=1300,900", *flags)
        with Image.open(shot) as picture:
            brightness.append(float(np.asarray(picture.convert("L")).mean()))
    assert brightness[0] > 200
    assert brightness[1] < 60


def test_complaints_are_heard(tmp_path: Path, page: Path) -> None:
    wrong = tmp_path / "page.html"
    text = page.read_text(encoding="utf-8")
    scripts = text.index("<script>")
    wrong.write_text(f'{text[:scripts]}<img src="https://localhost/a.png">', encoding="utf-8")
    with pytest.raises(AssertionError, match=r"violates.*Content Security Policy"):
        browse(wrong, "--dump-dom")
