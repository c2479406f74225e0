"""Write the pages of docs/ that are generated from the code: `python -m meshbuild.cli.reference`.

A test compares each page with what its function gives now.
"""

from __future__ import annotations

import inspect
import json
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshbuild import cli, errors
from meshbuild.manifest import manifest_reference, manifest_schema
from meshbuild.paths import local_errors, write_atomically
from meshbuild.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCS = Path(__file__).parents[2] / "docs"

MANIFEST_PAGE = """\
# manifest.json

What a module declares. `meshbuild validate` checks it and reports every problem at once; editors can use
[manifest.schema.json](manifest.schema.json). Unknown keys are refused. Both are generated from the models in
`meshbuild/manifest.py`.

"""


def manifest_page() -> str:
    """docs/manifest.md."""
    return MANIFEST_PAGE + manifest_reference()


def manifest_schema_page() -> str:
    """docs/manifest.schema.json."""
    return json.dumps(manifest_schema(), indent=2, ensure_ascii=False) + "\n"


EXIT_CODES_PAGE = """\
# Exit codes

Each class of error has its own. `doit build` and `doit push` end with the code of the last error of these classes;
doit's own codes are 1 (a task failed), 2 (a task broke) and 3 (dodo.py or the command line is wrong).

| code | error | meaning |
|---|---|---|
| 0 | | it worked |
| 1 | | a bug in meshbuild, with a traceback to report; or, silently, the reader of the output went away |
| 2 | | the command line is wrong |
"""

EXIT_CODES_END = """\
| 130 | | interrupted |
"""


def exit_codes_page() -> str:
    """docs/exit-codes.md."""
    rows = [
        f"| {error.exit_code} | {error.__name__} | {' '.join((error.__doc__ or '').split())} |\n"
        for error in sorted(_error_classes(errors.MeshbuildError), key=lambda error: error.exit_code)
    ]
    return EXIT_CODES_PAGE + "".join(rows) + EXIT_CODES_END


def _error_classes(root: type[errors.MeshbuildError]) -> Iterator[type[errors.MeshbuildError]]:
    for error in root.__subclasses__():
        yield error
        yield from _error_classes(error)


COMMANDS_PAGE = """\
# Commands

What `--help` says. Results go to stdout, everything else to stderr; [exit codes](exit-codes.md) tell errors apart.
Building is doit's part: `doit list --all`, `doit build [MODULE | ARTIFACT | MODULE:ARTIFACT]...`, `doit push`,
`doit clean`, `doit -n N`.

"""


def commands_page() -> str:
    """docs/commands.md."""
    root = cli.command.make_context("meshbuild", [], resilient_parsing=True, terminal_width=100)
    return COMMANDS_PAGE + "\n".join(_help_sections(cli.command, root))


def _help_sections(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## {context.command_path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            sub = command.get_command(context, name)
            if sub is not None:
                below = sub.make_context(name, [], parent=context, resilient_parsing=True, terminal_width=100)
                yield from _help_sections(sub, below)


SETTINGS_PAGE = """\
# Settings

From flags, then `MESHBUILD_<NAME>` variables, then meshbuild.toml, then `[tool.meshbuild]` in pyproject.toml. Relative
paths are relative to the project, the nearest folder at or above the current one that holds a toolchains.toml.

| setting | variable | default | meaning |
|---|---|---|---|
"""


def settings_page() -> str:
    """docs/settings.md."""
    attributes = (inspect.getdoc(Settings) or "").partition("Attributes:")[2]
    described = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)", attributes, re.MULTILINE)
    defaults = {field.name: field.default for field in fields(Settings)}
    rows = []
    for name, meaning in described:
        if name == "project":
            continue
        default = f"`{defaults[name]}`" if defaults[name] != "" else ""
        rows.append(f"| `{name}` | `MESHBUILD_{name.upper()}` | {default} | {' '.join(meaning.split())} |\n")
    return SETTINGS_PAGE + "".join(rows)


# A page's name below docs/ to the function that gives its text.
GENERATED: dict[str, Callable[[], str]] = {
    "manifest.md": manifest_page,
    "manifest.schema.json": manifest_schema_page,
    "exit-codes.md": exit_codes_page,
    "commands.md": commands_page,
    "settings.md": settings_page,
}


def main() -> None:
    """Write every generated page. Raises LocalFileError."""
    for name, page in GENERATED.items():
        with local_errors(f"write {DOCS / name}"):
            write_atomically(DOCS / name, page().encode())


if __name__ == "__main__":
    main()
