"""Building against doit itself, and against the plain go command with tar and zstd behind it.

    python benchmarks/build.py [--runs 11] [--cold-runs 3]

No-op: `doit build` of this repository's artifacts, nothing changed, against `doit` on a dodo.py with a trivial task.
Cold: esbuild from the Go module proxy with an empty build cache, modules and compiler at hand for both.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import Sample, compare, run

from meshbuild.pins import host_platform, read_pins
from meshbuild.toolchains import ensure_toolchain, user_cache

PROJECT = Path(__file__).resolve().parents[1]
DOIT = str(Path(sys.executable).with_name("doit"))
PROGRAM, VERSION, PACKAGE = "github.com/evanw/esbuild", "v0.25.11", "cmd/esbuild"
EMPTY_DODO = 'def task_nothing():\n    return {"actions": [], "uptodate": [True]}\n'


def environment(**more: str) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("GO", "MESHBUILD_"))}
    return {**env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}", **more}


def no_op(work: Path, runs: int) -> None:
    empty = work / "empty"
    empty.mkdir()
    (empty / "dodo.py").write_text(EMPTY_DODO)
    run([DOIT, "build"], cwd=PROJECT)
    compare(
        "no-op build of 5 artifacts",
        lambda: run([DOIT, "build"], cwd=PROJECT),
        lambda: run([DOIT], cwd=empty),
        runs=runs,
        peer_name="doit on an empty dodo.py",
    )


def fetch_source(go: Path, modules: Path, folder: Path) -> None:
    """Put the program's source, with everything it needs in the module cache, into a folder with a manifest."""
    env = {**environment(), "GOMODCACHE": str(modules), "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    if "GOPROXY" in os.environ:
        env["GOPROXY"] = os.environ["GOPROXY"]
    words = [str(go), "mod", "download", "-json", f"{PROGRAM}@{VERSION}"]
    found = subprocess.run(words, env=env, cwd=folder.parent, capture_output=True, text=True, check=True)
    shutil.copytree(json.loads(found.stdout)["Dir"], folder, copy_function=shutil.copyfile)
    for each in (folder, *(entry for entry in folder.rglob("*") if entry.is_dir())):
        each.chmod(0o755)  # the module cache is read-only
    subprocess.run([str(go), "list", "-deps", f"./{PACKAGE}"], env=env, cwd=folder, capture_output=True, check=True)
    artifact = {
        "name": "esbuild",
        "kind": "bundle",
        "language": "go",
        "system": "arch",
        "from": PACKAGE,
        "binary": "esbuild",
    }
    manifest = {"module": "esbuild", "version": VERSION.removeprefix("v"), "build": {"artifacts": [artifact]}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "dodo.py").write_text("from meshbuild.tasks import *\n")
    shutil.copyfile(PROJECT / "toolchains.toml", folder / "toolchains.toml")


def cold(work: Path, runs: int) -> None:
    toolchain = ensure_toolchain(
        read_pins(PROJECT / "toolchains.toml").toolchain(None, host_platform()),
        cache=user_cache(os.environ),
        environ=os.environ,
        report=print,
    )
    source, modules, cache = work / "source", work / "go-mod", work / "cache"
    fetch_source(toolchain.go, modules, source)

    def clear() -> None:
        for folder in (cache, source / ".meshbuild", source / "dist", work / "peer"):
            shutil.rmtree(folder, ignore_errors=True)
        cache.mkdir()
        (work / "peer").mkdir()
        (cache / "toolchains").symlink_to(toolchain.root.parent)
        (cache / "go-mod").symlink_to(modules)

    def ours() -> Sample:
        clear()
        return run([DOIT, "build"], cwd=source, env=environment(MESHBUILD_CACHE=str(cache)))

    def peer() -> Sample:
        clear()
        env = {
            "PATH": f"{toolchain.go.parent}:/usr/bin:/bin",
            "HOME": str(work / "peer"),
            "GOCACHE": str(cache / "go-build"),
            "GOMODCACHE": str(modules),
            "GOENV": "off",
            "GOTOOLCHAIN": "local",
            "GOPROXY": "off",
            "CGO_ENABLED": "0",
        }
        build = [
            "go",
            "build",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags=-s -w",
            "-o",
            f"{work}/peer/esbuild",
            f"./{PACKAGE}",
        ]
        there = shlex.quote(str(work / "peer"))
        pack = f"tar -C {there} -cf - esbuild | zstd -q -9 --long -T2 -o {there}/bundle"
        return run(["sh", "-c", f"{shlex.join(build)} && {pack}"], cwd=source, env=env)

    compare("cold build of esbuild", ours, peer, runs=runs, peer_name="go build | tar | zstd", warm_up=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--cold-runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meshbuild-bench-") as folder:
        no_op(Path(folder), options.runs)
        cold(Path(folder), options.cold_runs)
        subprocess.run(["chmod", "-R", "u+w", folder], check=False)


if __name__ == "__main__":
    main()
