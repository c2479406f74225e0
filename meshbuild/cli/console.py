"""How commands speak: results to stdout, everything else to stderr; quiet, verbose and colour for every command."""

from __future__ import annotations

import contextlib
import json
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from meshbuild.texts import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.progress import TaskID

    from meshbuild.errors import MeshbuildError

_state = {"quiet": False, "verbose": False}


def _remember(_ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    _state[str(parameter.name)] = value


def _colour(ctx: click.Context, _parameter: click.Parameter, value: str) -> None:
    ctx.color = {"auto": None, "always": True, "never": False}[value]


def add_options(command: click.Command) -> None:
    """Give a command, and each command of a group, the options that all have: -q, -v and --color."""
    if isinstance(command, click.Group):
        for sub in command.commands.values():
            add_options(sub)
    elif not any(parameter.name == "quiet" for parameter in command.params):
        flag = {"is_flag": True, "expose_value": False, "callback": _remember, "default": False}
        command.params += [
            click.Option(["-q", "--quiet"], help="Only results and errors.", **flag),  # type: ignore[arg-type]
            click.Option(["-v", "--verbose"], help="Say more about what is being done.", **flag),  # type: ignore[arg-type]
            click.Option(
                ["--color"],
                type=click.Choice(["auto", "always", "never"]),
                default="auto",
                expose_value=False,
                callback=_colour,
                help="Colours: auto is on when the output is a terminal.",
            ),
        ]


def result(text: str) -> None:
    """A line of the command's result, to stdout."""
    click.echo(_shown(text))


def result_json(value: object) -> None:
    """The command's result as JSON, to stdout."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The command's result as a table, to stdout; nothing is cut when stdout isn't a terminal."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415 - most commands print no table
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    grid = Table(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in rows:
        grid.add_row(*map(printable, row))
    colour = click.get_current_context().color
    width = None if sys.stdout.isatty() else 240
    console = Console(force_terminal=colour, no_color=colour is False, width=width, markup=False, emoji=False)
    console.print(grid)


def note(text: str) -> None:
    """Something on the way to the result, to stderr; silent with --quiet."""
    if not _state["quiet"]:
        click.echo(_shown(text), err=True)


def detail(text: str) -> None:
    """Something only --verbose shows, to stderr."""
    if _state["verbose"]:
        click.echo(_shown(text), err=True)


def error(failure: MeshbuildError) -> None:
    """An error and its hint, to stderr."""
    click.echo(click.style("error: ", fg="red", bold=True) + _shown(str(failure)), err=True)
    if failure.hint:
        click.echo(click.style("hint: ", fg="cyan") + _shown(failure.hint), err=True)


def _shown(text: str) -> str:
    return printable(text, keep="\n\t")


def suggestion(word: str, known: Iterable[str]) -> str:
    """The end of an error message that offers a known word close to an unknown one; empty when none is."""
    close = get_close_matches(word, list(known), 1)
    return f" Did you mean {close[0]!r}?" if close else ""


def size(size_bytes: int) -> str:
    """A size for people: 1.4 MB."""
    value = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":  # noqa: PLR2004
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    raise AssertionError


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A callback (what, done bytes, total bytes) that draws a bar on stderr when that is a terminal."""
    if _state["quiet"] or not sys.stderr.isatty():
        yield lambda _what, _done, _total: None
        return
    from rich.console import Console  # noqa: PLC0415 - only terminals need it
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def draw(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done)

        yield draw
