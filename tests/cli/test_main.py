"""The command line as a whole: help, errors, streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from meshbuild import cli
from meshbuild.cli import reference
from meshbuild.errors import MeshbuildError, SettingsError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_has_help_with_an_example_and_the_common_options(verb: str) -> None:
    root = cli.command.make_context("meshbuild", [], resilient_parsing=True)
    command = cli.command.get_command(root, verb)
    assert command is not None
    commands = command.commands.values() if isinstance(command, click.Group) else [command]
    for each in commands:
        text = each.get_help(each.make_context(verb, [], parent=root, resilient_parsing=True))
        assert "Example" in text
        assert all(option in text for option in ("--quiet", "--verbose", "--color"))
        assert "--json" in text or verb == "cache", "the output of `cache` is Go's protocol"


def test_an_unknown_verb_is_a_usage_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fetsh"]) == 2
    assert "Did you mean 'fetch'?" in capsys.readouterr().err


def test_errors_go_to_stderr_with_their_hint_and_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan"]) == 12
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "hint: " in captured.err


def test_a_bug_shows_its_traceback_and_exits_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli.command, "main", lambda *_args, **_more: 1 // 0)
    assert cli.main([]) == 1
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (SettingsError("x"), 10)])
def test_other_ends(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def end(*_args: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr(cli.command, "main", end)
    assert cli.main([]) == code


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("meshbuild 0.")


def error_classes(root: type[MeshbuildError]) -> list[type[MeshbuildError]]:
    return [each for error in root.__subclasses__() for each in (error, *error_classes(error))]


def test_every_error_has_an_exit_code_of_its_own() -> None:
    codes = [error.exit_code for error in error_classes(MeshbuildError)]
    assert len(set(codes)) == len(codes)
    assert all(2 < code < 128 for code in codes)


@pytest.mark.parametrize("name", list(reference.GENERATED))
def test_generated_pages_are_up_to_date(name: str) -> None:
    assert (reference.DOCS / name).read_text() == reference.GENERATED[name](), "run `make docs`"
