"""`meshbuild promote`: let a channel point at a release that the store has."""

from __future__ import annotations

import os

import click

from meshbuild.cli import console
from meshbuild.deliver import promote_release
from meshbuild.settings import current_settings


@click.command("promote")
@click.argument("module")
@click.argument("channels", nargs=-1, metavar="[FROM TO]")
@click.option("--sequence", type=click.IntRange(min=1), help="The number of the release, in the place of FROM.")
@click.option("--channel", help="With --sequence, the channel; `stable` unless set.")
@click.option("--store", help="The store; the setting `store` unless given.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    module: str,
    channels: tuple[str, ...],
    sequence: int | None,
    channel: str | None,
    store: str | None,
    *,
    as_json: bool,
) -> None:
    """Let a channel point at a release that the store has already: what FROM points at, or one by its number.

    Nothing is built or uploaded. An earlier release is the way back for all hosts of the channel: it comes to them as
    the next state, with a higher serial.

    \b
    Example:
      meshbuild promote mesh-controller beta stable
      meshbuild promote mesh-controller --sequence 7
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    if sequence is None and (len(channels) != 2 or channel is not None):  # noqa: PLR2004 - from and to
        raise click.UsageError("Name the channels FROM and TO, or a release with --sequence.")
    if sequence is not None and channels:
        raise click.UsageError("--sequence takes the place of FROM and TO; --channel names the channel.")
    done = promote_release(
        current_settings(store=store, channel=channels[1] if channels else channel),
        module=module,
        release=sequence or channels[0],
        environ=os.environ,
        report=console.note,
    )
    if as_json:
        console.result_json(
            {
                "module": done.module,
                "channel": done.channel,
                "sequence": done.sequence,
                "release_sha256": done.release_sha256,
                "changed": done.new,
            }
        )
        return
    points = "points now" if done.new else "pointed already"
    console.result(f"{done.channel} of {done.module} {points} at release {done.sequence}")
