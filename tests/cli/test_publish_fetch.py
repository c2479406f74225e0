"""From a built project to a host folder, by the commands that people type."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import artifact, write_manifest
from tests.stores import nginx

if TYPE_CHECKING:
    from tests.system.conftest import Checkout

BUNDLE = "dist/tiny.one-1-arch.tar.zst"


@pytest.fixture
def pushed(tiny: Checkout) -> Checkout:
    """The tiny project, built, its store made, and pushed."""
    tiny.ok("doit", "build")
    tiny.ok("meshbuild", "store", "init")
    tiny.ok("doit", "push")
    return tiny


def test_the_main_job(pushed: Checkout) -> None:
    fetched = json.loads(pushed.ok("meshbuild", "fetch", "tiny", "--json"))
    assert (fetched["module"], fetched["version"], fetched["sequence"], fetched["serial"]) == ("tiny", "1", 1, 1)
    programs = {each["artifact"]: Path(each["folder"]) / each["binary"] for each in fetched["artifacts"]}
    assert pushed.ok(str(programs["one"])).strip() == "hello world"
    folder = programs["one"].parent
    assert (folder / "share/doc.txt").read_text() == "doc\n"
    assert folder.name == fetched["artifacts"][0]["content_sha256"]


def test_a_host_fetches_through_a_web_server(pushed: Checkout) -> None:
    with nginx.serve(pushed.folder / ".meshbuild/store", pushed.folder / "nginx") as address:
        fetched = json.loads(pushed.ok("meshbuild", "fetch", "tiny", "--store", address, "--json"))
        assert pushed.ok(f"{fetched['artifacts'][0]['folder']}/one").strip() == "hello world"
        assert "stable" in pushed.ok("meshbuild", "releases", "tiny", "--store", address)
        done = pushed.run("doit", "push")
        assert done.returncode == 0
        done = pushed.run("meshbuild", "push", "--store", address)
        assert done.returncode == 50
        assert "can be read and not written" in done.stderr

        blob = next(file for file in (pushed.folder / ".meshbuild/store/objects").rglob("*") if is_bundle(file))
        data = blob.read_bytes()
        blob.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        (pushed.folder / "elsewhere").mkdir()
        done = pushed.run("meshbuild", "fetch", "tiny", "--store", address, "--into", "elsewhere")
        assert done.returncode == 52
        assert f"{address}: objects/" in done.stderr
    done = pushed.run("meshbuild", "fetch", "tiny", "--store", address)
    assert done.returncode == 50
    assert "Connection refused" in done.stderr


def is_bundle(file: Path) -> bool:
    """Whether a store's object is a bundle, and not the statements of one."""
    return file.is_file() and file.read_bytes()[:4] == b"\x28\xb5\x2f\xfd"


def test_pushing_the_same_content_twice_makes_no_new_release(pushed: Checkout) -> None:
    before = sorted((pushed.folder / ".meshbuild/store").rglob("*"))
    again = json.loads(pushed.ok("meshbuild", "push", "--json"))
    assert [(each["sequence"], each["new"]) for each in again["releases"]] == [(1, False)]
    assert sorted((pushed.folder / ".meshbuild/store").rglob("*")) == before


def test_a_change_is_the_next_release_and_an_older_one_stays_listed(pushed: Checkout) -> None:
    (pushed.folder / "words/words.go").write_text('package words\n\nconst Name = "moon"\n')
    assert "published tiny, release 2 on stable" in pushed.ok("doit", "push")
    listed = json.loads(pushed.ok("meshbuild", "releases", "tiny", "--json"))
    assert [each["sequence"] for each in listed["releases"]] == [2, 1]
    assert listed["releases"][0]["channels"] == [{"channel": "stable", "serial": 2}]
    assert "moon" not in pushed.ok("meshbuild", "releases", "tiny")
    fetched = json.loads(pushed.ok("meshbuild", "fetch", "tiny", "--json"))
    assert pushed.ok(f"{fetched['artifacts'][0]['folder']}/one").strip() == "hello moon"


def test_a_change_that_gives_the_same_program_is_built_and_nothing_after_it_runs(pushed: Checkout) -> None:
    bundle, store = pushed.folder / BUNDLE, pushed.folder / ".meshbuild/store"
    before, content = bundle.read_bytes(), json.loads(pushed.ok("meshbuild", "inspect", BUNDLE, "--json"))
    files = sorted(store.rglob("*"))
    (pushed.folder / "words/words.go").write_text('package words\n\nconst Name = "world" // as ever\n\n// The end.\n')
    (pushed.folder / "go.mod").write_text("module example.com/tiny\n\ngo 1.26 // or newer\n")
    assert "built tiny:one:arch" in pushed.ok("doit", "build")
    assert bundle.read_bytes() != before, "the statement tells of the new build"
    again = json.loads(pushed.ok("meshbuild", "inspect", BUNDLE, "--json"))
    assert again["content_sha256"] == content["content_sha256"]
    published = json.loads(pushed.ok("meshbuild", "push", "--json"))["releases"]
    assert [(each["sequence"], each["new"]) for each in published] == [(1, False)]
    assert sorted(store.rglob("*")) == files


def test_a_release_is_promoted_and_taken_back_without_building(pushed: Checkout) -> None:
    (pushed.folder / "words/words.go").write_text('package words\n\nconst Name = "moon"\n')
    assert "published tiny, release 2 on beta" in pushed.ok("doit", "build") + pushed.ok(
        "meshbuild", "push", "--channel", "beta"
    )
    shutil.rmtree(pushed.folder / "dist")
    assert "stable of tiny points now at release 2" in pushed.ok("meshbuild", "promote", "tiny", "beta", "stable")
    assert "stable of tiny pointed already" in pushed.ok("meshbuild", "promote", "tiny", "beta", "stable")
    fetched = json.loads(pushed.ok("meshbuild", "fetch", "tiny", "--json"))
    assert (fetched["sequence"], fetched["serial"]) == (2, 2)
    back = json.loads(pushed.ok("meshbuild", "promote", "tiny", "--sequence", "1", "--json"))
    assert (back["channel"], back["sequence"], back["changed"]) == ("stable", 1, True)
    fetched = json.loads(pushed.ok("meshbuild", "fetch", "tiny", "--json"))
    assert (fetched["sequence"], fetched["serial"]) == (1, 3)
    listed = json.loads(pushed.ok("meshbuild", "releases", "tiny", "--json"))["releases"]
    assert {each["sequence"]: [at["channel"] for at in each["channels"]] for each in listed} == {
        2: ["beta"],
        1: ["stable"],
    }
    assert pushed.run("meshbuild", "promote", "tiny", "alpha", "stable").returncode == 65


@pytest.mark.parametrize(
    "words", [[], ["beta"], ["beta", "stable", "--sequence", "1"], ["beta", "stable", "--channel", "x"]]
)
def test_what_to_promote_is_said_once(tiny: Checkout, words: list[str]) -> None:
    assert tiny.run("meshbuild", "promote", "tiny", *words).returncode == 2


def test_push_without_a_build_says_so_and_writes_nothing(tiny: Checkout) -> None:
    tiny.ok("meshbuild", "store", "init")
    before = sorted((tiny.folder / ".meshbuild/store").rglob("*"))
    done = tiny.run("meshbuild", "push")
    assert done.returncode == 35
    assert "tiny:one:arch, tiny:two:arch" in done.stderr
    assert "doit build" in done.stderr
    assert sorted((tiny.folder / ".meshbuild/store").rglob("*")) == before


def test_push_of_a_stale_bundle_is_refused(pushed: Checkout) -> None:
    (pushed.folder / "words/words.go").write_text('package words\n\nconst Name = "stale"\n')
    assert pushed.run("meshbuild", "push").returncode == 35


@pytest.mark.parametrize(
    ("command", "code", "said"),
    [
        (("push", "tinny"), 14, "no module is named 'tinny'"),
        (("fetch", "other"), 61, "no entry for the module"),
        (("fetch", "tiny", "--system", "debian"), 65, "debian"),
        (("fetch", "tiny", "--channel", "beta"), 65, "beta"),
        (("fetch", "../tiny"), 65, "../tiny"),
        (("releases", "other"), 65, "no module 'other'; it has tiny"),
        (("fetch", "tiny", "--store", "/nowhere/store"), None, "/nowhere/store"),
        (("fetch", "tiny", "--root", "/nowhere/root.json"), 10, "no root of trust at /nowhere/root.json"),
        (("store", "init"), 50, "is a store already"),
        (("push", "--store", "ftp://example.org/x"), 50, "'ftp' are not supported"),
    ],
)
def test_what_can_not_be_done_is_said(pushed: Checkout, command: tuple[str, ...], code: int | None, said: str) -> None:
    done = pushed.run("meshbuild", *command)
    assert done.returncode == code or (code is None and done.returncode not in (0, 1)), done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not list((pushed.folder / ".meshbuild/host").glob("payloads/*"))


@pytest.mark.parametrize("damage", ["missing", "truncated", "altered"])
def test_a_damaged_object_is_refused_and_nothing_is_unpacked(pushed: Checkout, damage: str) -> None:
    largest = max((pushed.folder / ".meshbuild/store/objects").rglob("?" * 64), key=lambda file: file.stat().st_size)
    if damage == "missing":
        largest.unlink()
    elif damage == "truncated":
        os.truncate(largest, largest.stat().st_size - 1)
    else:
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 1
        largest.write_bytes(data)
    done = pushed.run("meshbuild", "fetch", "tiny")
    assert done.returncode == (51 if damage == "missing" else 52), done.stderr
    assert not [entry for entry in (pushed.folder / ".meshbuild/host/payloads").iterdir() if entry.is_dir()]
    assert not (pushed.folder / ".meshbuild/host/receipts/tiny").exists()


def test_an_earlier_state_of_the_store_is_refused(pushed: Checkout, tmp_path: Path) -> None:
    store = pushed.folder / ".meshbuild/store"
    shutil.copytree(store, tmp_path / "earlier")
    (pushed.folder / "share/doc.txt").write_text("new\n")
    pushed.ok("doit", "push")
    pushed.ok("meshbuild", "fetch", "tiny")
    done = pushed.run("meshbuild", "fetch", "tiny", "--store", str(tmp_path / "earlier"))
    assert done.returncode in (60, 63), done.stderr
    assert "Traceback" not in done.stderr


def test_another_builders_bundle_is_refused_by_the_policy(pushed: Checkout) -> None:
    for name in ("builder.pem", "builder.pub"):
        (pushed.folder / ".meshbuild/keys" / name).unlink()
    (pushed.folder / "share/doc.txt").write_text("new\n")
    done = pushed.run("doit", "push")
    assert done.returncode == 44, done.stderr
    assert json.loads(pushed.ok("meshbuild", "releases", "tiny", "--json"))["releases"][0]["sequence"] == 1


def test_a_key_from_the_environment_signs(tiny: Checkout) -> None:
    tiny.ok("openssl", "genpkey", "-algorithm", "ed25519", "-out", "ci.pem")
    tiny.ok("openssl", "pkey", "-in", "ci.pem", "-pubout", "-out", "ci.pub")
    tiny.env.update(MESHBUILD_BUILDER_KEY="env:CI_KEY", CI_KEY=(tiny.folder / "ci.pem").read_text())
    done = tiny.run("doit", "build")
    assert done.returncode == 0, done.stderr
    assert "builder key" not in done.stderr
    assert not (tiny.folder / ".meshbuild/keys").exists()
    assert "verified" in tiny.ok("meshbuild", "verify", BUNDLE, "--builder-key", "ci.pub")
    assert tiny.run("meshbuild", "verify", BUNDLE).returncode == 44


def test_verify_and_inspect(tiny: Checkout, tmp_path: Path) -> None:
    tiny.ok("doit", "build", "one")
    assert "verified" in tiny.ok("meshbuild", "verify", BUNDLE)
    verified = json.loads(tiny.ok("meshbuild", "verify", BUNDLE, "--json"))
    shown = json.loads(tiny.ok("meshbuild", "inspect", BUNDLE, "--json"))
    assert verified["content_sha256"] == shown["content_sha256"]
    assert {"module", "artifact", "version", "system", "content_sha256", "blob_sha256", "size_bytes", "files"} <= set(
        shown
    )
    assert {each["predicate_type"] for each in shown["signatures"]} == {
        "https://slsa.dev/provenance/v1",
        "https://cyclonedx.org/bom",
    }
    provenance = shown["statements"][0]["predicate"]["buildDefinition"]
    assert provenance["internalParameters"]["isolation"] in ("network-namespace", "goproxy-off")
    assert str(tiny.folder) not in json.dumps(shown)
    assert "share/doc.txt" in tiny.ok("meshbuild", "inspect", BUNDLE)
    away = shutil.copy(tiny.folder / BUNDLE, tmp_path / "away.tar.zst")
    done = type(tiny)(tmp_path, tiny.env).run("meshbuild", "verify", str(away))
    assert done.returncode == 44
    assert "intact, builder not trusted" in done.stderr


def test_a_flipped_byte_is_refused(tiny: Checkout) -> None:
    tiny.ok("doit", "build", "two")
    bundle = tiny.folder / "dist/tiny.two-1-arch.tar.zst"
    whole = bundle.read_bytes()
    for at in (0, 4, 5, len(whole) // 2, len(whole) - 2):
        data = bytearray(whole)
        data[at] ^= 0x20
        bundle.write_bytes(data)
        done = tiny.run("meshbuild", "verify", str(bundle))
        assert done.returncode in (40, 41, 42, 43), (at, done.stderr)
        assert str(bundle) in done.stderr


def test_plan_names_everything_and_builds_nothing(tiny: Checkout) -> None:
    plans = json.loads(tiny.ok("meshbuild", "plan", "--json"))["plans"]
    assert [plan["artifact"] for plan in plans] == ["one", "two"]
    assert plans[0]["env"]["GOFLAGS"] == ""
    assert "-ldflags=-s -w -X main.version=1" in plans[0]["argv"]
    assert "${toolchain}/bin/go build" in tiny.ok("meshbuild", "plan", "two")
    done = tiny.run("meshbuild", "plan", "tow")
    assert done.returncode == 14
    assert "did you mean 'two'?" in done.stderr
    assert not (tiny.folder / "dist").exists()


def test_a_claim_held_by_another_module_is_refused(pushed: Checkout) -> None:
    write_manifest(pushed.folder, artifact("two"), claims=[{"name": "leader", "scope": "mesh"}], module="first")
    pushed.ok("doit", "push")
    write_manifest(pushed.folder, artifact("two"), claims=[{"name": "leader", "scope": "mesh"}], module="second")
    done = pushed.run("doit", "push")
    assert done.returncode == 62, done.stderr
    assert "first holds it" in done.stderr
