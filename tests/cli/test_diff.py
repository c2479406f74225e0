"""`meshbuild diff` as it is typed: built bundles and pushed releases, with the real compiler."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import artifact, write_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.conftest import Checkout

ONE, TWO = "dist/tiny.one-1-arch.tar.zst", "dist/tiny.two-1-arch.tar.zst"
USES_JSON = 'package words\n\nimport "encoding/json"\n\nvar Name, _ = json.Marshal("world")\n'


def diff(tiny: Checkout, *argv: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(tiny.ok("meshbuild", "diff", *argv, "--json"))
    return found


@pytest.fixture
def changed(tiny: Checkout) -> Path:
    """The bundle `one` as it was before its package came to use encoding/json, beside the new one in dist/."""
    tiny.ok("doit", "build", "one")
    before = tiny.folder / "before.tar.zst"
    shutil.copyfile(tiny.folder / ONE, before)
    (tiny.folder / "words/words.go").write_text(USES_JSON)
    (tiny.folder / "share/doc.txt").write_text("another\n")
    tiny.ok("doit", "build", "one")
    return before


def test_two_bundles_side_by_side(tiny: Checkout, changed: Path) -> None:
    (found,) = diff(tiny, changed.name, ONE)["comparisons"]  # type: ignore[misc]
    assert found["same_content"] is False
    assert [(each["path"], each["change"]) for each in found["files"]] == [
        ("one", "changed"),
        ("share/doc.txt", "changed"),
    ]
    assert (found["build"], found["modules"]) == ([], [])
    packages = {each["name"]: each for each in found["packages"]}
    assert packages["encoding/json"]["before_bytes"] == 0
    assert packages["encoding/json"]["after_bytes"] > 1000
    assert packages["main"]["before_bytes"] > 0
    total = {each["name"]: each["after_bytes"] for each in found["sections"]}
    assert sum(each["after_bytes"] for each in found["packages"]) <= total[".text"]

    said = tiny.ok("meshbuild", "diff", changed.name, ONE, "--html", "sizes.html")
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert lines[0] == f"A {changed.name}"
    added = packages["encoding/json"]["after_bytes"]
    assert f"encoding/json 0 {added:,} +{added:,}" in lines
    assert "written: sizes.html" in lines
    page = (tiny.folder / "sizes.html").read_text()
    assert page.count("<svg") == 2
    assert f"encoding/json: 0 bytes before, {added:,} after" in page


def test_a_bundle_and_itself(tiny: Checkout) -> None:
    tiny.ok("doit", "build", "two")
    said = tiny.ok("meshbuild", "diff", TWO, TWO)
    assert said.splitlines()[-1] == "The content is the same to the byte."
    assert "Go package" not in said
    assert "Go package" in tiny.ok("meshbuild", "diff", TWO, TWO, "--all")


def test_releases_of_a_store(tiny: Checkout) -> None:
    two_systems = (artifact("two"), artifact("two", system="arch-arm64"))
    write_manifest(tiny.folder, artifact("one"), *two_systems)
    tiny.ok("doit", "build")
    tiny.ok("meshbuild", "store", "init")
    tiny.ok("meshbuild", "push")
    (tiny.folder / "words/words.go").write_text(USES_JSON)
    write_manifest(tiny.folder, artifact("one"), two_systems[0])
    tiny.ok("doit", "build")
    tiny.ok("meshbuild", "push", "--channel", "beta")

    found = diff(tiny, "tiny@stable", "tiny@2")
    names = [(each["first"]["artifact"], each["same_content"]) for each in found["comparisons"]]  # type: ignore[attr-defined]
    assert names == [("one", False), ("two", True)]
    assert found["only_in_second"] == []
    (only,) = found["only_in_first"]  # type: ignore[misc]
    assert (only["artifact"], only["system"]) == ("two", "arch-arm64")
    said = tiny.ok("meshbuild", "diff", "tiny@1", "tiny@beta")
    assert "A  tiny@1 (1): one for arch" in said
    assert "only in tiny@1: tiny@1 (1): two for arch-arm64" in said
    found = diff(tiny, "tiny@beta", TWO)
    assert len(found["comparisons"]) == 1  # type: ignore[arg-type]

    done = tiny.run("meshbuild", "diff", "tiny@1", "tiny@stabel")
    assert done.returncode == 65
    assert "there are: 2, beta, 1, stable" in done.stderr
    assert 'did you mean "stable"?' in done.stderr

    (objects,) = (tiny.folder / ".meshbuild").glob("store/objects")
    largest = max((file for file in objects.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
    with largest.open("r+b") as file:
        file.seek(1000)
        file.write(b"changed")
    done = tiny.run("meshbuild", "diff", "tiny@1", "tiny@2")
    assert done.returncode == 52
    assert "is altered" in done.stderr


def test_what_can_not_be_opened(tiny: Checkout) -> None:
    (tiny.folder / "bad.tar.zst").write_bytes(b"not a bundle")
    done = tiny.run("meshbuild", "diff", "bad.tar.zst", "bad.tar.zst")
    assert done.returncode == 40
    assert "bad.tar.zst" in done.stderr
    done = tiny.run("meshbuild", "diff", "none.tar.zst", "bad.tar.zst")
    assert done.returncode == 13
    assert "could not read none.tar.zst: No such file" in done.stderr
    done = tiny.run("meshbuild", "diff", "tiny@1", "bad.tar.zst")
    assert done.returncode != 0
    assert "store" in done.stderr
