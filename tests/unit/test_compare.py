"""Two bundles side by side, from values alone; and the page that shows them."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any

import pytest

from meshbuild.bundle import BundleInfo
from meshbuild.compare import DATA, STANDARD_LIBRARY, Side, SizeChange, TextChange, compare, groups
from meshbuild.digests import Sha256
from meshbuild.goprogram import GoProgram
from meshbuild.listing import FileEntry, Listing
from meshbuild.provenance import BuildInfo, GoModule
from meshbuild.treemap import page

if TYPE_CHECKING:
    from collections.abc import Mapping

EVIL = '<script>alert("x")</script>'


def program(*modules: GoModule, code: Mapping[str, int] | None = None, **more: Any) -> GoProgram:
    values = {"go_version": "go1.27.2", "package": "example.com/m/cmd/x", "settings": (("GOARCH", "amd64"),), **more}
    info = BuildInfo(main=GoModule("example.com/m", "(devel)"), modules=modules, **values)
    code = code or {"main": 100}
    return GoProgram(sum(code.values()) + 60, info, code, {".text": sum(code.values()), ".rodata": 50})


def side(name: str, a_program: GoProgram | None, *files: FileEntry) -> Side:
    listing = Listing("m", "x", "1", "arch", "x", files)
    return Side(name, BundleInfo(listing, Sha256.of(name.encode()), 1000, Sha256.of(b"blob"), 500, b""), a_program)


def file(path: str, data: bytes = b"x", mode: int = 0o644) -> FileEntry:
    return FileEntry(path, Sha256.of(data), len(data), mode)


def test_files() -> None:
    found = compare(
        side("a", None, file("gone"), file("mode"), file("same"), file("text")),
        side("b", None, file("mode", mode=0o755), file("new"), file("same"), file("text", b"yy")),
    )
    assert [(each.path, each.change) for each in found.files] == [
        ("gone", "removed"),
        ("mode", "changed"),
        ("new", "added"),
        ("text", "changed"),
    ]
    assert (found.packages, found.build) == ((), ())
    assert not found.same
    assert compare(side("a", None), side("a", None)).same


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ("v1.2.3", "v1.10.0", "up"),
        ("v1.10.0", "v1.2.3", "down"),
        ("v1.0.0-rc.1", "v1.0.0", "up"),
        ("v0.0.0-20240101000000-aaaaaaaaaaaa", "v0.0.0-20250101000000-bbbbbbbbbbbb", "up"),
        ("v0.0.0-20250101000000-aaaaaaaaaaaa", "v0.1.0", "up"),
        ("v2.0.0+incompatible", "v1.9.0", "down"),
        ("v2.0.0", "v2.0.0+incompatible", "changed"),
        ("(devel)", "v1.0.0", "changed"),
    ],
)
def test_a_module_goes_up_or_down(before: str, after: str, change: str) -> None:
    found = compare(
        side("a", program(GoModule("example.com/a", before))), side("b", program(GoModule("example.com/a", after)))
    )
    assert found.modules == (TextChange("example.com/a", change, before, after),)


def test_modules_that_come_go_and_are_replaced() -> None:
    fork = GoModule("example.com/fork", "v1.0.1")
    found = compare(
        side("a", program(GoModule("example.com/gone", "v1.0.0"), GoModule("example.com/x", "v1.0.0"))),
        side(
            "b", program(GoModule("example.com/new", "v3.0.0"), GoModule("example.com/x", "v1.0.0", replacement=fork))
        ),
    )
    assert found.modules == (
        TextChange("example.com/gone", "removed", "v1.0.0", None),
        TextChange("example.com/new", "added", None, "v3.0.0"),
        TextChange("example.com/x", "changed", "v1.0.0", "v1.0.0 => example.com/fork@v1.0.1"),
    )


def test_how_they_were_built() -> None:
    found = compare(
        side("a", program(go_version="go1.27.1", settings=(("GOARCH", "amd64"), ("GOAMD64", "v1")))),
        side("b", program(settings=(("GOARCH", "arm64"), ("-tags", "x")))),
    )
    assert found.build == (
        TextChange("-tags", "added", None, "x"),
        TextChange("GOAMD64", "removed", "v1", None),
        TextChange("GOARCH", "changed", "amd64", "arm64"),
        TextChange("Go version", "changed", "go1.27.1", "go1.27.2"),
    )


def test_sizes_are_all_there_the_largest_change_first() -> None:
    found = compare(
        side("a", program(code={"main": 10, "fmt": 100, "gone": 30})),
        side("b", program(code={"main": 15, "fmt": 100, "new": 40})),
    )
    assert found.packages == (
        SizeChange("new", 0, 40),
        SizeChange("gone", 30, 0),
        SizeChange("main", 10, 15),
        SizeChange("fmt", 100, 100),
    )
    assert [each.grown_bytes for each in found.packages] == [40, -30, 5, 0]


def test_groups_are_the_go_modules_and_hold_every_byte() -> None:
    code = {"main": 1, "example.com/m/sub": 2, "example.com/m2": 4, "example.com/m/v2/x": 8, "fmt": 16}
    found = groups(program(GoModule("example.com/m/v2", "v2.0.0"), code=code))
    assert found == {
        "example.com/m": {"main": 1, "example.com/m/sub": 2},
        "example.com/m/v2": {"example.com/m/v2/x": 8},
        STANDARD_LIBRARY: {"example.com/m2": 4, "fmt": 16},
        DATA: {".rodata": 50, "headers, gaps": 10},
    }


class Page(HTMLParser):
    """The elements of a page, and its texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_the_page_stands_alone_and_nothing_of_a_bundle_becomes_markup() -> None:
    one = program(GoModule(EVIL, "v1.0.0"), code={EVIL: 1000, "main": 200}, settings=((EVIL, EVIL),))
    two = program(GoModule(EVIL, EVIL), code={EVIL: 900, "main": 200})
    text = page([compare(side(EVIL, one, file(EVIL)), side("b", two))])
    assert "<script" not in text
    assert "http" not in re.sub(r"http-equiv", "", text)
    found = Page(text)
    assert {tag for tag, _ in found.elements} <= {
        *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "span", "code"),
        *("table", "tr", "td", "th", "svg", "rect", "text"),
    }
    assert not {name for _, attrs in found.elements for name in attrs if name.startswith("on") or name == "href"}
    assert EVIL in found.texts


def test_the_areas_of_the_map_are_the_bytes() -> None:
    code = {f"example.com/m/p{number}": 1000 * (number + 1) for number in range(30)}
    one, two = program(code=code), program(code={**code, "example.com/m/p29": 60_000})
    text = page([compare(side("a", one), side("b", two))])
    boxes = re.findall(r'<rect class="(\w+)"[^>]* width="([0-9.]+)" height="([0-9.]+)"><title>([^<]+)</title>', text)
    areas = {(css, title): float(width) * float(height) for css, width, height, title in boxes}
    moved = [title for css, title in areas if css == "up"]
    assert moved == ["example.com/m/p29: 30,000 bytes before, 60,000 after (+30,000)"]
    (large,) = [area for (css, title), area in areas.items() if css == "same" and "p28: 29,000" in title][:1]
    (small,) = [area for (css, title), area in areas.items() if css == "same" and "p9: 10,000" in title][:1]
    assert large / small == pytest.approx(2.9, rel=0.05)


def test_a_page_without_programs_has_the_files() -> None:
    text = page([compare(side("a", None, file("old")), side("b", None, file("new")))])
    assert "<svg" not in text
    assert "old" in Page(text).texts
