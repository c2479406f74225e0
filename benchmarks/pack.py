"""Pack and unpack against `tar | zstd -9 --long -T2` and `zstd -d | tar x`, in turn in one run, with the peak memory.

    python benchmarks/pack.py [--size-mib 1024] [--runs 3] [--folder DIR]

The payload is copies of this machine's own programs and libraries, each once; where they don't suffice, what is made up
compresses about as well. Ours does more: it hashes all twice while packing, checks three digests while unpacking, and
fsyncs what it writes; to compare like with like, `--sync` makes the peers call `sync -f` too.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measure import Sample, compare, run

from meshbuild.bundle import BundleIdentity, PackInput, read_bundle, write_bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

STATEMENT = (
    b'{"payload":"e30=","payloadType":"application/vnd.in-toto+json","signatures":[{"keyid":"k","sig":"AAAA"}]}\n'
)
PEAK_MIB = 200


def pack(payload: Path, target: Path) -> None:
    """Pack all files below a folder."""
    inputs = [
        PackInput(file.relative_to(payload).as_posix(), file, 0o755) for file in payload.rglob("*") if file.is_file()
    ]
    write_bundle(
        target,
        BundleIdentity("bench", "payload", "1", "arch", min(each.path for each in inputs)),
        inputs,
        attest=lambda _listing, _content: [STATEMENT],
    )


def programs() -> Iterator[Path]:
    """Programs and libraries of this machine, each inode once."""
    seen = set()
    for root in ("/usr/lib", "/usr/bin", "/usr/local", sys.prefix):
        for folder, folders, names in os.walk(root):
            folders.sort()
            for name in sorted(names):
                file = Path(folder, name)
                if file.is_symlink() or not file.is_file() or file.stat().st_size < 1 << 16:
                    continue
                if (inode := (file.stat().st_dev, file.stat().st_ino)) not in seen and os.access(file, os.R_OK):
                    seen.add(inode)
                    yield file


def make_payload(folder: Path, size_bytes: int) -> None:
    """Fill a new folder with copies of programs, and then with noise and zeros, up to a size."""
    folder.mkdir()
    left, number = size_bytes, 0
    for file in programs():
        if not left:
            return
        with file.open("rb") as source, (folder / f"{number:06}").open("wb") as target:
            # In small pieces: what this process ever held is counted for its children too.
            while piece := source.read(min(left, 1 << 16)):
                target.write(piece)
                left -= len(piece)
        number += 1
    noise = random.Random(1)  # noqa: S311 - payload, not a secret
    with (folder / f"{number:06}").open("wb") as target:
        while left:
            target.write(piece := (noise.randbytes(1 << 14) + bytes(noise.randrange(1 << 16)))[:left])
            left -= len(piece)


def measure(work: Path, *, size_mib: int, runs: int, sync: bool) -> bool:
    """Time both ways and print the ratios; returns whether our peak memory stayed below its limit."""
    payload, ours, peers, out = work / "payload", work / "ours.tar.zst", work / "peers.tar.zst", work / "out"
    make_payload(payload, size_mib << 20)
    me = [sys.executable, __file__]
    then_sync = f" && sync -f {work}" if sync else ""

    def peer_packs() -> Sample:
        return run(["sh", "-c", f"tar -C {payload} -cf - . | zstd -q -f -9 --long -T2 -o {peers}{then_sync}"])

    def unpack(argv: list[str], *, make: bool) -> Sample:
        shutil.rmtree(out, ignore_errors=True)
        if make:
            out.mkdir()
        return run(argv)

    def we_unpack() -> Sample:
        return unpack([*me, "--unpack", str(ours), str(out)], make=False)

    def peer_unpacks() -> Sample:
        return unpack(["sh", "-c", f"zstd -q -d -c {ours} | tar -C {out} -xf -{then_sync}"], make=True)

    peaks = []

    def kept(sample: Sample) -> Sample:
        peaks.append(sample.peak_mib)
        return sample

    compare(
        f"pack {size_mib} MiB",
        lambda: kept(run([*me, "--pack", str(payload), str(ours)])),
        peer_packs,
        runs=runs,
        peer_name="tar | zstd -9 --long -T2",
    )
    print(f"  {ours.stat().st_size} bytes against {peers.stat().st_size}")
    compare(f"unpack {size_mib} MiB", lambda: kept(we_unpack()), peer_unpacks, runs=runs, peer_name="zstd -d | tar x")
    print(f"  largest peak memory of ours: {max(peaks):.0f} MiB of {PEAK_MIB}")
    return max(peaks) < PEAK_MIB


def main() -> int:
    """Read the flags and measure, or do one of the two things that are measured."""
    parser = argparse.ArgumentParser(description="Pack and unpack against tar and zstd.")
    parser.add_argument("--size-mib", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder unless given")
    parser.add_argument("--sync", action="store_true", help="let the peers sync what they wrote, as we do")
    parser.add_argument("--pack", nargs=2, type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--unpack", nargs=2, type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.pack:
        pack(*args.pack)
        return 0
    if args.unpack:
        read_bundle(args.unpack[0], into=args.unpack[1])
        return 0
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        return 0 if measure(Path(work), size_mib=args.size_mib, runs=args.runs, sync=args.sync) else 1


if __name__ == "__main__":
    sys.exit(main())
