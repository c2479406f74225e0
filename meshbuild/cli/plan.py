"""`meshbuild plan`: what a build would run."""

from __future__ import annotations

import os
from dataclasses import asdict

import click

from meshbuild.cli import console
from meshbuild.settings import current_settings
from meshbuild.targets import choose_targets, plan_target


@click.command("plan")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--json", "as_json", is_flag=True, help="Print the plans as JSON.")
def command(names: tuple[str, ...], as_json: bool) -> None:
    """Show the whole command and environment of each build, without running anything.

    NAME is a module, an artifact, or MODULE:ARTIFACT[:SYSTEM]. Folders are placeholders such as ${toolchain}: a plan is
    the same on every machine.

    Example: meshbuild plan mesh-controller
    """
    chosen = [plan_target(target, os.environ) for target in choose_targets(current_settings(), names)]
    if as_json:
        console.result_json(
            {
                "plans": [
                    {**asdict(plan), "env": dict(plan.env), "fingerprint_sha256": plan.fingerprint} for plan in chosen
                ]
            }
        )
        return
    for plan in chosen:
        console.result(
            f"{plan.name}, version {plan.version}, with go {plan.toolchain_version} ({plan.toolchain_platform})"
        )
        console.result(f"  fingerprint {plan.fingerprint}")
        for name, value in plan.env:
            console.result(f"  {name}={value}")
        console.result(f"  $ {' '.join(plan.list_argv)}")
        console.result(f"  $ {' '.join(plan.argv)}")
