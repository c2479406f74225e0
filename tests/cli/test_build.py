"""`doit build`: what it builds, what it leaves alone, and what it says when it can't."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.toolchains import user_cache
from tests.cli.conftest import artifact, write_manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.system.conftest import Checkout


def built(checkout: Checkout, *words: str) -> set[str]:
    """Build, and name the artifacts that were built."""
    time.sleep(0.1)  # files younger than a tick of the clock count as changing during the build
    return set(re.findall(r"^built tiny:(\w+):arch", checkout.ok("doit", *words, "build"), re.MULTILINE))


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def inspect(checkout: Checkout, name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(checkout.ok("meshbuild", "inspect", f"dist/{name}", "--json"))
    return value


def test_the_first_build_builds_everything_and_the_second_nothing(tiny: Checkout) -> None:
    assert built(tiny) == {"one", "two"}
    assert "nothing to do: 2 up to date" in tiny.ok("doit", "build")
    shown = inspect(tiny, "tiny.one-1-arch.tar.zst")
    assert [file["path"] for file in shown["files"]] == ["one", "share/doc.txt"]
    assert len(shown["signatures"]) == 2


def test_the_first_build_makes_a_builder_key_and_says_so_once(tiny: Checkout) -> None:
    first, second = tiny.run("doit", "-n", "2", "build"), tiny.run("doit", "-a", "build")
    assert first.stderr.count("making a local builder key") == 1
    assert "MESHBUILD_BUILDER_KEY" in first.stderr
    assert "builder key" not in second.stderr
    assert (tiny.folder / ".meshbuild/keys/builder.pem").stat().st_mode & 0o777 == 0o600
    assert (tiny.folder / ".meshbuild/.gitignore").read_text() == "*\n"


def test_programs_run_and_carry_their_stamp(tiny: Checkout, tmp_path: Path) -> None:
    tiny.ok("doit", "build")
    bundle = tiny.folder / "dist/tiny.one-1-arch.tar.zst"
    tiny.ok("tar", "-xf", str(bundle), "-C", str(tmp_path))
    assert tiny.ok(str(tmp_path / "one")).strip() == "hello world"
    assert tiny.ok(str(tmp_path / "one"), "version").strip() == "1"
    tiny.ok("zstd", "-tq", str(bundle))


def test_touching_files_builds_nothing(tiny: Checkout) -> None:
    built(tiny)
    for file in tiny.folder.rglob("*"):
        if ".meshbuild" not in file.parts:
            os.utime(file)
    assert built(tiny) == set()


def restored(file: Path, change: Callable[[Path], None]) -> None:
    """Change a file and put its mtime back."""
    before = file.stat()
    change(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("name", "old", "new", "expected"),
    [
        ("words/words.go", "world", "World", {"one"}),
        ("cmd/two/main.go", "two", "Two", {"two"}),
        ("cmd/one/static/greeting.txt", "hello", "Hello", {"one"}),
        ("share/doc.txt", "doc", "Doc", {"one"}),
        ("go.mod", "go 1.26", "go 1.25", {"one", "two"}),
    ],
)
def test_a_changed_byte_under_a_restored_mtime_builds_what_depends_on_it(
    tiny: Checkout, name: str, old: str, new: str, expected: set[str]
) -> None:
    built(tiny)
    restored(tiny.folder / name, lambda file: edit(file, old, new))
    assert built(tiny) == expected
    assert built(tiny) == set()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda f: edit(f / "toolchains.toml", 'goamd64 = "v1"', 'goamd64 = "v2"'), {"one", "two"}),
        (lambda f: edit(f / "manifest.json", '"version": "1"', '"version": "2"'), {"one", "two"}),
        (lambda f: write_manifest(f, artifact("one"), artifact("two")), {"one"}),
        (lambda f: write_manifest(f, artifact("two", strip=False)), {"two"}),
        (lambda f: write_manifest(f, artifact("two", tags=["x"])), {"two"}),
        (lambda f: (f / "meshbuild.toml").write_text("compression_level = 3"), {"one", "two"}),
        (lambda f: (f / "go.sum").touch(), {"one", "two"}),
        (lambda f: (f / "cmd/two/extra.go").write_text("package main\n"), {"two"}),
        (lambda f: (f / "share/new.txt").write_text("new"), {"one"}),
        (lambda f: (f / "dist/tiny.two-1-arch.tar.zst").write_bytes(b""), {"two"}),
        (lambda f: os.truncate(f / "dist/tiny.two-1-arch.tar.zst", 1000), {"two"}),
        (lambda f: (f / "dist/tiny.two-1-arch.tar.zst").unlink(), {"two"}),
    ],
    ids=[
        "system",
        "version",
        "manifest",
        "strip",
        "tags",
        "level",
        "go.sum",
        "new file",
        "glob",
        "empty",
        "cut",
        "gone",
    ],
)
def test_whatever_decides_on_the_bytes_builds(
    tiny: Checkout, change: Callable[[Path], object], expected: set[str]
) -> None:
    built(tiny)
    change(tiny.folder)
    assert built(tiny) == expected
    assert built(tiny) == set()


def test_another_pin_builds(tiny: Checkout) -> None:
    built(tiny)
    pins = tiny.folder / "toolchains.toml"
    pins.write_text(re.sub(r'(?m)^tree = "\w', 'tree = "0', pins.read_text()))
    done = tiny.run("doit", "build", "two")
    assert done.returncode != 0, "a toolchain of another tree was accepted"
    assert "nothing to do" not in done.stdout


def test_unrelated_files_build_nothing(tiny: Checkout) -> None:
    built(tiny)
    for name in (
        "README.md",
        "cmd/two/README.md",
        "cmd/two/main_test.go",
        "other/x.go",
        "share/x.css",
        "cmd/one/static/x",
    ):
        (tiny.folder / name).parent.mkdir(exist_ok=True)
        (tiny.folder / name).write_text("package main\n")
    assert built(tiny) == set()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("two",), {"two"}),
        (("tiny",), {"one", "two"}),
        (("tiny:one",), {"one"}),
        (("tiny:one:arch", "two"), {"one", "two"}),
    ],
)
def test_names_behind_build_choose(tiny: Checkout, words: tuple[str, ...], expected: set[str]) -> None:
    output = tiny.ok("doit", "build", *words)
    assert set(re.findall(r"^built tiny:(\w+):arch", output, re.MULTILINE)) == expected


def test_an_unknown_name_is_an_error_with_a_suggestion(tiny: Checkout) -> None:
    done = tiny.run("doit", "build", "tow")
    assert done.returncode == 3
    assert "no module or artifact is named 'tow'; did you mean 'two'?" in done.stderr
    assert not (tiny.folder / "dist").exists()


def test_in_parallel(tiny: Checkout) -> None:
    assert built(tiny, "-n", "2") == {"one", "two"}
    assert "nothing to do: 2 up to date" in tiny.ok("doit", "-n", "2", "build")


def test_two_runs_at_once_build_each_artifact_once(tiny: Checkout) -> None:
    runs = [
        subprocess.Popen(["doit", "build"], cwd=tiny.folder, env=tiny.env, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0, 0]
    assert all("two" in output for output in outputs)
    assert "nothing to do: 2 up to date" in tiny.ok("doit", "build")


SLOW = """package main

import "net/http"

func main() { println(http.StatusOK) }
"""


@pytest.fixture
def cold_cache(tiny: Checkout, tmp_path: Path) -> None:
    """A cache of its own with the pinned toolchain and nothing compiled: net/http takes seconds then."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "toolchains").symlink_to(user_cache(os.environ) / "toolchains")
    tiny.env["MESHBUILD_CACHE"] = str(cache)


def compilers(checkout: Checkout) -> list[str]:
    """Command lines of processes that still work for this project."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
                if f"TMPDIR={checkout.folder}/.meshbuild".encode() in words:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
    return found


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
@pytest.mark.usefixtures("cold_cache")
def test_finished_work_is_remembered_when_the_run_is_killed(tiny: Checkout, how: signal.Signals) -> None:
    slow = tiny.folder / "bundles/slow"
    (slow / "cmd/three").mkdir(parents=True)
    (slow / "cmd/three/main.go").write_text(SLOW)
    write_manifest(tiny.folder, artifact("two"))
    write_manifest(slow, artifact("three"), module="slow")
    with subprocess.Popen(
        ["doit", "build"], cwd=tiny.folder, env=tiny.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            if line.startswith("built tiny:two"):
                break
        time.sleep(1)
        run.send_signal(how)
    assert run.returncode != 0
    time.sleep(0.5)
    assert not compilers(tiny), "the compiler goes on"
    assert not (tiny.folder / "dist/slow.three-1-arch.tar.zst").exists()
    (slow / "manifest.json").unlink()
    assert "nothing to do: 1 up to date" in tiny.ok("doit", "build")
    tiny.ok("doit", "-a", "build")
    left = sorted((tiny.folder / ".meshbuild/scratch").iterdir())
    assert not left, "the killed run's folder is still there"


def test_clean_removes_bundles_and_records(tiny: Checkout) -> None:
    built(tiny)
    tiny.ok("doit", "clean")
    assert not list((tiny.folder / "dist").glob("*.zst"))
    assert built(tiny) == {"one", "two"}


def test_doit_list_names_every_artifact_and_builds_nothing(tiny: Checkout) -> None:
    output = tiny.ok("doit", "list", "--all")
    assert "build:tiny:one:arch" in output
    assert not (tiny.folder / "dist").exists()


def refused(checkout: Checkout, code: int, *words: str) -> str:
    """Build something that can't be; returns what was said, with nothing left behind."""
    done = checkout.run("doit", "build", *words)
    assert done.returncode == code, done.stderr + done.stdout
    assert "Traceback" not in done.stderr + done.stdout
    assert not (checkout.folder / "dist").exists()
    assert not list((checkout.folder / ".meshbuild").glob("scratch/*"))
    return done.stderr


def test_the_compilers_own_words_reach_the_user_with_a_command_to_repeat(tiny: Checkout) -> None:
    (tiny.folder / "cmd/two/main.go").write_text("package main\n\nfunc main() { return 1 }\n")
    said = refused(tiny, 33, "two")
    assert "tiny:two:arch" in said
    assert "cmd/two/main.go:3:22: too many return values" in said
    command = said.partition("To repeat it: ")[2].strip()
    again = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert "too many return values" in again.stderr


@pytest.mark.parametrize(
    ("code", "change", "said"),
    [
        (30, lambda f: write_manifest(f, artifact("two", **{"from": "nowhere"})), "nowhere, which is not a folder"),
        (30, lambda f: write_manifest(f, artifact("two", **{"from": "words"})), "package words, not a main package"),
        (30, lambda f: write_manifest(f, artifact("two", **{"from": "share"})), "holds no Go files"),
        (30, lambda f: (f / "cmd/two/go.mod").write_text("module x\n"), "a Go module of its own, nested"),
        (30, lambda f: (f / "go.mod").unlink(), "no go.mod at or above"),
        (31, lambda f: (f / "go.mod").write_text("module m\ngo 1.99\n"), "asks for go 1.99, pinned is 1.27.2"),
        (30, lambda f: (f / "cmd/two/main.go").write_text('package main\nimport _ "example.com/tiny/no"\n'), "tiny/no"),
        (
            30,
            lambda f: (f / "cmd/two/main.go").write_text('package main\nimport _ "other.example/x"\n'),
            "other.example/x",
        ),
        (30, lambda f: write_manifest(f, artifact("two", files=[{"from": "no/*", "to": "x"}])), "names no file"),
        (30, lambda f: write_manifest(f, artifact("two", vcs=True)), "git knows of none here"),
        (11, lambda f: write_manifest(f, artifact("two", language="rust")), "build.artifacts[0].language"),
        (11, lambda f: write_manifest(f, artifact("two", kind="image")), "build.artifacts[0].kind"),
        (11, lambda f: write_manifest(f, artifact("two", system="arhc")), 'did you mean "arch"'),
        (11, lambda f: write_manifest(f, artifact("two", **{"from": "../x"})), "build.artifacts[0].from"),
        (11, lambda f: (f / "manifest.json").write_text("{"), "manifest.json"),
        (12, lambda f: (f / "toolchains.toml").write_text("[go"), "toolchains.toml"),
        (10, lambda f: (f / "meshbuild.toml").write_text("stor = 1"), "did you mean 'store'"),
    ],
)
def test_bad_input_is_refused_with_its_own_exit_code(
    tiny: Checkout, code: int, change: Callable[[Path], object], said: str
) -> None:
    write_manifest(tiny.folder, artifact("two"))
    change(tiny.folder)
    assert said in refused(tiny, code)


def test_no_network_and_no_toolchain_says_each_source_and_its_reason(tiny: Checkout, tmp_path: Path) -> None:
    nowhere = "http://127.0.0.1:9"
    tiny.env.update(
        MESHBUILD_CACHE=str(tmp_path / "empty"),
        GOPROXY=nowhere,
        PIP_INDEX_URL=nowhere,
        PIP_NO_INDEX="1",
        PIP_FIND_LINKS="",
        HTTPS_PROXY=nowhere,
        HTTP_PROXY=nowhere,
    )
    said = refused(tiny, 20)
    for source in ("archive", "module", "wheel"):
        assert source in said


def test_a_module_that_can_not_be_had(tiny: Checkout) -> None:
    (tiny.folder / "go.mod").write_text("module example.com/tiny\n\ngo 1.26\n\nrequire example.org/gone v1.0.0\n")
    (tiny.folder / "go.sum").write_text(
        "example.org/gone v1.0.0 h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
        "example.org/gone v1.0.0/go.mod h1:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=\n"
    )
    (tiny.folder / "cmd/two/main.go").write_text('package main\n\nimport _ "example.org/gone"\n\nfunc main() {}\n')
    tiny.env["GOPROXY"] = "http://127.0.0.1:9"
    assert "example.org/gone" in refused(tiny, 32, "two")


@pytest.mark.usefixtures("cold_cache")
def test_inputs_that_change_during_the_build_are_noticed(tiny: Checkout) -> None:
    (tiny.folder / "cmd/two/http.go").write_text(SLOW.replace("func main()", "func init()"))
    time.sleep(0.1)
    run = subprocess.Popen(["doit", "build", "two"], cwd=tiny.folder, env=tiny.env, stderr=subprocess.PIPE, text=True)
    while run.poll() is None and not list(tiny.folder.glob(".meshbuild/scratch/*/*/tmp/go-build*")):
        time.sleep(0.02)
    time.sleep(0.3)
    edit(tiny.folder / "cmd/two/main.go", "two", "TWO")
    _, said = run.communicate()
    assert run.returncode == 34, said
    assert "package:cmd/two" in said
    assert not (tiny.folder / "dist").exists()
    assert built(tiny) == {"one", "two"}
