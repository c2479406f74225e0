"""Fetching from a folder store against `zstd -d | tar x` of the same bundle, in one run, with peak memory.

Ours does more: it verifies the store's metadata, signatures and every digest, and what it leaves is on the disk for
sure. So it is compared twice: with the plain pipe, and with one that ends in `sync` of the same files.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import shlex
import shutil
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Sample, compare, run
from securesystemslib.signer import CryptoSigner

from meshbuild.bundle import PackInput, write_bundle
from meshbuild.jsontext import canonical_json
from meshbuild.listing import BundleIdentity
from meshbuild.publish import BundleFile, publish
from meshbuild.repository import StoreKeys, init_store
from meshbuild.signing import SLSA_PROVENANCE, STATEMENT_TYPE, sign_statement
from meshbuild.stores.directory import DirectoryStore

if TYPE_CHECKING:
    from meshbuild.digests import Sha256
    from meshbuild.listing import Listing

FILES = 16
FETCH = """
import sys
from pathlib import Path
from meshbuild.fetch import fetch_release
from meshbuild.stores.directory import DirectoryStore
store, root, into = sys.argv[1:]
fetch_release(DirectoryStore(store), root=Path(root).read_bytes(), module="bench", system=None, into=Path(into))
"""


def make_payload(folder: Path, size_mib: int) -> list[PackInput]:
    """Files that compress to a third, as programs do: of each 64 KiB a third is random, the rest repeats."""
    source = random.Random(1)  # noqa: S311 - the same bytes in every run are wanted
    inputs = []
    for number in range(FILES):
        path = folder / f"file{number}"
        with path.open("wb") as file:
            for _ in range(size_mib * 16 // FILES):
                file.write(source.randbytes(21 << 10) + source.randbytes(43) * (1 << 10))
        inputs.append(PackInput("server" if number == 0 else path.name, path, 0o755))
    return inputs


def make_store(folder: Path, size_mib: int) -> None:
    """Make folder/store with one release of one bundle, folder/root.json, and the bundle at folder/bench.tar.zst."""
    inputs = make_payload(folder, size_mib)
    keys = StoreKeys(**{role: CryptoSigner.generate_ed25519() for role in ("root", "targets", "snapshot", "timestamp")})
    builder, now = CryptoSigner.generate_ed25519(), datetime.now(UTC)

    def attest(listing: Listing, content: Sha256) -> list[bytes]:
        subjects = [("content", content), *((file.path, file.sha256) for file in listing.files)]
        statement = {
            "_type": STATEMENT_TYPE,
            "predicateType": SLSA_PROVENANCE,
            "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in subjects],
            "predicate": {},
        }
        return [canonical_json(sign_statement(statement, builder))]

    blob = folder / "bench.tar.zst"
    info = write_bundle(blob, BundleIdentity("bench", "server", "1", "arch", "server"), inputs, attest=attest)
    artifact = {"name": "server", "kind": "bundle", "language": "go", "system": "arch", "from": ".", "binary": "server"}
    store = DirectoryStore(folder / "store")
    root = init_store(store, keys, now=now)
    publish(
        store,
        root=root,
        manifest={"module": "bench", "version": "1", "build": {"artifacts": [artifact]}},
        bundles=[BundleFile(blob, info)],
        channel="stable",
        publisher=CryptoSigner.generate_ed25519(),
        builder=builder.public_key,
        keys=keys,
        now=now,
    )
    (folder / "root.json").write_bytes(root)
    for each in inputs:
        each.source.unlink()


def main() -> None:
    """Print one line a comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # Not in this process: a child's peak memory starts from what its parent had.
        maker = multiprocessing.get_context("spawn").Process(target=make_store, args=(folder, options.size_mib))
        maker.start()
        maker.join()
        ours, theirs = folder / "host", folder / "plain"
        argv = [sys.executable, "-c", FETCH, str(folder / "store"), str(folder / "root.json"), str(ours)]

        def fetch() -> Sample:
            shutil.rmtree(ours, ignore_errors=True)
            return run(argv)

        def unpack(ending: str = "") -> Sample:
            shutil.rmtree(theirs, ignore_errors=True)
            theirs.mkdir()
            into = shlex.quote(str(theirs))
            return run(["sh", "-c", f"zstd -dc {shlex.quote(f'{folder}/bench.tar.zst')} | tar -x -C {into}{ending}"])

        def unpack_and_sync() -> Sample:
            return unpack(f" && find {shlex.quote(str(theirs))} -type f -exec sync {{}} +")

        size = f"fetch of {options.size_mib} MiB from a folder store"
        compare(size, fetch, unpack, runs=options.runs, peer_name="zstd -d | tar x")
        compare(size, fetch, unpack_and_sync, runs=options.runs, peer_name="the same and sync")

        fetch()

        def again() -> Sample:
            return run(argv)

        compare("fetch of what is there already", again, unpack, runs=options.runs, peer_name="zstd -d | tar x")


if __name__ == "__main__":
    main()
