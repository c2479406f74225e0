"""`meshbuild store`: making and keeping a bundle store."""

from __future__ import annotations

import click

from meshbuild.cli import console
from meshbuild.deliver import make_store, project_store
from meshbuild.settings import current_settings


@click.group("store")
def command() -> None:
    """Make a bundle store."""


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
