"""`meshbuild store`: making and keeping a bundle store."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from meshbuild.cli import console
from meshbuild.deliver import make_store, online_keys, project_store, read_root, writable_store
from meshbuild.errors import StoreUnsoundError
from meshbuild.repository import GRACE_S
from meshbuild.settings import current_settings
from meshbuild.stores import open_store
from meshbuild.upkeep.check import Repair, check_store
from meshbuild.upkeep.garbage import find_garbage, remove_garbage
from meshbuild.upkeep.refresh import refresh as refresh_store

if TYPE_CHECKING:
    from meshbuild.upkeep.check import Report


@click.group("store")
def command() -> None:
    """Make a bundle store, and keep it."""


@command.command("init")
@click.option("--store", help="The store's folder; the setting `store` unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def init(store: str | None, *, as_json: bool) -> None:
    """Make a store, the keys of its roles, and the root of trust that hosts start from.

    Keys that are there already are used. The store's folder can be served by any web server; the keys never leave the
    project's key folder.

    \b
    Example:
      meshbuild store init --store /srv/bundles
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store)
    root = make_store(settings, report=console.note)
    address = project_store(settings).address
    if as_json:
        console.result_json({"store": address, "root": str(root), "keys": str(settings.path(settings.keys))})
        return
    console.result(f"made the store {address}; its root of trust is {root}")


@command.command("refresh")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--root", help="Its root of trust (root.json); the setting `root` unless given.")
@click.option("--days", default=30, show_default=True, help="Sign what expires within so many days.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def refresh(store: str | None, root: str | None, days: int, *, as_json: bool) -> None:
    """Sign the store's snapshot and timestamp anew if they expire soon; run it once a day.

    It needs the online keys only. Pushes refresh too. Root and targets live for years: `store check` says when.

    \b
    Example:
      meshbuild store refresh --store /srv/bundles
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, root=root)
    done = refresh_store(
        writable_store(settings),
        root=read_root(settings),
        keys=online_keys(settings, os.environ),
        within=timedelta(days=days),
        now=datetime.now(UTC),
    )
    if as_json:
        console.result_json(
            {"signed": done.signed, "expires": {role: when.isoformat() for role, when in done.expires.items()}}
        )
        return
    console.result("signed anew" if done.signed else f"nothing expires within {days} days")
    for role, when in done.expires.items():
        console.result(f"  {role}: {when:%Y-%m-%d}")


@command.command("check")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--root", help="Its root of trust (root.json); the setting `root` unless given.")
@click.option("--days", default=30, show_default=True, help="Warn of what expires within so many days.")
@click.option("--repair-from", metavar="STORE", help="Put what is missing or wrong again, from this second store.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def check(store: str | None, root: str | None, days: int, repair_from: str | None, *, as_json: bool) -> None:
    """Check every signature and digest of a store, and every release against the policy; warn of what expires soon.

    \b
    Example:
      meshbuild store check --store /srv/bundles
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, root=root)
    opened = project_store(settings)
    report = check_store(
        opened,
        root=read_root(settings),
        now=datetime.now(UTC),
        soon=timedelta(days=days),
        repair=Repair(writable_store(settings), open_store(repair_from)) if repair_from else None,
    )
    if as_json:
        console.result_json(_as_json(report))
    else:
        for finding in report.findings:
            console.result(f"{'repaired' if finding.repaired else 'wrong'}: {finding.where}: {finding.problem}")
        for role, when in report.expires.items():
            console.result(f"expires: {role}, {when:%Y-%m-%d}")
        console.result(
            f"{opened.address}: {report.modules} modules, {report.releases} releases, {report.files} files, "
            f"{console.size(report.size_bytes)}: {'sound' if report.clean else 'not sound'}"
        )
    if not report.clean:
        wrong = sum(not finding.repaired for finding in report.findings)
        raise StoreUnsoundError(
            f"{opened.address}: {wrong} things are wrong",
            hint="--repair-from names a second store to put files right from; a push of the same bundles does so too.",
        )


@command.command("gc")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--root", help="Its root of trust (root.json); the setting `root` unless given.")
@click.option("--dry-run", is_flag=True, help="Say what would go and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def gc(store: str | None, root: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Remove what no state of the last seven days reaches, and what is older than that itself.

    Safe beside pushes and fetches. A module's role keeps its last 50 releases, and those that channels point at.

    \b
    Example:
      meshbuild store gc --store /srv/bundles --dry-run
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, root=root)
    opened = writable_store(settings)
    garbage = find_garbage(opened, root=read_root(settings))
    if not dry_run:
        remove_garbage(opened, garbage)
    if as_json:
        console.result_json(
            {
                "removed": not dry_run,
                "files": [{"key": entry.key, "size_bytes": entry.size_bytes} for entry in garbage.entries],
                "size_bytes": garbage.size_bytes,
                "kept_files": garbage.kept_files,
                "kept_size_bytes": garbage.kept_size_bytes,
            }
        )
        return
    for entry in garbage.entries:
        console.detail(f"{entry.key}, {console.size(entry.size_bytes)}")
    console.result(
        f"{opened.address}: {'would remove' if dry_run else 'removed'} {len(garbage.entries)} files, "
        f"{console.size(garbage.size_bytes)}, out of use for {GRACE_S / 86_400:.0f} days; "
        f"{garbage.kept_files} files stay, {console.size(garbage.kept_size_bytes)}"
    )


def _as_json(report: Report) -> dict[str, object]:
    return {
        "sound": report.clean,
        "modules": report.modules,
        "releases": report.releases,
        "files": report.files,
        "size_bytes": report.size_bytes,
        "findings": [
            {"where": finding.where, "problem": finding.problem, "repaired": finding.repaired}
            for finding in report.findings
        ],
        "expires": {role: when.isoformat() for role, when in report.expires.items()},
    }
