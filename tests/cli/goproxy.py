"""A Go module proxy of files with one module, and a project that needs it: downloads without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_GO_MOD = "module example.com/dep\n"


def write_proxy(folder: Path, *versions: str) -> dict[str, str]:
    """Write a proxy with these versions of example.com/dep; returns the variables by which a build finds it.

    The layout is that of https://go.dev/ref/mod#goproxy-protocol.
    """
    place = folder / "example.com/dep/@v"
    place.mkdir(parents=True)
    for version in versions:
        (place / f"{version}.info").write_text(json.dumps({"Version": version}))
        (place / f"{version}.mod").write_text(_GO_MOD)
        with zipfile.ZipFile(place / f"{version}.zip", "w") as archive:
            for name, text in _files(version).items():
                archive.writestr(name, text)
    (place / "list").write_text("\n".join(versions))
    return {"GOPROXY": folder.resolve().as_uri(), "GONOSUMDB": "*"}


def depend(project: Path, version: str) -> None:
    """Make the tiny project's program `one` print what a version of example.com/dep says."""
    go_mod = f"module example.com/tiny\n\ngo 1.26\n\nrequire example.com/dep {version}\n"
    (project / "go.mod").write_text(go_mod)
    sums = {version: _h1(_files(version)), f"{version}/go.mod": _h1({"go.mod": _GO_MOD})}
    (project / "go.sum").write_text("".join(f"example.com/dep {name} {digest}\n" for name, digest in sums.items()))
    main = (
        'package main\n\nimport "example.com/dep"\n\nvar version string\n\nfunc main() { println(dep.Name, version) }\n'
    )
    (project / "cmd/one/main.go").write_text(main)


def _files(version: str) -> dict[str, str]:
    root = f"example.com/dep@{version}"
    return {f"{root}/dep.go": f'package dep\n\nconst Name = "{version}"\n', f"{root}/go.mod": _GO_MOD}


def _h1(files: dict[str, str]) -> str:
    """What go.sum says of files (https://pkg.go.dev/golang.org/x/mod/sumdb/dirhash#Hash1)."""
    lines = "".join(f"{hashlib.sha256(files[name].encode()).hexdigest()}  {name}\n" for name in sorted(files))
    return f"h1:{base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()}"
