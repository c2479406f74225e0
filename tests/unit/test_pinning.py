"""A Go release is pinned when all sources in reach agree, and when nobody's word stands alone."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.errors import ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.pinning import Findings, Reading, decide_pin, module_hash, read_release
from meshbuild.pins import Pins, ToolchainPin
from tests.unit import faketoolchain as fake
from tests.unit.test_toolchain_sources import pip_environ, refused_address

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

EVIL = {**fake.FILES, "src/a.go": b"package evil"}
ARCHIVE, MODULE, WHEEL = b"the archive", b"the zip", b"the wheel"
URL = "https://example.com/go.tar.gz"


class World:
    """The three sources of the small toolchain: an archive and a proxy on a server, and a folder of wheels."""

    def __init__(self, server: fake.Server, folder: Path) -> None:
        self.server = server
        self.index = folder / "index"
        self.index.mkdir()
        self.proxy = server.address
        self.give()

    def give(self, archive: bytes | None = None, module: bytes | None = None, wheel: bytes | None = None) -> None:
        """Put up what the sources have; the good ones unless given."""
        self.server.answers = {
            f"/dl/go{fake.VERSION}.{fake.PLATFORM}.tar.gz": archive or fake.archive_tar(),
            fake.MODULE_URL_PATH: module or fake.module_zip(),
        }
        (self.index / fake.WHEEL_NAME).write_bytes(wheel or fake.wheel())

    def read(self, version: str = fake.VERSION, platform: str = fake.PLATFORM) -> Findings:
        self.told: list[str] = []
        return read_release(
            version,
            platform,
            environ=pip_environ(self.index, GOPROXY=self.proxy),
            report=self.told.append,
            archives=f"{self.server.address}/dl",
        )


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temp"))
    with fake.serve() as server:
        yield World(server, tmp_path)
    assert list((tmp_path / "temp").iterdir()) == [], "nothing is left of what was unpacked"


def pins(*known: ToolchainPin) -> Pins:
    toolchains: dict[str, dict[str, ToolchainPin]] = {}
    for pin in known:
        toolchains.setdefault(pin.version, {})[pin.platform] = pin
    return Pins(default="1.27.2", toolchains=toolchains, systems={})


def findings(*readings: tuple[Any, Mapping[str, bytes]], **more: Any) -> Findings:
    return Findings(
        fake.VERSION, fake.PLATFORM, [Reading(source, fake.tree_of(files)) for source, files in readings], **more
    )


def three(**other: Mapping[str, bytes]) -> list[tuple[Any, Mapping[str, bytes]]]:
    return [
        (fake.archive_source(URL, ARCHIVE), other.get("archive", fake.FILES)),
        (fake.module_source(MODULE), other.get("module", fake.FILES)),
        (fake.wheel_source(WHEEL), other.get("wheel", fake.FILES)),
    ]


def test_every_source_is_read_and_told(world: World) -> None:
    archive, module, wheel = fake.archive_tar(), fake.module_zip(), fake.wheel()
    world.give(archive, module, wheel)
    found = world.read()
    assert (found.refused, found.unreached) == ({}, {})
    (world.index.parent / "zip").write_bytes(module)
    h1 = module_hash(world.index.parent / "zip")
    url = f"{world.server.address}/dl/go{fake.VERSION}.{fake.PLATFORM}.tar.gz"
    assert found.readings == [
        Reading(fake.archive_source(url, archive), fake.tree_of(fake.FILES)),
        Reading(fake.module_source(module, h1=h1), fake.tree_of(fake.FILES)),
        Reading(fake.wheel_source(wheel), fake.tree_of(fake.FILES)),
    ]
    assert [line.partition(": ")[2].partition(" ")[0] for line in world.told] == ["archive", "Go", "wheel"]
    pin = decide_pin(found, pins())
    assert pin.tree == fake.tree_of(fake.FILES)
    assert [source.kind for source in pin.sources] == ["archive", "module", "wheel"]


@pytest.mark.parametrize("liar", ["archive", "module", "wheel"])
def test_one_that_lies_is_found_whichever_it_is(world: World, liar: str) -> None:
    make = {"archive": fake.archive_tar, "module": fake.module_zip, "wheel": fake.wheel}[liar]
    world.give(**{liar: make(EVIL)})
    with pytest.raises(ToolchainMismatchError, match="the sources don't agree") as caught:
        decide_pin(world.read(), pins(), single_source=True)
    said = str(caught.value)
    assert said.count(fake.tree_of(fake.FILES)) == 2
    (line,) = [line for line in said.splitlines() if fake.tree_of(EVIL) in line]
    assert line.lower().lstrip().startswith("go module" if liar == "module" else liar)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({**fake.FILES, "VERSION": b"go1.98.0\ntime x\n"}, 'its VERSION says "go1.98.0", expected "go1.99.0"'),
        ({path: data for path, data in fake.FILES.items() if path != "VERSION"}, 'its VERSION says ""'),
        ({path: data for path, data in fake.FILES.items() if path != "bin/go"}, "it has no bin/go"),
        (
            {path.replace("linux_amd64", "linux_arm64"): data for path, data in fake.FILES.items()},
            "no pkg/tool/linux_amd64",
        ),
    ],
    ids=["another version", "no version", "no go command", "another platform"],
)
def test_another_release_is_refused_even_where_all_agree(world: World, files: Mapping[str, bytes], reason: str) -> None:
    world.give(fake.archive_tar(files), fake.module_zip(files), fake.wheel(files))
    found = world.read()
    assert found.readings == []
    assert len(found.refused) == 3
    with pytest.raises(ToolchainMismatchError, match="a source gave something else") as caught:
        decide_pin(found, pins())
    assert str(caught.value).count(reason) == 3


def test_what_is_damaged_is_refused_and_the_others_do_not_make_up_for_it(world: World) -> None:
    world.give(archive=fake.archive_tar()[:-40])
    found = world.read()
    assert len(found.readings) == 2
    with pytest.raises(ToolchainMismatchError, match="archive"):
        decide_pin(found, pins())


def test_one_out_of_reach_is_said_and_two_are_enough(world: World) -> None:
    world.proxy = refused_address()
    found = world.read()
    assert list(found.unreached) == [f"Go module golang.org/toolchain@{fake.MODULE_VERSION}"]
    assert "refused" in next(iter(found.unreached.values()))
    assert [source.kind for source in decide_pin(found, pins()).sources] == ["archive", "wheel"]


def test_one_alone_is_not_enough_unless_it_is_trusted(world: World) -> None:
    world.proxy = refused_address()
    (world.index / fake.WHEEL_NAME).unlink()
    found = world.read()
    with pytest.raises(ToolchainUnavailableError, match="nothing vouches for its only source") as caught:
        decide_pin(found, pins())
    assert "--single-source" in str(caught.value.hint)
    assert str(caught.value).count("not reached") == 2
    assert [source.kind for source in decide_pin(found, pins(), single_source=True).sources] == ["archive"]


def test_a_version_that_there_is_not(world: World) -> None:
    with pytest.raises(ToolchainUnavailableError, match=f"no source gave go 1.98.0 for {fake.PLATFORM}") as caught:
        decide_pin(world.read("1.98.0"), pins())
    assert str(caught.value).count("404 Not Found") == 2
    assert str(caught.value).count("not reached") == 3


def test_what_is_pinned_already_stays_and_gets_what_it_lacks() -> None:
    old = fake.pin(fake.wheel_source(WHEEL, size_bytes=None))
    pin = decide_pin(findings(*three()), pins(old))
    assert pin.sources == (old.sources[0], fake.archive_source(URL, ARCHIVE), fake.module_source(MODULE))
    assert decide_pin(findings(*three()), pins(pin)) == pin


def test_one_source_is_enough_for_what_is_pinned_already() -> None:
    old = fake.pin(fake.wheel_source(WHEEL))
    found = findings(three()[0])
    assert decide_pin(found, pins(old)).sources == (old.sources[0], fake.archive_source(URL, ARCHIVE))


def test_a_pin_of_another_tree_is_an_alarm() -> None:
    old = fake.pin(fake.wheel_source(WHEEL), files=EVIL)
    with pytest.raises(ToolchainMismatchError, match="pinned already with another tree") as caught:
        decide_pin(findings(*three()), pins(old))
    assert fake.tree_of(EVIL) in str(caught.value)
    assert fake.tree_of(fake.FILES) in str(caught.value)


def test_another_file_of_a_pinned_source_is_an_alarm() -> None:
    old = fake.pin(fake.archive_source(URL, b"repacked"))
    with pytest.raises(ToolchainMismatchError, match=f"another file of the same tree from the archive {URL}"):
        decide_pin(findings(*three()), pins(old))


def test_an_unread_source_never_hides_that_two_differ() -> None:
    found = findings(*three(wheel=EVIL)[1:], unreached={"archive x": "refused"})
    with pytest.raises(ToolchainMismatchError, match="archive x: not reached: refused"):
        decide_pin(found, pins(fake.pin(fake.archive_source(URL, ARCHIVE))))


def test_the_modules_hash_is_that_of_go_sum(tmp_path: Path) -> None:
    """As https://pkg.go.dev/golang.org/x/mod/sumdb/dirhash#Hash1 words it, whatever the order in the zip."""
    members = {"m@v1/b.go": b"b", "m@v1/\N{LATIN SMALL LETTER E WITH ACUTE}.go": b"e", "m@v1/B.go": b"B"}
    (tmp_path / "zip").write_bytes(fake.make_zip(members))
    lines = "".join(
        f"{hashlib.sha256(members[name]).hexdigest()}  {name}\n"
        for name in ("m@v1/B.go", "m@v1/b.go", "m@v1/\N{LATIN SMALL LETTER E WITH ACUTE}.go")
    )
    expected = base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()
    assert module_hash(tmp_path / "zip") == f"h1:{expected}"
