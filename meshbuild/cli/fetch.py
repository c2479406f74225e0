"""`meshbuild fetch`: a release from a store, verified and unpacked."""

from __future__ import annotations

from pathlib import Path

import click

from meshbuild.cli import console
from meshbuild.deliver import project_store, read_root
from meshbuild.fetch import fetch_release
from meshbuild.settings import current_settings


@click.command("fetch")
@click.argument("module")
@click.option("--system", help="The system whose artifacts are wanted; the only one there is unless given.")
@click.option("--into", type=click.Path(path_type=Path), help="The host's folder; the setting `host` unless given.")
@click.option("--channel", help="The channel to follow; `stable` unless set.")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--root", help="The root of trust, a root.json; the setting `root` unless given.")
@click.option("--allow-older", is_flag=True, help="Accept an earlier state than this host has accepted before.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    module: str,
    *,
    system: str | None,
    into: Path | None,
    channel: str | None,
    store: str | None,
    root: str | None,
    allow_older: bool,
    as_json: bool,
) -> None:
    """Fetch what a channel points at, verify all of it, and unpack it below the host's folder.

    Nothing is unpacked that a trusted builder didn't sign, and nothing that isn't whole gets its final name. What is
    there already isn't fetched again.

    \b
    Example:
      meshbuild fetch mesh-controller --into /var/lib/meshbuild
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, root=root, channel=channel, system=system)
    with console.progress() as progress:
        release = fetch_release(
            project_store(settings),
            root=read_root(settings),
            module=module,
            channel=settings.channel,
            system=settings.system or None,
            into=into or settings.path(settings.host),
            allow_older=allow_older,
            report=console.note,
            progress=progress,
        )
    if as_json:
        console.result_json(
            {
                "module": release.module,
                "version": release.version,
                "channel": release.channel,
                "serial": release.serial,
                "sequence": release.sequence,
                "release_sha256": release.release_sha256,
                "artifacts": [
                    {
                        "artifact": each.artifact,
                        "system": each.system,
                        "binary": each.binary,
                        "content_sha256": each.content_sha256,
                        "folder": str(each.folder),
                        "builders": list(each.builders),
                    }
                    for each in release.artifacts
                ],
            }
        )
        return
    console.result(f"{release.module} {release.version}, release {release.sequence} on {release.channel}: verified")
    for each in release.artifacts:
        console.result(f"  {each.artifact} for {each.system}: {each.folder / each.binary}")
