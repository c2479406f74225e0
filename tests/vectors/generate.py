"""Write the bundles that every reader of format 1 must accept (good/) or refuse (hostile/), and index.json.

    python -m tests.vectors.generate

Hostile bundles are made the way an attacker would: with a right checksum and a right `bundle_sha256` wherever these
aren't the point, so that each is refused for its own reason and not for a broken digest. Nothing of the bundle writer
is used here; zstd's output differs between library versions, so a new run may change bytes, never reasons.
The message in the index is what the reader says; look at those that a new run changes.
"""

from __future__ import annotations

import hashlib
import json
import struct
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import zstandard

from meshbuild.bundle import read_bundle
from meshbuild.errors import MeshbuildError

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
MAX_CONTENT_BYTES = 2 << 30
PROGRAM, TEXT = b"\x7fELF program", b"a text\n"
ENVELOPE = {
    "payload": "e30=",
    "payloadType": "application/vnd.in-toto+json",
    "signatures": [{"keyid": "0" * 64, "sig": "AAAA"}],
}


@dataclass(frozen=True, slots=True)
class Vector:
    """A bundle, why it is here, and the error that it must be refused with (None: it is good)."""

    name: str
    data: bytes
    why: str
    error: str | None = None
    content_sha256: str | None = None


def canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def listed(path: str, data: bytes, mode: str = "0644") -> dict[str, Any]:
    return {"path": path, "sha256": hashlib.sha256(data).hexdigest(), "size_bytes": len(data), "mode": mode}


FILES = [listed("tool", PROGRAM, "0755"), listed("ui/text", TEXT)]


def listing(files: list[dict[str, Any]] | None = None, **changes: object) -> bytes:
    names = {"module": "demo", "artifact": "tool", "version": "1", "system": "arch", "binary": "tool"}
    return canonical({"format": 1, **names, "files": FILES if files is None else files, **changes})


def entry(path: str, data: bytes = b"", mode: int = 0o644, kind: bytes = b"0", **fields: Any) -> bytes:
    """One tar entry, as Python's tarfile writes it, with whatever fields are given."""
    info = tarfile.TarInfo()
    info.name, info.size, info.mode, info.type, info.mtime = path, len(data), mode, kind, 0
    for name, value in fields.items():
        setattr(info, name, value)
    header = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "surrogateescape")
    # Canonical headers hold the device numbers 0 as digits, which this Python may leave empty.
    zeros = b"%07o\0" % 0
    if kind not in (b"3", b"4"):
        header = header[:329] + zeros + zeros + header[345:]
    header = header[:148] + b" " * 8 + header[156:]
    return header[:148] + b"%06o\0 " % sum(header) + header[156:] + data + bytes(-len(data) % 512)


GOOD_LISTING = entry(".bundle/bundle.json", listing())
TOOL = entry("tool", PROGRAM, 0o755)
SHARE = entry("ui/text", TEXT)
END = bytes(1024)
TAR = GOOD_LISTING + TOOL + SHARE + END


def with_listing(text: bytes, *entries: bytes) -> bytes:
    return entry(".bundle/bundle.json", text) + b"".join(entries or (TOOL, SHARE)) + END


def frame(content: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(level=9, write_checksum=checksum, write_content_size=size).compress(content)


def raw_frame(header: bytes, content: bytes, *, checksum: int | None = None) -> bytes:
    """A frame of one raw block behind a header of one's own; the checksum is the true one unless given."""
    true = frame(content)[-4:]
    block = struct.pack("<I", 1 | len(content) << 3)[:3] + content
    return header + block + (true if checksum is None else struct.pack("<I", checksum))


def skippable(payload: bytes, magic: int = 0x184D2A5B) -> bytes:
    return struct.pack("<II", magic, len(payload)) + payload


def sealed(first: bytes, *envelopes: dict[str, Any]) -> bytes:
    """The statements with a right bundle_sha256 for what lies in front of them."""
    lines = [canonical(each) for each in envelopes or (ENVELOPE,)]
    digest = hashlib.sha256(first + b"".join(lines)).hexdigest()
    return b"".join([*lines[:-1], canonical({**json.loads(lines[-1]), "bundle_sha256": digest})])


def bundle(content: bytes = TAR, *, first: bytes | None = None) -> bytes:
    first = frame(content) if first is None else first
    return first + skippable(sealed(first))


def good() -> Iterator[Vector]:
    def vector(name: str, content: bytes, why: str) -> Vector:
        return Vector(name, bundle(content), why, content_sha256=hashlib.sha256(content).hexdigest())

    yield vector("two-files", TAR, "a program and a text: the plainest bundle")
    names = ["Ümlaut/ß", "a b", 'quote"', "x/" + "d" * 97, "x/" + "e" * 99, f"{'f' * 60}/{'g' * 90}", "z"]
    files = sorted([listed(n, b"") for n in names] + [FILES[0]], key=lambda f: f["path"].encode())
    entries = [entry(f["path"], PROGRAM if f["path"] == "tool" else b"", int(f["mode"], 8)) for f in files]
    yield vector("names", with_listing(listing(files), *entries), "UTF-8, blanks, quotes, ustar prefixes, empty files")
    long = "u-long/" + "n" * 150
    record = f"167 path={long}\n".encode()
    assert len(record) == 167
    pax = entry("pax", record, kind=b"x") + entry(long[:100], TEXT)
    files = [FILES[0], listed(long, TEXT)]
    yield vector(
        "pax-path", with_listing(listing(files), TOOL, pax), "a path that ustar can't hold: a pax record before"
    )
    first = frame(TAR)
    data = first + skippable(sealed(first, ENVELOPE, ENVELOPE | {"signatures": []}))
    yield Vector("two-statements", data, "two envelopes", content_sha256=hashlib.sha256(TAR).hexdigest())


def _tar_vectors() -> Iterator[Vector]:
    def vector(name: str, content: bytes, why: str, error: str = "BundleFormatError") -> Vector:
        return Vector(name, bundle(content), why, error)

    base = GOOD_LISTING + TOOL
    kinds = {
        "hard-link": entry("ui/text", kind=b"1", linkname="tool"),
        "symlink": entry("ui/text", kind=b"2", linkname="/etc/passwd"),
        "char-device": entry("ui/text", kind=b"3", devmajor=1, devminor=3),
        "block-device": entry("ui/text", kind=b"4", devmajor=8, devminor=0),
        "fifo": entry("ui/text", kind=b"6"),
        "gnu-long-name": entry("././@LongLink", b"ui/text\0", kind=b"L") + SHARE,
        "gnu-sparse": entry("ui/text", TEXT, kind=b"S"),
        "old-file-type": entry("ui/text", TEXT, kind=b"\0"),
        "global-pax": entry("pax", b"22 comment=anything!!\n", kind=b"g") + SHARE,
        "needless-pax": entry("pax", b"16 path=ui/text\n", kind=b"x") + SHARE,
        "folder-entry": entry("ui/", mode=0o755, kind=b"5") + SHARE,
        "absolute-name": entry("/ui/text", TEXT),
        "dotdot-name": entry("../ui/text", TEXT),
        "dot-name": entry("./ui/text", TEXT),
        "duplicate-name": entry("tool", PROGRAM, 0o755) + SHARE,
        "unlisted-before": entry("ui/more", b"more") + SHARE,
        "unlisted-after": SHARE + entry("ui/zzz", b"more"),
        "link-after": SHARE + entry("ui/zzz", kind=b"2", linkname="/"),
        "wrong-mode": entry("ui/text", TEXT, 0o755),
        "setuid-mode": entry("ui/text", TEXT, 0o4755),
        "wrong-size": entry("ui/text", TEXT + b"more"),
        "mtime": entry("ui/text", TEXT, mtime=1),
        "owner": entry("ui/text", TEXT, uid=1000, gid=1000),
        "owner-name": entry("ui/text", TEXT, uname="root", gname="root"),
        "bad-header-checksum": SHARE[:148] + b"000000\0 " + SHARE[156:],
        "missing-file": b"",
        "padding": SHARE[:-1] + b"x",
    }
    for name, entries in kinds.items():
        yield vector(name, base + entries + END, f"in the tar, instead of ui/text: {name.replace('-', ' ')}")
    link = entry("ui", kind=b"2", linkname="/tmp")  # noqa: S108 - the point: a link to a writable folder
    yield vector("link-as-folder", base + link + SHARE + END, "a link where a folder of the next file shall be")
    yield vector("out-of-order", GOOD_LISTING + SHARE + TOOL + END, "the tar's order is not the listing's")
    yield vector("listing-second", TOOL + GOOD_LISTING + SHARE + END, "bundle.json is not the first entry")
    yield vector("no-listing", TOOL + SHARE + END, "a plain tar without bundle.json")
    yield vector("listing-twice", GOOD_LISTING + GOOD_LISTING + TOOL + SHARE + END, "bundle.json comes twice")
    yield vector(
        "listing-is-link", entry(".bundle/bundle.json", kind=b"2", linkname="x") + END, "bundle.json is a link"
    )
    yield vector("one-zero-block", TAR[:-512], "the tar ends with one zero block")
    yield vector("no-end", TAR[:-1024], "the tar has no end blocks")
    yield vector("record-padding", TAR + bytes(10240 - len(TAR) % 10240), "padded to 10 KiB, as tar does")
    yield vector("second-tar", TAR + TAR, "a second tar behind the first's end")
    yield vector("cut-file", TAR[:-1536], "the tar ends with the header of a file", "BundleFormatError")
    yield vector("empty-tar", END, "nothing but the tar's end")
    yield vector("empty-content", b"", "no content at all")
    other = GOOD_LISTING + entry("tool", PROGRAM[::-1], 0o755) + SHARE + END
    yield vector("changed-file", other, "a file with other bytes of the same size", "BundleDigestError")
    big = entry(".bundle/bundle.json", listing(), size=17 << 20)
    yield vector("listing-too-large", big[:512] + TAR, "bundle.json declares 17 MiB", "BundleLimitError")


def _listing_vectors() -> Iterator[Vector]:
    def vector(name: str, text: bytes, why: str, *entries: bytes, error: str = "BundleFormatError") -> Vector:
        return Vector(f"listing-{name}", bundle(with_listing(text, *entries)), why, error)

    def path(name: str, path: str, why: str) -> Vector:
        files = sorted([FILES[0], listed(path, TEXT)], key=lambda file: file["path"].encode())
        entries = [TOOL if file is FILES[0] else entry(path[:100], TEXT) for file in files]
        return vector(f"path-{name}", listing(files), why, *entries)

    yield path("absolute", "/etc/cron.d/x", "an absolute path, in the listing as in the tar")
    yield path("dotdot", "../x", "a path that leads outside")
    yield path("dotdot-inside", "ui/../../x", "a path that leads outside on a way round")
    yield path("dot", "./x", "a path with a needless part")
    yield path("empty-part", "ui//x", "a path with an empty part")
    yield path("backslash", "ui\\x", "a path with a backslash")
    yield path("control", "ui/\x1b[2J", "a path that controls terminals")
    yield path("reserved", ".bundle/more", "a file in the reserved folder")
    yield path("reserved-folder", ".bundle", "a file in place of the reserved folder")
    yield path("below-file", "tool/x", "a file below a file")
    yield path("too-long", "d/" * 600 + "x", "a path of over 1,024 bytes")
    again = [FILES[0], FILES[0], FILES[1]]
    yield vector("path-twice", listing(again), "a path that is listed twice", TOOL, TOOL, SHARE)
    yield vector("disorder", listing(FILES[::-1]), "paths that are not in byte order", SHARE, TOOL)
    wrong = [FILES[0] | {"sha256": "0" * 64}, FILES[1]]
    yield vector("other-digest", listing(wrong), "a digest changed in the listing", error="BundleDigestError")
    yield vector("other-size", listing([FILES[0], FILES[1] | {"size_bytes": 6}]), "a size changed in the listing")
    for name, change in {
        "huge-size": {"size_bytes": 1 << 62},
        "negative-size": {"size_bytes": -1},
        "text-size": {"size_bytes": "7"},
        "setuid": {"mode": "4755"},
        "number-mode": {"mode": 420},
        "object-digest": {"sha256": {}},
        "list-mode": {"mode": []},
        "short-digest": {"sha256": "00"},
        "null-path": {"path": None},
        "unknown-file-key": {"owner": "root"},
    }.items():
        yield vector(name, listing([FILES[0], FILES[1] | change]), f"a file with {change}")
    for name, changes in {
        "format-2": {"format": 2},
        "format-true": {"format": True},
        "unknown-key": {"built_at": "now"},
        "binary-missing": {"binary": "other"},
        "binary-in-folder": {"binary": "ui/text"},
        "module-slash": {"module": "a/b"},
        "module-empty": {"module": ""},
        "module-escape": {"module": "a\x1b[2J"},
        "module-list": {"module": ["demo"]},
        "files-text": {"files": "none"},
        "files-object": {"files": {}},
    }.items():
        yield vector(name, listing(**changes), f"with {changes}")
    plain = listing([FILES[0] | {"mode": "0644"}, FILES[1]])
    yield vector("binary-not-executable", plain, "its program is not executable", entry("tool", PROGRAM), SHARE)
    few = {"format": 1, "module": "demo", "files": FILES}
    yield vector("lacks-keys", canonical(few), "keys are missing")
    spaced = json.dumps(json.loads(listing()), sort_keys=True, indent=1).encode() + b"\n"
    yield vector("spaced", spaced, "the same value in another spelling")
    yield vector("no-line-feed", listing()[:-1], "without its final line feed")
    yield vector("duplicate-key", listing()[:-2] + b',"version":"1"}\n', "a key comes twice")
    yield vector("nan", listing().replace(b'"format":1', b'"format":NaN'), "holds NaN")
    yield vector("bom", b"\xef\xbb\xbf" + listing(), "starts with a byte order mark")
    yield vector("not-utf8", listing().replace(b"demo", b"de\xffo"), "is not UTF-8")
    yield vector("surrogate", listing().replace(b"demo", b"\\ud800"), "holds half a character")
    yield vector("infinite", listing().replace(b'"format":1', b'"format":1e999'), "holds a number beyond all bounds")
    yield vector("deep", b"[" * 100_000, "nested without end")
    yield vector("long-number", b'{"format":' + b"1" * 10_000 + b"}", "a number of 10,000 digits")
    yield vector("empty", b"", "bundle.json is empty")
    many = listing([listed(f"{number:06}", b"") for number in range(100_001)])
    yield vector("too-many-files", many, "100,001 files", error="BundleLimitError")


def _frame_vectors() -> Iterator[Vector]:
    def vector(name: str, first: bytes, why: str, error: str = "BundleFormatError") -> Vector:
        return Vector(f"frame-{name}", bundle(first=first), why, error)

    magic, size = struct.pack("<I", 0xFD2FB528), struct.pack("<Q", len(TAR))
    whole = frame(TAR)
    yield vector("window-2-gib", raw_frame(magic + b"\xc4\xa8" + size, TAR), "a window of 2 GiB", "BundleLimitError")
    yield vector("window-144-mib", raw_frame(magic + b"\xc4\x89" + size, TAR), "2^27 and an eighth", "BundleLimitError")
    huge = struct.pack("<Q", 1 << 40)
    yield vector("size-1-tib", raw_frame(magic + b"\xc4\x60" + huge, TAR), "declares 1 TiB", "BundleLimitError")
    yield vector("one-segment", raw_frame(magic + b"\xe4" + huge, TAR), "one segment of 1 TiB", "BundleLimitError")
    yield vector("declares-more", raw_frame(magic + b"\xc4\x60" + struct.pack("<Q", len(TAR) + 512), TAR), "gives less")
    yield vector("declares-less", raw_frame(magic + b"\xc4\x60" + struct.pack("<Q", len(TAR) - 512), TAR), "gives more")
    yield vector("declares-nothing", raw_frame(magic + b"\xc4\x60" + bytes(8), TAR), "declares 0 bytes, gives more")
    yield vector("no-size", frame(TAR, size=False), "doesn't declare its content's size")
    yield vector("no-checksum", frame(TAR, checksum=False), "has no checksum")
    yield vector("wrong-checksum", raw_frame(magic + b"\xc4\x60" + size, TAR, checksum=0), "its checksum is wrong")
    yield vector("dictionary", raw_frame(magic + b"\xc5\x60\x07" + size, TAR), "wants the dictionary 7")
    yield vector("unused-bit", raw_frame(magic + b"\xd4\x60" + size, TAR), "the unused bit of its header is set")
    yield vector("reserved-bit", raw_frame(magic + b"\xcc\x60" + size, TAR), "the reserved bit of its header is set")
    reserved = magic + b"\xc4\x60" + size + b"\x07\x00\x00" + bytes(4)
    yield vector("reserved-block", reserved, "a block of the reserved type")
    yield vector("large-block", raw_frame(magic + b"\xc4\x00" + size, TAR), "a block larger than its window of 1 KiB")
    bad = magic + b"\xc4\x60" + size + struct.pack("<I", 1 | 2 << 1 | 9 << 3)[:3] + b"\xff" * 9 + bytes(4)
    yield vector("garbage-block", bad, "a compressed block of garbage")
    yield vector("two", whole + whole, "two zstd frames")
    half = len(TAR) // 2
    yield vector("split", frame(TAR[:half]) + frame(TAR[half:]), "one tar in two zstd frames")
    yield vector("skippable-first", skippable(b"x") + whole, "a skippable frame first")
    yield vector("skippable-between", whole + skippable(b"x", 0x184D2A50), "a skippable frame of another kind between")
    yield vector("v07", b"\x27\xb5\x2f\xfd" + whole[4:], "zstd's magic number of version 0.7")
    bomb = magic + b"\xc4\x60" + struct.pack("<Q", 1 << 30) + b"\x02\x00\x10\x00" * 8191 + b"\x03\x00\x10\x00"
    yield vector("zeros", bomb + bytes(4), "1 GiB of zeros in 32 KiB, declared rightly")


def _statements_vectors() -> Iterator[Vector]:
    first = frame(TAR)

    def vector(name: str, tail: bytes, why: str, error: str = "BundleFormatError") -> Vector:
        return Vector(f"statements-{name}", first + tail, why, error)

    seal = sealed(first)
    line = canonical(ENVELOPE)
    member = json.loads(seal)["bundle_sha256"]
    yield vector("none", b"", "no statements frame: the plain output of tar and zstd")
    yield vector("empty", skippable(b""), "an empty statements frame")
    yield vector("no-member", skippable(line), "no bundle_sha256")
    yield vector(
        "wrong-member", skippable(seal.replace(member.encode(), b"0" * 64)), "another digest", "BundleDigestError"
    )
    yield vector("upper-case", skippable(seal.replace(member.encode(), member.upper().encode())), "upper-case digits")
    yield vector("member-null", skippable(canonical({**ENVELOPE, "bundle_sha256": None})), "bundle_sha256 is null")
    yield vector("member-first-line", skippable(seal + line), "bundle_sha256 is not in the last line")
    yield vector("member-twice", skippable(seal + seal), "bundle_sha256 is in both lines")
    yield vector("spaced", skippable(seal.replace(b":", b": ", 1)), "not in canonical spelling")
    yield vector("no-line-feed", skippable(seal[:-1]), "the last line has no end")
    yield vector("blank-line", skippable(b"\n" + seal), "a blank line")
    yield vector("not-json", skippable(b"statements\n"), "no JSON")
    yield vector("list", skippable(b"[]\n"), "a list in place of an envelope")
    yield vector("lists", skippable(b"[" + b"[]," * 50_000 + b"[]]\n"), "what takes much memory when parsed")
    yield vector("unknown-member", skippable(sealed(first, {**ENVELOPE, "more": 1})), "an envelope with another member")
    yield vector("number", skippable(sealed(first, {**ENVELOPE, "payload": 1})), "a payload that is no text")
    yield vector("infinite", skippable(seal.replace(b'"e30="', b"1e999")), "a number beyond all bounds")
    yield vector(
        "not-utf8",
        skippable(seal.replace(b"application", b"\xffpplication")),
        "bytes that are not UTF-8",
    )
    yield vector("trailing", skippable(seal) + b"\0", "a byte after the statements frame")
    yield vector("trailing-frame", skippable(seal) + first, "a zstd frame after the statements frame")
    yield vector("trailing-skippable", skippable(seal) + skippable(seal), "a second statements frame")
    yield vector("cut", skippable(seal)[:-1], "the statements frame is cut off")
    yield vector("other-magic", skippable(seal, 0x184D2A50), "a skippable frame of another kind")
    yield vector("size-beyond", struct.pack("<II", 0x184D2A5B, 1 << 20) + seal, "declares more than there is")
    yield vector("too-large", struct.pack("<II", 0x184D2A5B, 17 << 20) + seal, "declares 17 MiB", "BundleLimitError")
    other = frame(TAR + bytes(512))
    yield Vector("statements-of-another", other + skippable(seal), "statements of another bundle", "BundleDigestError")


def hostile() -> Iterator[Vector]:
    yield from _tar_vectors()
    yield from _listing_vectors()
    yield from _frame_vectors()
    yield from _statements_vectors()
    yield Vector("empty-file", b"", "an empty file", "BundleFormatError")
    yield Vector("plain-tar", TAR, "a tar that isn't compressed", "BundleFormatError")
    yield Vector("html", b"<!doctype html><title>404</title>", "what a web server may say instead", "BundleFormatError")


def refusal(file: Path) -> str:
    """What the reader says of a hostile bundle, without its path and without words of zstd's or Python's own."""
    try:
        read_bundle(file, max_content_bytes=MAX_CONTENT_BYTES)
    except MeshbuildError as error:
        own = ("does not decompress", "is not JSON", "Exceeds the limit")
        message = str(error).removeprefix(f"{file}: ")
        return next((message[: message.index(words) + len(words)] for words in own if words in message), message)
    raise AssertionError(f"{file.name} was accepted")


def main() -> None:
    index = []
    for folder, vectors in (("good", list(good())), ("hostile", list(hostile()))):
        for old in (HERE / folder).glob("*"):
            old.unlink()
        (HERE / folder).mkdir(exist_ok=True)
        assert len({vector.name for vector in vectors}) == len(vectors)
        for vector in vectors:
            file = f"{folder}/{vector.name}.tar.zst"
            (HERE / file).write_bytes(vector.data)
            expected: dict[str, str | None] = {"content_sha256": vector.content_sha256}
            if vector.error:
                expected = {"error": vector.error, "message": refusal(HERE / file)}
            index.append({"file": file, "why": vector.why, **expected})
    (HERE / "index.json").write_text(json.dumps({"vectors": index}, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
