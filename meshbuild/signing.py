"""Builders' keys and signed statements: DSSE envelopes made and checked with securesystemslib's signers and keys.

A statements frame is JSON lines, each a DSSE envelope (https://github.com/secure-systems-lab/dsse) in canonical JSON,
whose payload is an in-toto Statement v1 (https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import Error as SecureSystemsError
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import CryptoSigner, Signature, SSlibKey

from meshbuild.digests import Sha256
from meshbuild.errors import BundleLimitError, SettingsError, SignatureError, UntrustedBuilderError
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.paths import fsync_folder, local_errors, temp_beside, write_atomically
from meshbuild.texts import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
    from securesystemslib.signer import Key, Signer

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
SLSA_PROVENANCE = "https://slsa.dev/provenance/v1"
PASSPHRASE_VARIABLE = "MESHBUILD_KEY_PASSPHRASE"  # noqa: S105 - the name of a variable, not a passphrase
MAX_STATEMENTS = 1024
MAX_SIGNATURES = 64  # of one statement
_MAX_KEY_BYTES = 1 << 16
_MAX_KEYID_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that a statement speaks about: its name and the digest of its bytes."""

    name: str
    sha256: Sha256


@dataclass(frozen=True, slots=True)
class Statement:
    """An in-toto Statement v1.

    Attributes:
        predicate_type: the URI that says what the predicate is.
        subject: what it speaks about: a bundle's content first, then its payload files in byte order of their paths.
        predicate: what it says, as parsed JSON.
    """

    predicate_type: str
    subject: tuple[Subject, ...]
    predicate: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SignedStatement:
    """A statement and the keyids that claim to have signed it. Nothing of it has been verified."""

    predicate_type: str
    subject: tuple[Subject, ...]
    predicate: Mapping[str, Any]
    keyids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifiedStatements:
    """What trusted builders say of a bundle; only `verify_statements` makes one.

    Attributes:
        statements: those with a valid signature of a trusted builder, in the frame's order; no others.
        builders: the keyids of the trusted builders that signed a provenance statement, one for each key's material.
    """

    statements: tuple[Statement, ...]
    builders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Signed:
    envelope: Envelope
    signatures: tuple[Signature, ...]
    statement: Statement


def verify_statements(
    statements: bytes, *, keys: Sequence[Key], needed: int = 1, content_sha256: Sha256, files: Mapping[str, Sha256]
) -> VerifiedStatements:
    """Check that enough trusted builders vouch for a bundle's content.

    1. Every line is one envelope in canonical JSON, with exactly the keys of DSSE and 1 to 64 signatures, no two of
       one keyid; there are at most 1,024 lines, and not none.
    2. `payloadType` is `application/vnd.in-toto+json`.
    3. Payload and signatures are padded standard base64 in its one spelling.
    4. The payload is an in-toto Statement v1 in strict JSON.
    5. Its subjects are the content, then every payload file in byte order of its path: none more, none fewer. All this
       goes for every statement, whoever signed it.
    6. A signature under the keyid of a trusted key verifies with that key, over DSSE's pre-authentication encoding. A
       signature under another keyid counts for nothing.
    7. SLSA provenance statements are signed by `needed` trusted keys of distinct key material, taken together.

    Args:
        statements: the statements frame's JSON lines.
        keys: the builders' keys that are trusted for this bundle.
        needed: how many builders have to vouch, at least 1.
        content_sha256: the bundle's content digest, computed by the caller from the content itself.
        files: the payload's paths and digests, computed likewise.

    Raises:
        SignatureError: one of the steps 1 to 6 fails, or there is no provenance statement.
        UntrustedBuilderError: step 7 fails: all is in order, but too few trusted builders signed it.
        BundleLimitError: too many statements or signatures.
        SettingsError: a trusted key is of a kind that can't be used.
    """
    if needed < 1:
        raise ValueError(f"at least one builder has to vouch, not {needed}")
    trusted = [(key_material(key), key) for key in keys]
    signed = _parse_frame(statements)
    if not signed:
        raise SignatureError("the bundle holds no signed statement", hint="Build it again with a builder key.")
    for number, one in enumerate(signed, 1):
        _check_subject(one.statement.subject, content_sha256, files, where=f"statement {number}")
    signers = [_valid_signers(one, trusted, where=f"statement {number}") for number, one in enumerate(signed, 1)]
    provenance = [
        (one, by) for one, by in zip(signed, signers, strict=True) if one.statement.predicate_type == SLSA_PROVENANCE
    ]
    if not provenance:
        raise SignatureError(f"none of the bundle's {len(signed)} statements is a {SLSA_PROVENANCE}")
    vouching = set().union(*(by for _, by in provenance))
    if len(vouching) < needed:
        _refuse_builders([one for one, _ in provenance], found=len(vouching), needed=needed)
    builders = {material: key.keyid for material, key in reversed(trusted) if material in vouching}
    return VerifiedStatements(
        statements=tuple(one.statement for one, by in zip(signed, signers, strict=True) if by),
        builders=tuple(sorted(builders.values())),
    )


def read_statements_unverified(statements: bytes) -> tuple[SignedStatement, ...]:
    """Read a statements frame for showing it: the steps 1 to 4 of `verify_statements`, and no trust.

    An empty frame gives an empty tuple.

    Raises:
        SignatureError: the frame is malformed.
        BundleLimitError: too many statements or signatures.
    """
    return tuple(
        SignedStatement(
            one.statement.predicate_type,
            one.statement.subject,
            one.statement.predicate,
            tuple(signature.keyid for signature in one.signatures),
        )
        for one in _parse_frame(statements)
    )


def sign_statement(statement: Mapping[str, Any], signer: Signer) -> dict[str, Any]:
    """Sign an in-toto statement.

    Returns:
        The DSSE envelope `{"payload", "payloadType", "signatures": [{"keyid", "sig"}]}`, the payload being the
        statement's canonical JSON. The envelope's own canonical JSON is its line in a statements frame.

    Raises:
        SettingsError: the signer could not sign.
    """
    envelope = Envelope(canonical_json(statement), PAYLOAD_TYPE, {})
    try:
        envelope.sign(signer)
    except (SecureSystemsError, OSError, ValueError) as error:
        raise SettingsError(f"could not sign with the key {signer.public_key.keyid}: {error}") from error
    result: dict[str, Any] = envelope.to_dict()
    return result


def generate_key(path: Path) -> CryptoSigner:
    """Make a builder's Ed25519 key, or load the one that is there; an existing key is never replaced.

    The private half is PKCS#8 PEM, mode 0600, whole or not there; the public half lies beside it as
    SubjectPublicKeyInfo PEM (`builder.pem` gives `builder.pub`) and is written again where it is missing or another
    key's. Of two calls at once one makes the key and both return it.

    Raises:
        LocalFileError: the folder can't be written.
        SettingsError: the path ends in `.pub`, or the key that is there can't be used.
    """
    public_path = path.with_suffix(".pub")
    if public_path == path:
        raise SettingsError(f"a private key can't be named {path}", hint="That name is for its public half; use .pem.")
    with local_errors(f"make the key {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _create_exclusively(path, CryptoSigner.generate_ed25519().private_bytes)
    signer = _signer_from_file(str(path), {})
    public = public_pem(signer.public_key).encode()
    with local_errors(f"write the public key {public_path}"):
        if not public_path.exists() or public_path.read_bytes() != public:
            write_atomically(public_path, public)
    return signer


def load_signer(uri: str, environ: Mapping[str, str]) -> Signer:
    """Load the private key that an address names.

    Args:
        uri: `PATH`, `file:PATH` or `file2:PATH` for a PEM file, or `env:NAME` for an environment variable that holds
            the PEM text. PKCS#8, Ed25519, ECDSA, RSA or ML-DSA. A name with a colon is written `./a:b.pem`.
        environ: the user's environment; MESHBUILD_KEY_PASSPHRASE opens an encrypted key.

    Raises:
        SettingsError: the address, the key or its passphrase can't be used, or others can read the file. No message
            holds any part of the key.
        LocalFileError: the file can't be read.
    """
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", uri)
    if match is None:
        return _signer_from_file(uri, environ)
    load = _LOADERS.get(match[1].lower())
    if load is None:
        raise SettingsError(
            f"keys of the kind {quoted(match[1])} are not supported yet",
            hint=f"Use a PATH, {', '.join(f'{scheme}:...' for scheme in sorted(_LOADERS))}; "
            "write ./ in front of a file name with a colon.",
        )
    return load(uri[match.end() :], environ)


def load_public_key(path_or_pem: str | Path) -> SSlibKey:
    """Load a public key from SubjectPublicKeyInfo PEM: the text itself, or a file with it.

    The keyid is securesystemslib's own: the sha256 of the key's canonical JSON.

    Raises:
        SettingsError: that is not a public key of a kind that can be used.
        LocalFileError: the file can't be read.
    """
    if isinstance(path_or_pem, str) and "-----BEGIN" in path_or_pem:
        what, pem = "the public key", path_or_pem.encode(errors="replace")
    else:
        what = f"the public key {path_or_pem}"
        with local_errors(f"read {what}"), Path(path_or_pem).open("rb") as file:
            pem = file.read(_MAX_KEY_BYTES)
    try:
        return SSlibKey.from_crypto(load_pem_public_key(pem))
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SettingsError(
            f"{what} is not a PEM public key of a kind that can be used: expected BEGIN PUBLIC KEY and an Ed25519, "
            f"ECDSA, RSA or ML-DSA key, found {_pem_label(pem)}",
            hint="`openssl pkey -in KEY.pem -pubout` prints the public half of a private key.",
        ) from error


def public_pem(key: Key) -> str:
    """A public key as SubjectPublicKeyInfo PEM. Raises SettingsError for a kind of key that has none."""
    return _crypto_key(key).public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def key_material(key: Key) -> bytes:
    """What makes a key the same key: its SubjectPublicKeyInfo DER, whatever its keyid, scheme or spelling.

    Builders are counted by it, so that one key under two names is one builder.

    Raises:
        SettingsError: for a kind of key that has none.
    """
    return _crypto_key(key).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _crypto_key(key: Key) -> PublicKeyTypes:
    problem = f"the key {quoted(key.keyid)} ({quoted(key.keytype)}, {quoted(key.scheme)}) can't be used here"
    if not isinstance(key, SSlibKey):
        raise SettingsError(problem, hint="Use an Ed25519, ECDSA, RSA or ML-DSA key.")
    public = key.keyval["public"]
    try:
        if key.keytype == "ed25519":
            return Ed25519PublicKey.from_public_bytes(bytes.fromhex(public))
        return load_pem_public_key(public.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise SettingsError(f"{problem}: {error}") from error


def _create_exclusively(path: Path, data: bytes) -> None:
    """Write data to path, mode 0600, unless something came to be there first; that is left as it is."""
    temp = temp_beside(path)
    descriptor = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(temp, path)
    finally:
        temp.unlink(missing_ok=True)
    fsync_folder(path.parent)


def _signer_from_file(path: str, environ: Mapping[str, str]) -> CryptoSigner:
    with local_errors(f"read the private key {path}"), Path(path).open("rb") as file:
        status = os.fstat(file.fileno())
        pem = file.read(_MAX_KEY_BYTES)
    # As ssh has it: a file of another owner (a mounted secret) is that owner's care.
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & 0o077:
        raise SettingsError(
            f"the private key {path} has mode {stat.S_IMODE(status.st_mode):04o}, so that others can reach it",
            hint=f"chmod 600 {path}",
        )
    return _signer_from_pem(pem, environ, what=f"the private key {path}")


def _signer_from_variable(name: str, environ: Mapping[str, str]) -> CryptoSigner:
    pem = environ.get(name, "")
    if not pem:
        raise SettingsError(f"the environment variable {quoted(name)}, which should hold a private key, is not set")
    return _signer_from_pem(
        pem.encode(errors="replace"), environ, what=f"the private key in the environment variable {quoted(name)}"
    )


def _signer_from_pem(pem: bytes, environ: Mapping[str, str], *, what: str) -> CryptoSigner:
    passphrase = environ.get(PASSPHRASE_VARIABLE, "")
    try:
        try:
            private_key = load_pem_private_key(pem, None)
        except TypeError:  # it is encrypted
            if not passphrase:
                raise SettingsError(
                    f"{what} is encrypted, and {PASSPHRASE_VARIABLE} is not set", hint="Set it to the key's passphrase."
                ) from None
            private_key = load_pem_private_key(pem, passphrase.encode(errors="replace"))
        return CryptoSigner(private_key)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        found = "a key of another kind, a damaged one" if b"PRIVATE KEY" in pem else "something else"
        raise SettingsError(
            f"{what} can't be used: expected an Ed25519, ECDSA, RSA or ML-DSA key in PKCS#8 PEM, found {found}"
            + (f", or {PASSPHRASE_VARIABLE} is not its passphrase" if passphrase else ""),
            hint="`openssl genpkey -algorithm ed25519` prints a new one.",
        ) from error


# What comes after the colon, and the environment, to a signer. One line here adds a kind of key.
_LOADERS: dict[str, Callable[[str, Mapping[str, str]], Signer]] = {
    "file": _signer_from_file,
    "file2": _signer_from_file,
    "env": _signer_from_variable,
}


def _pem_label(pem: bytes) -> str:
    match = re.search(rb"-----(BEGIN [A-Z0-9 ]{1,60})-----", pem)
    return match[1].decode() if match else "no PEM text"


def _parse_frame(statements: bytes) -> list[_Signed]:
    if not statements:
        return []
    if not statements.endswith(b"\n"):
        raise SignatureError("the statements don't end with a line feed: they are cut off")
    count = statements.count(b"\n")
    if count > MAX_STATEMENTS:
        raise BundleLimitError(f"the bundle has {count} statements, at most {MAX_STATEMENTS} are read")
    return [
        _parse_envelope(line + b"\n", where=f"statement {number}")
        for number, line in enumerate(statements[:-1].split(b"\n"), 1)
    ]


def _parse_envelope(line: bytes, *, where: str) -> _Signed:
    fields = _parse_object(line, {"payload", "payloadType", "signatures"}, where=f"{where}: its envelope")
    listed = fields["signatures"]
    if not isinstance(listed, list) or not listed:
        raise SignatureError(f"{where} has no signature")
    if len(listed) > MAX_SIGNATURES:
        raise BundleLimitError(f"{where} has {len(listed)} signatures, at most {MAX_SIGNATURES} are read")
    if not _is_canonical(fields, line):
        raise SignatureError(f"{where}: its envelope is not written as canonical JSON")
    if fields["payloadType"] != PAYLOAD_TYPE:
        raise SignatureError(f"{where}: expected payloadType {PAYLOAD_TYPE}, found {quoted(fields['payloadType'])}")
    signatures = tuple(_parse_signature(value, where) for value in listed)
    if len({signature.keyid for signature in signatures}) < len(signatures):
        raise SignatureError(f"{where} has two signatures of one keyid")
    payload = _decode_base64(fields["payload"], where=f"{where}: its payload")
    return _Signed(Envelope(payload, PAYLOAD_TYPE, {}), signatures, _parse_statement(payload, where))


def _parse_signature(value: object, where: str) -> Signature:
    if not isinstance(value, dict) or set(value) != {"keyid", "sig"}:
        raise SignatureError(f"{where}: a signature is not an object of keyid and sig")
    keyid = value["keyid"]
    if not isinstance(keyid, str) or not 0 < len(keyid) <= _MAX_KEYID_LENGTH or not keyid.isprintable():
        raise SignatureError(f"{where}: {quoted(keyid)} is not a keyid")
    return Signature(keyid, _decode_base64(value["sig"], where=f"{where}: its signature").hex())


def _parse_statement(payload: bytes, where: str) -> Statement:
    fields = _parse_object(payload, {"_type", "subject", "predicateType", "predicate"}, where=f"{where}: its payload")
    if fields["_type"] != STATEMENT_TYPE:
        raise SignatureError(f"{where}: expected _type {STATEMENT_TYPE}, found {quoted(fields['_type'])}")
    predicate_type, predicate, subject = fields["predicateType"], fields["predicate"], fields["subject"]
    if not isinstance(predicate_type, str) or not predicate_type.isprintable() or not isinstance(predicate, dict):
        raise SignatureError(f"{where}: expected a predicateType and a predicate object")
    if not isinstance(subject, list) or not subject:
        raise SignatureError(f"{where} has no subject")
    if not _is_text(fields):
        raise SignatureError(f"{where}: its payload holds a number or a text that JSON can't carry")
    return Statement(predicate_type, tuple(_parse_subject(value, where) for value in subject), predicate)


def _parse_subject(value: object, where: str) -> Subject:
    match value:
        case {"name": str(name), "digest": {"sha256": str(digest), **others}, **more} if not others and not more:
            with contextlib.suppress(ValueError):
                return Subject(name, Sha256(digest))
    raise SignatureError(f"{where}: a subject is not an object of name and digest.sha256: {quoted(value)}")


def _check_subject(
    subject: tuple[Subject, ...], content_sha256: Sha256, files: Mapping[str, Sha256], *, where: str
) -> None:
    """Compare a statement's subjects with what the bundle holds; the content's name is for people and not compared."""
    content, *rest = subject
    if content.sha256 != content_sha256:
        raise SignatureError(
            f"{where} speaks of something else: expected the content {content_sha256}, found {content.sha256}"
        )
    expected = [Subject(path, files[path]) for path in sorted(files, key=str.encode)]
    if rest == expected:
        return
    for wanted, found in zip(expected, rest, strict=False):
        if wanted != found:
            raise SignatureError(
                f"{where} speaks of something else: expected the file {quoted(wanted.name)} with {wanted.sha256}, "
                f"found {quoted(found.name)} with {found.sha256}"
            )
    raise SignatureError(f"{where} speaks of {len(rest)} payload files, the bundle has {len(expected)}")


def _valid_signers(one: _Signed, trusted: Sequence[tuple[bytes, Key]], *, where: str) -> set[bytes]:
    """The key material of every trusted key with a valid signature on a statement."""
    valid: set[bytes] = set()
    data = one.envelope.pae()
    for signature in one.signatures:
        candidates = [(material, key) for material, key in trusted if key.keyid == signature.keyid]
        verified = {material for material, key in candidates if _verifies(key, signature, data)}
        if candidates and not verified:
            raise SignatureError(
                f"{where}: the signature of the trusted key {quoted(signature.keyid)} is not valid",
                hint="The statement was altered after it was signed. Get the bundle again from where it was built.",
            )
        valid |= verified
    return valid


def _verifies(key: Key, signature: Signature, data: bytes) -> bool:
    try:
        key.verify_signature(signature, data)
    except UnverifiedSignatureError:
        return False
    return True


def _refuse_builders(provenance: Sequence[_Signed], *, found: int, needed: int) -> None:
    keyids = sorted({signature.keyid for one in provenance for signature in one.signatures})
    raise UntrustedBuilderError(
        f"{needed} trusted builder{'s have' if needed > 1 else ' has'} to vouch for the bundle, found {found}; "
        f"its provenance is signed under {', '.join(map(quoted, keyids[:8]))}",
        hint="If you know whose key that is and trust it, add it to the trusted builder keys.",
    )


def _parse_object(data: bytes, names: set[str], *, where: str) -> dict[str, Any]:
    try:
        value = parse_json(data)
    except ValueError as error:
        raise SignatureError(f"{where} {error}") from error
    if not isinstance(value, dict) or set(value) != names:
        raise SignatureError(f"{where} is not an object with exactly the keys {', '.join(sorted(names))}")
    return value


def _decode_base64(text: object, *, where: str) -> bytes:
    """Decode padded standard base64 (RFC 4648, section 4) in the one spelling that its bytes have."""
    if isinstance(text, str):
        with contextlib.suppress(binascii.Error, ValueError):
            data = base64.b64decode(text, validate=True)
            if base64.b64encode(data).decode() == text:
                return data
    raise SignatureError(f"{where} is not padded standard base64")


def _is_canonical(value: object, line: bytes) -> bool:
    try:
        return canonical_json(value) == line
    except (ValueError, RecursionError):
        return False


def _is_text(value: object) -> bool:
    """Whether a parsed value can be written again: no infinity from 1e999, no lone surrogate from an escape."""
    try:
        canonical_json(value)
    except (ValueError, RecursionError):
        return False
    return True
