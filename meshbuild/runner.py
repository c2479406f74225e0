"""Running other programs: the one place where a build starts a process."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Finished:
    """What a program that ran to its end left: exit code, standard output and standard error."""

    exit_code: int
    stdout: bytes
    stderr: bytes

    @property
    def error_text(self) -> str:
        """Standard error as text, without blanks around it."""
        return self.stderr.decode(errors="replace").strip()


def run(argv: Sequence[str], *, env: Mapping[str, str], cwd: str) -> Finished:
    """Run a program to its end; the real runner, for tests to wrap.

    Raises:
        OSError: it could not be started.
    """
    done = subprocess.run(argv, env=dict(env), cwd=cwd, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    return Finished(done.returncode, done.stdout, done.stderr)
