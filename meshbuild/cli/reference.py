"""Write the pages of docs/ that are generated from the code: `python -m meshbuild.cli.reference`.

A test compares each page with what its function gives now.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from meshbuild.manifest import manifest_reference, manifest_schema
from meshbuild.paths import local_errors, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable

DOCS = Path(__file__).parents[2] / "docs"

MANIFEST_PAGE = """\
# manifest.json

What a module declares. `meshbuild validate` checks it and reports every problem at once; editors can use
[manifest.schema.json](manifest.schema.json). Unknown keys are refused. Both are generated from the models in
`meshbuild/manifest.py`.

"""


def manifest_page() -> str:
    """docs/manifest.md."""
    return MANIFEST_PAGE + manifest_reference()


def manifest_schema_page() -> str:
    """docs/manifest.schema.json."""
    return json.dumps(manifest_schema(), indent=2, ensure_ascii=False) + "\n"


# A page's name below docs/ to the function that gives its text.
GENERATED: dict[str, Callable[[], str]] = {
    "manifest.md": manifest_page,
    "manifest.schema.json": manifest_schema_page,
}


def main() -> None:
    """Write every generated page. Raises LocalFileError."""
    for name, page in GENERATED.items():
        with local_errors(f"write {DOCS / name}"):
            write_atomically(DOCS / name, page().encode())


if __name__ == "__main__":
    main()
