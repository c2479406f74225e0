"""The same program built by us and by others: cold, and again with nothing changed.

    python benchmarks/peers.py [--cold-runs 3] [--runs 11]

esbuild from the Go module proxy, with the same pinned compiler, flags, modules and build cache for all: `go build` with
tar and zstd behind it, goreleaser (a snapshot of one target as tar.zst), and ko (an image, pushed to a registry on
loopback that holds a base image of one file). Cold means an empty build cache and an empty registry; modules are there.

goreleaser, ko, and crane for the registry come from the module proxy into the user's cache, which takes minutes the
first time. One that can't be had is left out, and said to be.
"""

from __future__ import annotations

import argparse
import io
import os
import shlex
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Sample, compare_all, run
from programs import DOIT, ESBUILD, Bench, environment

from meshbuild.toolchains import user_cache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GORELEASER = "github.com/goreleaser/goreleaser/v2@v2.18.2"
KO = "github.com/google/ko@v0.19.1"
CRANE = "github.com/google/go-containerregistry/cmd/crane@v0.22.1"
GORELEASER_CONFIG = """version: 2
project_name: esbuild
builds:
  - main: ./cmd/esbuild
    binary: esbuild
    env: [CGO_ENABLED=0]
    goos: [linux]
    goarch: [amd64]
    goamd64: [v1]
    flags: [-trimpath, -buildvcs=false]
    ldflags: [-s -w]
archives:
  - formats: [tar.zst]
"""
KO_CONFIG = """builds:
  - id: esbuild
    main: ./cmd/esbuild
    env: [CGO_ENABLED=0, GOAMD64=v1]
    flags: [-trimpath, -buildvcs=false]
    ldflags: [-s -w]
"""


def install(bench: Bench, what: str) -> str | None:
    """A program from the module proxy, made by the pinned compiler, kept in the user's cache; None if not to be had."""
    module, _, version = what.partition("@")
    name = next(part for part in reversed(module.split("/")) if not part.startswith("v"))
    folder = user_cache(os.environ) / "benchmarks" / f"{name}-{version}"
    if not (folder / name).exists():
        print(f"installing {what}, which takes minutes", flush=True)
        with tempfile.TemporaryDirectory(dir=bench.work) as scratch:
            caches = {"GOCACHE": f"{scratch}/build", "GOMODCACHE": f"{scratch}/mod", "GOBIN": str(folder)}
            env = environment(GOTOOLCHAIN="local", GOFLAGS="-modcacherw", CGO_ENABLED="0", **caches)
            words = [str(bench.go), "install", what]
            done = subprocess.run(words, env=env, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"{name} is left out, it can't be installed: {done.stderr.strip().splitlines()[-1]}", flush=True)
            return None
    return str(folder / name)


@contextmanager
def registry(crane: str, work: Path) -> Iterator[str]:
    """An empty registry on loopback, but for the image `base` of one file; gives its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    layer = work / "layer.tar"
    with tarfile.open(layer, "w") as tar:
        file = tarfile.TarInfo("etc/base")
        file.size = 1
        tar.addfile(file, io.BytesIO(b"\n"))
    with subprocess.Popen(
        [crane, "registry", "serve", "--address", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as server:
        try:
            _wait_for(address)
            run([crane, "append", "--insecure", "--new_tag", f"{address}/base", "--new_layer", str(layer)])
            base = f"{address}/base"
            run([crane, "mutate", "--insecure", "--set-platform", "linux/amd64", "--tag", base, base])
            yield address
        finally:
            server.terminate()


def _wait_for(address: str) -> None:
    host, _, port = address.partition(":")
    for _ in range(200):
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"benchmark: the registry at {address} does not answer")


class Peers:
    """The ways to build esbuild, each in a copy of the source of its own."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._go = shlex.join(bench.go_build(ESBUILD, bench.work / "go/out/esbuild"))
        self._folders = {name: bench.work / name for name in ("ours", "go", "goreleaser", "ko")}
        bench.fetch(ESBUILD, self._folders["ours"])
        for folder in list(self._folders.values())[1:]:
            shutil.copytree(self._folders["ours"], folder)
        bench.make_project(self._folders["ours"])
        (self._folders["go"] / "out").mkdir()
        (self._folders["ko"] / ".ko.yaml").write_text(KO_CONFIG)

    def ours(self) -> Sample:
        """Build with doit."""
        return run([DOIT, "build"], cwd=self._folders["ours"], env=self._bench.our_env())

    def go_build(self) -> Sample:
        """Build with the go command alone."""
        return run(["sh", "-c", self._go], cwd=self._folders["go"], env=self._bench.go_env())

    def go_build_and_pack(self) -> Sample:
        """Build with the go command, and pack."""
        pack = "tar -C out -cf - esbuild | zstd -q -f -9 --long -T2 -o out/bundle.tar.zst"
        return run(["sh", "-c", f"{self._go} && {pack}"], cwd=self._folders["go"], env=self._bench.go_env())

    def goreleaser(self, program: str) -> Callable[[], Sample]:
        """Build and pack with goreleaser, which wants a git repository."""
        folder = self._folders["goreleaser"]
        (folder / ".goreleaser.yaml").write_text(GORELEASER_CONFIG)
        identity = ("-c", "user.name=bench", "-c", "user.email=bench@localhost")
        for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "source")):
            subprocess.run(["git", *words], cwd=folder, check=True)
        return lambda: run([program, "release", "--snapshot", "--clean"], cwd=folder, env=self._bench.go_env())

    def ko(self, program: str, address: str) -> Sample:
        """Build an image with ko, and push it."""
        env = self._bench.go_env(KO_DOCKER_REPO=f"{address}/program", KO_DEFAULTBASEIMAGE=f"{address}/base")
        return run([program, "build", "./cmd/esbuild"], cwd=self._folders["ko"], env=env)

    def cold(self, build: Callable[[], Sample]) -> Callable[[], Sample]:
        """The same, with nothing built before."""

        def clear_and_build() -> Sample:
            self._bench.clear(self._folders["ours"])
            return build()

        return clear_and_build


def measure(bench: Bench, cold_runs: int, runs: int) -> None:
    peers = Peers(bench)
    goreleaser, ko, crane = (install(bench, what) for what in (GORELEASER, KO, CRANE))
    cold = {"go build | tar | zstd": peers.cold(peers.go_build_and_pack)}
    again = {"go build": peers.go_build}
    if goreleaser:
        build = peers.goreleaser(goreleaser)
        cold["goreleaser"], again["goreleaser"] = peers.cold(build), build
    if ko and crane:

        def cold_ko() -> Sample:
            with registry(crane, bench.work) as address:
                return peers.ko(ko, address)

        cold["ko"] = peers.cold(cold_ko)
    compare_all("cold build of esbuild", peers.cold(peers.ours), cold, runs=cold_runs, warm_up=False)
    if ko and crane:
        with registry(crane, bench.work) as address:
            again["ko"] = lambda: peers.ko(ko, address)
            compare_all("esbuild again, nothing changed", peers.ours, again, runs=runs)
    else:
        compare_all("esbuild again, nothing changed", peers.ours, again, runs=runs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=11)
    parser.add_argument("--cold-runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="meshbuild-bench-") as folder:
        measure(Bench(Path(folder)), options.cold_runs, options.runs)


if __name__ == "__main__":
    main()
