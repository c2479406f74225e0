"""A Go module proxy of files with one Go module, and a project that needs it: downloads without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

DEP = "example.com/dep"


def write_proxy(folder: Path, *versions: str, module: str = DEP) -> dict[str, str]:
    """Write a proxy with these versions of a Go module; returns the variables by which a build finds it.

    The layout is that of https://go.dev/ref/mod#goproxy-protocol.
    """
    place = folder / module / "@v"
    place.mkdir(parents=True)
    for version in versions:
        (place / f"{version}.info").write_text(json.dumps({"Version": version}))
        (place / f"{version}.mod").write_text(files(version, module)["go.mod"])
        with zipfile.ZipFile(place / f"{version}.zip", "w") as archive:
            for name, text in files(version, module).items():
                archive.writestr(f"{module}@{version}/{name}", text)
    (place / "list").write_text("\n".join(versions))
    return {"GOPROXY": folder.resolve().as_uri(), "GONOSUMDB": "*"}


def depend(project: Path, version: str, module: str = DEP) -> None:
    """Make the tiny project's program `one` print what a version of the Go module says."""
    go_mod = f"module example.com/tiny\n\ngo 1.26\n\nrequire {module} {version}\n"
    (project / "go.mod").write_text(go_mod)
    source = files(version, module)
    whole = {f"{module}@{version}/{name}": text for name, text in source.items()}
    sums = {version: _h1(whole), f"{version}/go.mod": _h1({"go.mod": source["go.mod"]})}
    (project / "go.sum").write_text("".join(f"{module} {name} {digest}\n" for name, digest in sums.items()))
    main = f'package main\n\nimport "{module}"\n\nvar version string\n\nfunc main() {{ println(dep.Name, version) }}\n'
    (project / "cmd/one/main.go").write_text(main)


def files(version: str, module: str = DEP) -> dict[str, str]:
    """The files of a version of the Go module, by path."""
    return {"dep.go": f'package dep\n\nconst Name = "{version}"\n', "go.mod": f"module {module}\n"}


def _h1(named: dict[str, str]) -> str:
    """What go.sum says of files (https://pkg.go.dev/golang.org/x/mod/sumdb/dirhash#Hash1)."""
    lines = "".join(f"{hashlib.sha256(named[name].encode()).hexdigest()}  {name}\n" for name in sorted(named))
    return f"h1:{base64.b64encode(hashlib.sha256(lines.encode()).digest()).decode()}"
