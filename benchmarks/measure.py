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
    """One finished run of a command and what it started.

    Attributes:
        wall_s: seconds by the wall clock.
        cpu_s: seconds of processor time, of all processes together; steadier on a machine that does other work.
        peak_mib: the largest resident set of one process, in MiB.
    """

    wall_s: float
    cpu_s: float
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
    return Sample(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


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
    return compare_all(name, ours, {peer_name: peer}, runs=runs, warm_up=warm_up)[peer_name]


def compare_all(
    name: str, ours: Callable[[], Sample], peers: Mapping[str, Callable[[], Sample]], *, runs: int, warm_up: bool = True
) -> dict[str, float]:
    """Run ours and every peer in turn, print a line for each peer as `compare` does, and return the median ratios."""
    for each in (ours, *peers.values()) if warm_up else ():
        each()
    rounds = [(ours(), {peer_name: peer() for peer_name, peer in peers.items()}) for _ in range(runs)]
    return {
        peer_name: _report(name, peer_name, [(mine, others[peer_name]) for mine, others in rounds])
        for peer_name in peers
    }


def _report(name: str, peer_name: str, pairs: Sequence[tuple[Sample, Sample]]) -> float:
    ratios = sorted(mine.wall_s / other.wall_s for mine, other in pairs)
    median = statistics.median(ratios)
    print(
        f"{name}: {median:.2f} x {peer_name} (of {len(pairs)} pairs: {ratios[0]:.2f} to {ratios[-1]:.2f}); "
        f"{statistics.median(mine.wall_s for mine, _ in pairs):.3f} s against "
        f"{statistics.median(other.wall_s for _, other in pairs):.3f} s; "
        f"processor time {statistics.median(mine.cpu_s / other.cpu_s for mine, other in pairs):.2f} x; "
        f"peak memory {max(mine.peak_mib for mine, _ in pairs):.0f} MiB against "
        f"{max(other.peak_mib for _, other in pairs):.0f} MiB",
        flush=True,
    )
    return median
