"""What git knows of the source: the commit in stamps and provenance, dirty trees, trees that git refuses."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import artifact, write_manifest

if TYPE_CHECKING:
    from tests.system.conftest import Checkout


def git(tiny: Checkout, *words: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    return tiny.ok("git", *who, *words).strip()


@pytest.fixture
def committed(tiny: Checkout) -> Checkout:
    """The tiny project in a repository of its own, everything committed."""
    git(tiny, "init", "-q")
    git(tiny, "add", "-A")
    git(tiny, "commit", "-qm", "first")
    time.sleep(0.1)
    return tiny


def definition(tiny: Checkout, name: str = "two") -> dict[str, Any]:
    """What a bundle's provenance says of its build."""
    shown = json.loads(tiny.ok("meshbuild", "inspect", f"dist/tiny.{name}-1-arch.tar.zst", "--json"))
    [provenance] = [each for each in shown["statements"] if each["predicate_type"].startswith("https://slsa.dev")]
    value: dict[str, Any] = provenance["predicate"]["buildDefinition"]
    return value


def source(tiny: Checkout, name: str = "two") -> dict[str, Any] | None:
    """The source that it was built from, as it says."""
    found = definition(tiny, name)["resolvedDependencies"]
    return next((each for each in found if each["name"] == "source"), None)


def test_the_provenance_names_the_commit_of_a_clean_tree(committed: Checkout) -> None:
    committed.ok("doit", "build")
    commit = git(committed, "rev-parse", "HEAD")
    assert source(committed) == {
        "name": "source",
        "digest": {"gitCommit": commit},
        "annotations": {"dirty": False},
    }
    assert git(committed, "status", "--porcelain") in {"", "?? __pycache__/"}, "a build leaves files that git sees"


def test_a_build_of_a_dirty_tree_is_marked_and_not_pushed(committed: Checkout) -> None:
    committed.ok("meshbuild", "store", "init")
    (committed.folder / "cmd/two/more.go").write_text("package main\n\nvar _ = 1\n")
    time.sleep(0.1)
    done = committed.run("doit", "push")
    assert done.returncode == 37
    assert "tiny:two:arch" in done.stderr
    assert "--allow-dirty" in done.stderr
    assert source(committed)["annotations"] == {"dirty": True}  # type: ignore[index] # it is there
    assert committed.run("meshbuild", "push").returncode == 37
    assert committed.run("meshbuild", "releases", "tiny").returncode != 0, "something was published"


def test_once_it_is_committed_the_same_bytes_are_built_again_for_their_provenance_and_pushed(
    committed: Checkout,
) -> None:
    committed.ok("meshbuild", "store", "init")
    (committed.folder / "cmd/two/more.go").write_text("package main\n\nvar _ = 1\n")
    time.sleep(0.1)
    first = re.findall(r"content (\w+)", committed.ok("doit", "build"))
    assert "nothing to do" in committed.ok("doit", "build"), "a tree that stays dirty is built over and over"
    git(committed, "add", "-A")
    git(committed, "commit", "-qm", "second")
    output = committed.ok("doit", "push")
    assert re.findall(r"content (\w+)", output) == first
    assert "published tiny, release 1" in output
    assert source(committed)["annotations"] == {"dirty": False}  # type: ignore[index]


@pytest.mark.parametrize("command", [("doit", "push", "--allow-dirty"), ("meshbuild", "push", "--allow-dirty")])
def test_allow_dirty_pushes_it(committed: Checkout, command: tuple[str, ...]) -> None:
    committed.ok("meshbuild", "store", "init")
    (committed.folder / "share/doc.txt").write_text("changed\n")
    time.sleep(0.1)
    committed.ok("doit", "build")
    assert "published tiny, release 1" in committed.ok(*command)


def test_changes_in_a_go_module_above_the_manifest_count(committed: Checkout) -> None:
    below = committed.folder / "bundles/below"
    below.mkdir(parents=True)
    (below / "main.go").write_text("package main\n\nfunc main() {}\n")
    write_manifest(below, artifact("three", **{"from": "."}), module="below")
    git(committed, "add", "-A")
    git(committed, "commit", "-qm", "below")
    (committed.folder / "words/words.go").write_text('package words\n\nconst Name = "you"\n')
    time.sleep(0.1)
    committed.ok("meshbuild", "store", "init")
    committed.ok("doit", "build", "three")
    assert committed.run("meshbuild", "push", "below").returncode == 37
    assert "nothing to do" in committed.ok("doit", "build", "three")


@pytest.mark.parametrize("git_is", ["absent", "refusing", "without a repository", "without a commit"])
def test_where_git_can_not_tell_the_build_works_and_the_provenance_names_no_commit(tiny: Checkout, git_is: str) -> None:
    one = artifact("one", stamp={"main.version": "${commit}"})
    write_manifest(tiny.folder, one)
    if git_is == "without a commit":
        git(tiny, "init", "-q")
    if git_is in {"absent", "refusing"}:
        (tiny.folder / "tools").mkdir()
        tiny.env["PATH"] = f"{tiny.folder}/tools:{tiny.env['PATH']}"
        word = "exec false" if git_is == "refusing" else "exit 127"
        (tiny.folder / "tools/git").write_text(f"#!/bin/sh\n{word}\n")
        (tiny.folder / "tools/git").chmod(0o755)
    time.sleep(0.1)
    tiny.ok("meshbuild", "store", "init")
    assert "published tiny" in tiny.ok("doit", "push")
    assert source(tiny, "one") is None
    assert definition(tiny, "one")["externalParameters"]["source"]["commit"] == "unknown"
    tiny.ok("tar", "-xf", "dist/tiny.one-1-arch.tar.zst", "one")
    assert tiny.ok("./one", "version").strip() == "unknown"


def test_a_commit_stamp_builds_again_at_another_commit_and_not_before(committed: Checkout) -> None:
    write_manifest(committed.folder, artifact("one", stamp={"main.version": "${commit}"}), artifact("two"))
    git(committed, "commit", "-qam", "stamped")
    time.sleep(0.1)
    committed.ok("doit", "build")
    assert "nothing to do: 2" in committed.ok("doit", "build")
    git(committed, "commit", "-q", "--allow-empty", "-m", "next")
    assert re.findall(r"^built tiny:(\w+)", committed.ok("doit", "build"), re.MULTILINE) == ["one"]
    committed.ok("tar", "-xf", "dist/tiny.one-1-arch.tar.zst", "one")
    assert committed.ok("./one", "version").strip() == git(committed, "rev-parse", "HEAD")


def test_vcs_builds_again_when_a_tag_appears(committed: Checkout) -> None:
    (committed.folder / ".gitignore").write_text("__pycache__/\n")
    write_manifest(committed.folder, artifact("two", vcs=True))
    git(committed, "add", "-A")
    git(committed, "commit", "-qm", "stamped")
    time.sleep(0.1)
    committed.ok("doit", "build")
    assert "nothing to do" in committed.ok("doit", "build")
    git(committed, "tag", "v1.2.3")
    assert "built tiny:two" in committed.ok("doit", "build")
