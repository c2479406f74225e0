"""Build every artifact of this repository twice, under conditions as unlike as can be had, and compare the bundles.

`make reproduce` runs it. One line an artifact: its content digest, and `same` or where the two part. Exit code 1 when
any parts. The first build is a plain one with the user's cache; the second one has another folder, user, umask, clock,
time zone, language, home, file order and file times, a cold cache, one core, another git state, and settings and
programs around it that would spoil a build which let them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from meshbuild.bundle import read_bundle
from meshbuild.parting import listing_differences, program_differences
from meshbuild.toolchains import user_cache
from tests.system.conftest import BIN, Checkout, copy_project, environment

HOSTILE = {
    "TZ": "Pacific/Kiritimati",
    "LANG": "tr_TR.UTF-8",
    "LC_ALL": "C.UTF-8",
    "SOURCE_DATE_EPOCH": "1",
    "GOMAXPROCS": "1",
    "GOFLAGS": "-tags=nonsense -ldflags=-X=main.version=wrong",
    "GOOS": "plan9",
    "GOARCH": "arm64",
    "GOAMD64": "v3",
    "GOEXPERIMENT": "nope",
    "GODEBUG": "nope=1",
    "GOTOOLCHAIN": "go1.99.0",
    "GO111MODULE": "off",
    "CGO_ENABLED": "1",
    "CGO_CFLAGS": "-g -O0",
    "CC": "/nowhere/cc",
}


def plain_build(scratch: Path) -> Checkout:
    """The project as anybody has it, built with a warm cache."""
    checkout = Checkout(copy_project(scratch / "plain"), environment())
    checkout.ok("doit", "build")
    return checkout


def hostile_build(scratch: Path) -> tuple[Checkout, list[str]]:
    """The project where all that could differ does; and what was done to it, as far as this machine allows it."""
    around = scratch / "with blanks" / "ünï ☃"
    folder = copy_project(around / "deep")
    _spoil(around, folder)
    home = scratch / "home"
    home.mkdir()
    (home / "goenv").write_text("GOFLAGS=-tags=nonsense\nGOAMD64=v4\nCGO_ENABLED=1\n")
    cache = _cold_cache(scratch)
    env = environment(
        **HOSTILE,
        HOME=str(home),
        XDG_CACHE_HOME=str(home / "cache"),
        USER="somebody",
        GOENV=str(home / "goenv"),
        GOWORK=str(around / "go.work"),
        MESHBUILD_CACHE=str(cache),
        PYTHONDONTWRITEBYTECODE="1",
    )
    env["PATH"] = f"{BIN}{os.pathsep}{_hostile_programs(scratch)}{os.pathsep}{env['PATH']}"
    done = [
        "folder",
        "umask",
        "TZ",
        "LANG",
        "HOME",
        "GO* variables",
        "GOENV file",
        "parent go.work",
        "go and gcc on PATH",
    ]
    done += ["file order and times", "git", "cold cache"]
    prefix: list[str] = []
    if shutil.which("taskset"):
        prefix += ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0)))]
        done.append("one core")
    if faketime := shutil.which("faketime"):
        prefix += [faketime, "-f", "+1d"]
        done.append("a day later")
    if as_other := _other_user():
        prefix = as_other + prefix
        done.append("user")
    checkout = Checkout(folder, env)
    checkout.ok("doit", "-n", "2", "build", umask=0o077, prefix=tuple(prefix))
    return checkout, done


def _spoil(around: Path, folder: Path) -> None:
    """Another order and other times of files, git with a dirty tree, and a workspace above it all."""
    modules = [file.parent for file in folder.glob("bundles/*/go.mod")]
    uses = "".join(f"use ./{module.relative_to(around)}\n" for module in modules)
    (around / "go.work").write_text(f"go 1.27\n\ngodebug default=go1.21\n\n{uses}")
    for number, file in enumerate(sorted(folder.rglob("*"), reverse=True)):
        if file.is_file():
            shutil.move(shutil.copyfile(file, file.with_name("moved")), file)
            os.utime(file, (number, number))
    for words in (("init", "-q"), ("add", "bundles"), ("commit", "-qm", "other"), ("tag", "v9.9.9")):
        name = ("-c", "user.name=somebody", "-c", "user.email=somebody@example.com")
        subprocess.run(["git", "-C", str(folder), *name, *words], check=True)
    for module in modules:
        (module / "untracked.txt").write_text("untracked")


def _cold_cache(scratch: Path) -> Path:
    """A cache in which nothing is but the toolchains, as hard links where that works."""
    cache = scratch / "cache"
    cache.mkdir()

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)
            shutil.copymode(source, target)

    shutil.copytree(user_cache(os.environ) / "toolchains", cache / "toolchains", copy_function=link)
    return cache


def _hostile_programs(scratch: Path) -> Path:
    tools = scratch / "tools"
    tools.mkdir()
    for name in ("go", "gcc", "cc", "ld", "gofmt"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    return tools


def _other_user() -> list[str]:
    """What runs a command under another user id, which owns what the present user owns; nothing where that fails."""
    prefix = ["unshare", "--user", "--map-user=12345", "--map-group=12345", "--"]
    try:
        return prefix if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0 else []
    except OSError:
        return []


def compare(first: Path, second: Path) -> tuple[str, list[str]]:
    """The first bundle's content digest, and where the two part."""
    with tempfile.TemporaryDirectory(prefix="compare-") as scratch:
        folders = Path(scratch, "first"), Path(scratch, "second")
        one, other = (read_bundle(bundle, into=folder) for bundle, folder in zip((first, second), folders, strict=True))
        if one.content_sha256 == other.content_sha256:
            return one.content_sha256, []
        programs = (folder / info.listing.binary for folder, info in zip(folders, (one, other), strict=True))
        return one.content_sha256, [*listing_differences(one.listing, other.listing), *program_differences(*programs)]


def main() -> int:
    """Build, compare, print; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="reproduce-", ignore_cleanup_errors=True) as name:
        scratch = Path(name)
        plain = plain_build(scratch).folder / "dist"
        hostile, conditions = hostile_build(scratch)
        bundles = sorted({file.name for dist in (plain, hostile.folder / "dist") for file in dist.glob("*.tar.zst")})
        parted = 0
        for bundle in bundles:
            if not ((plain / bundle).is_file() and (hostile.folder / "dist" / bundle).is_file()):
                print(f"{bundle}: was built once only")
                parted += 1
                continue
            digest, lines = compare(plain / bundle, hostile.folder / "dist" / bundle)
            print(f"{bundle}: content {digest}, {'; '.join(lines) or 'same'}", flush=True)
            parted += bool(lines)
    verdict = "all same" if not parted else f"{parted} part"
    print(f"{len(bundles)} artifacts built twice, {verdict}. Unlike: {', '.join(conditions)}.")
    return 1 if parted or not bundles else 0


if __name__ == "__main__":
    sys.exit(main())
