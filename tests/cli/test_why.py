"""`meshbuild why`: the inputs that changed, by name, with their digests then and now."""

from __future__ import annotations

import hashlib
import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.cli.conftest import artifact, write_manifest
from tests.cli.test_build import edit
from tests.cli.test_git_state import git

if TYPE_CHECKING:
    from tests.system.conftest import Checkout


@pytest.fixture
def built(tiny: Checkout) -> Checkout:
    """The tiny project, built."""
    time.sleep(0.1)
    tiny.ok("doit", "build")
    return tiny


def why(tiny: Checkout, name: str = "tiny") -> dict[str, list[dict[str, Any]]]:
    """The changes of each artifact, and doit's own opinion on whether to build it."""
    said = json.loads(tiny.ok("meshbuild", "why", name, "--json"))["artifacts"]
    assert all(each["up_to_date"] == (not each["changes"]) for each in said)
    return {each["name"]: each["changes"] for each in said}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_nothing_has_changed(built: Checkout) -> None:
    assert why(built) == {"tiny:one:arch": [], "tiny:two:arch": []}
    assert built.ok("meshbuild", "why", "two") == "tiny:two:arch is up to date\n"


def test_never_built(tiny: Checkout) -> None:
    output = tiny.ok("meshbuild", "why")
    assert output.count("would be built:") == 2
    assert "record of the last build: absent" in output
    assert not (tiny.folder / "dist").exists(), "why builds"


def test_a_changed_file_is_named_with_its_digests(built: Checkout) -> None:
    old = (built.folder / "words/words.go").read_text()
    edit(built.folder / "words/words.go", "world", "you")
    new = (built.folder / "words/words.go").read_text()
    change = {"what": "input", "name": "words/words.go", "old": sha256(old), "new": sha256(new)}
    assert why(built) == {"tiny:one:arch": [change], "tiny:two:arch": []}
    output = built.ok("meshbuild", "why", "one")
    assert output == (f"tiny:one:arch would be built:\n  words/words.go: {sha256(old)[:12]} -> {sha256(new)[:12]}\n")


def test_files_that_appear_and_go(built: Checkout) -> None:
    (built.folder / "cmd/one/more.go").write_text("package main\n")
    (built.folder / "cmd/one/static/greeting.txt").unlink()
    (built.folder / "share/doc.txt").rename(built.folder / "share/paper.txt")
    found = {each["name"]: (each["old"], each["new"]) for each in why(built)["tiny:one:arch"]}
    assert found == {
        "cmd/one/more.go": ("absent", sha256("package main\n")),
        "cmd/one/static/greeting.txt": (sha256("hello"), "absent"),
        "share/doc.txt": (sha256("doc\n"), "absent"),
        "share/paper.txt": ("absent", sha256("doc\n")),
    }


def test_folders_with_colons_are_named_as_they_are(tiny: Checkout) -> None:
    odd = tiny.folder / "bundles/a:b%"
    odd.mkdir(parents=True)
    (odd / "go.mod").write_text("module example.com/odd\n\ngo 1.26\n")
    (odd / "main.go").write_text(
        'package main\n\nimport _ "embed"\n\n//go:embed x.txt\nvar _ string\n\nfunc main() {}\n'
    )
    (odd / "x.txt").write_text("x")
    write_manifest(odd, artifact("odd", **{"from": "."}), module="odd")
    time.sleep(0.1)
    tiny.ok("doit", "build", "odd")
    (odd / "x.txt").write_text("y")
    (odd / "more.go").write_text("package main\n")
    names = sorted(each["name"] for each in why(tiny, "odd")["odd:odd:arch"])
    assert names == ["bundles/a:b%/more.go", "bundles/a:b%/x.txt"]


def test_go_sum_that_appears_is_an_input_of_both(built: Checkout) -> None:
    (built.folder / "go.sum").write_text("")
    change = {"what": "input", "name": "go.sum", "old": "absent", "new": sha256("")}
    assert why(built) == {"tiny:one:arch": [change], "tiny:two:arch": [change]}


def test_values_of_manifest_pins_and_settings(built: Checkout) -> None:
    write_manifest(built.folder, artifact("one", strip=False, tags=["a", "b"]), artifact("two"), version="2")
    edit(built.folder / "toolchains.toml", 'goamd64 = "v1"', 'goamd64 = "v3"')
    (built.folder / "meshbuild.toml").write_text("compression_level = 3\n")
    found = {each["name"]: (each["old"], each["new"]) for each in why(built)["tiny:one:arch"]}
    assert {name: found[name] for name in found if not name.startswith("artifact.files")} == {
        "artifact.strip": ("true", "false"),
        "artifact.tags": ("[]", '["a", "b"]'),
        "artifact.stamp": ("absent", "{}"),
        "artifact.stamp.main.version": ("${version}", "absent"),
        "compression_level": ("9", "3"),
        "system.goamd64": ("v1", "v3"),
        "version": ("1", "2"),
    }


def test_a_bundle_that_was_damaged_or_removed(built: Checkout) -> None:
    (built.folder / "dist/tiny.one-1-arch.tar.zst").write_bytes(b"")
    (built.folder / "dist/tiny.two-1-arch.tar.zst").unlink()
    [one], [two] = why(built)["tiny:one:arch"], why(built)["tiny:two:arch"]
    assert (one["what"], one["new"]) == ("bundle", sha256(""))
    assert (two["what"], two["new"]) == ("bundle", "absent")


def test_without_its_details_the_input_itself_is_named(built: Checkout) -> None:
    for file in (built.folder / ".meshbuild/built").glob("*.why"):
        file.unlink()
    edit(built.folder / "words/words.go", "world", "you")
    (built.folder / "meshbuild.toml").write_text("compression_level = 3\n")
    names = [each["name"] for each in why(built)["tiny:one:arch"]]
    assert names == ["manifest, pins or settings", "package words"]


def test_what_was_dirty_and_is_committed_now(tiny: Checkout) -> None:
    git(tiny, "init", "-q")
    git(tiny, "commit", "-q", "--allow-empty", "-m", "first")
    time.sleep(0.1)
    tiny.ok("doit", "build", "two")
    assert why(tiny, "two") == {"tiny:two:arch": []}
    git(tiny, "add", "-A")
    git(tiny, "commit", "-qm", "second")
    assert why(tiny, "two") == {
        "tiny:two:arch": [{"what": "build", "name": "git tree", "old": "dirty", "new": "clean"}]
    }
    assert "built tiny:two" in tiny.ok("doit", "build", "two")


def test_an_unknown_name_is_an_error_with_a_suggestion(tiny: Checkout) -> None:
    done = tiny.run("meshbuild", "why", "tow")
    assert done.returncode == 14
    assert "no module or artifact is named 'tow'; did you mean 'two'?" in done.stderr
