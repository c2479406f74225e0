"""The documents of a store: one spelling, strict reading, and who holds what."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner

from meshbuild.digests import Sha256
from meshbuild.errors import ClaimError, PolicyError, ReleaseError
from meshbuild.jsontext import canonical_json
from meshbuild.release import (
    ChannelDocument,
    PolicyDocument,
    ReleasedArtifact,
    ReleaseDocument,
    object_key,
)
from meshbuild.signing import public_pem

ONE, TWO = Sha256.of(b"1"), Sha256.of(b"2")


def artifact(**more: Any) -> ReleasedArtifact:
    values = {
        "artifact": "server",
        "system": "arch",
        "binary": "server",
        "content_sha256": ONE,
        "content_size_bytes": 1,
        "blob_sha256": TWO,
        "blob_size_bytes": 2,
        "statements_sha256": TWO,
        "statements_size_bytes": 3,
    }
    return ReleasedArtifact(**{**values, **more})


def release(**more: Any) -> ReleaseDocument:
    values: dict[str, Any] = {
        "module": "hello",
        "version": "1",
        "sequence": 1,
        "manifest": {"module": "hello"},
        "artifacts": (artifact(),),
    }
    return ReleaseDocument(**{**values, **more})


def test_documents_round_trip_in_one_spelling() -> None:
    channel = ChannelDocument(module="hello", channel="stable", serial=2, release_sequence=1, release_sha256=ONE)
    assert ReleaseDocument.parse(release().to_bytes(), where="r") == release()
    assert ChannelDocument.parse(channel.to_bytes(), where="c") == channel
    assert release().target_name == "hello/release.1.json"
    assert channel.target_name == "hello/channel.stable.json"
    with pytest.raises(ReleaseError, match="not in canonical spelling"):
        ReleaseDocument.parse(json.dumps(json.loads(release().to_bytes()), indent=1).encode(), where="r")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "format"),
        ({"more": 1}, "more"),
        ({"sequence": 0}, "sequence"),
        ({"sequence": "1"}, "sequence"),
        ({"module": "../etc"}, "module"),
        ({"version": "a/b"}, "version"),
        ({"artifacts": [{}]}, "artifacts.0"),
        ({"manifest": None}, "manifest"),
    ],
)
def test_anything_else_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    value = {**json.loads(release().to_bytes()), **change}
    with pytest.raises(ReleaseError, match=said):
        ReleaseDocument.parse(canonical_json(value), where="r")


def test_a_channel_with_deltas_of_a_later_version_can_be_read() -> None:
    channel = ChannelDocument(module="hello", channel="stable", serial=2, release_sequence=1, release_sha256=ONE)
    later = canonical_json({**json.loads(channel.to_bytes()), "deltas": [{"codec": "later", "size_bytes": 1}]})
    assert ChannelDocument.parse(later, where="c").to_bytes() == later


def test_artifacts_are_sorted_and_none_is_there_twice() -> None:
    for wrong in ((artifact(system="b"), artifact(system="a")), (artifact(), artifact())):
        with pytest.raises(ValueError, match="not sorted, or one is there twice"):
            release(artifacts=wrong)


def test_identity_is_module_version_manifest_and_contents_and_nothing_else() -> None:
    same = [release(sequence=9), release(artifacts=(artifact(blob_sha256=ONE, statements_sha256=ONE),))]
    others = [
        release(module="other"),
        release(version="2"),
        release(manifest={}),
        release(artifacts=(artifact(content_sha256=TWO),)),
        release(artifacts=()),
    ]
    assert {each.identity for each in same} == {release().identity}
    assert len({release().identity, *(each.identity for each in others)}) == 6


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for kind in (ReleaseDocument, ChannelDocument, PolicyDocument):
        with pytest.raises(ReleaseError):
            kind.parse(data, where="d")


def policy(**claims: tuple[str, ...]) -> PolicyDocument:
    document = PolicyDocument()
    for module, held in claims.items():
        key = CryptoSigner.generate_ed25519().public_key
        document = document.granting(module, key, public_pem(key), held)
    return document


def test_no_entry_means_refuse() -> None:
    with pytest.raises(PolicyError, match="no entry for the module 'hello'"):
        policy(other=()).entry("hello")


def test_a_claim_is_held_by_one_module() -> None:
    held = policy(first=("leader",), second=("leader", "free"))
    assert held.holder("leader") == "first"
    assert held.modules["second"].claims == ("free",)
    claiming = {"claims": [{"name": "leader", "scope": "mesh"}, {"name": "x", "scope": "host"}]}
    held.check_claims("first", claiming)
    with pytest.raises(ClaimError, match="first holds it"):
        held.check_claims("second", claiming)
    with pytest.raises(ClaimError, match="grants that to nobody"):
        held.check_claims("first", {"claims": [{"name": "unknown", "scope": "mesh"}]})


def test_a_builders_keyid_must_be_that_of_its_key() -> None:
    value = json.loads(policy(hello=()).to_bytes())
    value["modules"]["hello"]["builders"][0]["keyid"] = ONE
    with pytest.raises(ReleaseError, match="the key's id is"):
        PolicyDocument.parse(canonical_json(value), where="policy.json")


def test_an_object_lies_under_its_digest() -> None:
    assert object_key(ONE) == f"objects/sha256/{ONE[:2]}/{ONE}"
