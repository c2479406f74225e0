"""Documents of a store, whatever they hold: one spelling, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meshbuild.digests import Sha256
from meshbuild.errors import ReleaseError
from meshbuild.jsontext import canonical_json
from meshbuild.release import ChannelDocument, ReleasedArtifact, ReleaseDocument

labels = st.from_regex(r"[a-z]([a-z0-9-]{0,8}[a-z0-9])?", fullmatch=True)
digests = st.binary(max_size=4).map(Sha256.of)
sizes = st.integers(0, (1 << 53) - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
artifacts = st.builds(
    ReleasedArtifact,
    artifact=labels,
    system=labels,
    binary=labels,
    content_sha256=digests,
    content_size_bytes=sizes,
    blob_sha256=digests,
    blob_size_bytes=sizes,
    statements_sha256=digests,
    statements_size_bytes=sizes,
)
releases = st.builds(
    ReleaseDocument,
    module=labels,
    version=labels,
    sequence=st.integers(1, (1 << 53) - 1),
    manifest=st.dictionaries(texts, values, max_size=4),
    artifacts=st.lists(artifacts, max_size=4, unique_by=lambda each: (each.artifact, each.system)).map(
        lambda found: tuple(sorted(found, key=lambda each: (each.artifact, each.system)))
    ),
)
channels = st.builds(
    ChannelDocument,
    module=labels,
    channel=labels,
    serial=st.integers(1, (1 << 53) - 1),
    release_sequence=st.integers(1, (1 << 53) - 1),
    release_sha256=digests,
)
documents = releases | channels


@given(documents)
def test_what_is_written_is_read_again_as_the_same(document: ReleaseDocument | ChannelDocument) -> None:
    data = document.to_bytes()
    again = type(document).parse(data, where="d")
    assert again == document
    assert again.to_bytes() == data


@given(documents, st.data())
def test_a_changed_byte_is_refused_or_is_another_document_in_its_own_one_spelling(
    document: ReleaseDocument | ChannelDocument, data: st.DataObject
) -> None:
    changed = bytearray(document.to_bytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        found = type(document).parse(bytes(changed), where="d")
    except ReleaseError:
        return
    assert found != document
    assert found.to_bytes() == changed


@given(documents, st.data())
def test_a_cut_document_is_refused(document: ReleaseDocument | ChannelDocument, data: st.DataObject) -> None:
    whole = document.to_bytes()
    with pytest.raises(ReleaseError):
        type(document).parse(whole[: data.draw(st.integers(0, len(whole) - 1))], where="d")


@given(documents, st.sampled_from([{"indent": 1}, {"separators": (", ", ": ")}, {"ensure_ascii": True}]))
def test_another_spelling_is_refused(document: ReleaseDocument | ChannelDocument, spelling: dict[str, Any]) -> None:
    options = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False}
    other = json.dumps(json.loads(document.to_bytes()), **{**options, **spelling}).encode() + b"\n"
    assume(other != document.to_bytes())
    with pytest.raises(ReleaseError):
        type(document).parse(other, where="d")


@given(documents, texts, values)
def test_a_key_that_is_not_known_is_refused(
    document: ReleaseDocument | ChannelDocument, key: str, value: object
) -> None:
    known = json.loads(document.to_bytes())
    assume(key not in known)
    with pytest.raises(ReleaseError):
        type(document).parse(canonical_json({**known, key: value}), where="d")


@given(releases, st.integers(1, 1 << 40), digests, sizes)
def test_numbers_and_stored_bytes_are_no_part_of_identity(
    release: ReleaseDocument, sequence: int, digest: Sha256, size: int
) -> None:
    repacked = tuple(
        each.model_copy(update={"blob_sha256": digest, "blob_size_bytes": size, "statements_sha256": digest})
        for each in release.artifacts
    )
    other = release.model_copy(update={"sequence": sequence, "artifacts": repacked})
    assert other.identity == release.identity


@given(releases, releases)
def test_two_releases_are_the_same_only_with_the_same_module_version_manifest_and_contents(
    one: ReleaseDocument, two: ReleaseDocument
) -> None:
    def told(each: ReleaseDocument) -> bytes:
        contents = [[part.artifact, part.system, part.content_sha256] for part in each.artifacts]
        return canonical_json({"m": each.module, "v": each.version, "j": each.manifest, "c": contents})

    assert (one.identity == two.identity) == (told(one) == told(two))


@given(values)
def test_any_json_value_is_read_or_refused_and_nothing_else(value: object) -> None:
    for kind in (ReleaseDocument, ChannelDocument):
        with pytest.raises(ReleaseError):
            kind.parse(canonical_json(value), where="d")
