"""What git knows of a source folder. A build never depends on git being there."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def source_state(folder: str, environ: Mapping[str, str]) -> tuple[str | None, bool | None]:
    """The commit that a folder's tree is at, and whether the folder differs from it.

    Returns:
        (None, None) where git can't tell: no git, no repository, no commit yet, a tree that git refuses.
    """
    env = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    git = ("git", "--no-optional-locks", "-C", folder)
    try:
        head = subprocess.run([*git, "rev-parse", "--verify", "HEAD"], env=env, capture_output=True, check=False)
        status = subprocess.run([*git, "status", "--porcelain", "--", "."], env=env, capture_output=True, check=False)
    except OSError:
        return None, None
    if head.returncode != 0 or status.returncode != 0:
        return None, None
    return head.stdout.decode().strip(), bool(status.stdout.strip())
