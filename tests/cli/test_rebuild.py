"""`meshbuild verify --rebuild`: the source gives the bundle again, or where the two part is said."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.bundle import BundleIdentity, PackInput, read_bundle, write_bundle
from meshbuild.errors import (
    BundleFormatError,
    NoSuchArtifactError,
    PinsError,
    RebuildMismatchError,
    SourceError,
    UntrustedBuilderError,
)
from meshbuild.jsontext import canonical_json
from meshbuild.provenance import statement
from meshbuild.rebuild import rebuild
from meshbuild.settings import load_settings
from meshbuild.signing import SLSA_PROVENANCE, generate_key, read_statements_unverified, sign_statement
from meshbuild.toolchains import user_cache
from tests.cli.conftest import artifact, write_manifest, write_tiny
from tests.cli.goproxy import depend, write_proxy
from tests.system.conftest import Checkout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from meshbuild.bundle import BundleInfo

ONE, TWO = "dist/tiny.one-1-arch.tar.zst", "dist/tiny.two-1-arch.tar.zst"


@pytest.fixture
def built(tiny: Checkout) -> Checkout:
    """The tiny project in git, built, with a clean tree."""
    (tiny.folder / ".gitignore").write_text("__pycache__/\n")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "first")):
        git(tiny, *words)
    tiny.ok("doit", "build")
    return tiny


def git(checkout: Checkout, *words: str) -> str:
    return checkout.ok("git", "-c", "user.name=t", "-c", "user.email=t@example.com", *words)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def changed(info: BundleInfo, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """The predicate of a bundle's provenance, changed."""
    said = read_statements_unverified(info.statements)
    predicate = copy.deepcopy(next(dict(each.predicate) for each in said if each.predicate_type == SLSA_PROVENANCE))
    change(predicate["buildDefinition"])
    return predicate


def forge(checkout: Checkout, bundle: str, change: Callable[[dict[str, Any]], None]) -> Path:
    """The bundle with a provenance statement that somebody else changed and signed."""
    scratch = checkout.folder.parent / "forged"
    info = read_bundle(checkout.folder / bundle, into=scratch)
    listing, predicate = info.listing, changed(info, change)
    files = {file.path: file.sha256 for file in listing.files}
    said = statement(SLSA_PROVENANCE, predicate, name="t", content_sha256=info.content_sha256, files=files)
    envelope = canonical_json(sign_statement(said, generate_key(checkout.folder.parent / "mallory.pem")))
    write_bundle(
        scratch / "forged.tar.zst",
        BundleIdentity(listing.module, listing.artifact, listing.version, listing.system, listing.binary),
        [PackInput(file.path, scratch / file.path, file.mode) for file in listing.files],
        attest=lambda _listing, _content: [envelope],
    )
    return scratch / "forged.tar.zst"


def test_a_bundle_is_proven_and_nothing_is_left_behind(built: Checkout) -> None:
    before = tree(built.folder)
    said = built.ok("meshbuild", "verify", TWO, "--rebuild")
    content = read_bundle(built.folder / TWO).content_sha256
    assert f"{TWO}: verified: content {content}, built by " in said
    assert f"{TWO}: rebuilt: same content digest {content}" in said
    assert tree(built.folder) == before


def test_the_statement_decides_what_is_built_and_a_later_commit_is_noted(built: Checkout, tmp_path: Path) -> None:
    """Another folder, another version, other tags, another binary's name, no key: the statement says how it was."""
    commit = git(built, "rev-parse", "HEAD").strip()
    other = tmp_path / "elsewhere ü"
    git(built, "clone", "-q", ".", str(other))
    one = artifact(
        "one",
        binary="other",
        tags=["nonsense"],
        strip=False,
        stamp={"main.version": "wrong"},
        files=[{"from": "share/*.txt", "to": "share"}],
    )
    write_manifest(other, one, version="2")
    git(built, "-C", str(other), "commit", "-qam", "second")
    (other / "dist").mkdir()
    done = built.run("meshbuild", "verify", ONE, "--rebuild", "--source", str(other), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["rebuilt"]["same"] is True
    assert result["rebuilt"]["content_sha256"] == result["content_sha256"]
    assert result["rebuilt"]["differences"] == []
    assert f"note: the bundle was built from commit {commit[:12]}, the source here is " in done.stderr
    assert list((other / "dist").iterdir()) == []
    assert not (other / ".meshbuild").exists()


def test_where_they_part_is_said(built: Checkout) -> None:
    (built.folder / "share/doc.txt").write_text("another")
    (built.folder / "share/new.txt").write_text("new")
    (built.folder / "words/words.go").write_text('package words\n\nconst Name = "moon and stars"\n')
    done = built.run("meshbuild", "verify", ONE, "--rebuild", "--json")
    assert done.returncode == RebuildMismatchError.exit_code
    result = json.loads(done.stdout)["rebuilt"]
    assert result["same"] is False
    lines = result["differences"]
    assert lines[0].startswith("one: ")
    assert lines[1].startswith("share/doc.txt: ")
    assert lines[2] == "share/new.txt: in the rebuilt one only"
    assert any(line.startswith("one: first differs in section ") for line in lines)
    assert not any(line.startswith("one: Go version") for line in lines)
    assert "probable cause: the source here has changes that aren't committed" in done.stderr
    assert "the bundle was built from commit" not in done.stderr


def test_go_modules_that_changed_are_named(tiny: Checkout, tmp_path: Path) -> None:
    proxy = write_proxy(tmp_path / "proxy", "v1.0.0", "v1.1.0")
    tiny = Checkout(tiny.folder, {**tiny.env, **proxy, "MESHBUILD_CACHE": str(modules_cache(tmp_path))})
    depend(tiny.folder, "v1.0.0")
    tiny.ok("doit", "build", "one")
    depend(tiny.folder, "v1.1.0")
    done = tiny.run("meshbuild", "verify", ONE, "--rebuild")
    assert done.returncode == RebuildMismatchError.exit_code
    h1 = r"h1:[A-Za-z0-9+/]{43}="
    changed = (
        rf"one: Go module example\.com/dep: example\.com/dep@v1\.0\.0 {h1}, rebuilt example\.com/dep@v1\.1\.0 {h1}"
    )
    assert re.search(rf"^  differs: {changed}$", done.stderr, re.MULTILINE)
    depend(tiny.folder, "v1.0.0")
    assert "rebuilt: same content digest" in tiny.ok("meshbuild", "verify", ONE, "--rebuild")


def modules_cache(tmp_path: Path) -> Path:
    """A cache with a module cache of its own; toolchain and compiled packages are the user's."""
    cache = tmp_path / "cache"
    cache.mkdir()
    for name in ("toolchains", "go-build"):
        (cache / name).symlink_to(user_cache(os.environ) / name)
    return cache


def test_an_untrusted_builders_bundle_can_be_proven_and_nothing_that_its_statement_says_is_run(
    built: Checkout, tmp_path: Path
) -> None:
    marker, tool = tmp_path / "marker", tmp_path / "tool"
    tool.write_text(f'#!/bin/sh\ntouch "{marker}"\nexec "$@"\n')
    tool.chmod(0o755)

    def change(definition: dict[str, Any]) -> None:
        internals = definition["internalParameters"]
        internals["argv"].insert(2, f"-toolexec={tool}")
        internals["environment"] |= {"GOFLAGS": f"-toolexec={tool}", "PATH": str(tmp_path)}

    bundle = forge(built, TWO, change)
    done = built.run("meshbuild", "verify", str(bundle), "--rebuild")
    assert done.returncode == 0, done.stderr
    assert "intact, builder not trusted" in done.stderr
    assert "rebuilt: same content digest" in done.stdout
    assert "verified" not in done.stdout
    assert not marker.exists()
    assert re.search(rf"^note: the statement's command is .*-toolexec={tool}", done.stderr, re.MULTILINE)
    assert f"note: the statement has GOFLAGS=-toolexec={tool}, here it is \n" in done.stderr


def test_a_key_that_is_named_has_to_be_the_builders(built: Checkout, tmp_path: Path) -> None:
    generate_key(tmp_path / "someone.pem")
    done = built.run("meshbuild", "verify", TWO, "--rebuild", "--builder-key", str(tmp_path / "someone.pub"))
    assert done.returncode == UntrustedBuilderError.exit_code
    assert "rebuilt" not in done.stdout


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    """The tiny project, built, for tests that change nothing."""
    checkout = write_tiny(tmp_path_factory.mktemp("finished") / "tiny")
    checkout.ok("doit", "build", "two")
    shutil.copytree(checkout.folder / "cmd/two", checkout.folder.parent / "outside")
    return checkout


def refused(checkout: Checkout, change: Callable[[dict[str, Any]], None], error: type[Exception], said: str) -> None:
    """Check that rebuilding from a changed statement is refused, before any of its folders is made."""
    bundle = checkout.folder / TWO
    info = read_bundle(bundle)
    settings = load_settings(checkout.folder, {})
    with pytest.raises(error, match=said) as caught:
        rebuild(bundle, info, changed(info, change), settings=settings, environ=os.environ, report=print)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "error", "said"),
    [
        ("tags", ["a -toolexec=/bin/false"], BundleFormatError, "tags"),
        ("stamp", {"main.a -extld=/bin/false": "x"}, BundleFormatError, "stamp"),
        ("stamp", {"main.a": "'\"' -extld=/bin/false"}, BundleFormatError, "stamp"),
        ("version", "1 \n", BundleFormatError, "version"),
        ("strip", "yes", BundleFormatError, "strip"),
        ("artifact", "three", NoSuchArtifactError, "tiny:three"),
        ("module", "other", NoSuchArtifactError, "other:two"),
        ("system", "mars", PinsError, "mars"),
        ("source", {"go_module": "example.com/tiny", "package": "-o=/etc/passwd"}, BundleFormatError, "package"),
        ("stamp", {"main.\x1b]0;": "x"}, BundleFormatError, r"stamp\.main\.\\x1b\]0;"),
        ("source", {"go_module": "example.com/tiny", "package": "./../outside"}, SourceError, "outside"),
        ("source", {"go_module": "example.com/tiny", "package": "./words/../cmd/two"}, SourceError, "cmd/two"),
        ("source", {"go_module": "example.com/other", "package": "./cmd/two"}, SourceError, "example.com/other"),
    ],
)
def test_parameters_that_no_manifest_could_have_are_refused(
    finished: Checkout, name: str, value: object, error: type[Exception], said: str
) -> None:
    refused(finished, lambda definition: definition["externalParameters"].update({name: value}), error, said)


def test_what_was_built_otherwise_is_refused(finished: Checkout) -> None:
    refused(finished, lambda definition: definition.update(buildType="urn:other"), BundleFormatError, "urn:other")


@pytest.mark.parametrize("digest", [{"sha256": "a" * 64}, {}])
def test_a_toolchain_that_is_not_pinned_is_refused(finished: Checkout, digest: dict[str, str]) -> None:
    def change(definition: dict[str, Any]) -> None:
        definition["resolvedDependencies"][0]["digest"] = digest

    refused(finished, change, PinsError, r"(?s)^the bundle was built with pkg:generic/go@.*doesn't pin")


def test_source_without_rebuild_is_wrong_usage(finished: Checkout) -> None:
    done = finished.run("meshbuild", "verify", TWO, "--source", ".")
    assert done.returncode == 2
    assert "--rebuild" in done.stderr
