"""A comparison of two bundles as one page of HTML: where the bytes of each program are, as areas, and the tables.

The page stands alone: no scripts, nothing from elsewhere, and every text of a bundle is escaped.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, NamedTuple

import squarify

from meshbuild.compare import groups

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from meshbuild.compare import Comparison, Side

_WIDTH, _HEIGHT = 1200, 700  # of the larger one; the other one's height is in proportion
_HEAD, _GAP = 16, 2
_MIN_LABEL_WIDTH, _MIN_LABEL_HEIGHT, _LETTER_WIDTH = 40, 12, 6.2
_STYLE = """body{font:14px system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse;margin:1em 0}td,th{padding:2px 12px 2px 0;text-align:left;vertical-align:top}
td.n{text-align:right;font-variant-numeric:tabular-nums}svg{display:block;margin:.5em 0 2em;max-width:100%}
svg text{font:11px system-ui,sans-serif;fill:#222;pointer-events:none}
rect{stroke:#fff;stroke-width:1}.g{fill:#f0f0f0;stroke:#999}.same{fill:#cfd8dc}.up{fill:#ef9a9a}.down{fill:#a5d6a7}
.new{fill:#ffcc80}.key span{padding:1px 8px;margin-right:1em}.key .same{background:#cfd8dc}.key .up{background:#ef9a9a}
.key .down{background:#a5d6a7}.key .new{background:#ffcc80}code{font-size:13px}"""


class _Box(NamedTuple):
    name: str
    size_bytes: int
    x: float
    y: float
    width: float
    height: float


def page(comparisons: Sequence[Comparison]) -> str:
    """The page, as text; a comparison whose bundles aren't both Go programs has its table of files alone."""
    body = "".join(line for comparison in comparisons for line in _comparison(comparison))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>meshbuild diff</title><style>{_STYLE}</style></head><body>\n{body}</body></html>\n"
    )


def _comparison(comparison: Comparison) -> Iterator[str]:
    first, second = comparison.first, comparison.second
    yield f"<h1>{escape(first.name)} &rarr; {escape(second.name)}</h1>\n"
    yield "<p>The content is the same to the byte.</p>\n" if comparison.same else ""
    yield _table(
        ("file", "", "before", "after"),
        (
            (each.path, each.change, *(f"{side.size_bytes:,}" if side else "" for side in (each.before, each.after)))
            for each in comparison.files
        ),
    )
    yield _table(("build", "", "before", "after"), _texts(comparison.build))
    yield _table(("Go module", "", "before", "after"), _texts(comparison.modules))
    if first.program is None or second.program is None:
        return
    before, after = groups(first.program), groups(second.program)
    largest = max(first.program.size_bytes, second.program.size_bytes)
    yield (
        '<p class="key">Area is bytes in the program\'s file: <span class="same">same size</span>'
        '<span class="up">grown</span><span class="down">shrunk</span><span class="new">in this one only</span></p>\n'
    )
    for side, mine, others in ((first, before, after), (second, after, before)):
        yield from _map(side, mine, others, largest, is_first=side is first)
    yield _table(
        ("Go package", "before", "after", "difference"),
        (
            (each.name, f"{each.before_bytes:,}", f"{each.after_bytes:,}", f"{each.grown_bytes:+,}")
            for each in comparison.packages
        ),
        numbers=(1, 2, 3),
    )


def _texts(changes: Iterable[tuple[str, str, str | None, str | None]]) -> Iterator[tuple[str, ...]]:
    for name, change, before, after in changes:
        yield name, change, before or "", after or ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = (2, 3)) -> str:
    """A table of texts; empty without rows."""
    lines = [
        "<tr>"
        + "".join(
            f"<td{' class=n' if at in numbers and cell[-1:].isdigit() else ''}><code>{escape(cell)}</code></td>"
            for at, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in rows
    ]
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    return f"<table><tr>{head}</tr>\n{''.join(lines)}</table>\n" if lines else ""


def _map(
    side: Side,
    mine: Mapping[str, Mapping[str, int]],
    others: Mapping[str, Mapping[str, int]],
    largest: int,
    *,
    is_first: bool,
) -> Iterator[str]:
    """A treemap of one side's program: a box for each group, and in it one for each of its names."""
    assert side.program is not None  # noqa: S101 - for the type checker
    height = _HEIGHT * side.program.size_bytes / largest
    yield f"<h2>{escape(side.name)}: {side.program.size_bytes:,} bytes</h2>\n"
    yield f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" height="{height:.0f}">\n'
    for group in _boxes({name: sum(sizes.values()) for name, sizes in mine.items()}, 0, 0, _WIDTH, height):
        yield _rect(group, "g", f"{group.name}: {group.size_bytes:,} bytes")
        yield _label(group)
        head = _HEAD if group.height > 2 * _HEAD else 0
        width, rest = group.width - 2 * _GAP, group.height - head - 2 * _GAP
        if width <= 1 or rest <= 1:
            continue
        for box in _boxes(mine[group.name], group.x + _GAP, group.y + head + _GAP, width, rest):
            other = others.get(group.name, {}).get(box.name, 0)
            yield _rect(box, _class(box.size_bytes, other, is_first=is_first), _told(box, other, is_first=is_first))
            yield _label(box)
    yield "</svg>\n"


def _boxes(sizes: Mapping[str, int], x: float, y: float, width: float, height: float) -> list[_Box]:
    """Boxes that fill a rectangle, in proportion to their sizes, the largest first."""
    rows = sorted(((name, size) for name, size in sizes.items() if size > 0), key=lambda row: (-row[1], row[0]))
    areas = squarify.normalize_sizes([size for _, size in rows], width, height)
    found = squarify.squarify(areas, x, y, width, height)
    return [
        _Box(name, size, box["x"], box["y"], box["dx"], box["dy"])
        for (name, size), box in zip(rows, found, strict=True)
    ]


def _class(size_bytes: int, other_bytes: int, *, is_first: bool) -> str:
    if not other_bytes:
        return "new"
    if size_bytes == other_bytes:
        return "same"
    return "up" if (size_bytes < other_bytes) == is_first else "down"


def _told(box: _Box, other_bytes: int, *, is_first: bool) -> str:
    before, after = (box.size_bytes, other_bytes) if is_first else (other_bytes, box.size_bytes)
    return f"{box.name}: {before:,} bytes before, {after:,} after ({after - before:+,})"


def _rect(box: _Box, css: str, title: str) -> str:
    return (
        f'<rect class="{css}" x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}">'
        f"<title>{escape(title)}</title></rect>\n"
    )


def _label(box: _Box) -> str:
    """The name, as much of it as fits; nothing in a small box."""
    if box.width < _MIN_LABEL_WIDTH or box.height < _MIN_LABEL_HEIGHT:
        return ""
    fits = int(box.width / _LETTER_WIDTH) - 1
    text = box.name if len(box.name) <= fits else f"{box.name[: fits - 1]}\N{HORIZONTAL ELLIPSIS}"
    return f'<text x="{box.x + 3:.1f}" y="{box.y + 11:.1f}">{escape(text)}</text>\n'
