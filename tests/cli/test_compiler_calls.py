"""How the compiler is called: one call for what can share it, without a network, one at a time."""

from __future__ import annotations

import json
import re
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import artifact, write_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.conftest import Checkout


@pytest.fixture
def calls(tiny: Checkout) -> Path:
    """A file to which each compiler call of the tiny project adds a line: `unshare` in front of it writes there."""
    tools, file = tiny.folder.parent / "tools", tiny.folder.parent / "calls"
    tools.mkdir()
    real = shutil.which("unshare")
    (tools / "unshare").write_text(f'#!/bin/sh\necho "$@" >> "{file}"\nexec "{real}" "$@"\n')
    (tools / "unshare").chmod(0o755)
    two = 'package main\n\nvar version = "0"\n\nfunc main() { println("two", version) }\n'
    (tiny.folder / "cmd/two/main.go").write_text(two)  # as cmd/one, one that can be stamped
    tiny.env["PATH"] = f"{tools}:{tiny.env['PATH']}"
    return file


def compiled(calls: Path) -> list[list[str]]:
    """The packages of each compiler call."""
    lines = [line for line in calls.read_text().splitlines() if "/bin/go build" in line]
    return [re.findall(r" (\./\S+)", line) for line in lines]


def contents(tiny: Checkout) -> dict[str, str]:
    return {
        file.name: json.loads(tiny.ok("meshbuild", "inspect", str(file), "--json"))["content_sha256"]
        for file in sorted((tiny.folder / "dist").glob("*.zst"))
    }


def test_artifacts_that_differ_in_their_package_only_share_a_call_and_have_the_bytes_of_their_own(
    tiny: Checkout, calls: Path
) -> None:
    stamp = {"stamp": {"main.version": "1"}}
    systems = [artifact("one", **stamp), artifact("two", **stamp), artifact("two", **stamp, system="debian")]
    write_manifest(tiny.folder, *systems)
    tiny.ok("doit", "build")
    assert compiled(calls) == [["./cmd/one", "./cmd/two"]], "the same program for two systems is compiled once"
    together = contents(tiny)
    assert len(together) == 3
    tiny.ok("doit", "clean")
    calls.unlink()
    for name in ("tiny:one:arch", "tiny:two:arch", "tiny:two:debian"):
        tiny.ok("doit", "build", name)
    assert compiled(calls) == [["./cmd/one"], ["./cmd/two"], ["./cmd/two"]]
    assert contents(tiny) == together


@pytest.mark.parametrize(
    "other",
    [
        {"tags": ["x"]},
        {"strip": False},
        {"system": "arch-arm64"},
        {"stamp": {"main.version": "2"}},
    ],
    ids=["tags", "strip", "system", "stamp"],
)
def test_artifacts_with_other_flags_do_not_share_a_call(tiny: Checkout, calls: Path, other: dict[str, Any]) -> None:
    write_manifest(tiny.folder, artifact("one", stamp={"main.version": "1"}), artifact("two", **other))
    tiny.ok("doit", "build")
    assert sorted(compiled(calls)) == [["./cmd/one"], ["./cmd/two"]]


def test_programs_of_one_name_do_not_share_a_call(tiny: Checkout, calls: Path) -> None:
    shutil.copytree(tiny.folder / "cmd/two", tiny.folder / "other/two")
    write_manifest(tiny.folder, artifact("two"), artifact("twin", **{"from": "other/two"}))
    tiny.ok("doit", "build")
    assert sorted(compiled(calls)) == [["./cmd/two"], ["./other/two"]]


@pytest.mark.parametrize("words", [("build", "two"), ("build:tiny:two:arch",)])
def test_what_is_not_asked_for_or_not_needed_takes_no_part(tiny: Checkout, calls: Path, words: tuple[str, ...]) -> None:
    write_manifest(tiny.folder, artifact("one"), artifact("two"))
    tiny.ok("doit", *words)
    assert compiled(calls) == [["./cmd/two"]]
    assert [name.split("-")[0] for name in contents(tiny)] == ["tiny.two"]
    tiny.ok("doit", "build")
    assert compiled(calls) == [["./cmd/two"], ["./cmd/one"]]


def test_one_that_does_not_compile_does_not_keep_the_others_from_it(tiny: Checkout) -> None:
    write_manifest(tiny.folder, artifact("one"), artifact("two"))
    (tiny.folder / "cmd/two/main.go").write_text("package main\n\nfunc main() { undefined() }\n")
    time.sleep(0.1)
    done = tiny.run("doit", "-c", "build")
    assert done.returncode == 33
    assert "tiny:two:arch: go build exited with 1" in done.stderr
    assert "undefined: undefined" in done.stderr
    assert [name.split("-")[0] for name in contents(tiny)] == ["tiny.one"]
    assert not list((tiny.folder / ".meshbuild/scratch").iterdir())


def without_namespaces(tiny: Checkout) -> None:
    """A machine whose kernel gives nobody a network namespace."""
    tools = tiny.folder.parent / "refusing"
    tools.mkdir()
    (tools / "unshare").write_text("#!/bin/sh\necho 'unshare failed: Operation not permitted' >&2\nexit 1\n")
    (tools / "unshare").chmod(0o755)
    tiny.env["PATH"] = f"{tools}:{tiny.env['PATH']}"


def isolation(tiny: Checkout, name: str) -> str:
    shown = json.loads(tiny.ok("meshbuild", "inspect", f"dist/{name}", "--json"))
    provenance = next(each["predicate"] for each in shown["statements"] if "slsa" in each["predicate_type"])
    return str(provenance["buildDefinition"]["internalParameters"]["isolation"])


def test_the_statement_says_which_isolation_was_reached(tiny: Checkout) -> None:
    tiny.ok("doit", "build", "two")
    without_namespaces(tiny)
    tiny.ok("doit", "build", "one")
    assert isolation(tiny, "tiny.two-1-arch.tar.zst") == "network-namespace"
    assert isolation(tiny, "tiny.one-1-arch.tar.zst") == "goproxy-off"


@pytest.mark.parametrize("how", ["flag", "variable", "file"])
def test_less_isolation_than_required_is_refused(tiny: Checkout, how: str) -> None:
    without_namespaces(tiny)
    tiny.ok("doit", "build", "two")
    words = ["build", "--require-isolation"] if how == "flag" else ["build"]
    if how == "variable":
        tiny.env["MESHBUILD_REQUIRE_ISOLATION"] = "true"
    if how == "file":
        (tiny.folder / "meshbuild.toml").write_text("require_isolation = true\n")
    done = tiny.run("doit", "-c", *words)
    assert done.returncode == 36
    assert "tiny:one:arch: compiling without a network is required" in done.stderr
    assert "tiny:two:arch: compiling without a network is required" in done.stderr, (
        "what was built with less is current"
    )
    assert not (tiny.folder / "dist/tiny.one-1-arch.tar.zst").exists()


def test_the_required_isolation_is_reached_here_and_builds_nothing_again(tiny: Checkout) -> None:
    tiny.ok("doit", "build")
    assert "nothing to do: 2" in tiny.ok("doit", "build", "--require-isolation")
