"""The `meshbuild` command: one module a verb, loaded when it is called for.

Only this package prints, exits, or catches everything.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from typing import Any

import click

from meshbuild import __version__
from meshbuild.cli import console
from meshbuild.errors import MeshbuildError

# Verb to the line that `meshbuild --help` shows for it; the module meshbuild.cli.<verb> holds the command.
VERBS = {
    "validate": "Check manifests and report every problem.",
    "plan": "Show what a build would run, without running it.",
    "why": "Say what a build would build, and which inputs changed.",
    "toolchain": "List, fetch and check the pinned toolchains, and pin others.",
    "inspect": "Show what is in a bundle.",
    "diff": "Show two bundles or releases side by side.",
    "verify": "Check a bundle's signature, digests and listing.",
    "store": "Make a bundle store, and keep it.",
    "push": "Publish the built bundles of modules as releases.",
    "promote": "Let a channel point at a release that the store has.",
    "releases": "List a module's releases in the store.",
    "cache": "Serve Go's build cache from a store that machines share.",
    "fetch": "Fetch a module's release, verify it and unpack it.",
}


class _Verbs(click.Group):
    """Loads a verb's module when it is called, so that `meshbuild fetch` doesn't import the compiler's side."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's interface
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in VERBS:
            return None
        command: click.Command = importlib.import_module(f"meshbuild.cli.{cmd_name}").command
        console.add_options(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:  # noqa: ANN401 - click's own type is a tuple of optionals
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            raise click.UsageError(error.message + console.suggestion(args[0], VERBS), ctx) from error


@click.group(cls=_Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="meshbuild", message="%(prog)s %(version)s")
def command() -> None:
    """Get Go services from source onto bare Linux hosts, without container images.

    Building is doit's part: `doit list`, `doit build`, `doit push`, `doit clean`.
    """


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit status (docs/exit-codes.md)."""
    try:
        command.main(argv, prog_name="meshbuild", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except MeshbuildError as error:
        console.error(error)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        console.note("interrupted")
        return 130
    except Exception:  # noqa: BLE001 - the one place that catches everything
        traceback.print_exc()
        console.note("This is a bug in meshbuild; please report it with the lines above.")
        return 1
    return 0


def run() -> None:
    """The console script."""
    sys.exit(main())
