"""Every bundle of tests/vectors: the good ones are accepted, the hostile ones refused, each for its own reason."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from meshbuild import errors
from meshbuild.bundle import BundleIdentity, PackInput, check_folder, read_bundle, read_statements, write_bundle
from tests.vectors import generate

if TYPE_CHECKING:
    from collections.abc import Sequence

VECTORS = Path(generate.__file__).parent
INDEX: list[dict[str, Any]] = json.loads((VECTORS / "index.json").read_text())["vectors"]
GOOD = [vector for vector in INDEX if "content_sha256" in vector]
HOSTILE = [vector for vector in INDEX if "error" in vector]


def names(vectors: Sequence[dict[str, Any]]) -> list[str]:
    return [Path(vector["file"]).name.removesuffix(".tar.zst") for vector in vectors]


def test_index_names_every_vector_once_and_gives_it_a_reason() -> None:
    files = sorted(file.relative_to(VECTORS).as_posix() for file in VECTORS.glob("*/*.tar.zst"))
    assert sorted(vector["file"] for vector in INDEX) == files
    assert all(vector["why"] for vector in INDEX)
    assert len(GOOD) + len(HOSTILE) == len(INDEX)


def test_generator_still_makes_the_vectors_of_the_index() -> None:
    made = {f"good/{v.name}.tar.zst": (v.why, v.content_sha256) for v in generate.good()}
    made |= {f"hostile/{v.name}.tar.zst": (v.why, v.error) for v in generate.hostile()}
    assert made == {v["file"]: (v["why"], v.get("content_sha256") or v["error"]) for v in INDEX}


@pytest.mark.parametrize("vector", HOSTILE, ids=names(HOSTILE))
def test_hostile_bundle_is_refused_for_its_own_reason_and_leaves_nothing(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    expected: type[errors.MeshbuildError] = getattr(errors, vector["error"])
    with pytest.raises(expected) as caught:
        read_bundle(VECTORS / vector["file"], into=tmp_path / "out", max_content_bytes=generate.MAX_CONTENT_BYTES)
    assert type(caught.value) is expected
    assert str(caught.value).startswith(f"{VECTORS / vector['file']}: {vector['message']}")
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vector", GOOD, ids=names(GOOD))
def test_good_bundle_is_read_and_its_content_made_again_to_the_byte(vector: dict[str, Any], tmp_path: Path) -> None:
    blob = VECTORS / vector["file"]
    info = read_bundle(blob, into=tmp_path / "out")
    content = zstandard.ZstdDecompressor().decompress(blob.read_bytes())
    assert info.content_sha256 == vector["content_sha256"] == hashlib.sha256(content).hexdigest()
    assert info.blob_sha256 == hashlib.sha256(blob.read_bytes()).hexdigest()
    assert info.listing.content_size_bytes == info.content_size_bytes == len(content)
    assert info.statements == read_statements(blob)
    assert check_folder(tmp_path / "out", info.content_sha256) == info.listing

    listing = info.listing
    made = write_bundle(
        tmp_path / "again.tar.zst",
        BundleIdentity(listing.module, listing.artifact, listing.version, listing.system, listing.binary),
        [PackInput(file.path, tmp_path / "out" / file.path, file.mode) for file in listing.files],
        attest=lambda _listing, _content: info.statements.splitlines(keepends=True),
    )
    assert made.content_sha256 == vector["content_sha256"]
    assert zstandard.ZstdDecompressor().decompress((tmp_path / "again.tar.zst").read_bytes()) == content
    assert made.statements == info.statements
