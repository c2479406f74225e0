"""The documents of a store: what a release is, where a channel points, and whom the policy trusts.

Each is canonical JSON, so that a document's digest is the digest of its value; python-tuf's metadata signs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from meshbuild.digests import Sha256
from meshbuild.errors import ClaimError, PolicyError, ReleaseError, SettingsError
from meshbuild.jsontext import canonical_json, parse_json
from meshbuild.signing import load_public_key
from meshbuild.texts import LABEL, VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from securesystemslib.signer import Key, SSlibKey

MAX_DOCUMENT_BYTES = 8 << 20
POLICY_NAME = "policy.json"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1

    def to_bytes(self) -> bytes:
        """The document's one spelling."""
        return canonical_json(self.model_dump(mode="json"))

    @property
    def sha256(self) -> Sha256:
        """The digest of the document's bytes."""
        return Sha256.of(self.to_bytes())

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> Self:
        """Parse a document strictly.

        Args:
            data: its bytes.
            where: its name, for messages.

        Raises:
            ReleaseError: it is malformed, of another format, too long or not in canonical spelling.
        """
        if len(data) > MAX_DOCUMENT_BYTES:
            raise ReleaseError(f"{where} is longer than {MAX_DOCUMENT_BYTES} bytes")
        try:
            parse_json(data)  # stricter about the text: no duplicate keys, no NaN
            document = cls.model_validate_json(data)
        except ValidationError as error:
            problems = [
                f"{'.'.join(map(str, problem['loc'])) or 'document'}: {problem['msg']}"
                for problem in error.errors(include_url=False, include_input=False)
            ]
            raise ReleaseError(f"{where} is not valid: {'; '.join(problems)}") from error
        except (ValueError, RecursionError) as error:
            raise ReleaseError(f"{where} {error}") from error
        if document.to_bytes() != data:
            raise ReleaseError(f"{where} is not in canonical spelling")
        return document


Label = Annotated[str, LABEL]
Version = Annotated[str, VERSION]
Size = Annotated[int, Field(ge=0, lt=1 << 53)]
Number = Annotated[int, Field(ge=1, lt=1 << 53)]


class ReleasedArtifact(BaseModel):
    """One artifact for one system in a release: its bundle's two digests with sizes, and its statements' object."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    artifact: Label
    system: Label
    binary: str
    content_sha256: Sha256
    content_size_bytes: Size
    blob_sha256: Sha256
    blob_size_bytes: Size
    statements_sha256: Sha256
    statements_size_bytes: Size


class ReleaseDocument(_Document):
    """A module at one moment. Immutable; knows of no channel, no time and no deltas.

    Attributes:
        sequence: 1, 2, 3 ... within the module; gaps are allowed.
        manifest: the manifest's JSON value.
        artifacts: sorted by artifact and system, none twice.
    """

    module: Label
    version: Version
    sequence: Number
    manifest: dict[str, Any]
    artifacts: tuple[ReleasedArtifact, ...]

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        keys = [(each.artifact, each.system) for each in self.artifacts]
        if keys != sorted(set(keys)):
            raise ValueError("artifacts are not sorted, or one is there twice")
        return self

    @property
    def identity(self) -> Sha256:
        """What makes two releases the same: module, version, manifest and the content digests."""
        contents = [[each.artifact, each.system, each.content_sha256] for each in self.artifacts]
        return Sha256.of(canonical_json([self.module, self.version, self.manifest, contents]))

    @property
    def target_name(self) -> str:
        """The document's name in the module's role."""
        return f"{self.module}/release.{self.sequence}.json"


class ChannelDocument(_Document):
    """A named pointer to a module's current release.

    Attributes:
        serial: one more with each time the channel is written; what a host's floor remembers.
        release_sequence: the release's number.
        release_sha256: the digest of the release document's bytes.
        deltas: ways to that release from others, which this version doesn't take: it fetches bundles whole.
    """

    module: Label
    channel: Label
    serial: Number
    release_sequence: Number
    release_sha256: Sha256
    deltas: tuple[dict[str, Any], ...] = ()

    @property
    def target_name(self) -> str:
        """The document's name in the module's role."""
        return channel_target(self.module, self.channel)


class PolicyBuilder(BaseModel):
    """A trusted builder: its public key as PEM, and the keyid that belongs to it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    keyid: str
    public_key: str

    @model_validator(mode="after")
    def _belongs(self) -> Self:
        try:
            keyid = load_public_key(self.public_key).keyid
        except SettingsError as error:
            raise ValueError(str(error)) from error
        if keyid != self.keyid:
            raise ValueError(f"the key's id is {keyid}, not {self.keyid}")
        return self


class PolicyEntry(BaseModel):
    """What the policy says of a module.

    Attributes:
        builders: whose bundles it may release.
        builders_needed: how many of them must have signed, counted by distinct key material.
        claims: the mesh-wide claims that it holds.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    builders: tuple[PolicyBuilder, ...] = Field(min_length=1)
    builders_needed: Annotated[int, Field(ge=1, le=64)] = 1
    claims: tuple[Label, ...] = ()

    @property
    def keys(self) -> list[SSlibKey]:
        """The builders' keys."""
        return [load_public_key(builder.public_key) for builder in self.builders]


class PolicyDocument(_Document):
    """Whom a store trusts to build which module, and who holds which claim. No entry means refuse."""

    modules: dict[Label, PolicyEntry] = Field(default_factory=dict)

    def entry(self, module: str) -> PolicyEntry:
        """A module's entry. Raises PolicyError when there is none."""
        if module not in self.modules:
            raise PolicyError(
                f"the store's policy has no entry for the module {module!r}",
                hint="Whoever holds the store's targets key admits a module with its first push.",
            )
        return self.modules[module]

    def holder(self, claim: str) -> str | None:
        """The module that holds a mesh-wide claim, or None."""
        return next((module for module, entry in sorted(self.modules.items()) if claim in entry.claims), None)

    def check_claims(self, module: str, manifest: Mapping[str, Any]) -> None:
        """Check that a module holds every mesh-wide claim of its manifest.

        Raises:
            ClaimError: another module holds one, or nobody granted it.
        """
        for claim in mesh_claims(manifest):
            holder = self.holder(claim)
            if holder is None:
                raise ClaimError(f"{module} claims {claim!r} in the mesh, and the store's policy grants that to nobody")
            if holder != module:
                raise ClaimError(f"{module} claims {claim!r} in the mesh, and {holder} holds it")

    def granting(self, module: str, builder: Key, pem: str, claims: Sequence[str]) -> PolicyDocument:
        """The policy with an entry for a module, trusting one builder; its claims are those that nobody else holds."""
        free = [claim for claim in claims if self.holder(claim) in (None, module)]
        entry = PolicyEntry(builders=(PolicyBuilder(keyid=builder.keyid, public_key=pem),), claims=tuple(sorted(free)))
        return PolicyDocument(modules={**self.modules, module: entry})


def mesh_claims(manifest: Mapping[str, Any]) -> list[str]:
    """The mesh-wide claims of a manifest's JSON value."""
    claims = manifest.get("claims") or []
    return [claim["name"] for claim in claims if claim.get("scope") == "mesh"]


def channel_target(module: str, channel: str) -> str:
    """The name of a channel's document."""
    return f"{module}/channel.{channel}.json"


def object_key(digest: Sha256) -> str:
    """Where an object lies in a store."""
    return f"objects/sha256/{digest[:2]}/{digest}"
