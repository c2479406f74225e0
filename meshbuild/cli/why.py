"""`meshbuild why`: what a build would do, and what changed since the last one."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from meshbuild import uptodate
from meshbuild.cli import console
from meshbuild.settings import current_settings
from meshbuild.targets import asked_for, choose_targets, task_of
from meshbuild.why import changes

if TYPE_CHECKING:
    from meshbuild.why import Change


@click.command("why")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, with whole digests.")
def command(names: tuple[str, ...], *, as_json: bool) -> None:
    """Say which artifacts a build would build, and which of their inputs changed since the last build.

    NAME is a module, an artifact, or MODULE:ARTIFACT[:SYSTEM]; all artifacts unless given. Nothing is run.

    \b
    Example:
      meshbuild why mesh-controller
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings()
    files = uptodate.Snapshot(uptodate.DigestMemory(settings.state / "digests.json"))
    found = []
    for target in choose_targets(settings, names):
        task = task_of(settings, target)
        found.append((task.name, changes(settings, task, asked_for(settings, target), files=files, environ=os.environ)))
    if as_json:
        console.result_json(
            {
                "artifacts": [
                    {"name": name, "up_to_date": not why, "changes": [asdict(each) for each in why]}
                    for name, why in found
                ]
            }
        )
        return
    for name, why in found:
        console.result(f"{name} would be built:" if why else f"{name} is up to date")
        for each in why:
            console.result(f"  {_line(each)}")


def _line(change: Change) -> str:
    if change.old == change.new:
        return f"{change.name}: {change.new}"
    return f"{change.name}: {_short(change.old)} -> {_short(change.new)}"


def _short(value: str) -> str:
    """A digest by its first letters, any other value as it is."""
    is_digest = len(value) == 64 and not set(value) - set("0123456789abcdef")  # noqa: PLR2004 - a sha256 in hex
    return value[:12] if is_digest else value
