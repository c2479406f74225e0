"""`meshbuild inspect`: what is in a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from meshbuild.bundle import read_bundle
from meshbuild.cli import console
from meshbuild.signing import read_statements_unverified


@click.command("inspect")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, statements included.")
def command(bundle: Path, *, as_json: bool) -> None:
    """Show what is in a bundle: names, digests, files, and who signed what about it.

    Every byte is checked against the bundle's own digests; whether its signers are to be trusted is what
    `meshbuild verify` says.

    \b
    Example:
      meshbuild inspect dist/hello-files.hello-1.0.0-arch.tar.zst
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    info = read_bundle(bundle)
    listing = info.listing
    statements = read_statements_unverified(info.statements)
    if as_json:
        console.result_json(
            {
                "module": listing.module,
                "artifact": listing.artifact,
                "version": listing.version,
                "system": listing.system,
                "binary": listing.binary,
                "content_sha256": info.content_sha256,
                "content_size_bytes": info.content_size_bytes,
                "blob_sha256": info.blob_sha256,
                "blob_size_bytes": info.blob_size_bytes,
                "size_bytes": info.blob_size_bytes,
                "files": [
                    {
                        "path": file.path,
                        "sha256": file.sha256,
                        "size_bytes": file.size_bytes,
                        "mode": f"{file.mode:04o}",
                    }
                    for file in listing.files
                ],
                "signatures": [
                    {"predicate_type": statement.predicate_type, "keyid": keyid}
                    for statement in statements
                    for keyid in statement.keyids
                ],
                "statements": [
                    {"predicate_type": statement.predicate_type, "predicate": statement.predicate}
                    for statement in statements
                ],
            }
        )
        return
    console.result(f"{listing.module} {listing.version}: {listing.artifact} for {listing.system}")
    console.result(f"content {info.content_sha256}  {console.size(info.content_size_bytes)}")
    console.result(f"blob    {info.blob_sha256}  {console.size(info.blob_size_bytes)}")
    console.table(
        ("mode", "size", "sha256", "path"),
        [(f"{file.mode:04o}", console.size(file.size_bytes), file.sha256.short, file.path) for file in listing.files],
    )
    for statement in statements:
        console.result(f"{statement.predicate_type}, signed by {', '.join(keyid[:12] for keyid in statement.keyids)}")
