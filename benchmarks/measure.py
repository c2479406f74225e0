"""Whole-process timing in pairs: ours and a peer in turn, in one run, so that a ratio holds on a noisy machine."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished run: seconds by the wall clock, and the largest resident set of a process in it, in MiB."""

    wall_s: float
    peak_mib: float


def run(
    argv: Sequence[str], *, cwd: str | os.PathLike[str] | None = None, env: Mapping[str, str] | None = None
) -> Sample:
    """Run a command to its end and measure it; a command that fails ends the benchmark with what it printed."""
    began = time.perf_counter()
    with subprocess.Popen(
        list(argv), cwd=cwd, env=None if env is None else dict(env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"benchmark: {' '.join(argv)} failed:\n{output.decode(errors='replace')}")
    return Sample(time.perf_counter() - began, usage.ru_maxrss / 1024)


def compare(
    name: str,
    ours: Callable[[], Sample],
    peer: Callable[[], Sample],
    *,
    runs: int,
    peer_name: str,
    warm_up: bool = True,
) -> float:
    """Run both in turn, print one line with medians and the ratio of each pair, and return the median ratio."""
    if warm_up:
        ours(), peer()
    pairs = [(ours(), peer()) for _ in range(runs)]
    ratios = sorted(mine.wall_s / other.wall_s for mine, other in pairs)
    median = statistics.median(ratios)
    print(
        f"{name}: {median:.2f} x {peer_name} (of {runs} pairs: {ratios[0]:.2f} to {ratios[-1]:.2f}); "
        f"{statistics.median(mine.wall_s for mine, _ in pairs):.3f} s against "
        f"{statistics.median(other.wall_s for _, other in pairs):.3f} s; "
        f"peak memory {max(mine.peak_mib for mine, _ in pairs):.0f} MiB against "
        f"{max(other.peak_mib for _, other in pairs):.0f} MiB",
        flush=True,
    )
    return median
