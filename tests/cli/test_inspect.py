"""`meshbuild inspect` as it is typed: what a build says of itself, for people and for other tools."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from securesystemslib.signer import CryptoSigner

from meshbuild.bundle import BundleIdentity, PackInput, read_bundle, write_bundle
from meshbuild.cli import main
from meshbuild.jsontext import canonical_json
from meshbuild.provenance import statement
from meshbuild.signing import SLSA_PROVENANCE, sign_statement
from tests.cli.conftest import artifact, write_manifest
from tests.cli.goproxy import depend, write_proxy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from meshbuild.digests import Sha256
    from meshbuild.listing import Listing
    from tests.system.conftest import Checkout

BUNDLE = "dist/tiny.one-1-arch.tar.zst"


@pytest.fixture
def built(tiny: Checkout) -> Checkout:
    """The tiny project with the program `one` built; it needs a Go module from a proxy."""
    tiny.env.update(write_proxy(tiny.folder.parent / "proxy", "v1.4.0"))
    depend(tiny.folder, "v1.4.0")
    write_manifest(tiny.folder, artifact("one", tags=["x"], stamp={"main.version": "${version}"}))
    tiny.ok("doit", "build")
    return tiny


def test_what_a_build_says_of_itself_is_shown(built: Checkout) -> None:
    said = [" ".join(line.split()) for line in built.ok("meshbuild", "inspect", BUNDLE).splitlines()]
    for line in (
        "source example.com/tiny, ./cmd/one",
        "commit unknown",
        "options stripped, tag x, main.version=${version}",
        "isolation network-namespace",
    ):
        assert line in said
    assert any(line.startswith("toolchain pkg:generic/go@1.27.2?platform=linux-amd64, tree ") for line in said)
    (row,) = [line for line in said if line.startswith("example.com/dep ")]
    sums = (built.folder / "go.sum").read_text().splitlines()[0].split()
    in_hex = base64.b64decode(sums[2].removeprefix("h1:")).hex()
    assert row == f"example.com/dep v1.4.0 {in_hex[:12]} pkg:golang/example.com/dep@v1.4.0"
    assert "stdlib 1.27.2 - pkg:golang/stdlib@1.27.2" in said


def test_statements_are_written_for_other_tools(built: Checkout) -> None:
    built.ok("meshbuild", "inspect", BUNDLE, "--statements", "said")
    said = built.folder / "said"
    assert sorted(file.name for file in said.iterdir()) == [
        "provenance.dsse.json",
        "provenance.intoto.json",
        "sbom.cdx.json",
        "sbom.dsse.json",
        "sbom.intoto.json",
    ]
    bom = (said / "sbom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bom) is None
    for name in ("provenance", "sbom"):
        envelope = json.loads((said / f"{name}.dsse.json").read_bytes())
        payload = (said / f"{name}.intoto.json").read_bytes()
        assert base64.b64decode(envelope["payload"]) == payload
        assert envelope.keys() == {"payload", "payloadType", "signatures"}
        check_with_openssl(built, envelope, payload)
    assert json.loads((said / "sbom.intoto.json").read_bytes())["predicate"] == json.loads(bom)

    program = built.folder / "unpacked"
    program.mkdir()
    read_bundle(built.folder / BUNDLE, into=program / "content")
    subjects = json.loads((said / "provenance.intoto.json").read_bytes())["subject"]
    digest = hashlib.sha256((program / "content/one").read_bytes()).hexdigest()
    assert {"name": "one", "digest": {"sha256": digest}} in subjects


def check_with_openssl(built: Checkout, envelope: Mapping[str, Any], payload: bytes) -> None:
    """DSSE's pre-authentication encoding, checked as docs/statements.md says."""
    kind = envelope["payloadType"].encode()
    (built.folder / "signed").write_bytes(b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload))
    (built.folder / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    key = ("-pubin", "-inkey", ".meshbuild/keys/builder.pub", "-rawin")
    argv = ["openssl", "pkeyutl", "-verify", *key, "-in", "signed", "-sigfile", "signature"]
    done = subprocess.run(argv, cwd=built.folder, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built.folder / "signed").write_bytes(b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload[:-1] + b" "))
    assert subprocess.run(argv, cwd=built.folder, capture_output=True, check=False).returncode != 0


@pytest.mark.parametrize(
    "predicate",
    [
        {},
        {"buildDefinition": "x", "runDetails": []},
        {"buildDefinition": {"externalParameters": {}, "internalParameters": {}, "resolvedDependencies": [{}]}},
    ],
)
def test_a_statement_of_another_form_is_named_and_no_more(
    predicate: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pack(tmp_path, SLSA_PROVENANCE, predicate)
    assert main(["inspect", str(file)]) == 0
    assert "of a form that this version doesn't know" in capsys.readouterr().out


def test_what_a_terminal_would_obey_is_shown_and_not_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07[bold]\u202e"
    predicate = {
        "buildDefinition": {
            "externalParameters": {
                "source": {"go_module": evil, "package": ".", "commit": evil},
                "strip": False,
                "vcs": False,
                "tags": [evil],
                "stamp": {},
            },
            "internalParameters": {"argv": [evil], "isolation": evil},
            "resolvedDependencies": [{"name": "toolchain", "uri": evil, "digest": {"sha256": evil}}],
        },
        "runDetails": {
            "builder": {"id": evil, "version": {"meshbuild": evil}},
            "metadata": {"startedOn": evil, "finishedOn": evil},
        },
    }
    bom = {"components": [{"name": evil, "version": "[/nothing]", "purl": evil, "hashes": [{"content": evil}]}]}
    for file in (pack(tmp_path, SLSA_PROVENANCE, predicate), pack(tmp_path, "https://cyclonedx.org/bom", bom)):
        assert main(["inspect", str(file)]) == 0
        out = capsys.readouterr().out
        assert "\\x1b]0;owned\\x07[bold]\\u202e" in out
        assert not {"\x1b", "\x07", "\u202e"} & set(out)


def pack(folder: Path, predicate_type: str, predicate: Mapping[str, Any]) -> Path:
    """A bundle whose one statement says this."""
    program = folder / "program"
    program.write_bytes(b"#!/bin/sh\n")
    signer = CryptoSigner.generate_ed25519()

    def said(listing: Listing, content: Sha256) -> dict[str, Any]:
        files = {each.path: each.sha256 for each in listing.files}
        return statement(predicate_type, predicate, name="m", content_sha256=content, files=files)

    file = folder / f"{len(list(folder.iterdir()))}.tar.zst"
    write_bundle(
        file,
        BundleIdentity("m", "a", "1", "arch", "program"),
        [PackInput("program", program, 0o755)],
        attest=lambda listing, content: [canonical_json(sign_statement(said(listing, content), signer))],
    )
    return file


def test_statements_of_several_builders_have_files_of_their_own(built: Checkout) -> None:
    """A second builder's statement stands behind the first one's."""
    first = built.folder / "first.tar.zst"
    shutil.copyfile(built.folder / BUNDLE, first)
    info = read_bundle(first, into=built.folder / "content")
    listing = info.listing
    files = [PackInput(each.path, built.folder / "content" / each.path, each.mode) for each in listing.files]
    lines = info.statements.splitlines(keepends=True)
    identity = BundleIdentity(listing.module, listing.artifact, listing.version, listing.system, listing.binary)
    write_bundle(built.folder / "second.tar.zst", identity, files, attest=lambda *_: [*lines, lines[0]])
    built.ok("meshbuild", "inspect", "second.tar.zst", "--statements", "said")
    assert {"provenance.dsse.json", "provenance-2.dsse.json"} <= {
        file.name for file in (built.folder / "said").iterdir()
    }
