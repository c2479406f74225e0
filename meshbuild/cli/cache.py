"""meshbuild cache."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from meshbuild.buildcache.cache import SharedCache
from meshbuild.buildcache.key import read_cache_key
from meshbuild.buildcache.server import serve
from meshbuild.buildcache.stores import open_cache_store
from meshbuild.cli import console
from meshbuild.toolchains import user_cache


@click.command("cache", short_help="Serve Go's build cache from a store that machines share.")
@click.option(
    "--store",
    required=True,
    envvar="MESHBUILD_CACHE_STORE",
    metavar="ADDRESS",
    help="The shared store: a folder, or an http(s) address.",
)
@click.option(
    "--local",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="This machine's part of it; else in the user's cache.",
)
def command(store: str, local: Path | None) -> None:
    """Speak Go's GOCACHEPROG protocol on standard input and output; a go command starts this, not a person.

    The key that the builders share is read from MESHBUILD_CACHE_KEY: hex digits, or `file:` and a path.

    \b
    Example:
      GOCACHEPROG="meshbuild cache --store /srv/build-cache" go build ./cmd/server
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    key = read_cache_key(os.environ.get("MESHBUILD_CACHE_KEY", ""))
    folder = local or user_cache(os.environ) / "shared-build"
    cache = SharedCache(open_cache_store(store), key=key, folder=folder.absolute(), report=console.note)
    serve(cache, sys.stdin.buffer, sys.stdout.buffer)
    cache.close()
    console.detail(f"build cache: {cache.counts}")
