"""Whatever the bytes of a statements frame, only what a trusted key signed about this content is accepted."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.signer import CryptoSigner

from meshbuild.digests import Sha256
from meshbuild.errors import BundleLimitError, SignatureError, UntrustedBuilderError
from meshbuild.jsontext import canonical_json
from meshbuild.provenance import CYCLONEDX_BOM, statement
from meshbuild.signing import (
    SLSA_PROVENANCE,
    SignedStatement,
    VerifiedStatements,
    read_statements_unverified,
    sign_statement,
    verify_statements,
)

BUILDERS = [CryptoSigner.generate_ed25519() for _ in range(4)]
CONTENT = Sha256.of(b"content")
FILES = {"bin/app": Sha256.of(b"app"), "etc/ü": Sha256.of(b"conf")}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
NAMES = ["payload", "payloadType", "signatures", "keyid", "sig", "_type", "subject", "predicateType", "predicate"]


def said(predicate: dict[str, Any], kind: str = SLSA_PROVENANCE) -> dict[str, Any]:
    return statement(kind, predicate, name="m.a-1-arch.tar", content_sha256=CONTENT, files=FILES)


def check(statements: bytes, trusted: list[CryptoSigner], needed: int = 1) -> VerifiedStatements:
    keys = [signer.public_key for signer in trusted]
    return verify_statements(statements, keys=keys, needed=needed, content_sha256=CONTENT, files=FILES)


FRAME = canonical_json(sign_statement(said({"a": 1}), BUILDERS[0])) + canonical_json(
    sign_statement(said({"b": 2}, CYCLONEDX_BOM), BUILDERS[0])
)


@given(st.binary() | st.lists(VALUES.map(canonical_json), max_size=3).map(b"".join))
def test_noise_is_refused_by_one_of_our_errors(noise: bytes) -> None:
    with pytest.raises((SignatureError, BundleLimitError)):
        check(noise, BUILDERS)


@given(st.dictionaries(st.sampled_from(NAMES), VALUES), st.lists(st.dictionaries(st.sampled_from(NAMES), VALUES)))
def test_half_right_envelopes_are_refused(fields: dict[str, Any], signatures: list[dict[str, Any]]) -> None:
    envelope = {**sign_statement(said({}), BUILDERS[3]), **fields, "signatures": signatures}
    with pytest.raises((SignatureError, BundleLimitError, UntrustedBuilderError)):
        check(canonical_json(envelope), BUILDERS[:3])


@given(st.dictionaries(st.sampled_from(NAMES), VALUES), st.sampled_from(NAMES))
def test_half_right_payloads_are_refused_or_read(fields: dict[str, Any], dropped: str) -> None:
    payload = {**said({}), **fields}
    payload.pop(dropped, None)
    frame = canonical_json(sign_statement(payload, BUILDERS[0]))
    try:
        found = read_statements_unverified(frame)
    except SignatureError:
        found = ()
    assert all(isinstance(one, SignedStatement) for one in found)


@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(at: int, by: int) -> None:
    changed = bytearray(FRAME)
    changed[at] ^= by
    try:
        verified = check(bytes(changed), BUILDERS[:1])
    except (SignatureError, UntrustedBuilderError):
        return
    # A keyid that was changed only turns a signature into a foreign one: nobody vouches for that one.
    assert len(verified.statements) == 1
    assert at > FRAME.index(b"\n")


@given(st.integers(0, len(FRAME) - 1))
def test_a_frame_cut_off_is_refused_or_ends_with_a_whole_statement(size: int) -> None:
    if size == FRAME.index(b"\n") + 1:
        assert len(check(FRAME[:size], BUILDERS).statements) == 1
        return
    with pytest.raises(SignatureError):
        check(FRAME[:size], BUILDERS)


@given(st.dictionaries(st.text(), VALUES, max_size=4))
def test_what_is_signed_is_what_is_read(predicate: dict[str, Any]) -> None:
    frame = canonical_json(sign_statement(said(predicate), BUILDERS[0]))
    verified = check(frame, BUILDERS[:1])
    (unverified,) = read_statements_unverified(frame)
    assert verified.statements[0].predicate == unverified.predicate == predicate


@given(
    st.lists(
        st.tuples(st.sampled_from([SLSA_PROVENANCE, CYCLONEDX_BOM]), st.sets(st.integers(0, 3), min_size=1)), min_size=1
    ),
    st.sets(st.integers(0, 3)),
    st.integers(1, 4),
)
def test_builders_are_counted_as_sets_of_keys(plan: list[tuple[str, set[int]]], trusted: set[int], needed: int) -> None:
    frame = b""
    for kind, by in plan:
        envelopes = [sign_statement(said({}, kind), BUILDERS[one]) for one in sorted(by)]
        signatures = [envelope["signatures"][0] for envelope in envelopes]
        frame += canonical_json({**envelopes[0], "signatures": signatures})
    vouching = trusted & {one for kind, by in plan if kind == SLSA_PROVENANCE for one in by}
    keys = [BUILDERS[one] for one in sorted(trusted)]
    if len(vouching) >= needed:
        verified = check(frame, keys, needed)
        assert set(verified.builders) == {BUILDERS[one].public_key.keyid for one in vouching}
        assert len(verified.statements) == sum(bool(by & trusted) for _, by in plan)
    else:
        with pytest.raises((SignatureError, UntrustedBuilderError)):
            check(frame, keys, needed)


@given(st.binary(max_size=40), st.text(alphabet="AQ=-_+/ \n", max_size=4))
def test_base64_has_one_spelling(payload: bytes, tail: str) -> None:
    envelope = sign_statement(said({}), BUILDERS[0])
    right = base64.b64encode(payload).decode()
    envelope["signatures"][0]["sig"] = right + tail
    with pytest.raises(SignatureError, match="base64" if _respelled(right + tail) else "not valid"):
        check(canonical_json(envelope), BUILDERS)


def _respelled(text: str) -> bool:
    """Whether text is no base64 that encoding any bytes gives."""
    try:
        return base64.b64encode(base64.b64decode(text, validate=True)).decode() != text
    except ValueError:
        return True
