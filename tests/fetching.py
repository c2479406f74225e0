"""A real folder store with releases in it, for tests of fetching; and a careless store owner who seals anything."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, BinaryIO

from securesystemslib.signer import CryptoSigner
from tuf.api.metadata import MetaFile, TargetFile, Targets

from meshbuild.bundle import PackInput, write_bundle
from meshbuild.digests import Sha256
from meshbuild.jsontext import canonical_json
from meshbuild.listing import BundleIdentity
from meshbuild.publish import BundleFile, publish
from meshbuild.repository import StoreKeys, init_store, sign_metadata
from meshbuild.signing import SLSA_PROVENANCE, STATEMENT_TYPE, sign_statement
from meshbuild.stores.directory import DirectoryStore
from meshbuild.trust import TIMESTAMP_KEY, load_state, role_of, target_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from securesystemslib.signer import Signer

    from meshbuild.listing import Listing
    from meshbuild.publish import Published

NOW = datetime(2027, 1, 2, 3, 4, 5, tzinfo=UTC)


def manifest(
    module: str = "hello", version: str = "1.0", systems: Sequence[str] = ("arch",), **more: Any
) -> dict[str, Any]:
    """A valid manifest whose one artifact, `server`, is built for the systems."""
    artifacts = [
        {"name": "server", "kind": "bundle", "language": "go", "system": each, "from": ".", "binary": "server"}
        for each in systems
    ]
    return {"module": module, "version": version, "build": {"artifacts": artifacts}, **more}


def statement(content: Sha256, files: Mapping[str, Sha256]) -> dict[str, Any]:
    """A provenance statement about a bundle."""
    subjects = [("content", content), *sorted(files.items(), key=lambda each: each[0].encode())]
    return {
        "_type": STATEMENT_TYPE,
        "predicateType": SLSA_PROVENANCE,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
        "predicate": {},
    }


@dataclass
class Scene:
    """A store in `folder`, its keys, and a builder. Releases are sealed as `publish` does it, or by `seal_anything`."""

    folder: Path
    builder: Signer = field(default_factory=CryptoSigner.generate_ed25519)
    publisher: Signer = field(default_factory=CryptoSigner.generate_ed25519)
    now: datetime = NOW

    def __post_init__(self) -> None:
        names = ("root", "targets", "snapshot", "timestamp")
        self.keys = StoreKeys(**{name: CryptoSigner.generate_ed25519() for name in names})
        self.store = DirectoryStore(self.folder / "store")
        self.root = init_store(self.store, self.keys, now=self.now)

    def bundle(self, *, text: str | bytes = "program 1", signer: Signer | None = None, **identity: str) -> BundleFile:
        """Pack a program and a read-me, and sign a statement about them."""
        names = {"module": "hello", "artifact": "server", "version": "1.0", "system": "arch", "binary": "server"}
        who = BundleIdentity(**{**names, **identity})
        data = text.encode() if isinstance(text, str) else text
        source = self.folder / f"source-{Sha256.of(data).short}"
        source.write_bytes(data)
        other = self.folder / "README"
        other.write_text("read me\n")
        path = self.folder / f"{who.module}-{who.system}-{Sha256.of(data).short}.tar.zst"

        def attest(listing: Listing, content: Sha256) -> list[bytes]:
            said = statement(content, {file.path: file.sha256 for file in listing.files})
            return [canonical_json(sign_statement(said, signer or self.builder))]

        inputs = [PackInput(who.binary, source, 0o755), PackInput("share/README", other, 0o644)]
        return BundleFile(path, write_bundle(path, who, inputs, attest=attest))

    def push(
        self, *bundles: BundleFile, channel: str = "stable", document: Mapping[str, Any] | None = None
    ) -> Published:
        """Publish bundles as a release; the manifest is `manifest()` unless given."""
        return publish(
            self.store,
            root=self.root,
            manifest=document or manifest(),
            bundles=bundles or [self.bundle()],
            channel=channel,
            publisher=self.publisher,
            builder=self.builder.public_key,
            keys=self.keys,
            now=self.now,
        )

    def path(self, key: str) -> Path:
        """The file of a key."""
        return self.store.folder / key

    def files(self) -> list[Path]:
        """Every file of the store, in a stable order."""
        return sorted(path for path in self.store.folder.rglob("*") if path.is_file() and ".lock" not in path.name)

    def documents(self, module: str = "hello") -> dict[str, bytes]:
        """The documents of a module, and the policy, as they stand."""
        state = load_state(self.store, root=self.root, modules=[module])
        return {
            name: self.path(target_key(name, target.hashes["sha256"])).read_bytes()
            for role in (state.targets, *state.roles.values())
            for name, target in role.targets.items()
        }

    def seal_anything(self, documents: Mapping[str, bytes | None], *, module: str = "hello") -> None:
        """Sign documents with the right keys and commit them, whatever they say: a store whose keys were stolen.

        `policy.json` goes into targets, everything else into the module's role; None removes a document.
        """
        state = load_state(self.store, root=self.root, modules=[module])
        snapshot, timestamp = copy.deepcopy(state.snapshot), copy.deepcopy(state.timestamp)
        roles: list[tuple[str, Targets, Signer | None]] = [
            ("targets", copy.deepcopy(state.targets), self.keys.targets),
            (role_of(module), copy.deepcopy(state.roles[role_of(module)]), self.publisher),
        ]
        for name, role, signer in roles:
            for document, data in documents.items():
                if (document == "policy.json") != (name == "targets"):
                    continue
                role.targets.pop(document, None)
                if data is not None:
                    role.targets[document] = TargetFile(len(data), {"sha256": Sha256.of(data)}, document)
                    self.store.create(target_key(document, Sha256.of(data)), data)
            role.version += 1
            assert signer is not None
            snapshot.meta[f"{name}.json"] = self._create(
                f"{role.version}.{name}.json", sign_metadata(role, signer), role.version
            )
        snapshot.version += 1
        data = sign_metadata(snapshot, self.keys.snapshot)
        timestamp.snapshot_meta = self._create(f"{snapshot.version}.snapshot.json", data, snapshot.version)
        timestamp.version += 1
        assert self.store.swap(
            TIMESTAMP_KEY, sign_metadata(timestamp, self.keys.timestamp), expected=state.timestamp_bytes
        )

    def _create(self, name: str, data: bytes, version: int) -> MetaFile:
        assert self.store.create(f"metadata/{name}", data)
        return MetaFile(version, len(data), {"sha256": Sha256.of(data)})


@dataclass
class CountingStore:
    """Hands on a store's files and remembers which were asked for."""

    inner: DirectoryStore
    asked: list[str] = field(default_factory=list)

    @property
    def address(self) -> str:
        return self.inner.address

    def read(self, key: str, *, limit_bytes: int) -> bytes:
        self.asked.append(key)
        return self.inner.read(key, limit_bytes=limit_bytes)

    def open(self, key: str) -> AbstractContextManager[BinaryIO]:
        self.asked.append(key)
        return self.inner.open(key)

    @property
    def objects(self) -> list[str]:
        """The objects that were asked for."""
        return [key for key in self.asked if key.startswith("objects/")]


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, by its relative path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
