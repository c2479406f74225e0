"""Flags, then variables, then files."""

from pathlib import Path

import pytest

from meshbuild.errors import SettingsError
from meshbuild.settings import find_project, load_settings


def test_defaults_need_no_file(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {})
    assert settings.path(settings.store) == tmp_path / ".meshbuild/store"
    assert settings.compression_level == 9
    assert settings.dist == tmp_path / "dist"


def test_flags_win_over_variables_over_files(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.meshbuild]\nstore = "p"\nchannel = "p"\nsystem = "p"\nhost = "p"\n')
    (tmp_path / "meshbuild.toml").write_text('channel = "m"\nsystem = "m"\nhost = "m"\n')
    environ = {"MESHBUILD_SYSTEM": "e", "MESHBUILD_HOST": "e"}
    settings = load_settings(tmp_path, environ, host="f", channel=None)
    assert (settings.store, settings.channel, settings.system, settings.host) == ("p", "m", "e", "f")


def test_an_absolute_path_stays_itself(tmp_path: Path) -> None:
    settings = load_settings(tmp_path, {"MESHBUILD_STORE": "/srv/store"})
    assert settings.path(settings.store) == Path("/srv/store")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('stor = "x"', "unknown setting 'stor'; did you mean 'store'"),
        ("store = 1", "setting store: expected a string, found 1"),
        ("compression_level = 23", "expected 1 to 22, found 23"),
        ("compression_level = true", "expected 1 to 22, found True"),
        ("store = ", "not TOML"),
    ],
)
def test_what_is_wrong_is_said_with_its_file_or_name(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "meshbuild.toml").write_text(text)
    with pytest.raises(SettingsError, match=why):
        load_settings(tmp_path, {})


def test_a_level_from_the_environment_is_a_number(tmp_path: Path) -> None:
    assert load_settings(tmp_path, {"MESHBUILD_COMPRESSION_LEVEL": "3"}).compression_level == 3
    with pytest.raises(SettingsError, match="found 'fast'"):
        load_settings(tmp_path, {"MESHBUILD_COMPRESSION_LEVEL": "fast"})


def test_a_pyproject_about_other_things_is_not_ours(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nstore = 1\n")
    assert load_settings(tmp_path, {}).store == ".meshbuild/store"


def test_the_project_is_the_nearest_folder_with_pins(tmp_path: Path) -> None:
    (tmp_path / "toolchains.toml").touch()
    (tmp_path / "a/b").mkdir(parents=True)
    assert find_project(tmp_path / "a/b") == tmp_path
    assert find_project(tmp_path) == tmp_path
