"""`meshbuild verify`: a bundle's signature, digests and listing; and whether its source gives it again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshbuild.bundle import read_bundle
from meshbuild.cli import console
from meshbuild.errors import RebuildMismatchError, SignatureError, UntrustedBuilderError
from meshbuild.settings import current_settings, find_project, load_settings
from meshbuild.signing import SLSA_PROVENANCE, load_public_key, read_statements_unverified, verify_statements

if TYPE_CHECKING:
    from meshbuild.bundle import BundleInfo
    from meshbuild.rebuild import Rebuilt


@click.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--builder-key",
    "builder_keys",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Public key (PEM) of a builder to trust; may be repeated. The project's own builder key unless given.",
)
@click.option(
    "--rebuild", "rebuilding", is_flag=True, help="Build it again from its provenance statement, and compare."
)
@click.option(
    "--source",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="The project to rebuild from; the current one unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    bundle: Path, builder_keys: tuple[Path, ...], source: Path | None, *, rebuilding: bool, as_json: bool
) -> None:
    """Check that a bundle is whole and that a trusted builder signed what is in it.

    Without any key to trust it says "intact, builder not trusted", and ends with that error's exit code.

    With --rebuild, the source decides: the bundle is built again with the pinned compiler, and has to come out the same
    to the byte. A builder that isn't trusted is then no error, unless --builder-key says whom to trust.

    \b
    Examples:
      meshbuild verify dist/hello-files.hello-1.0.0-arch.tar.zst --builder-key builder.pub
      meshbuild verify dist/hello-files.hello-1.0.0-arch.tar.zst --rebuild
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    if source is not None and not rebuilding:
        raise click.UsageError("--source names what to rebuild from; it needs --rebuild")
    info = read_bundle(bundle)
    builders: tuple[str, ...] = ()
    try:
        builders, predicate = _verify(info, builder_keys)
    except UntrustedBuilderError as error:
        refusal = f"{bundle}: intact, builder not trusted: {error}"
        if builder_keys or not rebuilding:
            raise UntrustedBuilderError(refusal, hint=error.hint) from error
        console.note(f"note: {refusal}")
        predicate = _claimed_provenance(info)
    result: dict[str, Any] = {
        "intact": True,
        "content_sha256": info.content_sha256,
        "blob_sha256": info.blob_sha256,
        "builders": list(builders),
    }
    if builders and not as_json:
        console.result(f"{bundle}: verified: content {info.content_sha256}, built by {', '.join(builders)}")
    rebuilt = _rebuild(bundle, info, predicate, source) if rebuilding else None
    if as_json:
        console.result_json({**result, **_as_json(rebuilt)})
    if rebuilt is not None:
        _judge(bundle, rebuilt, as_json=as_json)


def _verify(info: BundleInfo, builder_keys: tuple[Path, ...]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The trusted builders, and the predicate of the provenance that one of them signed."""
    verified = verify_statements(
        info.statements,
        keys=[load_public_key(file) for file in builder_keys or _own_key()],
        content_sha256=info.content_sha256,
        files={file.path: file.sha256 for file in info.listing.files},
    )
    signed = (each for each in verified.statements if each.predicate_type == SLSA_PROVENANCE)
    return verified.builders, dict(next(signed).predicate)


def _claimed_provenance(info: BundleInfo) -> dict[str, Any]:
    """The predicate of the first provenance statement, whoever signed it."""
    for statement in read_statements_unverified(info.statements):
        if statement.predicate_type == SLSA_PROVENANCE:
            return dict(statement.predicate)
    raise SignatureError(f"none of the bundle's statements is a {SLSA_PROVENANCE}")


def _rebuild(bundle: Path, info: BundleInfo, predicate: dict[str, Any], source: Path | None) -> Rebuilt:
    from meshbuild.rebuild import rebuild  # noqa: PLC0415 - a plain verification needs no compiler's side

    settings = current_settings() if source is None else load_settings(find_project(source), os.environ)
    return rebuild(bundle, info, predicate, settings=settings, environ=os.environ, report=console.note)


def _as_json(rebuilt: Rebuilt | None) -> dict[str, Any]:
    if rebuilt is None:
        return {}
    return {
        "rebuilt": {
            "same": rebuilt.same,
            "content_sha256": rebuilt.content_sha256,
            "notes": list(rebuilt.notes),
            "differences": list(rebuilt.differences),
        }
    }


def _judge(bundle: Path, rebuilt: Rebuilt, *, as_json: bool) -> None:
    """Say what came of it; raises RebuildMismatchError unless the two are the same."""
    if rebuilt.same:
        for note in rebuilt.notes:
            console.note(f"note: {note}")
        if not as_json:
            console.result(f"{bundle}: rebuilt: same content digest {rebuilt.content_sha256}")
        return
    lines = [
        f"{bundle}: rebuilt: another content digest {rebuilt.content_sha256}, not {rebuilt.expected_sha256}",
        *(f"differs: {line}" for line in rebuilt.differences),
        *(f"probable cause: {note}" for note in rebuilt.notes),
    ]
    raise RebuildMismatchError(
        "\n  ".join(lines),
        hint="Rebuild from the commit that the bundle was built from (git worktree), named by --source."
        if rebuilt.notes
        else "Same statement, same command, other bytes: don't run the bundle before you know why.",
    )


def _own_key() -> tuple[Path, ...]:
    settings = current_settings()
    own = settings.path(settings.keys) / "builder.pub"
    return (own,) if own.is_file() else ()
