"""`doit build` with a shared build cache: what the settings name, what the provenance says, what is refused."""

from __future__ import annotations

import json
import os
import re
import secrets
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.toolchains import user_cache

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.conftest import Checkout

KEY = secrets.token_hex(32)


@pytest.fixture
def builder(tiny: Checkout, tmp_path: Path) -> Checkout:
    """The tiny project with a store for its shared build cache."""
    tiny.env["MESHBUILD_CACHE_STORE"] = str(tmp_path / "the store")
    tiny.env["MESHBUILD_CACHE_KEY"] = KEY
    return tiny


def on_machine(tiny: Checkout, folder: Path) -> None:
    """Go on with an empty cache of Go's, as another machine has, and the toolchain at hand."""
    folder.mkdir()
    (folder / "toolchains").symlink_to(user_cache(os.environ) / "toolchains")
    tiny.env["MESHBUILD_CACHE"] = str(folder)
    tiny.ok("doit", "clean")


def build(tiny: Checkout) -> tuple[list[str], dict[str, int]]:
    """Build; the content digests, and what the cache counted."""
    done = tiny.run("doit", "build")
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"^build cache: .*$", done.stderr, re.MULTILINE)
    words = re.findall(r"(\d+) (found here|in the store|nowhere|rejected|uploaded)", " ".join(counts))
    return re.findall(r"content (\w+)", done.stdout), {word: int(number) for number, word in words}


def provenance(tiny: Checkout) -> dict[str, Any]:
    shown = json.loads(tiny.ok("meshbuild", "inspect", "dist/tiny.one-1-arch.tar.zst", "--json"))
    value: dict[str, Any] = next(s["predicate"] for s in shown["statements"] if "slsa" in s["predicate_type"])
    return value


def test_a_machine_that_never_built_it_takes_what_another_one_compiled(builder: Checkout, tmp_path: Path) -> None:
    store = builder.env.pop("MESHBUILD_CACHE_STORE")
    without, counts = build(builder)
    assert not counts
    assert provenance(builder)["runDetails"]["metadata"]["meshbuild_sharedCache"] is False
    definition = provenance(builder)["buildDefinition"]
    builder.env["MESHBUILD_CACHE_STORE"] = store
    on_machine(builder, tmp_path / "first")
    first, filled = build(builder)
    assert filled["in the store"] == 0
    on_machine(builder, tmp_path / "second")
    second, counts = build(builder)
    assert counts["in the store"] > 50
    assert counts["nowhere"] < 0.1 * filled["nowhere"]
    assert first == second == without
    assert provenance(builder)["runDetails"]["metadata"]["meshbuild_sharedCache"] is True
    assert provenance(builder)["buildDefinition"] == definition
    assert not list((builder.folder / ".meshbuild/scratch").iterdir())


def test_the_key_is_nowhere_in_the_project_or_its_bundles(builder: Checkout, tmp_path: Path) -> None:
    on_machine(builder, tmp_path / "first")
    done = builder.run("doit", "build")
    assert KEY not in done.stdout + done.stderr
    for bundle in (builder.folder / "dist").glob("*.zst"):
        assert KEY not in builder.ok("meshbuild", "inspect", str(bundle), "--json")
    assert KEY not in builder.ok("meshbuild", "plan", "--json")
    left = [
        file for folder in (builder.folder, tmp_path / "first", tmp_path / "the store") for file in folder.rglob("*")
    ]
    assert not [
        file
        for file in left
        if file.is_file()
        and not file.is_relative_to(tmp_path / "first/toolchains")
        and KEY.encode() in file.read_bytes()
    ]


@pytest.mark.parametrize(
    ("key", "said"), [("", "MESHBUILD_CACHE_KEY is not set"), ("secret", "expected 64 hex digits")]
)
def test_without_a_good_key_there_is_no_shared_cache(builder: Checkout, key: str, said: str) -> None:
    builder.env["MESHBUILD_CACHE_KEY"] = key
    done = builder.run("doit", "build")
    assert done.returncode == 10
    assert said in done.stderr
    assert not list((builder.folder / "dist").glob("*.zst"))


def test_a_store_that_is_away_makes_it_slower_and_no_different(builder: Checkout, tmp_path: Path) -> None:
    on_machine(builder, tmp_path / "first")
    builder.env["MESHBUILD_CACHE_STORE"] = "http://127.0.0.1:9/cache"
    done = builder.run("doit", "build")
    assert done.returncode == 0, done.stderr
    assert len([line for line in done.stderr.splitlines() if "127.0.0.1:9" in line]) == 1, done.stderr


def test_a_rebuild_that_proves_something_takes_nothing_from_it(builder: Checkout, tmp_path: Path) -> None:
    on_machine(builder, tmp_path / "first")
    build(builder)
    done = builder.run("meshbuild", "verify", "--rebuild", "dist/tiny.two-1-arch.tar.zst")
    assert done.returncode == 0, done.stderr
    assert "build cache:" not in done.stderr
