"""Deciding and building in large projects: `doit build` with nothing to do, and with one change among 1,000 artifacts.

    python benchmarks/scale.py [--runs 7] [--artifacts 1 --artifacts 1000]

The project: Go modules of 10 programs and 500 source files each, every program made of all packages of its module; 100
modules are 1,000 artifacts and 50,000 files. One module is really built, which shows what a record holds; the records
of the others are written by the functions that building uses, beside small files in place of bundles. So deciding does
all of its work: it looks at every source file, and checks each bundle, while compiling 1,000 programs is left out.

A `go` and a `git` that fail are first on PATH while nothing is to be done: deciding starts neither.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Sample, compare, run

from meshbuild import uptodate
from meshbuild.digests import Sha256
from meshbuild.golist import Package
from meshbuild.pins import host_platform, read_pins
from meshbuild.settings import load_settings
from meshbuild.targets import inputs, plan_target, read_targets, task_of
from meshbuild.toolchains import ensure_toolchain, user_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshbuild.settings import Settings
    from meshbuild.targets import Target

PROJECT = Path(__file__).resolve().parents[1]
DOIT = str(Path(sys.executable).with_name("doit"))
PROGRAMS, PACKAGES, FILES = 10, 49, 10  # of a Go module; FILES in each package
LARGE, LARGE_SECONDS = 1000, 2.0
TRIVIAL = """def task_build():
    for number in range({count}):
        yield {{"name": f"m{{number // 10:03}}:a{{number % 10}}:arch", "actions": [len], "uptodate": [True]}}
"""
EMPTY = 'def task_nothing():\n    return {"actions": [], "uptodate": [True]}\n'


def write_project(folder: Path, artifacts: int) -> None:
    """Write a project of so many artifacts, 10 in each module."""
    folder.mkdir()
    (folder / "dodo.py").write_text("from meshbuild.tasks import *\n")
    shutil.copyfile(PROJECT / "toolchains.toml", folder / "toolchains.toml")
    for first in range(0, artifacts, PROGRAMS):
        write_module(folder / "bundles" / f"m{first // PROGRAMS:03}", min(PROGRAMS, artifacts - first))


def write_module(folder: Path, programs: int) -> None:
    """Write a Go module of 49 packages of 10 files each, and of programs that import them all."""
    package_names = [f"p{number:02}" for number in range(PACKAGES)]
    files = {"go.mod": f"module example.com/{folder.name}\n\ngo 1.26\n", "go.sum": ""}
    for package in package_names:
        for number in range(FILES):
            files[f"{package}/f{number}.go"] = (
                f"package {package}\n\n// F{number} is one of the functions of this package.\n"
                f"func F{number}(x int) int {{ return x*{number} + {int(package[1:])} }}\n"
            )
    imports = "".join(f'\t"example.com/{folder.name}/{package}"\n' for package in package_names)
    calls = "".join(f"\tn = {package}.F1(n)\n" for package in package_names)
    for number in range(programs):
        files[f"cmd/a{number}/main.go"] = (
            f"package main\n\nimport (\n{imports})\n\nfunc main() {{\n\tn := {number}\n{calls}\tprintln(n)\n}}\n"
        )
    entries = [
        {
            "name": f"a{number}",
            "kind": "bundle",
            "language": "go",
            "system": "arch",
            "from": f"cmd/a{number}",
            "binary": f"a{number}",
        }
        for number in range(programs)
    ]
    files["manifest.json"] = json.dumps({"module": folder.name, "version": "1", "build": {"artifacts": entries}})
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def write_records(settings: Settings) -> None:
    """Record every artifact of the modules but the first as built; the first is built, and must give such a record."""
    snapshot = uptodate.Snapshot(uptodate.DigestMemory(settings.state / "none.json"))
    for target in read_targets(settings):
        task = task_of(settings, target)
        names = inputs(settings, target, plan_target(target, os.environ), packages_of(target))
        built = uptodate.read_record(task.record_file(settings))
        if built:
            assert set(built.inputs) == set(names), "a build records other inputs than this benchmark makes up"
            continue
        bundle = settings.dist / task.file_name
        bundle.write_text(task.name)
        blob = Sha256.of_file(bundle)
        record = uptodate.Record(
            fingerprint=task.fingerprint,
            inputs=uptodate.digest_inputs(names, settings.project, snapshot),
            bundle=os.path.relpath(bundle, settings.project),
            blob_sha256=blob,
            content_sha256=blob,
            size_bytes=bundle.stat().st_size,
        )
        uptodate.write_record(task.record_file(settings), record)


def packages_of(target: Target) -> list[Package]:
    """What `go list -deps` says of one of the programs."""
    root = target.manifest_dir
    folders = [root / target.artifact.source, *(root / f"p{number:02}" for number in range(PACKAGES))]
    return [Package(folder, (), root / "go.mod") for folder in folders]


def make_project(folder: Path, artifacts: int) -> None:
    """A project as it is after everything in it was built."""
    write_project(folder, artifacts)
    run([DOIT, "build", "m000"], cwd=folder, env=environment())
    write_records(load_settings(folder, {}))
    time.sleep(0.1)  # so that no file is young enough to be read twice
    run([DOIT, "build"], cwd=folder, env=environment())


def environment(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "MESHBUILD_"))}
    if "GOPROXY" in os.environ:
        env["GOPROXY"] = os.environ["GOPROXY"]
    return {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}", **more}


def traps(folder: Path) -> dict[str, str]:
    """An environment in which starting `go` or `git` leaves a mark and fails."""
    folder.mkdir()
    for name in ("go", "git"):
        (folder / name).write_text(f'#!/bin/sh\necho "$0 $*" >> {folder}/started\nexit 70\n')
        (folder / name).chmod(0o755)
    env = environment()
    return {**env, "PATH": f"{folder}{os.pathsep}{env['PATH']}"}


def timed_build(folder: Path, *names: str, env: Mapping[str, str], built: set[str]) -> Sample:
    """Run `doit build`, and see that it builds what it should, and nothing else."""
    output = folder.parent / "output"
    sample = run(["sh", "-c", f'exec "$0" "$@" > {output}', DOIT, "build", *names], cwd=folder, env=env)
    found = set(re.findall(r"^built (\S+):", output.read_text(), flags=re.MULTILINE))
    assert found == built, f"expected to build {sorted(built)}, and built {sorted(found)}"
    return sample


def no_op(work: Path, artifacts: int, runs: int) -> float:
    """Compare a no-op with doit on as many trivial tasks, and with doit on one; returns our median in seconds."""
    env = traps(work / "traps")
    for name, text in (("trivial", TRIVIAL.format(count=artifacts)), ("one", EMPTY)):
        (work / name).mkdir()
        (work / name / "dodo.py").write_text(text)
    took: list[float] = []

    def ours() -> Sample:
        sample = timed_build(work / "project", env=env, built=set())
        took.append(sample.wall_s)
        return sample

    title = f"no-op, {artifacts} artifact{'s' * (artifacts > 1)}"
    for peer, peer_name in (("trivial", f"doit with {artifacts} trivial tasks"), ("one", "doit with one trivial task")):
        compare(title, ours, lambda peer=peer: run([DOIT], cwd=work / peer), runs=runs, peer_name=peer_name)
    assert not (work / "traps/started").exists(), (work / "traps/started").read_text()
    return sorted(took)[len(took) // 2]


def one_change(work: Path, runs: int) -> None:
    """Change one program's own file, and build everything; the peer is told which program it is."""
    project = work / "project"
    source = project / "bundles/m000/cmd/a3/main.go"
    pin = read_pins(project / "toolchains.toml").toolchain(None, host_platform())
    toolchain = ensure_toolchain(pin, cache=user_cache(os.environ), environ=os.environ, report=print)
    go_env = {"HOME": str(work), "GOCACHE": str(user_cache(os.environ) / "go-build"), "GOENV": "off"}
    go_env |= {"GOTOOLCHAIN": "local", "GOPROXY": "off", "CGO_ENABLED": "0"}

    def change() -> None:
        source.write_text(re.sub(r"n := \d+", f"n := {time.time_ns()}", source.read_text()))

    def ours() -> Sample:
        change()
        return timed_build(project, env=environment(), built={"m000:a3:arch"})

    def peer() -> Sample:
        change()
        words = [str(toolchain.go), "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(work / "a3")]
        return run([*words, "./cmd/a3"], cwd=project / "bundles/m000", env=go_env)

    compare("one change in 1,000 artifacts", ours, peer, runs=runs, peer_name="go build of the changed program alone")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--artifacts", type=int, action="append", help="how many; 1, 100 and 1000 unless given")
    options = parser.parse_args()
    slow = False
    for artifacts in options.artifacts or (1, 100, LARGE):
        with tempfile.TemporaryDirectory(prefix="meshbuild-scale-") as folder:
            work = Path(folder)
            make_project(work / "project", artifacts)
            took = no_op(work, artifacts, options.runs)
            if artifacts >= LARGE:
                one_change(work, max(3, options.runs // 2))
                slow = took > LARGE_SECONDS
                print(f"  {artifacts} artifacts: {took:.2f} s of {LARGE_SECONDS:.0f} s allowed", flush=True)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
