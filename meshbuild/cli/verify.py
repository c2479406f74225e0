"""`meshbuild verify`: a bundle's signature, digests and listing."""

from __future__ import annotations

from pathlib import Path

import click

from meshbuild.bundle import read_bundle
from meshbuild.cli import console
from meshbuild.errors import UntrustedBuilderError
from meshbuild.settings import current_settings
from meshbuild.signing import load_public_key, verify_statements


@click.command("verify")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option(
    "--builder-key",
    "builder_keys",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Public key (PEM) of a builder to trust; may be repeated. The project's own builder key unless given.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(bundle: Path, builder_keys: tuple[Path, ...], *, as_json: bool) -> None:
    """Check that a bundle is whole and that a trusted builder signed what is in it.

    Without any key to trust it says "intact, builder not trusted", and ends with that error's exit code.

    \b
    Example:
      meshbuild verify dist/hello-files.hello-1.0.0-arch.tar.zst --builder-key builder.pub
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    info = read_bundle(bundle)
    try:
        verified = verify_statements(
            info.statements,
            keys=[load_public_key(file) for file in builder_keys or _own_key()],
            content_sha256=info.content_sha256,
            files={file.path: file.sha256 for file in info.listing.files},
        )
    except UntrustedBuilderError as error:
        raise UntrustedBuilderError(f"{bundle}: intact, builder not trusted: {error}", hint=error.hint) from error
    if as_json:
        console.result_json(
            {
                "intact": True,
                "content_sha256": info.content_sha256,
                "blob_sha256": info.blob_sha256,
                "builders": list(verified.builders),
            }
        )
        return
    console.result(f"{bundle}: verified: content {info.content_sha256}, built by {', '.join(verified.builders)}")


def _own_key() -> tuple[Path, ...]:
    settings = current_settings()
    own = settings.path(settings.keys) / "builder.pub"
    return (own,) if own.is_file() else ()
