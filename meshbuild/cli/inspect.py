"""`meshbuild inspect`: what is in a bundle."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshbuild.bundle import read_bundle
from meshbuild.cli import console
from meshbuild.paths import local_errors, write_atomically
from meshbuild.provenance import CYCLONEDX_BOM
from meshbuild.signing import SLSA_PROVENANCE, read_statements_unverified

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from meshbuild.signing import SignedStatement

# Predicate types to what their files are called.
_FILE_NAMES = {SLSA_PROVENANCE: "provenance", CYCLONEDX_BOM: "sbom"}


@click.command("inspect")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--statements",
    "statements_dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the statements to a folder, for other tools.",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON, statements included.")
def command(bundle: Path, statements_dir: Path | None, *, as_json: bool) -> None:
    """Show what is in a bundle: names, digests, files, how it was built, the Go modules in it, and who signed that.

    Every byte is checked against the bundle's own digests; whether its signers are to be trusted is what
    `meshbuild verify` says.

    \b
    Examples:
      meshbuild inspect dist/hello-files.hello-1.0.0-arch.tar.zst
      meshbuild inspect dist/hello-files.hello-1.0.0-arch.tar.zst --statements said
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    info = read_bundle(bundle)
    listing = info.listing
    statements = read_statements_unverified(info.statements)
    if statements_dir is not None:
        for file in _write_statements(info.statements, statements, statements_dir):
            console.note(f"written: {file}")
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
        signers = ", ".join(keyid[:12] for keyid in statement.keyids)
        console.result(f"{statement.predicate_type}, signed by {signers}")
        # What somebody signed may be anything; what isn't of the known form is in --json.
        try:
            if statement.predicate_type == SLSA_PROVENANCE:
                _show_provenance(statement.predicate)
            elif statement.predicate_type == CYCLONEDX_BOM:
                _show_bom(statement.predicate)
        except (KeyError, TypeError, AttributeError, IndexError):
            console.result("  of a form that this version doesn't know; --json shows it")


def _show_provenance(predicate: Mapping[str, Any]) -> None:
    definition, run = predicate["buildDefinition"], predicate["runDetails"]
    asked, done = definition["externalParameters"], definition["internalParameters"]
    known = {each["name"]: each for each in definition["resolvedDependencies"]}
    source = asked["source"]
    dirty = known.get("source", {}).get("annotations", {}).get("dirty")
    state = {True: ", with changes that are not in it", False: "", None: ""}[dirty]
    options = [
        *(["stripped"] if asked["strip"] else []),
        *(["git revision stamped"] if asked["vcs"] else []),
        *(f"tag {tag}" for tag in asked["tags"]),
        *(f"{name}={value}" for name, value in sorted(asked["stamp"].items())),
        *(["optimised by default.pgo"] if "default.pgo" in known else []),
    ]
    times = run["metadata"]
    rows = {
        "source": f"{source['go_module']}, {source['package']}",
        "commit": f"{source['commit']}{state}",
        "toolchain": f"{known['toolchain']['uri']}, tree {known['toolchain']['digest']['sha256'][:12]}",
        "options": ", ".join(options) or "none",
        "command": " ".join(done["argv"]),
        "isolation": done["isolation"],
        "builder": f"{run['builder']['id']}, meshbuild {run['builder']['version']['meshbuild']}",
        "built": f"{times['startedOn']} to {times['finishedOn']}"
        + (", with a shared build cache" if times.get("meshbuild_sharedCache") else ""),
    }
    for name, value in rows.items():
        console.result(f"  {name:<10} {value}")


def _show_bom(predicate: Mapping[str, Any]) -> None:
    console.table(
        ("component", "version", "hash", "purl"),
        [
            (
                each["name"],
                each.get("version", "-"),
                each["hashes"][0]["content"][:12] if each.get("hashes") else "-",
                each.get("purl", "-"),
            )
            for each in predicate.get("components", ())
        ],
    )


def _write_statements(lines: bytes, statements: tuple[SignedStatement, ...], folder: Path) -> Iterator[Path]:
    """Write each statement's envelope, the statement in it, and the bill of materials alone; gives the files."""
    count: dict[str, int] = {}
    for line, statement in zip(lines.splitlines(), statements, strict=True):
        name = _FILE_NAMES.get(statement.predicate_type, "statement")
        count[name] = count.get(name, 0) + 1
        name = name if count[name] == 1 else f"{name}-{count[name]}"
        files = {
            f"{name}.dsse.json": line + b"\n",
            f"{name}.intoto.json": base64.b64decode(json.loads(line)["payload"]),
        }
        if statement.predicate_type == CYCLONEDX_BOM:
            files[f"{name}.cdx.json"] = json.dumps(statement.predicate, indent=2, ensure_ascii=False).encode() + b"\n"
        with local_errors(f"write {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            for file, data in files.items():
                write_atomically(folder / file, data)
                yield folder / file
