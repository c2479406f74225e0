"""Keys that are never lost or shown, envelopes that say what was signed, builders counted by what they hold."""

from __future__ import annotations

import base64
import os
import shutil
import stat
import subprocess
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import zstandard
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from securesystemslib.signer import CryptoSigner, Key, Signature, Signer, SigstoreKey, SSlibKey

from meshbuild import provenance, signing
from meshbuild.digests import Sha256
from meshbuild.errors import BundleLimitError, LocalFileError, SettingsError, SignatureError, UntrustedBuilderError
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.signing import (
    PAYLOAD_TYPE,
    SLSA_PROVENANCE,
    generate_key,
    key_material,
    load_public_key,
    load_signer,
    public_pem,
    read_statements_unverified,
    sign_statement,
    verify_statements,
)

CONTENT = Sha256.of(b"content")
FILES = {"a-b": Sha256.of(b"2"), "a/b": Sha256.of(b"3"), "A": Sha256.of(b"1")}
ALICE, BOB, MALLORY = (CryptoSigner.generate_ed25519() for _ in range(3))
BOM = provenance.CYCLONEDX_BOM


def about(content: Sha256 = CONTENT, files: dict[str, Sha256] = FILES, kind: str = SLSA_PROVENANCE) -> dict[str, Any]:
    return provenance.statement(kind, {"said": "so"}, name="m.a-1-arch.tar", content_sha256=content, files=files)


def frame(*envelopes: dict[str, Any]) -> bytes:
    return b"".join(map(canonical_json, envelopes))


def both(statement: dict[str, Any], *signers: Signer) -> dict[str, Any]:
    """One envelope with a signature of each."""
    envelopes = [sign_statement(statement, signer) for signer in signers]
    return {**envelopes[0], "signatures": [one["signatures"][0] for one in envelopes]}


def signed_payload(payload: bytes, signer: CryptoSigner = ALICE) -> bytes:
    """A frame whose payload is anything at all, rightly signed."""
    return frame(envelope_of(payload, signer))


def envelope_of(payload: bytes, signer: CryptoSigner, payload_type: str = PAYLOAD_TYPE) -> dict[str, Any]:
    data = b"DSSEv1 %d %b %d %b" % (len(payload_type), payload_type.encode(), len(payload), payload)
    signature = signer.sign(data)
    sig = base64.b64encode(bytes.fromhex(signature.signature)).decode()
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": signature.keyid, "sig": sig}],
    }


def check(
    statements: bytes, *signers: CryptoSigner, needed: int = 1, keys: tuple[Key, ...] = ()
) -> signing.VerifiedStatements:
    trusted = [signer.public_key for signer in signers] + list(keys)
    return verify_statements(statements, keys=trusted, needed=needed, content_sha256=CONTENT, files=FILES)


# What is accepted


def test_a_trusted_builders_statements_are_accepted_and_returned_in_order() -> None:
    verified = check(frame(sign_statement(about(), ALICE), sign_statement(about(kind=BOM), ALICE)), ALICE)
    assert [one.predicate_type for one in verified.statements] == [SLSA_PROVENANCE, BOM]
    assert verified.statements[0].predicate == {"said": "so"}
    assert verified.builders == (ALICE.public_key.keyid,)
    names = [subject.name for subject in verified.statements[0].subject]
    assert names == ["m.a-1-arch.tar", "A", "a-b", "a/b"]


def test_the_envelope_is_plain_dsse() -> None:
    statement = about()
    assert sign_statement(statement, ALICE) == envelope_of(canonical_json(statement), ALICE)


def test_a_bundle_without_payload_files_is_accepted() -> None:
    envelope = sign_statement(about(files={}), ALICE)
    keys = [ALICE.public_key]
    assert verify_statements(frame(envelope), keys=keys, content_sha256=CONTENT, files={}).builders


@pytest.mark.parametrize(
    "signer",
    [
        CryptoSigner.generate_ecdsa(),
        CryptoSigner.generate_ecdsa(scheme="ecdsa-sha2-nistp384"),
        CryptoSigner.generate_rsa(size=2048),
    ],
    ids=["p256", "p384", "rsa"],
)
def test_other_kinds_of_keys_sign_and_verify(signer: CryptoSigner) -> None:
    statements = frame(sign_statement(about(), signer))
    assert check(statements, signer).builders == (signer.public_key.keyid,)
    with pytest.raises(UntrustedBuilderError):
        check(statements, ALICE)


def test_a_foreign_signature_beside_a_trusted_one_does_no_harm() -> None:
    assert check(frame(both(about(), MALLORY, ALICE)), ALICE).builders == (ALICE.public_key.keyid,)


def test_a_statement_that_only_a_foreign_builder_signed_is_not_returned() -> None:
    verified = check(frame(sign_statement(about(), ALICE), sign_statement(about(kind=BOM), MALLORY)), ALICE)
    assert [one.predicate_type for one in verified.statements] == [SLSA_PROVENANCE]


# Counting builders


def test_two_builders_may_sign_one_envelope_or_one_each() -> None:
    expected = tuple(sorted([ALICE.public_key.keyid, BOB.public_key.keyid]))
    one = frame(both(about(), ALICE, BOB))
    two = frame(sign_statement(about(), ALICE), sign_statement(about(), BOB))
    assert check(one, ALICE, BOB, needed=2).builders == expected
    assert check(two, ALICE, BOB, needed=2).builders == expected


def test_one_of_two_needed_builders_is_too_few() -> None:
    with pytest.raises(UntrustedBuilderError) as caught:
        check(frame(sign_statement(about(), ALICE)), ALICE, BOB, needed=2)
    keyid = ALICE.public_key.keyid
    assert str(caught.value) == (
        f'2 trusted builders have to vouch for the bundle, found 1; its provenance is signed under "{keyid}"'
    )


def test_a_builder_who_signed_only_the_bill_of_materials_vouches_for_nothing() -> None:
    statements = frame(sign_statement(about(), ALICE), sign_statement(about(kind=BOM), BOB))
    with pytest.raises(UntrustedBuilderError, match="found 1"):
        check(statements, ALICE, BOB, needed=2)


def test_one_key_under_two_keyids_is_one_builder() -> None:
    key = ALICE.public_key
    alias = CryptoSigner(ALICE._private_key, SSlibKey("another name", key.keytype, key.scheme, dict(key.keyval)))
    statements = frame(both(about(), ALICE, alias))
    with pytest.raises(UntrustedBuilderError, match="found 1"):
        check(statements, ALICE, alias, needed=2)
    assert check(statements, ALICE, alias).builders == (key.keyid,)


def test_one_rsa_key_under_two_schemes_is_one_builder() -> None:
    private = rsa.generate_private_key(65537, 2048)
    pss, pkcs1 = (
        CryptoSigner(private, SSlibKey.from_crypto(private.public_key(), scheme=scheme))
        for scheme in ("rsassa-pss-sha256", "rsa-pkcs1v15-sha256")
    )
    assert pss.public_key.keyid != pkcs1.public_key.keyid
    with pytest.raises(UntrustedBuilderError, match="found 1"):
        check(frame(both(about(), pss, pkcs1)), pss, pkcs1, needed=2)


def test_a_signature_twice_in_one_envelope_is_refused() -> None:
    with pytest.raises(SignatureError, match="statement 1 has two signatures of one keyid"):
        check(frame(both(about(), ALICE, ALICE)), ALICE, BOB, needed=2)


def test_the_same_envelope_twice_is_one_builder() -> None:
    envelope = sign_statement(about(), ALICE)
    with pytest.raises(UntrustedBuilderError, match="found 1"):
        check(frame(envelope, envelope), ALICE, BOB, needed=2)


def test_needing_no_builder_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="at least one"):
        check(frame(sign_statement(about(), ALICE)), ALICE, needed=0)


# Who signed


@pytest.mark.parametrize("trusted", [(), (BOB,)], ids=["nobody", "another"])
def test_a_foreign_builder_is_named_and_not_trusted(trusted: tuple[CryptoSigner, ...]) -> None:
    with pytest.raises(UntrustedBuilderError, match=MALLORY.public_key.keyid):
        check(frame(sign_statement(about(), MALLORY)), *trusted)


def test_a_keyid_is_only_a_name() -> None:
    """Mallory signs under Alice's keyid."""
    key = MALLORY.public_key
    disguised = CryptoSigner(
        MALLORY._private_key, SSlibKey(ALICE.public_key.keyid, key.keytype, key.scheme, dict(key.keyval))
    )
    with pytest.raises(SignatureError, match=r"signature of the trusted key .* is not valid"):
        check(frame(sign_statement(about(), disguised)), ALICE)


def test_of_two_trusted_keys_with_one_keyid_the_one_that_signed_counts() -> None:
    key = BOB.public_key
    namesake = SSlibKey(ALICE.public_key.keyid, key.keytype, key.scheme, dict(key.keyval))
    statements = frame(sign_statement(about(), ALICE))
    assert check(statements, ALICE, keys=(namesake,)).builders == (ALICE.public_key.keyid,)
    with pytest.raises(UntrustedBuilderError, match="found 1"):
        check(statements, ALICE, keys=(namesake,), needed=2)


def test_an_altered_payload_is_refused() -> None:
    envelope = sign_statement(about(), ALICE)
    altered = canonical_json({**about(), "predicate": {"said": "otherwise"}})
    envelope["payload"] = base64.b64encode(altered).decode()
    with pytest.raises(SignatureError, match="is not valid"):
        check(frame(envelope), ALICE)


def test_an_altered_second_statement_is_refused_too() -> None:
    envelope = sign_statement(about(kind=BOM), ALICE)
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(64)).decode()
    with pytest.raises(SignatureError, match="statement 2: the signature"):
        check(frame(sign_statement(about(), ALICE), envelope), ALICE)


@pytest.mark.parametrize("size", [0, 1, 63, 65])
def test_a_signature_of_a_wrong_size_is_refused(size: int) -> None:
    envelope = sign_statement(about(), ALICE)
    envelope["signatures"][0]["sig"] = base64.b64encode(bytes(size)).decode()
    with pytest.raises(SignatureError):
        check(frame(envelope), ALICE)


def test_provenance_is_needed() -> None:
    with pytest.raises(SignatureError, match=r"none of the bundle's 1 statements is a https://slsa\.dev/provenance/v1"):
        check(frame(sign_statement(about(kind=BOM), ALICE)), ALICE)


# What the statements speak of


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        (about(content=Sha256.of(b"other")), "expected the content"),
        (about(files={"A": FILES["A"], "a-b": FILES["a-b"]}), "speaks of 2 payload files, the bundle has 3"),
        (about(files={**FILES, "z": CONTENT}), "speaks of 4 payload files, the bundle has 3"),
        (about(files={**FILES, "A": CONTENT}), 'expected the file "A" with'),
        (about(files={"A": FILES["A"], "a-b": FILES["a-b"], "a.b": FILES["a/b"]}), 'expected the file "a-b"|"a/b"'),
        (about(files={}), "speaks of 0 payload files, the bundle has 3"),
    ],
    ids=["other content", "missing", "extra", "other digest", "other name", "no files"],
)
@pytest.mark.parametrize("at", [0, 1])
def test_a_statement_about_something_else_is_refused(statement: dict[str, Any], why: str, at: int) -> None:
    envelopes = [sign_statement(about(), ALICE)]
    envelopes.insert(at, sign_statement(statement, ALICE))
    with pytest.raises(SignatureError, match=f"statement {at + 1} speaks of .*|{why}") as caught:
        check(frame(*envelopes), ALICE)
    assert caught.match(why)


def test_subjects_in_another_order_are_refused() -> None:
    statement = about()
    statement["subject"].reverse()
    with pytest.raises(SignatureError, match="expected the content"):
        check(frame(sign_statement(statement, ALICE)), ALICE)


def test_a_foreign_statement_about_something_else_is_refused_as_well() -> None:
    statements = frame(sign_statement(about(), ALICE), sign_statement(about(content=Sha256.of(b"x")), MALLORY))
    with pytest.raises(SignatureError, match="statement 2 speaks of something else"):
        check(statements, ALICE)


# The form of envelopes


def changed(**fields: object) -> dict[str, Any]:
    return {**sign_statement(about(), ALICE), **fields}


@pytest.mark.parametrize(
    ("envelope", "why"),
    [
        (changed(signatures=[]), "statement 1 has no signature"),
        (changed(signatures={}), "statement 1 has no signature"),
        (changed(signatures=["x"]), "not an object of keyid and sig"),
        (changed(signatures=[{"sig": "AAAA"}]), "not an object of keyid and sig"),
        (changed(signatures=[{"keyid": "k", "sig": "AAAA", "cert": ""}]), "not an object of keyid and sig"),
        (changed(signatures=[{"keyid": "", "sig": "AAAA"}]), "is not a keyid"),
        (changed(signatures=[{"keyid": "\x1b[2J", "sig": "AAAA"}]), r'"\\u001b\[2J" is not a keyid'),
        (changed(signatures=[{"keyid": 7, "sig": "AAAA"}]), "7 is not a keyid"),
        (changed(signatures=[{"keyid": "k", "sig": "AAA"}]), "its signature is not padded standard base64"),
        (changed(signatures=[{"keyid": "k", "sig": None}]), "its signature is not padded standard base64"),
        (changed(payloadType="application/json"), 'expected payloadType .*, found "application/json"'),
        (changed(payloadType=None), "expected payloadType .*, found null"),
        (changed(payload="e30"), "its payload is not padded standard base64"),
        (changed(payload="e3 0="), "its payload is not padded standard base64"),
        (changed(payload="e31="), "its payload is not padded standard base64"),
        (changed(payload="_-A="), "its payload is not padded standard base64"),
        (changed(payload="e30=\n"), "its payload is not padded standard base64"),
        (changed(payload="é30="), "its payload is not padded standard base64"),
        (changed(payload=[]), "its payload is not padded standard base64"),
        (changed(more=1), "exactly the keys payload, payloadType, signatures"),
        ({"payload": "e30="}, "exactly the keys payload, payloadType, signatures"),
    ],
)
def test_a_malformed_envelope_is_refused_by_both_readers(envelope: dict[str, Any], why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        check(frame(envelope), ALICE)
    with pytest.raises(SignatureError, match=why):
        read_statements_unverified(frame(envelope))


def test_a_signature_under_another_payload_type_is_refused() -> None:
    """The signature is right, over the type that it names."""
    envelope = envelope_of(canonical_json(about()), ALICE, "application/vnd.other+json")
    with pytest.raises(SignatureError, match="expected payloadType"):
        check(frame(envelope), ALICE)
    with pytest.raises(SignatureError, match="is not valid"):
        check(frame({**envelope, "payloadType": PAYLOAD_TYPE}), ALICE)


LINE = canonical_json(sign_statement(about(), ALICE))


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (LINE[:-1], "cut off"),
        (LINE[:-2], "cut off"),
        (b"\n", "is not JSON"),
        (LINE + b"\n", "statement 2: its envelope is not JSON"),
        (b" " + LINE, "not written as canonical JSON"),
        (LINE[:-1] + b"\r\n", "not written as canonical JSON"),
        (LINE.replace(b'":"', b'": "', 1), "not written as canonical JSON"),
        (LINE.replace(b'{"payload"', b'{"payload":"","payload"', 1), "twice in one object"),
        (LINE.replace(b'"sig"', b'"\\u0073ig"', 1), "not written as canonical JSON"),
        (LINE.replace(b'"keyid":"', b'"keyid":"\\ud800', 1), "not written as canonical JSON"),
        (b"\xef\xbb\xbf" + LINE, "byte order mark"),
        (b"\xff\n", "UTF-8"),
        (b"[]\n", "not an object"),
        (b"[" * 100_000 + b"\n", "its envelope is"),
        (b'{"payload":"","payloadType":"","signatures":["a"],"a":NaN}\n', "NaN"),
    ],
)
def test_a_malformed_frame_is_refused_by_both_readers(statements: bytes, why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        check(statements, ALICE)
    with pytest.raises(SignatureError, match=why):
        read_statements_unverified(statements)


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "its payload is not JSON"),
        (b"[]", "not an object"),
        (canonical_json({**about(), "_type": "https://in-toto.io/Statement/v0.1"}), "expected _type"),
        (canonical_json({**about(), "more": 1}), "exactly the keys"),
        (canonical_json({**about(), "subject": []}), "has no subject"),
        (canonical_json({**about(), "subject": {}}), "has no subject"),
        (canonical_json({**about(), "subject": ["x"]}), "a subject is not"),
        (canonical_json({**about(), "subject": [{"name": "x", "digest": {"sha1": "0" * 40}}]}), "a subject is not"),
        (canonical_json({**about(), "subject": [{"name": "x", "digest": {"sha256": "A" * 64}}]}), "a subject is not"),
        (
            canonical_json({**about(), "subject": [{"name": "x", "digest": {"sha256": CONTENT, "md5": ""}}]}),
            "a subject is not",
        ),
        (
            canonical_json({**about(), "subject": [{"name": "x", "digest": {"sha256": CONTENT}, "uri": ""}]}),
            "a subject is not",
        ),
        (canonical_json({**about(), "predicateType": 1}), "expected a predicateType"),
        (canonical_json({**about(), "predicateType": "\x1b"}), "expected a predicateType"),
        (canonical_json({**about(), "predicate": []}), "expected a predicateType"),
        (canonical_json(about()).replace(b'"so"', b"1e999"), "JSON can't carry"),
        (canonical_json(about()).replace(b'"so"', b'"\\ud800"'), "JSON can't carry"),
        (canonical_json(about()).replace(b'"so"', b"1" * 5000), "its payload"),
        (canonical_json(about()).replace(b'"said"', b'"said":1,"said"'), "twice in one object"),
    ],
)
def test_a_malformed_payload_is_refused_though_rightly_signed(payload: bytes, why: str) -> None:
    with pytest.raises(SignatureError, match=why):
        check(signed_payload(payload), ALICE)
    with pytest.raises(SignatureError, match=why):
        read_statements_unverified(signed_payload(payload))


def test_a_payload_need_not_be_canonical() -> None:
    """Another tool may have written it; what counts is that its bytes were signed."""
    payload = canonical_json(about()).replace(b'":', b'" : ')
    assert check(signed_payload(payload), ALICE).builders


def test_no_statement_at_all_is_refused_by_the_verifier_alone() -> None:
    with pytest.raises(SignatureError, match="holds no signed statement"):
        check(b"", ALICE)
    assert read_statements_unverified(b"") == ()


def test_too_many_statements_or_signatures_are_refused_before_any_is_verified() -> None:
    with pytest.raises(BundleLimitError, match="1025 statements, at most 1024"):
        check(b"x\n" * 1025, ALICE)
    many = changed(signatures=[{"keyid": str(number), "sig": ""} for number in range(65)])
    with pytest.raises(BundleLimitError, match="65 signatures, at most 64"):
        check(frame(many), ALICE)


def test_reading_without_trust_tells_who_claims_to_have_signed() -> None:
    (found,) = read_statements_unverified(frame(both(about(), MALLORY, ALICE)))
    assert found.predicate_type == SLSA_PROVENANCE
    assert found.predicate == {"said": "so"}
    assert found.subject[0] == signing.Subject("m.a-1-arch.tar", CONTENT)
    assert found.keyids == (MALLORY.public_key.keyid, ALICE.public_key.keyid)


def test_signing_leaves_the_statement_as_it_was() -> None:
    statement = about()
    sign_statement(statement, ALICE)
    assert statement == about()


class BrokenSigner(Signer):
    """A hardware key that was pulled out."""

    public_key = ALICE.public_key

    @classmethod
    def from_priv_key_uri(cls, *_: object) -> Signer:  # type: ignore[override]
        raise NotImplementedError

    def sign(self, payload: bytes) -> Signature:  # noqa: ARG002 - the interface's
        raise OSError("no such device")


def test_a_signer_that_fails_is_named() -> None:
    with pytest.raises(SettingsError, match=f"could not sign with the key {ALICE.public_key.keyid}: no such device"):
        sign_statement(about(), BrokenSigner())


# Keys


def test_a_made_key_is_private_and_its_public_half_lies_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "builder.pem"
    signer = generate_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----\n")
    assert load_public_key(path.with_suffix(".pub")) == signer.public_key
    assert sorted(file.name for file in path.parent.iterdir()) == ["builder.pem", "builder.pub"]
    assert signer.public_key.keytype == "ed25519"
    assert load_signer(str(path), {}).public_key == signer.public_key


def test_a_key_that_is_there_is_kept_and_its_public_half_mended(tmp_path: Path) -> None:
    path = tmp_path / "builder.pem"
    first = generate_key(path)
    before = path.read_bytes()
    for damage in (None, public_pem(BOB.public_key)):
        path.with_suffix(".pub").unlink()
        if damage:
            path.with_suffix(".pub").write_text(damage)
        assert generate_key(path).public_key == first.public_key
        assert load_public_key(path.with_suffix(".pub")) == first.public_key
    assert path.read_bytes() == before


def test_a_damaged_key_is_reported_and_left(tmp_path: Path) -> None:
    path = tmp_path / "builder.pem"
    path.touch(mode=0o600)
    with pytest.raises(SettingsError, match="can't be used"):
        generate_key(path)
    assert path.read_bytes() == b""
    assert [file.name for file in tmp_path.iterdir()] == ["builder.pem"]


def test_many_at_once_get_one_key(tmp_path: Path) -> None:
    path, start, found = tmp_path / "k" / "builder.pem", threading.Barrier(8), []

    def make() -> None:
        start.wait()
        found.append(generate_key(path).public_key)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert {key.keyid for key in found} == {load_public_key(path.with_suffix(".pub")).keyid}
    assert sorted(file.name for file in path.parent.iterdir()) == ["builder.pem", "builder.pub"]


def test_the_loser_of_a_race_keeps_the_winners_key(tmp_path: Path) -> None:
    """Both saw that no key was there; one came to write it later."""
    path = tmp_path / "builder.pem"
    winner = generate_key(path)
    signing._create_exclusively(path, MALLORY.private_bytes)
    assert load_signer(str(path), {}).public_key == winner.public_key
    assert sorted(file.name for file in tmp_path.iterdir()) == ["builder.pem", "builder.pub"]


def test_a_private_key_is_not_written_where_its_public_half_belongs(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="can't be named"):
        generate_key(tmp_path / "builder.pub")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_a_local_file_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LocalFileError, match="could not make the key"):
        generate_key(tmp_path / "file" / "builder.pem")


@pytest.fixture
def pem(tmp_path: Path) -> Path:
    path = tmp_path / "alice.pem"
    path.touch(mode=0o600)
    path.write_bytes(ALICE.private_bytes)
    return path


def test_every_address_of_a_key_gives_the_same_key(pem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(pem.parent)
    pem.with_name("a:b.pem").symlink_to(pem)
    environ = {"BUILDER": ALICE.private_bytes.decode()}
    addresses = [str(pem), f"file:{pem}", f"file://{pem}", f"file2:{pem}", "env:BUILDER", "alice.pem", "./a:b.pem"]
    for address in addresses:
        assert load_signer(address, environ).public_key == ALICE.public_key, address


@pytest.mark.parametrize("address", ["hsm:2?label=x", "awskms:alias/x", "gcpkms:x", "a:b.pem"])
def test_other_addresses_are_refused_with_what_there_is(address: str) -> None:
    with pytest.raises(SettingsError, match="not supported yet") as caught:
        load_signer(address, {})
    assert "env:..., file:..., file2:..." in str(caught.value.hint)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601])
def test_a_key_that_others_can_reach_is_refused(pem: Path, mode: int) -> None:
    pem.chmod(mode)
    with pytest.raises(SettingsError, match=f"has mode {mode:04o}") as caught:
        load_signer(str(pem), {})
    assert caught.value.hint == f"chmod 600 {pem}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_key_of_another_owner_is_that_owners_care(pem: Path) -> None:
    pem.chmod(0o640)
    os.chown(pem, 12345, -1)
    assert load_signer(str(pem), {}).public_key == ALICE.public_key


def test_a_missing_key_is_a_local_file_error(tmp_path: Path) -> None:
    with pytest.raises(LocalFileError, match=r"could not read the private key .*none\.pem"):
        load_signer(str(tmp_path / "none.pem"), {})


def test_an_encrypted_key_opens_with_its_passphrase_alone(pem: Path) -> None:
    encryption = BestAvailableEncryption(b"open sesame")
    pem.write_bytes(ALICE._private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    loaded = load_signer(str(pem), {"MESHBUILD_KEY_PASSPHRASE": "open sesame"})
    assert loaded.public_key == ALICE.public_key
    with pytest.raises(SettingsError, match="encrypted, and MESHBUILD_KEY_PASSPHRASE is not set"):
        load_signer(str(pem), {})
    with pytest.raises(SettingsError, match="MESHBUILD_KEY_PASSPHRASE is not its passphrase") as caught:
        load_signer(str(pem), {"MESHBUILD_KEY_PASSPHRASE": "open barley"})
    assert "barley" not in f"{caught.value} {caught.value.hint} {caught.value.__cause__}"


def test_a_passphrase_does_not_hinder_a_plain_key(pem: Path) -> None:
    assert load_signer(str(pem), {"MESHBUILD_KEY_PASSPHRASE": "unused"}).public_key == ALICE.public_key


@pytest.mark.parametrize(
    "text",
    [
        "secret-but-no-key",
        ALICE.private_bytes.decode().splitlines()[1],
        ALICE.private_bytes.decode()[:80] + "secret-but-no-key",
        public_pem(ALICE.public_key),
        x25519.X25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        ec.generate_private_key(ec.SECP256K1())
        .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        .decode(),
        "\ud800",
    ],
    ids=["text", "no label", "cut", "public", "no signing key", "unknown curve", "not Unicode"],
)
def test_what_is_no_key_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_signer("env:BUILDER", {"BUILDER": text})
    shown = f"{caught.value} {caught.value.hint} {caught.value.__cause__}"
    assert 'environment variable "BUILDER"' in shown
    for part in text.split():
        assert len(part) < 8 or "PRIVATE" in part or part.startswith("-----") or part not in shown


@pytest.mark.parametrize("environ", [{}, {"BUILDER": ""}])
def test_a_variable_that_is_not_set_is_named(environ: dict[str, str]) -> None:
    with pytest.raises(SettingsError, match=r'environment variable "BUILDER".*is not set'):
        load_signer("env:BUILDER", environ)


@pytest.mark.parametrize(
    "private",
    [
        ed25519.Ed25519PrivateKey.generate(),
        ec.generate_private_key(ec.SECP521R1()),
        rsa.generate_private_key(65537, 2048),
    ],
    ids=["ed25519", "p521", "rsa"],
)
def test_a_public_key_survives_its_pem(private: Any, tmp_path: Path) -> None:
    key = CryptoSigner(private).public_key
    text = public_pem(key)
    assert text.startswith("-----BEGIN PUBLIC KEY-----\n")
    file = tmp_path / "key.pub"
    file.write_text(text)
    assert load_public_key(text) == load_public_key(file) == load_public_key(str(file)) == key
    assert key_material(load_public_key(text)) == key_material(key)


def test_a_private_key_given_for_a_public_one_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingsError, match="found BEGIN PRIVATE KEY") as caught:
        load_public_key(ALICE.private_bytes.decode())
    assert ALICE.private_bytes.decode().splitlines()[1] not in f"{caught.value} {caught.value.__cause__}"


@pytest.mark.parametrize("content", [b"", b"\xff", b"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"])
def test_a_file_that_is_no_public_key_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "key.pub"
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="is not a PEM public key"):
        load_public_key(file)
    with pytest.raises(LocalFileError, match="could not read the public key"):
        load_public_key(tmp_path / "none.pub")


def test_key_material_is_the_same_for_other_spellings_only() -> None:
    key = CryptoSigner.generate_rsa(size=2048).public_key
    respelled = SSlibKey("x", key.keytype, key.scheme, {"public": "\n" + key.keyval["public"].replace("\n", "\r\n")})
    assert key_material(respelled) == key_material(key)
    assert key_material(ALICE.public_key) != key_material(BOB.public_key)


@pytest.mark.parametrize(
    "key",
    [
        SSlibKey("k", "ed25519", "ed25519", {"public": "zz"}),
        SSlibKey("k", "ed25519", "ed25519", {"public": "00"}),
        SSlibKey("k", "rsa", "rsassa-pss-sha256", {"public": "no pem"}),
        SigstoreKey("k", "sigstore-oidc", "Fulcio", {"identity": "a@b", "issuer": "https://c"}),
    ],
    ids=["no hex", "short", "no pem", "other kind"],
)
def test_a_trusted_key_that_cannot_be_used_is_named_not_skipped(key: Key) -> None:
    with pytest.raises(SettingsError, match='the key "k"'):
        check(frame(sign_statement(about(), ALICE)), ALICE, keys=(key,))


def test_the_frame_parses_as_json_lines() -> None:
    lines = frame(sign_statement(about(), ALICE), sign_statement(about(kind=BOM), ALICE)).splitlines()
    assert [parse_json(line)["payloadType"] for line in lines] == [PAYLOAD_TYPE] * 2


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_the_recipe_for_checking_without_meshbuild_works_as_documented(tmp_path: Path) -> None:
    guide = Path(__file__).parents[2] / "docs" / "statements.md"
    recipe = guide.read_text().partition("### Python and OpenSSL")[2]
    commands = textwrap.dedent("\n".join(line for line in recipe.splitlines() if line.startswith("    ")))
    assert "openssl pkeyutl -verify" in commands
    statements = frame(sign_statement(about(), generate_key(tmp_path / "builder.pem")))
    skippable = b"\x5b\x2a\x4d\x18" + len(statements).to_bytes(4, "little") + statements
    (tmp_path / "web.server-1.2-arch.tar.zst").write_bytes(zstandard.compress(b"tar") + skippable)

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["sh", "-ec", commands], cwd=tmp_path, capture_output=True, text=True, check=False)

    done = run()
    assert (done.returncode, done.stdout) == (0, "Signature Verified Successfully\n"), done.stderr
    assert (tmp_path / "statement.json").read_bytes() == canonical_json(about())
    (tmp_path / "builder.pub").write_text(public_pem(MALLORY.public_key))
    assert run().returncode != 0
