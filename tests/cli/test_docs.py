"""Commands shown in the README and in docs/ work as they are shown."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest

from meshbuild import cli
from tests.system.conftest import PROJECT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.conftest import Checkout

PAGES = sorted([PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")])
SHOWN = re.compile(r"^(?: {4}|\$ )(meshbuild [a-z][^\n]*)$|`(meshbuild [a-z][^`\n]*)`", re.MULTILINE)


def shown_commands(page: Path) -> list[str]:
    """The commands on a page: lines of code, and code in running text; comments and placeholders left away."""
    found = (match[1] or match[2] for match in SHOWN.finditer(page.read_text()))
    commands = (re.split(r"\s#\s|\s{2,}", command)[0].strip() for command in found)
    return [command for command in commands if "..." not in command and "|" not in command]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_shown_exists_with_its_options(page: Path) -> None:
    root = cli.command.make_context("meshbuild", [], resilient_parsing=True)
    for shown in shown_commands(page):
        words = shlex.split(shown)[1:]
        command: click.Command | None = cli.command
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            verb = words.pop(0)
            command = command.get_command(root, verb)
            assert command is not None, f"{page.name}: {shown}: there is no {verb}"
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        options = [word.partition("=")[0] for word in words if word.startswith("-")]
        assert set(options) <= known, f"{page.name}: {shown}"


def test_the_everyday_commands_of_the_readme_run_in_their_order(checkout: Checkout) -> None:
    text = (PROJECT / "README.md").read_text()
    block = re.search(r"## Every day\n\n```sh\n(.*?)```", text, re.DOTALL)
    assert block is not None
    lines = [line.split("  #")[0].strip() for line in block[1].splitlines()]
    assert len(lines) >= 8
    for line in lines:
        checkout.ok(*shlex.split(line))
    assert list((checkout.folder / ".meshbuild/host/payloads").iterdir())


def test_pages_link_to_pages_that_exist() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_of_docs_is_reached_from_the_readme() -> None:
    readme = (PROJECT / "README.md").read_text()
    for page in (PROJECT / "docs").glob("*.md"):
        assert f"docs/{page.name}" in readme, f"README.md does not link docs/{page.name}"
