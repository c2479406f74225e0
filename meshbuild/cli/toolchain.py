"""`meshbuild toolchain`: list and fetch the pinned toolchains."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from meshbuild.cli import console
from meshbuild.pins import Pins, host_platform, read_pins
from meshbuild.settings import Settings, current_settings
from meshbuild.toolchains import cached_toolchain, ensure_toolchain, user_cache, verify_toolchain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Report = Callable[[str], None]
    Progress = Callable[[str, int, int], None]

_pins_option = click.option(
    "--pins", "pins_file", type=click.Path(path_type=Path), help="The pins; the project's toolchains.toml unless given."
)


@click.group("toolchain")
def command() -> None:
    """List and fetch the pinned toolchains."""


@command.command("list")
@_pins_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def list_toolchains(pins_file: Path | None, *, as_json: bool) -> None:
    """List the pinned toolchains, and say which of them are in the user's cache, and where that is.

    \b
    Example:
      meshbuild toolchain list
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings()
    pins, cache = _pins(settings, pins_file), _cache(settings)
    rows = [
        {
            "version": pin.version,
            "platform": pin.platform,
            "default": pin.version == pins.default,
            "cached": cached_toolchain(pin, cache) is not None,
            "tree_sha256": pin.tree,
        }
        for platforms in pins.toolchains.values()
        for pin in platforms.values()
    ]
    if as_json:
        console.result_json({"cache": str(cache), "toolchains": rows})
        return
    console.result(f"cache: {cache}")
    console.table(
        ("version", "platform", "cached", "tree sha256"),
        [
            (
                f"{row['version']}{' (default)' if row['default'] else ''}",
                str(row["platform"]),
                "yes" if row["cached"] else "no",
                str(row["tree_sha256"]),
            )
            for row in rows
        ],
    )


@command.command("fetch")
@click.argument("version", required=False)
@click.option("--platform", help="The platform that it shall run on, such as linux-amd64; this machine's unless given.")
@_pins_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def fetch_toolchain(version: str | None, platform: str | None, pins_file: Path | None, *, as_json: bool) -> None:
    """Fetch a pinned toolchain into the user's cache; one that is there already is checked whole.

    VERSION is a pinned version of Go, the default one unless given.

    \b
    Example:
      meshbuild toolchain fetch 1.27.2 --platform linux-arm64
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings()
    pin = _pins(settings, pins_file).toolchain(version, platform or host_platform())
    cache = _cache(settings)
    toolchain = cached_toolchain(pin, cache)
    cached = toolchain is not None
    if toolchain:
        verify_toolchain(toolchain)
    else:
        with _shown() as (report, progress):
            toolchain = ensure_toolchain(pin, cache=cache, environ=os.environ, report=report, progress=progress)
    if as_json:
        console.result_json(
            {
                "version": pin.version,
                "platform": pin.platform,
                "path": str(toolchain.root),
                "was_cached": cached,
                "tree_sha256": pin.tree,
            }
        )
        return
    done = "already in the cache, and whole" if cached else "fetched"
    console.result(f"go {pin.version} for {pin.platform}: {done}: {toolchain.root}")


def _pins(settings: Settings, pins_file: Path | None) -> Pins:
    return read_pins(pins_file or settings.project / "toolchains.toml")


def _cache(settings: Settings) -> Path:
    return Path(settings.cache).expanduser().absolute() if settings.cache else user_cache(os.environ)


@contextlib.contextmanager
def _shown() -> Iterator[tuple[Report, Progress | None]]:
    """How a fetch speaks: a bar on stderr where that is a terminal, else lines alone."""
    if not sys.stderr.isatty() or console._state["quiet"]:  # noqa: SLF001 - of this package
        yield console.note, None
        return
    from rich.console import Console  # noqa: PLC0415 - only for a bar
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn  # noqa: PLC0415

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def progress(step: str, done: int, total: int) -> None:
            bar.update(task, description=step, completed=done, total=total or None)

        yield (lambda text: bar.console.print(text, markup=False, highlight=False)), progress
