"""The main job on embedded defaults: build, sign, push to a folder store, fetch, verify, run. `make demo` runs it.

Each step is a command that you could type; the script prints it before it runs it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
MODULE = "mesh-controller"


def step(command: str) -> str:
    """Print a command, run it in the project's folder, and return its standard output."""
    print(f"$ {command}", flush=True)
    done = subprocess.run(shlex.split(command), cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout, end="")
        sys.exit(f"demo: `{command}` failed with exit code {done.returncode}")
    return done.stdout


def environment(manifest: dict, state: Path) -> dict[str, str]:
    """What a host would give the process: its files, and its environment with places and seats filled in."""
    process = next(resource for resource in manifest["resources"] if resource["type"] == "process")
    for path in manifest["own-secrets"].values():
        (state / Path(path).name).write_text('{"demo": true}\n')
    certificate = state / "tls.crt"
    certificate.write_text("-----BEGIN CERTIFICATE-----\nZGVtbw==\n-----END CERTIFICATE-----\n")
    values = {
        name: re.sub(r"\$\{seat:[^:}]+:(\d+)\}", r"\1", re.sub(r"\$\{dir:[^}]+\}", str(state), value))
        for name, value in process["env"].items()
    }
    return {**values, "MESH_BROKER_CERTIFICATE": str(certificate)}


def wait_for(path: Path, process: subprocess.Popen[bytes], timeout_s: float = 20) -> str:
    """The content of a file that a started program writes when it is ready."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end and process.poll() is None:
        if path.exists():
            return path.read_text().strip()
        time.sleep(0.02)
    sys.exit(f"demo: the controller did not start (exit code {process.poll()})")


def main() -> None:
    """Run every step, then print the report."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    print(step("doit build"), end="")
    if not (PROJECT / ".meshbuild/store/metadata/timestamp.json").exists():
        print(step("meshbuild store init"), end="")
    print(step("doit push"), end="")
    fetched = json.loads(step(f"meshbuild fetch {MODULE} --json"))
    manifest = json.loads((PROJECT / "bundles" / MODULE / "manifest.json").read_text())
    program = Path(fetched["artifacts"][0]["folder"]) / fetched["artifacts"][0]["binary"]

    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder)
        address = state / "address"
        env = {**environment(manifest, state), "MESH_LISTEN": "127.0.0.1:0", "MESH_ADDRESS_FILE": str(address)}
        print(f"$ {program} prepare", flush=True)
        subprocess.run([program, "prepare"], env=env, check=True)
        print(f"$ {program} serve", flush=True)
        process = subprocess.Popen([program, "serve"], env=env, stderr=subprocess.DEVNULL)
        try:
            url = f"http://{wait_for(address, process)}/healthz"
            with urllib.request.urlopen(url, timeout=10) as answer:
                health = f"{answer.status} {answer.read().decode().strip()}"
        finally:
            process.send_signal(signal.SIGTERM)
            stopped = process.wait(timeout=20)
    report(fetched, url, health, stopped)


def report(fetched: dict, url: str, health: str, stopped: int) -> None:
    """Print what was built, stored, fetched and answered."""
    print("\n=== report ===")
    print("built:")
    for bundle in sorted((PROJECT / "dist").glob("*.tar.zst")):
        shown = json.loads(step_quietly("inspect", str(bundle), "--json"))
        print(
            f"  {bundle.relative_to(PROJECT)}  {shown['blob_size_bytes']} bytes\n"
            f"    content {shown['content_sha256']}\n    blob    {shown['blob_sha256']}"
        )
    print(f"store: {PROJECT / '.meshbuild/store'}")
    print(f"fetched and verified: {fetched['module']} {fetched['version']}, release {fetched['sequence']}")
    for artifact in fetched["artifacts"]:
        print(f"  {artifact['artifact']} for {artifact['system']}: {artifact['folder']}")
    print(f"controller: {url} answered {health}; SIGTERM ended it with exit code {stopped}")
    if stopped != 0:
        sys.exit("demo: the controller did not stop cleanly")


def step_quietly(*words: str) -> str:
    """A meshbuild command's standard output, without showing the command."""
    return subprocess.run(["meshbuild", *words], cwd=PROJECT, stdout=subprocess.PIPE, text=True, check=True).stdout


if __name__ == "__main__":
    main()
