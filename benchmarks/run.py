"""All benchmarks; each line is a ratio of ours to a peer, both measured in turn in this run. `make bench` runs it.

It takes the better part of an hour; all figures are printed once more at the end.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FIGURE = re.compile(r"[^:]+: [0-9.]+ x .*")


def main() -> None:
    figures: list[str] = []
    for name in ("build.py", "scale.py", "peers.py", "pack.py", "fetch.py"):
        print(f"== {name}", flush=True)
        with subprocess.Popen([sys.executable, str(HERE / name)], stdout=subprocess.PIPE, text=True) as script:
            assert script.stdout is not None
            for line in script.stdout:
                print(line, end="", flush=True)
                if FIGURE.fullmatch(line.rstrip("\n")):
                    figures.append(line)
        if script.returncode:
            sys.exit(script.returncode)
    print(f"== figures\n{''.join(figures)}", end="", flush=True)


if __name__ == "__main__":
    main()
