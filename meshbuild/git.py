"""What git knows of a source folder. A build never depends on git being there."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


# What running dodo.py leaves beside it isn't source.
_NO_SOURCE = ":(exclude,glob)**/__pycache__/**"


def source_state(folder: str, environ: Mapping[str, str], *more: str) -> tuple[str | None, bool | None]:
    """The commit that a folder's tree is at, and whether the folder differs from it: files changed, missing, or new.

    Args:
        folder: the folder to ask about.
        environ: the user's environment, for PATH and HOME.
        more: further folders of the same tree, relative to it.

    Returns:
        (None, None) where git can't tell: no git, no repository, no commit yet, a tree that git refuses.
    """
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    git = ("git", "--no-optional-locks", "-C", folder)
    try:
        head = subprocess.run([*git, "rev-parse", "--verify", "HEAD"], env=env, capture_output=True, check=False)
        status = subprocess.run(
            [*git, "status", "--porcelain", "--", ".", *more, _NO_SOURCE], env=env, capture_output=True, check=False
        )
    except OSError:
        return None, None
    if head.returncode != 0 or status.returncode != 0:
        return None, None
    return head.stdout.decode().strip(), bool(status.stdout.strip())
