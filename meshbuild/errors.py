"""Every way meshbuild fails: one root, and a class with its own exit code for each kind of failure.

A message says what was done, to what, what was expected and what was found. The hint, when there is one, says what
to do next. Codes 1 and 2 are left to Python and to click (a bug; wrong usage), 128 and above to signals.
"""

from __future__ import annotations

from typing import ClassVar


class MeshbuildError(Exception):
    """The root of all errors that meshbuild raises on purpose.

    Attributes:
        exit_code: the process's exit status when this error ends it, unique to the class.
        hint: what to do next, or None.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class SettingsError(MeshbuildError):
    """A setting is missing, unknown or has a value that can't be used."""

    exit_code = 10


class ManifestError(MeshbuildError):
    """A manifest.json is not valid; `problems` holds every problem found, each with its dotted path."""

    exit_code = 11

    def __init__(self, message: str, *, problems: tuple[str, ...] = (), hint: str | None = None) -> None:
        super().__init__("\n".join([message, *(f"  {problem}" for problem in problems)]), hint=hint)
        self.problems = problems


class PinsError(MeshbuildError):
    """toolchains.toml is not valid, or lacks the toolchain, platform or system asked for."""

    exit_code = 12


class LocalFileError(MeshbuildError):
    """The local file system refused: no space, no permission, a file that is not there."""

    exit_code = 13


class NoSuchArtifactError(MeshbuildError):
    """No module or artifact of the project has the name that was asked for."""

    exit_code = 14


class ToolchainUnavailableError(MeshbuildError):
    """No source of a pinned toolchain could be reached, and it isn't in the cache."""

    exit_code = 20


class ToolchainMismatchError(MeshbuildError):
    """What a source gave for a pinned toolchain is something else than the pin says."""

    exit_code = 21


class SourceError(MeshbuildError):
    """The Go source named by an artifact can't be built as it stands: missing, outside, no main package."""

    exit_code = 30


class ToolchainTooOldError(MeshbuildError):
    """A go.mod asks for a newer Go than the pinned one."""

    exit_code = 31


class ModuleDownloadError(MeshbuildError):
    """The Go modules that a build needs could not be had."""

    exit_code = 32


class CompileError(MeshbuildError):
    """The compiler refused the source; the message holds its own text whole."""

    exit_code = 33


class InputsChangedError(MeshbuildError):
    """An input was changed while it was being used."""

    exit_code = 34


class NotBuiltError(MeshbuildError):
    """A bundle that should be published isn't built, or isn't what the source would give now."""

    exit_code = 35


class IsolationError(MeshbuildError):
    """Compiling without a network is required, and this machine doesn't allow it."""

    exit_code = 36


class DirtySourceError(MeshbuildError):
    """A bundle that should be published was built from a tree with changes that aren't committed."""

    exit_code = 37


class BundleFormatError(MeshbuildError):
    """A file is not a bundle of a format that this version reads."""

    exit_code = 40


class BundleLimitError(MeshbuildError):
    """A bundle asks for more than a limit allows: window, size, number of files, length of a path."""

    exit_code = 41


class BundleDigestError(MeshbuildError):
    """A bundle's bytes are not those that its listing, its statements or its release name."""

    exit_code = 42


class SignatureError(MeshbuildError):
    """A statement has no valid signature, or speaks of something else."""

    exit_code = 43


class UntrustedBuilderError(MeshbuildError):
    """A bundle is whole, but no trusted builder signed it."""

    exit_code = 44


class RebuildMismatchError(MeshbuildError):
    """Building a bundle again gave another content than the bundle has."""

    exit_code = 45


class StoreError(MeshbuildError):
    """A store isn't there, isn't a store, exists already or can't be reached."""

    exit_code = 50


class ObjectMissingError(StoreError):
    """A store lacks an object that it should hold."""

    exit_code = 51


class ObjectCorruptError(StoreError):
    """A store's object is truncated or altered."""

    exit_code = 52


class StoreBusyError(StoreError):
    """Other writers won every try at the store's one swap."""

    exit_code = 53


class StoreUnsoundError(StoreError):
    """A check of a store found files that are missing or wrong, or releases that its policy refuses."""

    exit_code = 54


class TrustError(MeshbuildError):
    """A store's metadata doesn't verify from the root of trust: signature, expiry, roll-back, mix-and-match."""

    exit_code = 60


class PolicyError(MeshbuildError):
    """The store's policy refuses: module without an entry, builder not trusted, too few builders."""

    exit_code = 61


class ClaimError(MeshbuildError):
    """A mesh-wide claim is held by another module, or was granted to none."""

    exit_code = 62


class RollbackError(MeshbuildError):
    """A store offers an earlier state of a channel than this host has accepted before."""

    exit_code = 63


class ReleaseError(MeshbuildError):
    """A release, channel or policy document is malformed or names something else than what it was found under."""

    exit_code = 64


class NoSuchReleaseError(MeshbuildError):
    """A store has no such module, channel or release, or none for the system asked for."""

    exit_code = 65
