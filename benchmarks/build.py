"""Building: nothing to do in this repository, a build cache that machines share, and one or two builds at a time.

    python benchmarks/build.py [--runs 11] [--cold-runs 3]

Cold means an empty build cache, with modules and compiler at hand. The shared cache is a folder that an earlier build
filled; the machine that takes from it is as cold as the one that doesn't. benchmarks/peers.py has cold builds against
other tools, benchmarks/scale.py large projects.
"""

from __future__ import annotations

import argparse
import secrets
import subprocess
import tempfile
from pathlib import Path

from measure import Sample, compare, run
from programs import DOIT, ESBUILD, PROJECT, Bench, Program, environment

EMPTY_DODO = 'def task_nothing():\n    return {"actions": [], "uptodate": [True]}\n'
SEVERAL = (
    Program("github.com/rakyll/hey", "v0.1.5", ""),
    Program("mvdan.cc/sh/v3", "v3.14.1", "cmd/shfmt"),
    Program("github.com/mikefarah/yq/v4", "v4.54.3", ""),
    Program("github.com/junegunn/fzf", "v0.65.2", ""),
)


def no_op(work: Path, runs: int) -> None:
    empty = work / "empty"
    empty.mkdir()
    (empty / "dodo.py").write_text(EMPTY_DODO)
    run([DOIT, "build"], cwd=PROJECT, env=environment())
    compare(
        "no-op build of this repository's artifacts",
        lambda: run([DOIT, "build"], cwd=PROJECT, env=environment()),
        lambda: run([DOIT], cwd=empty),
        runs=runs,
        peer_name="doit on an empty dodo.py",
    )


def shared_cache(bench: Bench, runs: int) -> None:
    """Build esbuild where nothing is cached: with what another machine put into the shared cache, and without."""
    project, store = bench.work / "esbuild", bench.work / "store"
    bench.fetch(ESBUILD, project)
    bench.make_project(project)
    store.mkdir()
    sharing = {"MESHBUILD_CACHE_STORE": str(store), "MESHBUILD_CACHE_KEY": secrets.token_hex(32)}

    def build(**settings: str) -> Sample:
        bench.clear(project)
        return run([DOIT, "build"], cwd=project, env=bench.our_env(**settings))

    compare(
        "cold build of esbuild, filling the shared cache",
        lambda: build(**sharing),
        build,
        runs=1,
        peer_name="the same without one",
        warm_up=False,
    )
    assert any(store.rglob("*")), "the build put nothing into the shared cache"
    compare(
        "cold build of esbuild, shared cache full",
        lambda: build(**sharing),
        build,
        runs=runs,
        peer_name="the same without one",
        warm_up=False,
    )


def in_parallel(bench: Bench, runs: int) -> None:
    """Build several Go modules of one project, one at a time and two at a time, everything cold."""
    project = bench.work / "several"
    for program in SEVERAL:
        bench.fetch(program, project / "bundles" / program.name)
    bench.make_project(project)

    def build(count: int) -> Sample:
        bench.clear(project)
        return run([DOIT, "-n", str(count), "build"], cwd=project, env=bench.our_env())

    compare(
        f"cold build of {len(SEVERAL)} Go modules, -n 2",
        lambda: build(2),
        lambda: build(1),
        runs=runs,
        peer_name="-n 1",
        warm_up=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--cold-runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meshbuild-bench-") as folder:
        no_op(Path(folder), options.runs)
        bench = Bench(Path(folder))
        shared_cache(bench, options.cold_runs)
        in_parallel(bench, options.cold_runs)
        subprocess.run(["chmod", "-R", "u+w", folder], check=False)


if __name__ == "__main__":
    main()
