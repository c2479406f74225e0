"""All benchmarks; each line is a ratio of ours to a peer, both measured in turn in this run. `make bench` runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    for name in ("build.py", "pack.py", "fetch.py"):
        print(f"== {name}", flush=True)
        done = subprocess.run([sys.executable, str(HERE / name)], check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
