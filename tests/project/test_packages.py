"""The packages are complete, and run in a clean environment."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest

from places import ROOT

pytest.importorskip("build", reason="build is not installed: pip install 'litegpu[dev]'")
pytest.importorskip("hatchling", reason="hatchling is not installed: pip install 'litegpu[dev]'")

SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "check_packages.py"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel and the sdist of this checkout."""
    wheel, sdist = SCRIPT["build"](tmp_path_factory.mktemp("dist"))
    return wheel, sdist


def test_nothing_of_the_source_is_missing(packages: tuple[Path, Path]) -> None:
    assert SCRIPT["missing_files"](*packages) == []


def test_a_missing_file_is_seen(packages: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = packages
    smaller = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(smaller, "w") as target:
        for name in whole.namelist():
            if not name.endswith("py.typed"):
                target.writestr(name, whole.read(name))
    assert SCRIPT["missing_files"](smaller, sdist) == ["wheel: litegpu/py.typed"]


def test_the_index_can_show_them(packages: tuple[Path, Path]) -> None:
    pytest.importorskip("twine", reason="twine is not installed: pip install 'litegpu[dev]'")
    SCRIPT["check_description"](packages)


def test_the_wheel_works_in_a_clean_environment(
    packages: tuple[Path, Path], tmp_path: Path
) -> None:
    clean = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(clean)], check=True)
    python = clean / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    subprocess.run([*pip, "--no-deps", "--no-index", str(packages[0])], check=True)
    # The dependencies are lent, not downloaded; a folder named in a .pth file comes last, and the
    # .pth file of the editable install in it is not read.
    query = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    own = Path(subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip())
    lent = {sysconfig.get_path("purelib"), str(Path(pytest.__file__).parents[1])}
    (own / "lent.pth").write_text("\n".join(lent), encoding="utf-8")
    SCRIPT["check_installed"](python, tmp_path / "empty", [["devices"]])


def test_readme_has_commands_for_a_clean_environment() -> None:
    assert ["devices"] in SCRIPT["readme_commands"]()
    assert set(SCRIPT["QUICKLY"]) <= {arguments[0] for arguments in SCRIPT["readme_commands"]()}


def test_a_command_that_fails_is_shown() -> None:
    with pytest.raises(SystemExit, match=r"ended with 3\nout of it"):
        SCRIPT["_run"]([sys.executable, "-c", "print('out of it'); raise SystemExit(3)"])


def test_readme_links_work_away_from_the_repository() -> None:
    """Wherever README is shown, and each leads to a file that is here."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert targets and [each for each in targets if "://" not in each] == []
    ours = re.findall(r"https://github.com/litegpu/litegpu/(?:blob|raw)/main/([^)#]+)", text)
    assert ours and [path for path in ours if not (ROOT / path).exists()] == []
