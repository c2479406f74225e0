"""Whatever happens to a store's files or to a fetch on its way, a host ends with a whole release or as it was."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshbuild.errors import MeshbuildError
from meshbuild.fetch import fetch_release
from tests.fetching import NOW, Scene, manifest, tree

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A store with two modules, and two releases of one of them."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    scene.push(scene.bundle(module="other"), document=manifest("other"))
    scene.push()
    scene.push(scene.bundle(text="program 2" * 100))
    return scene


@pytest.fixture(scope="module")
def whole(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a host holds after an undisturbed fetch."""
    into = tmp_path_factory.mktemp("whole") / "host"
    fetch_release(scene.store, root=scene.root, module="hello", system=None, into=into, now=NOW)
    return lasting(into)


def lasting(into: Path) -> dict[str, bytes]:
    return {key: data for key, data in tree(into).items() if not (key.startswith("trust/") or key.endswith(".lock"))}


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_store_gives_the_same_release_or_none(
    scene: Scene, whole: dict[str, bytes], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(scene.files()), label="file")
    good = path.read_bytes()
    match data.draw(st.sampled_from(["flip", "truncate", "append", "swap", "remove"]), label="damage"):
        case "flip":
            at = data.draw(st.integers(0, len(good) - 1), label="at")
            path.write_bytes(good[:at] + bytes([good[at] ^ data.draw(st.integers(1, 255))]) + good[at + 1 :])
        case "truncate":
            path.write_bytes(good[: data.draw(st.integers(0, len(good) - 1), label="at")])
        case "append":
            path.write_bytes(good + data.draw(st.binary(min_size=1, max_size=20)))
        case "swap":
            path.write_bytes(data.draw(st.sampled_from(scene.files()), label="with").read_bytes())
        case "remove":
            path.unlink()
    with tempfile.TemporaryDirectory() as folder:
        into = Path(folder) / "host"
        try:
            release = fetch_release(scene.store, root=scene.root, module="hello", system=None, into=into, now=NOW)
        except MeshbuildError:
            assert lasting(into) == {}
        else:
            assert release.sequence == 2
            assert lasting(into) == whole
        finally:
            path.write_bytes(good)


KILLED = """
import os, shutil, signal, sys, tempfile
from datetime import datetime
from pathlib import Path
from meshbuild.content import check_folder
from meshbuild.digests import Sha256
from meshbuild.fetch import fetch_release, verify_receipt
from meshbuild.stores.directory import DirectoryStore

store, root, into, before, now = sys.argv[1:]
root, into, now = Path(root).read_bytes(), Path(into), datetime.fromisoformat(now)
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.truncate"}


def fetch():
    return fetch_release(DirectoryStore(store), root=root, module="hello", system=None, into=into, now=now)


def kill_at(step):
    seen = 0

    def hook(event, arguments):
        nonlocal seen
        if event in CHANGES or (event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def in_a_child(work):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def killed(step):
    kill_at(step)
    fetch()


def check_nothing_unverified():
    for folder in (into / "payloads").glob("[0-9a-f]*"):
        check_folder(folder, Sha256(folder.name))
    if (into / "receipts/hello/metadata/timestamp.json").exists():
        verify_receipt(into, root=root, module="hello", system=None, now=now)


step, status = 0, None
while status != 0:
    step += 1
    shutil.rmtree(into, ignore_errors=True)
    if before != "nothing":
        shutil.copytree(before, into)
    status = in_a_child(lambda: killed(step))
    assert status in (0, -signal.SIGKILL), status
    assert in_a_child(check_nothing_unverified) == 0, f"something unverified lies there after a kill at step {step}"
    assert in_a_child(fetch) == 0, f"did not heal after a kill at step {step}"
    left = [path for path in into.rglob("*") if "meshbuild-tmp" in path.name]
    assert not left, f"{left} lie there after a kill at step {step} and another fetch"
print(step)
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory where there is one: a kill needs no durable disk, and hundreds of fetches sync a lot."""
    shm = Path("/dev/shm")  # noqa: S108 - the new folder below it is private
    with tempfile.TemporaryDirectory(dir=shm if os.access(shm, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.mark.parametrize("earlier", [False, True], ids=["a first fetch", "a next release over an earlier one"])
def test_killed_at_any_step_it_leaves_nothing_unverified_and_running_again_heals(
    memory: Path, *, earlier: bool
) -> None:
    scene = Scene(memory)
    scene.push()
    before, into, undisturbed, temporary = (memory / name for name in ("before", "into", "undisturbed", "temporary"))
    if earlier:
        fetch_release(scene.store, root=scene.root, module="hello", system=None, into=before, now=NOW)
        scene.push(scene.bundle(text="program 2" * 100))
        shutil.copytree(before, undisturbed)
    fetch_release(scene.store, root=scene.root, module="hello", system=None, into=undisturbed, now=NOW)
    (memory / "root.json").write_bytes(scene.root)
    temporary.mkdir()
    arguments = [scene.store.folder, memory / "root.json", into, before if earlier else "nothing", NOW.isoformat()]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={"TMPDIR": str(temporary)},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 60
    assert lasting(into) == lasting(undisturbed)
