from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zstandard

from meshbuild import bundle, paths
from meshbuild.bundle import (
    BundleIdentity,
    BundleInfo,
    Listing,
    PackInput,
    check_folder,
    read_bundle,
    read_statements,
    rebuild_tar,
    write_bundle,
)
from meshbuild.digests import Sha256
from meshbuild.errors import (
    BundleDigestError,
    BundleFormatError,
    BundleLimitError,
    InputsChangedError,
    LocalFileError,
    MeshbuildError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

WHO = BundleIdentity("demo", "tool", "1.0", "arch", "tool")
LINE = b'{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"k","sig":"AAAA"}]}\n'


def said(_listing: Listing, _content: Sha256) -> list[bytes]:
    return [LINE]


def sources(folder: Path) -> list[PackInput]:
    """A program, an empty file, and a text below two folders."""
    folder.mkdir(exist_ok=True)
    for name, data in {
        "program": b"\x7fELF" + bytes(range(256)) * 5,
        "empty": b"",
        "text": "grüß Gott\n".encode(),
    }.items():
        (folder / name).write_bytes(data)
    return [
        PackInput("ui/de/hello", folder / "text", 0o644),
        PackInput("tool", folder / "program", 0o755),
        PackInput("empty", folder / "empty", 0o644),
    ]


def pack(folder: Path, name: str = "b.tar.zst", *, level: int = 9) -> BundleInfo:
    return write_bundle(folder / name, WHO, sources(folder / "in"), attest=said, level=level)


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# Writing and reading back


def test_what_is_packed_comes_back_with_its_modes(tmp_path: Path) -> None:
    written = pack(tmp_path)
    with umask(0o077):
        read = read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "out", expected_content=written.content_sha256)
    assert read == written
    assert read.statements == LINE == read_statements(tmp_path / "b.tar.zst")
    assert read.blob_sha256 == Sha256.of_file(tmp_path / "b.tar.zst")
    assert read.blob_size_bytes == (tmp_path / "b.tar.zst").stat().st_size
    assert [file.path for file in read.listing.files] == ["empty", "tool", "ui/de/hello"]
    found = {
        file.relative_to(tmp_path / "out").as_posix(): stat.filemode(file.lstat().st_mode)
        for file in [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    }
    assert found == {
        ".": "drwxr-xr-x",
        ".bundle": "drwxr-xr-x",
        ".bundle/bundle.json": "-rw-r--r--",
        "empty": "-rw-r--r--",
        "tool": "-rwxr-xr-x",
        "ui": "drwxr-xr-x",
        "ui/de": "drwxr-xr-x",
        "ui/de/hello": "-rw-r--r--",
    }
    assert (tmp_path / "out/ui/de/hello").read_text() == "grüß Gott\n"
    assert (tmp_path / "out/.bundle/bundle.json").read_bytes() == read.listing.to_bytes()


def test_tar_zstd_and_file_accept_a_bundle(tmp_path: Path) -> None:
    info = pack(tmp_path)
    blob = tmp_path / "b.tar.zst"
    subprocess.run(["zstd", "-q", "-t", blob], check=True)
    content = subprocess.run(["zstd", "-q", "-d", "-c", blob], check=True, capture_output=True).stdout
    assert hashlib.sha256(content).hexdigest() == info.content_sha256
    listed = subprocess.run(["tar", "-tf", blob], check=True, capture_output=True, text=True)
    assert (listed.stdout, listed.stderr) == (".bundle/bundle.json\nempty\ntool\nui/de/hello\n", "")
    assert "Zstandard" in subprocess.run(["file", "-b", blob], check=True, capture_output=True, text=True).stdout
    (tmp_path / "content").write_bytes(content)
    kind = subprocess.run(["file", "-b", tmp_path / "content"], check=True, capture_output=True, text=True).stdout
    assert "tar archive" in kind
    (tmp_path / "by-tar").mkdir()
    subprocess.run(["tar", "-C", tmp_path / "by-tar", "-xpf", blob], check=True)
    assert check_folder(tmp_path / "by-tar", info.content_sha256) == info.listing


def test_content_digest_is_that_of_the_inputs_alone(tmp_path: Path) -> None:
    expected = pack(tmp_path)
    inputs = sources(tmp_path / "other")
    for number, each in enumerate(inputs):
        os.utime(each.source, (number, number))
        each.source.chmod(0o640)
        (tmp_path / f"link{number}").hardlink_to(each.source)
    with umask(0):
        again = write_bundle(tmp_path / "2.tar.zst", WHO, inputs[::-1], attest=said, level=1)
    assert again.content_sha256 == expected.content_sha256
    assert again.listing == expected.listing


def test_hard_linked_inputs_are_two_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"same")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").write_bytes(b"same")
    digests = {
        write_bundle(
            tmp_path / f"{second}.zst",
            WHO,
            [PackInput("tool", tmp_path / "a", 0o755), PackInput("more", tmp_path / second, 0o644)],
            attest=said,
        ).content_sha256
        for second in ("a", "b", "c")
    }
    assert len(digests) == 1


def test_blob_is_the_same_for_any_number_of_threads_but_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Noise, repeated far and near, over several of zstd's jobs.
    noise = hashlib.shake_256(b"noise").digest(3 << 20)
    (tmp_path / "program").write_bytes((noise + noise[::-1] + bytes(1 << 20)) * 4)
    blobs = set()
    for threads in (1, 2, 4, 8):
        monkeypatch.setattr(bundle, "_THREADS", threads)
        target = tmp_path / f"{threads}.zst"
        write_bundle(target, WHO, [PackInput("tool", tmp_path / "program", 0o755)], attest=said)
        blobs.add(target.read_bytes())
    assert len(blobs) == 1


def test_frame_says_its_size_has_a_checksum_and_a_modest_window(tmp_path: Path) -> None:
    (tmp_path / "program").touch()
    os.truncate(tmp_path / "program", 200 << 20)
    info = write_bundle(tmp_path / "b.zst", WHO, [PackInput("tool", tmp_path / "program", 0o755)], attest=said)
    parameters = zstandard.get_frame_parameters((tmp_path / "b.zst").read_bytes()[:18])
    assert parameters.content_size == info.content_size_bytes == info.listing.content_size_bytes
    assert parameters.has_checksum
    assert parameters.dict_id == 0
    assert parameters.window_size == 1 << 26


def test_several_statements_come_back_as_they_were_given(tmp_path: Path) -> None:
    lines = [LINE, LINE.replace(b'"k"', b'"an \\"odd\\" key"'), LINE.replace(b'{"keyid":"k","sig":"AAAA"}', b"")]
    info = write_bundle(tmp_path / "b.zst", WHO, sources(tmp_path / "in"), attest=lambda *_: lines)
    assert info.statements == b"".join(lines) == read_bundle(tmp_path / "b.zst").statements
    one = pack(tmp_path)
    assert info.content_sha256 == one.content_sha256
    assert info.blob_sha256 != one.blob_sha256


def test_statements_are_made_from_listing_and_content_digest(tmp_path: Path) -> None:
    seen = []

    def attest(listing: Listing, content: Sha256) -> list[bytes]:
        seen.append((listing, content))
        return [LINE]

    info = write_bundle(tmp_path / "b.zst", WHO, sources(tmp_path / "in"), attest=attest)
    assert seen == [(info.listing, info.content_sha256)]


# Every byte counts


def damaged(path: Path, out: Path) -> str:
    """Read a damaged bundle with extraction, and prove that it is refused and leaves nothing; returns the message."""
    with pytest.raises(MeshbuildError) as caught:
        read_bundle(path, into=out)
    assert not out.exists()
    with pytest.raises(MeshbuildError):
        read_statements(path)
    return str(caught.value)


def test_any_byte_flipped_is_refused(tmp_path: Path) -> None:
    pack(tmp_path)
    whole = (tmp_path / "b.tar.zst").read_bytes()
    bad = tmp_path / "bad"
    for at in range(len(whole)):
        for mask in (0x01, 0x80, 0xFF):
            bad.write_bytes(whole[:at] + bytes([whole[at] ^ mask]) + whole[at + 1 :])
            damaged(bad, tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b.tar.zst", "bad", "in"]


def test_truncation_at_any_byte_is_refused(tmp_path: Path) -> None:
    pack(tmp_path)
    whole = (tmp_path / "b.tar.zst").read_bytes()
    bad = tmp_path / "bad"
    for size in range(len(whole)):
        bad.write_bytes(whole[:size])
        assert damaged(bad, tmp_path / "out").startswith(f"{bad}: ")


def test_flips_that_decompress_to_the_same_content_are_refused_too(tmp_path: Path) -> None:
    # What bundle_sha256 is for: zstd accepts a window descriptor that says more than is needed.
    (tmp_path / "program").write_bytes(hashlib.shake_256(b"").digest(3 << 20))
    inputs = [PackInput("tool", tmp_path / "program", 0o755)]
    info = write_bundle(tmp_path / "b.zst", WHO, inputs, attest=said)
    whole = bytearray((tmp_path / "b.zst").read_bytes())
    whole[4] |= 0x10  # the unused bit
    assert hashlib.sha256(zstandard.ZstdDecompressor().decompress(whole)).hexdigest() == info.content_sha256
    (tmp_path / "b.zst").write_bytes(whole)
    damaged(tmp_path / "b.zst", tmp_path / "out")


def test_other_content_than_expected_is_refused_and_removed(tmp_path: Path) -> None:
    info = pack(tmp_path)
    with pytest.raises(BundleDigestError, match=f"its content is {info.content_sha256}, expected was 0000"):
        read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "out", expected_content=Sha256("0" * 64))
    assert not (tmp_path / "out").exists()


def test_content_over_the_callers_limit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    info = pack(tmp_path)
    read_bundle(tmp_path / "b.tar.zst", max_content_bytes=info.content_size_bytes)
    with pytest.raises(BundleLimitError, match="more than the"):
        read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "out", max_content_bytes=info.content_size_bytes - 1)
    assert not (tmp_path / "out").exists()


# What is refused at packing


@pytest.mark.parametrize(
    ("path", "mode", "words"),
    [
        ("../tool", 0o644, "leads outside"),
        ("/tool", 0o644, "absolute"),
        (".bundle/x", 0o644, "reserved"),
        ("tool", 0o644, "lists 'tool' twice"),
        ("tool/x", 0o644, "below 'tool', which is a file"),
        ("x", 0o4755, "the mode '4755'"),
        ("x", 0o600, "the mode '0600'"),
        ("a\udcff", 0o644, "not valid Unicode"),
        ("x" * 1025, 0o644, "longer than 1024 bytes"),
    ],
)
def test_paths_and_modes_that_no_bundle_may_have(path: str, mode: int, words: str, tmp_path: Path) -> None:
    inputs = sources(tmp_path / "in")
    with pytest.raises(BundleFormatError) as caught:
        write_bundle(tmp_path / "b.zst", WHO, [*inputs, PackInput(path, inputs[0].source, mode)], attest=said)
    assert words in str(caught.value)
    assert str(caught.value).startswith("could not pack b.zst: ")
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"{}\n"],
        [LINE[:-1]],
        [LINE + LINE],
        [LINE.replace(b":", b": ")],
        [b'{"bundle_sha256":"' + b"0" * 64 + b'",' + LINE[1:]],
    ],
)
def test_statements_that_a_reader_would_refuse(lines: list[bytes], tmp_path: Path) -> None:
    with pytest.raises(BundleFormatError, match="statement"):
        write_bundle(tmp_path / "b.zst", WHO, sources(tmp_path / "in"), attest=lambda *_: lines)
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_statements_and_listing_over_their_limits(tmp_path: Path) -> None:
    large = LINE.replace(b"e30=", b"A" * (16 << 20))
    with pytest.raises(BundleLimitError, match="its statements would have"):
        write_bundle(tmp_path / "b.zst", WHO, sources(tmp_path / "in"), attest=lambda *_: [large])
    empty = tmp_path / "in/empty"
    many = [PackInput(f"{number:06}/{'x' * 900}", empty, 0o644) for number in range(17_000)]
    with pytest.raises(BundleLimitError, match=r"its bundle\.json would have"):
        write_bundle(tmp_path / "b.zst", WHO, [*sources(tmp_path / "in"), *many], attest=said)
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


def test_links_fifos_folders_and_missing_files_are_no_inputs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    expected = {"link": LocalFileError, "fifo": BundleFormatError, "missing": LocalFileError, ".": BundleFormatError}
    for name, error in expected.items():
        with pytest.raises(error):
            write_bundle(tmp_path / "out/b.zst", WHO, [PackInput("tool", tmp_path / name, 0o755)], attest=said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", ["other bytes", "longer", "shorter", "gone", "link"])
def test_input_that_changes_while_it_is_packed_is_noticed(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = sources(tmp_path / "in")
    program = tmp_path / "in/program"
    first_reading = bundle._measure
    data = program.read_bytes()

    def measure_then_change(each: PackInput) -> bundle.FileEntry:
        measured = first_reading(each)
        if each.source == program:
            program.unlink()
            if change == "link":
                (tmp_path / "moved").write_bytes(data)
                program.symlink_to(tmp_path / "moved")
            elif change != "gone":
                program.write_bytes({"other bytes": data[::-1], "longer": data + b"x", "shorter": data[:-1]}[change])
        return measured

    monkeypatch.setattr(bundle, "_measure", measure_then_change)
    (tmp_path / "b.zst").write_bytes(b"an earlier bundle")
    with pytest.raises((InputsChangedError, LocalFileError)) as caught:
        write_bundle(tmp_path / "b.zst", WHO, inputs, attest=said)
    assert (type(caught.value) is LocalFileError) == (change == "link")
    assert (tmp_path / "b.zst").read_bytes() == b"an earlier bundle"
    assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]


def test_failing_attestation_leaves_nothing(tmp_path: Path) -> None:
    def attest(_listing: Listing, _content: Sha256) -> list[bytes]:
        raise KeyError("no key")

    with pytest.raises(KeyError):
        write_bundle(tmp_path / "b.zst", WHO, sources(tmp_path / "in"), attest=attest)
    assert [file.name for file in tmp_path.iterdir()] == ["in"]


# The disk


@contextlib.contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """A full disk, near enough: the kernel cuts a write short at the limit, and refuses the next."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_disk_that_takes_only_a_part_leaves_nothing(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(hashlib.shake_256(b"").digest(3_000_000))
    inputs = [PackInput("tool", program, 0o755)]
    with files_of_at_most(1_500_000), pytest.raises(LocalFileError, match="could not write"):
        write_bundle(tmp_path / "b.zst", WHO, inputs, attest=said)
    assert [file.name for file in tmp_path.iterdir()] == ["program"]
    write_bundle(tmp_path / "b.zst", WHO, inputs, attest=said)
    with files_of_at_most(1_500_000), pytest.raises(LocalFileError, match="could not extract"):
        read_bundle(tmp_path / "b.zst", into=tmp_path / "out")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["b.zst", "program"]


def test_extracting_never_touches_what_is_there_already(tmp_path: Path) -> None:
    pack(tmp_path)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for into in (tmp_path / "out", tmp_path / "link", tmp_path / "in/text"):
        with pytest.raises(LocalFileError, match="File exists"):
            read_bundle(tmp_path / "b.tar.zst", into=into)
    assert (tmp_path / "out/mine").read_text() == "mine"
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(LocalFileError, match="No such file"):
        read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "no/out")
    with pytest.raises(LocalFileError, match="could not read"):
        read_bundle(tmp_path / "missing", into=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_all_that_is_extracted_is_fsynced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path)
    synced = set()
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.add(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    out = tmp_path / "out"
    read_bundle(tmp_path / "b.tar.zst", into=out)
    assert synced == {out, *out.rglob("*")}


MEMORY = """
import sys
from pathlib import Path
from meshbuild.bundle import BundleIdentity, PackInput, read_bundle, write_bundle
folder, line = Path(sys.argv[1]), sys.argv[2].encode()
inputs = [PackInput("tool", folder / "program", 0o755)]
write_bundle(folder / "b.zst", BundleIdentity("a", "b", "c", "d", "tool"), inputs, attest=lambda *_: [line])
read_bundle(folder / "b.zst", into=folder / "out")
# Not ru_maxrss: that starts with what the parent had.
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def test_memory_does_not_grow_with_the_payload(tmp_path: Path) -> None:
    # Twice and four times the window, of bytes that repeat only at a distance.
    piece = hashlib.shake_256(b"").digest(4 << 20)
    peaks_mib = []
    for count in (32, 64):
        folder = tmp_path / str(count)
        folder.mkdir()
        with (folder / "program").open("wb") as file:
            for number in range(count):
                file.write(piece[number << 16 :] + piece[: number << 16])
        command = [sys.executable, "-c", MEMORY, folder, LINE]
        peaks_mib.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) >> 10)
        shutil.rmtree(folder)
    assert max(peaks_mib) < 200
    assert peaks_mib[1] < peaks_mib[0] + 10


# An extracted folder


def test_folder_that_is_whole_gives_its_tar_again(tmp_path: Path) -> None:
    info = pack(tmp_path)
    read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "out")
    assert check_folder(tmp_path / "out", info.content_sha256) == info.listing
    with (tmp_path / "tar").open("wb") as sink:
        assert rebuild_tar(tmp_path / "out", sink) == info.listing
    assert (tmp_path / "tar").read_bytes() == zstandard.ZstdDecompressor().decompress(
        (tmp_path / "b.tar.zst").read_bytes()
    )


def test_folder_with_any_fault_is_not_whole(tmp_path: Path) -> None:
    info = pack(tmp_path)
    read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "whole")
    out = tmp_path / "out"

    def relink(path: Path) -> None:
        (tmp_path / "moved").unlink(missing_ok=True)
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")

    def relink_folder() -> None:
        shutil.move(out / "ui", tmp_path / "ui")
        (out / "ui").symlink_to(tmp_path / "ui")

    faults = {
        "tool is missing": (out / "tool").unlink,
        "more is not listed": (out / "more").touch,
        ".bundle/more is not listed": (out / ".bundle/more").touch,
        "empty has the mode 0755, expected 0644": lambda: (out / "empty").chmod(0o755),
        "tool is not a regular file": lambda: relink(out / "tool"),
        "ui is not listed": relink_folder,
        "tool is not what it was": lambda: (out / "tool").write_bytes(bytes((out / "tool").stat().st_size)),
        "empty is not what it was": lambda: (out / "empty").write_bytes(b"x"),
        "not in its one spelling": lambda: (out / ".bundle/bundle.json").write_bytes(info.listing.to_bytes() + b"\n"),
        "No such file": lambda: shutil.rmtree(out),
        "Too many levels of symbolic links": lambda: relink(out / ".bundle/bundle.json"),
    }
    for words, fault in faults.items():
        shutil.copytree(tmp_path / "whole", out)
        fault()
        with pytest.raises(BundleDigestError) as caught:
            check_folder(out, info.content_sha256)
        assert words in str(caught.value)
        shutil.rmtree(out, ignore_errors=True)


def test_whole_folder_of_another_bundle_is_refused(tmp_path: Path) -> None:
    pack(tmp_path)
    read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "out")
    with pytest.raises(BundleDigestError, match="expected was 0000"):
        check_folder(tmp_path / "out", Sha256("0" * 64))


def test_nothing_temporary_is_left_by_a_whole_round(tmp_path: Path) -> None:
    pack(tmp_path)
    read_bundle(tmp_path / "b.tar.zst", into=tmp_path / "out")
    assert not [file for file in tmp_path.rglob("*") if paths._TEMP_MARK in file.name]
