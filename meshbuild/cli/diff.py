"""`meshbuild diff`: two bundles or releases side by side."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meshbuild.cli import console
from meshbuild.settings import current_settings
from meshbuild.sides import open_sides

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshbuild.compare import Comparison, Side, SizeChange, TextChange
    from meshbuild.listing import FileEntry

_ROWS_SHOWN = 20


@click.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option("--store", help="The store of releases; the setting `store` unless given.")
@click.option("--root", help="The root of trust; the setting `root` unless given.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write a page with treemaps to a file.")
@click.option("--all", "show_all", is_flag=True, help="Show all packages, those of the same size too.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(
    first: str, second: str, store: str | None, root: str | None, html: Path | None, *, show_all: bool, as_json: bool
) -> None:
    """Show two bundles or releases side by side: files, Go version, Go modules, size by Go package.

    A and B are each a bundle's file; or a release in the store, MODULE@NUMBER or MODULE@CHANNEL, which is verified as
    for a host. A bundle's file is checked against its own digests; whom to trust is what `meshbuild verify` says.

    \b
    Examples:
      meshbuild diff old.tar.zst dist/hello-files.hello-1.0.0-arch.tar.zst
      meshbuild diff mesh-controller@stable mesh-controller@7 --html sizes.html
    """  # noqa: D301 - \b is click's mark for a paragraph to leave as it is
    settings = current_settings(store=store, root=root)
    with tempfile.TemporaryDirectory(prefix="meshbuild-diff-") as folder, console.progress() as progress:
        found = open_sides(settings, first, second, folder=Path(folder), report=console.note, progress=progress)
    if html is not None:
        _write_page(html, found.comparisons)
    if as_json:
        console.result_json(
            {
                "comparisons": [_json(comparison) for comparison in found.comparisons],
                "only_in_first": [_artifact(side) for side in found.only_in_first],
                "only_in_second": [_artifact(side) for side in found.only_in_second],
            }
        )
        return
    for comparison in found.comparisons:
        _show(comparison, show_all=show_all)
    for side in found.only_in_first:
        console.result(f"only in {first}: {side.name}")
    for side in found.only_in_second:
        console.result(f"only in {second}: {side.name}")
    if html is not None:
        console.result(f"written: {html}")


def _write_page(file: Path, comparisons: Iterable[Comparison]) -> None:
    from meshbuild.paths import local_errors, write_atomically  # noqa: PLC0415 - only for a page
    from meshbuild.treemap import page  # noqa: PLC0415

    with local_errors(f"write {file}"):
        write_atomically(file, page(list(comparisons)).encode())


def _show(comparison: Comparison, *, show_all: bool) -> None:
    for letter, side in (("A", comparison.first), ("B", comparison.second)):
        info = side.info
        console.result(f"{letter}  {side.name}")
        console.result(
            f"   content {info.content_sha256.short}  {info.content_size_bytes:,} bytes, "
            f"packed {info.blob_size_bytes:,}"
        )
    if comparison.same:
        console.result("The content is the same to the byte.")
    if comparison.files:
        console.table(
            ("file", "", "A", "B"),
            [(each.path, each.change, _file(each.before), _file(each.after)) for each in comparison.files],
        )
    _show_texts("build", comparison.build)
    _show_texts("Go module", comparison.modules)
    _show_sizes("Go package", comparison.packages, show_all=show_all)
    _show_sizes("section", comparison.sections, show_all=show_all)


def _show_texts(what: str, changes: tuple[TextChange, ...]) -> None:
    if changes:
        rows = [(each.name, each.change, each.before or "-", each.after or "-") for each in changes]
        console.table((what, "", "A", "B"), rows)


def _show_sizes(what: str, sizes: tuple[SizeChange, ...], *, show_all: bool) -> None:
    rows = [each for each in sizes if show_all or each.grown_bytes]
    shown = rows if show_all else rows[:_ROWS_SHOWN]
    if shown:
        console.table(
            (what, "A bytes", "B bytes", "difference"),
            [
                (each.name, f"{each.before_bytes:,}", f"{each.after_bytes:,}", f"{each.grown_bytes:+,}")
                for each in shown
            ],
        )
    if len(shown) < len(rows):
        rest = sum(each.grown_bytes for each in rows[len(shown) :])
        console.result(f"and {len(rows) - len(shown)} more, together {rest:+,} bytes; --all shows them")


def _file(entry: FileEntry | None) -> str:
    return "-" if entry is None else f"{entry.sha256.short} {entry.size_bytes:,} {entry.mode:04o}"


def _artifact(side: Side) -> dict[str, Any]:
    info, listing = side.info, side.info.listing
    return {
        "name": side.name,
        "module": listing.module,
        "artifact": listing.artifact,
        "version": listing.version,
        "system": listing.system,
        "content_sha256": info.content_sha256,
        "content_size_bytes": info.content_size_bytes,
        "blob_size_bytes": info.blob_size_bytes,
    }


def _json(comparison: Comparison) -> dict[str, Any]:
    return {
        "first": _artifact(comparison.first),
        "second": _artifact(comparison.second),
        "same_content": comparison.same,
        "files": [
            {
                "path": each.path,
                "change": each.change,
                "before": _file_json(each.before),
                "after": _file_json(each.after),
            }
            for each in comparison.files
        ],
        "build": [each._asdict() for each in comparison.build],
        "modules": [each._asdict() for each in comparison.modules],
        "packages": [each._asdict() for each in comparison.packages],
        "sections": [each._asdict() for each in comparison.sections],
    }


def _file_json(entry: FileEntry | None) -> dict[str, Any] | None:
    if entry is None:
        return None
    return {"sha256": entry.sha256, "size_bytes": entry.size_bytes, "mode": f"{entry.mode:04o}"}
