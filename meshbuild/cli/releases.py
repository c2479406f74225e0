"""`meshbuild releases`: what a store holds of a module."""

from __future__ import annotations

import click

from meshbuild.cli import console
from meshbuild.deliver import project_store, read_root
from meshbuild.repository import module_releases
from meshbuild.settings import current_settings
from meshbuild.trust import load_state


@click.command("releases")
@click.argument("module")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--root", help="The root of trust; the setting `root` unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(module: str, store: str | None, root: str | None, *, as_json: bool) -> None:
    """List a module's releases in the store, newest first, and the channels that point at them.

    \b
    Example:
      meshbuild releases mesh-controller
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, root=root)
    opened = project_store(settings)
    found = module_releases(opened, load_state(opened, root=read_root(settings), modules=[module]), module)
    if as_json:
        console.result_json(
            {
                "module": module,
                "releases": [
                    {
                        "sequence": release.sequence,
                        "version": release.version,
                        "release_sha256": release.sha256,
                        "channels": [{"channel": each.channel, "serial": each.serial} for each in channels],
                        "artifacts": [each.model_dump(mode="json") for each in release.artifacts],
                    }
                    for release, channels in found
                ],
            }
        )
        return
    console.table(
        ("release", "version", "channels", "artifact", "system", "size", "content"),
        [
            (
                str(release.sequence),
                release.version,
                ", ".join(each.channel for each in channels),
                artifact.artifact,
                artifact.system,
                console.size(artifact.blob_size_bytes),
                artifact.content_sha256.short,
            )
            for release, channels in found
            for artifact in release.artifacts
        ],
    )
