"""Whatever tree is packed comes back, and whatever is read is either a bundle or an error of ours."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from meshbuild.bundle import (
    BundleIdentity,
    BundleInfo,
    Listing,
    PackInput,
    check_folder,
    read_bundle,
    read_statements,
    write_bundle,
)
from meshbuild.errors import MeshbuildError
from meshbuild.paths import check_relative_path
from tests.vectors import generate

WHO = BundleIdentity("demo", "tool", "1", "arch", "tool")
LINE = generate.canonical(generate.ENVELOPE)


def is_path(text: str) -> bool:
    try:
        check_relative_path(text)
    except ValueError:
        return False
    return text.split("/", 1)[0] not in {".bundle", "tool"} and max(len(p.encode()) for p in text.split("/")) <= 255


def without_files_as_folders(tree: dict[str, Any]) -> dict[str, Any]:
    return {path: file for path, file in tree.items() if not any(other.startswith(f"{path}/") for other in tree)}


parts = st.text(min_size=1, max_size=120) | st.sampled_from(["a", "a-b", "a.b", "A", "ä", "n" * 100])
names = st.lists(parts, min_size=1, max_size=4).map("/".join).filter(is_path)
files = st.tuples(st.binary(max_size=1500), st.sampled_from([0o644, 0o755]))
trees = st.dictionaries(names, files, max_size=8).map(without_files_as_folders)


def pack(folder: Path, target: str, tree: dict[str, tuple[bytes, int]], order: list[str]) -> BundleInfo:
    inputs = []
    for path in order:
        data, mode = tree[path]
        source = folder / f"{target}-{len(inputs)}"
        source.write_bytes(data)
        inputs.append(PackInput(path, source, mode))
    return write_bundle(folder / target, WHO, inputs, attest=lambda *_: [LINE], level=1)


@settings(deadline=None, max_examples=60)
@given(
    tree=trees, program=st.binary(max_size=3000), random=st.randoms(use_true_random=False), mask=st.integers(0, 0o77)
)
def test_any_tree_comes_back_and_its_digest_is_its_own(
    tree: dict[str, tuple[bytes, int]], program: bytes, random: Any, mask: int
) -> None:
    tree = {**tree, "tool": (program, 0o755)}
    order = list(tree)
    random.shuffle(order)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = pack(folder, "first", tree, sorted(tree))
        before = os.umask(mask)
        try:
            second = pack(folder, "second", tree, order)
            read = read_bundle(folder / "second", into=folder / "out")
        finally:
            os.umask(before)
        assert first.content_sha256 == second.content_sha256 == read.content_sha256
        assert {
            path: ((folder / "out" / path).read_bytes(), (folder / "out" / path).lstat().st_mode & 0o7777)
            for path in tree
        } == tree
        assert [file.path for file in read.listing.files] == sorted(tree, key=str.encode)
        assert check_folder(folder / "out", read.content_sha256) == read.listing
        assert Listing.parse(read.listing.to_bytes()) == read.listing


def refused_or_whole(data: bytes) -> None:
    """Reading raises an error of ours and leaves nothing, or extracts what the content digest says."""
    with tempfile.TemporaryDirectory() as name:
        file, out = Path(name, "file"), Path(name, "out")
        file.write_bytes(data)
        try:
            read_statements(file)
            info = read_bundle(file, into=out, max_content_bytes=1 << 20)
        except MeshbuildError:
            assert not out.exists()
        else:
            check_folder(out, info.content_sha256)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300).map(lambda data: data[:1] and (b"\x28\xb5\x2f\xfd" + data)) | st.binary(max_size=300))
def test_any_bytes_are_refused_with_an_error_of_ours(data: bytes) -> None:
    refused_or_whole(data)


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_any_statements_are_refused_with_an_error_of_ours(data: bytes) -> None:
    refused_or_whole(generate.frame(generate.TAR) + generate.skippable(data))


@settings(deadline=None, max_examples=200)
@given(at=st.integers(0, len(generate.TAR)), cut=st.integers(0, 600), put=st.binary(max_size=600))
@example(at=0, cut=0, put=b"")
def test_any_change_of_the_tar_is_refused_though_it_is_sealed_rightly(at: int, cut: int, put: bytes) -> None:
    content = generate.TAR[:at] + put + generate.TAR[at + cut :]
    with tempfile.TemporaryDirectory() as name:
        file, out = Path(name, "file"), Path(name, "out")
        file.write_bytes(generate.bundle(content))
        try:
            info = read_bundle(file, into=out)
        except MeshbuildError:
            assert not out.exists()
            assert content != generate.TAR
        else:
            # bundle.json determines the tar: with the same listing there is only one.
            assert info.content_sha256 == hashlib.sha256(content).hexdigest()
            assert info.listing.to_bytes() != generate.listing() or content == generate.TAR


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
listings = st.dictionaries(
    st.sampled_from(["format", "module", "artifact", "version", "system", "binary", "files", "more"]), json_values
) | st.builds(
    lambda key, value: {**generate.FILES[1], key: value},
    st.sampled_from(["path", "sha256", "size_bytes", "mode", "more"]),
    json_values,
).map(lambda file: {"files": [generate.FILES[0], file]})


@settings(deadline=None, max_examples=200)
@given(listings)
def test_any_listing_is_refused_or_says_itself(changes: dict[str, Any]) -> None:
    changes = {"format": 1, **changes}
    try:
        text = generate.listing(**changes)
    except UnicodeEncodeError:
        return
    try:
        listing = Listing.parse(text)
    except MeshbuildError:
        return
    assert listing.to_bytes() == text
