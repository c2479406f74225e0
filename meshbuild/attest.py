"""What is said of a built bundle: its provenance and its bill of materials, signed by the builder."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from meshbuild import __version__, provenance
from meshbuild.digests import Sha256
from meshbuild.jsontext import canonical_json
from meshbuild.paths import local_errors
from meshbuild.signing import SLSA_PROVENANCE, sign_statement

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from securesystemslib.signer import Signer

    from meshbuild.build import BuildResult
    from meshbuild.listing import Listing
    from meshbuild.manifest import Artifact
    from meshbuild.plan import BuildPlan

BUILDER_ID = "https://meshbuild.dev/builder/local"


def attestor(
    manifest_dir: Path,
    artifact: Artifact,
    plan: BuildPlan,
    result: BuildResult,
    *,
    source: tuple[str | None, bool | None],
    signer: Signer,
    began: datetime,
) -> Callable[[Listing, Sha256], list[bytes]]:
    """Look at the build now, and return what makes its statements once the bundle's content is known.

    Args:
        manifest_dir: the folder of the manifest.
        artifact: the manifest's entry.
        plan: what was built.
        result: what came of it.
        source: the commit that the source is at, and whether it differs from it; None where nobody knows.
        signer: the builder's key.
        began: when the build began, in UTC.

    Returns:
        What `write_bundle` takes: listing and content digest in, DSSE envelopes in canonical JSON out.

    Raises:
        CompileError: the program's build information can't be read.
        LocalFileError: go.sum or default.pgo can't be read.
    """
    profile = manifest_dir / plan.source.module_dir / plan.source.package / "default.pgo"
    with local_errors(f"read go.sum and default.pgo of {plan.name}"):
        go_sums = _go_sums(manifest_dir, plan)
        profile_sha256 = Sha256.of_file(profile) if profile.is_file() else None
    info = provenance.with_go_sums(provenance.parse_build_info(result.build_info), go_sums)
    facts = provenance.BuildFacts(
        module=plan.module,
        artifact=plan.artifact,
        version=plan.version,
        system=plan.system,
        source=provenance.GitSource(*source),
        go_module=plan.source.module_path,
        package=plan.source.package,
        toolchain_version=plan.toolchain_version,
        toolchain_platform=plan.toolchain_platform,
        toolchain_tree=plan.toolchain_tree,
        argv=plan.argv,
        env=dict(plan.env),
        isolation=result.isolation,
        go_modules=info.modules,
        tags=artifact.tags,
        strip=artifact.strip,
        vcs=artifact.vcs,
        stamp=artifact.stamp,
        files=tuple(rule.model_dump(mode="json", by_alias=True) for rule in artifact.files),
        profile=profile_sha256,
    )

    def attest(listing: Listing, content: Sha256) -> list[bytes]:
        files = {file.path: file.sha256 for file in listing.files}
        run = provenance.RunDetails(
            builder_id=BUILDER_ID,
            meshbuild_version=__version__,
            invocation_id=str(uuid.uuid4()),
            started_on=_rfc3339(began),
            finished_on=_rfc3339(datetime.now(UTC)),
            shared_cache=result.shared_cache,
        )
        bill = provenance.cyclonedx_sbom(
            info,
            module=plan.module,
            artifact=plan.artifact,
            version=plan.version,
            binary_sha256=files[plan.binary],
        )
        said = {
            SLSA_PROVENANCE: provenance.slsa_provenance(facts, run),
            provenance.CYCLONEDX_BOM: bill,
        }
        name = f"{plan.module}.{plan.artifact}-{plan.version}-{plan.system}.tar"
        return [
            canonical_json(
                sign_statement(
                    provenance.statement(kind, predicate, name=name, content_sha256=content, files=files), signer
                )
            )
            for kind, predicate in said.items()
        ]

    return attest


def _go_sums(manifest_dir: Path, plan: BuildPlan) -> list[str]:
    folder = manifest_dir / plan.source.module_dir
    files = [module / "go.sum" for module in plan.source.folders(manifest_dir)]
    if plan.source.workspace:
        files.append((folder / plan.source.workspace).with_name("go.work.sum"))
    return [file.read_text(errors="replace") for file in files if file.is_file()]


def _rfc3339(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
