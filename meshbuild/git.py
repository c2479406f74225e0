"""What git knows of a source folder. A build never depends on git being there."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


# What running dodo.py leaves beside it isn't source.
_NO_SOURCE = ":(exclude,glob)**/__pycache__/**"


def source_state(folders: Sequence[Path], environ: Mapping[str, str]) -> tuple[str | None, bool | None]:
    """The commit that a source tree is at, and whether folders of it differ: files changed, missing, or new.

    Args:
        folders: folders of one tree, the first of which decides on the commit.
        environ: the user's environment, for PATH and HOME.

    Returns:
        (None, None) where git can't tell: no git, no repository, no commit yet, a tree that git refuses.
    """
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    git = ("git", "--no-optional-locks", "-C", str(folders[0]))
    paths = [os.path.relpath(folder, folders[0]) for folder in folders]
    try:
        head = subprocess.run([*git, "rev-parse", "--verify", "HEAD"], env=env, capture_output=True, check=False)
        status = subprocess.run(
            [*git, "status", "--porcelain", "--", *paths, _NO_SOURCE], env=env, capture_output=True, check=False
        )
    except OSError:
        return None, None
    if head.returncode != 0 or status.returncode != 0:
        return None, None
    return head.stdout.decode().strip(), bool(status.stdout.strip())


def merged_tags(folder: str, environ: Mapping[str, str]) -> str:
    """The tags behind a folder's commit, one a line with what they name; empty where git can't tell."""
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    words = ("git", "-C", folder, "for-each-ref", "--merged", "HEAD", "--format=%(refname) %(objectname)", "refs/tags")
    try:
        return subprocess.run(words, env=env, capture_output=True, check=False).stdout.decode(errors="replace")
    except OSError:
        return ""
