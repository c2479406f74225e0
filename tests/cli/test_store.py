"""Keeping a store, by the commands that people and timers run."""

from __future__ import annotations

import json
import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.system.conftest import Checkout


@pytest.fixture
def store(tiny: Checkout) -> Path:
    """A store of the tiny project, with a release."""
    tiny.ok("doit", "build")
    tiny.ok("meshbuild", "store", "init")
    tiny.ok("meshbuild", "push")
    return tiny.folder / ".meshbuild/store"


def test_a_store_is_kept_by_three_commands(tiny: Checkout, store: Path) -> None:
    said = tiny.ok("meshbuild", "store", "check")
    assert "1 modules, 1 releases" in said
    assert said.endswith("sound\n")
    assert "nothing expires within 30 days" in tiny.ok("meshbuild", "store", "refresh")
    before = (store / "metadata/timestamp.json").read_bytes()
    done = json.loads(tiny.ok("meshbuild", "store", "refresh", "--days", "60", "--json"))
    assert done["signed"]
    assert set(done["expires"]) == {"root", "targets", "snapshot", "timestamp"}
    assert (store / "metadata/timestamp.json").read_bytes() != before
    assert "expires: snapshot" in tiny.ok("meshbuild", "store", "check", "--days", "100")
    tiny.ok("meshbuild", "fetch", "tiny")


def test_a_damaged_store_is_told_and_put_right_from_a_second_one(tiny: Checkout, store: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    shutil.copytree(store, second)
    victim = next(path for path in sorted(store.glob("objects/sha256/*/*")))
    victim.write_bytes(b"")
    key = victim.relative_to(store).as_posix()
    done = tiny.run("meshbuild", "store", "check")
    assert done.returncode == 54
    assert f"wrong: {key}: short: 0 of" in done.stdout
    assert "--repair-from" in done.stderr
    as_json = tiny.run("meshbuild", "store", "check", "--json")
    assert as_json.returncode == 54
    assert [each["where"] for each in json.loads(as_json.stdout)["findings"]] == [key]
    assert f"repaired: {key}" in tiny.ok("meshbuild", "store", "check", "--repair-from", str(second))
    assert victim.read_bytes() == (second / key).read_bytes()
    assert json.loads(tiny.ok("meshbuild", "store", "check", "--json"))["sound"]


def test_garbage_is_told_before_it_goes(tiny: Checkout, store: Path) -> None:
    left = store / "objects/sha256/ab" / ("ab" * 32)
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"left by a push that was killed")
    then = time.time() - 8 * 86_400
    for path in [left, *store.glob("metadata/*.json")]:
        os.utime(path, (then, then))
    told = json.loads(tiny.ok("meshbuild", "store", "gc", "--dry-run", "--json"))
    assert not told["removed"]
    assert left.relative_to(store).as_posix() in {each["key"] for each in told["files"]}
    assert left.exists()
    assert f"would remove {len(told['files'])} files" in tiny.ok("meshbuild", "store", "gc", "--dry-run")
    assert f"removed {len(told['files'])} files" in tiny.ok("meshbuild", "store", "gc")
    assert not left.exists()
    assert "removed 0 files" in tiny.ok("meshbuild", "store", "gc")
    tiny.ok("meshbuild", "store", "check")
    tiny.ok("meshbuild", "fetch", "tiny")


@pytest.mark.usefixtures("store")
def test_a_refresh_without_the_online_keys_says_which_is_missing(tiny: Checkout) -> None:
    (tiny.folder / ".meshbuild/keys/timestamp.pem").unlink()
    done = tiny.run("meshbuild", "store", "refresh", "--days", "60")
    assert done.returncode == 50
    assert "the timestamp key" in done.stderr
