"""`meshbuild push`: publish built bundles."""

from __future__ import annotations

import os

import click

from meshbuild.cli import console
from meshbuild.deliver import push_modules
from meshbuild.settings import current_settings


@click.command("push")
@click.argument("modules", nargs=-1, metavar="[MODULE]...")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--channel", help="The channel that shall point at the releases; `stable` unless set.")
@click.option("--allow-dirty", is_flag=True, help="Publish what was built from a tree with uncommitted changes, too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    modules: tuple[str, ...], store: str | None, channel: str | None, *, allow_dirty: bool, as_json: bool
) -> None:
    """Publish the built bundles of modules, all of them unless named, as one release each.

    What a channel points at already makes no new release. A module's first push admits it, where the store's targets
    key is at hand.

    \b
    Example:
      meshbuild push mesh-controller --channel stable
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, channel=channel)
    done = []
    for published in push_modules(
        settings, modules=modules, allow_dirty=allow_dirty, environ=os.environ, report=console.note
    ):
        done.append(published)
        if not as_json:
            console.result(str(published))
    if as_json:
        console.result_json(
            {
                "releases": [
                    {
                        "module": each.module,
                        "channel": each.channel,
                        "sequence": each.sequence,
                        "release_sha256": each.release_sha256,
                        "new": each.new,
                    }
                    for each in done
                ]
            }
        )
