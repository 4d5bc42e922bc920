"""Folders of the user; without a home folder there is an error, and no folder "~"."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import platformdirs
import pytest

from litegpu import GpuDelegate
from litegpu.errors import OptionsError
from litegpu.host.user_folders import user_cache, with_home
from litegpu.tools import cli
from litegpu.tools.models.downloads import cache_folder
from small_models import fully_convolutional, interpreter


@pytest.fixture(params=["new", "old"])
def homeless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home folder, with a new platformdirs and an old one."""

    def found(*_: object, **__: object) -> Path:
        if request.param == "new":
            raise RuntimeError("could not determine the home directory")
        return Path("~/.cache/litegpu")

    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    monkeypatch.setattr(platformdirs, "user_cache_path", found)
    monkeypatch.setenv("LITEGPU_CACHE", "1")


def test_a_path_may_begin_with_a_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USERPROFILE" if os.name == "nt" else "HOME", str(tmp_path))
    assert Path(with_home("~/kept")) == tmp_path / "kept"
    assert with_home("kept/~") == "kept/~" and with_home("") == ""
    with pytest.raises(OptionsError, match="'~nobody-of-that-name/kept' cannot be resolved"):
        with_home("~nobody-of-that-name/kept")
    assert user_cache("part", "It").name == "part"


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("named", ["", "~/kept"])
def test_without_a_home_the_delegate_runs_and_keeps_nothing(
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.WARNING, "litegpu")
    delegate = GpuDelegate(backend="opencl", cache=True, serialization_dir=named)
    interpreter(fully_convolutional(), delegate).invoke()
    assert delegate.error is None and delegate.report is not None and delegate.report.partitions
    assert (
        "Compiled partitions are not cached: " in caplog.text and "Set HOME, or name" in caplog.text
    )
    assert [*tmp_path.iterdir()] == []


@pytest.mark.usefixtures("homeless")
def test_without_a_home_the_tools_say_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cache"]) == 2
    assert "this user has no home folder. Set HOME, or name one by" in capsys.readouterr().err
    with pytest.raises(OptionsError, match="Downloading a model needs a folder"):
        cache_folder()
    monkeypatch.setenv("LITEGPU_CACHE", "~/kept")
    assert cli.main(["cache"]) == 2
    assert "'~/kept' cannot be resolved" in capsys.readouterr().err
