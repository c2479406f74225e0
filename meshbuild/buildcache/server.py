"""Go's side of the shared build cache: the GOCACHEPROG protocol, and a server that builds without a network reach.

The protocol is that of cmd/go/internal/cacheprog/cacheprog.go: JSON lines, answers in any order; after a
`put` comes its body as a line with a base64 JSON string.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import functools
import json
import os
import socket
import sys
import tempfile
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from meshbuild.buildcache.cache import THREADS, Experience, SharedCache
from meshbuild.buildcache.entry import PIECE_BYTES, RejectedEntryError
from meshbuild.buildcache.stores import open_cache_store
from meshbuild.digests import Sha256
from meshbuild.errors import SettingsError
from meshbuild.paths import local_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meshbuild.buildcache.cache import Patience
    from meshbuild.buildcache.stores import CacheStore

_RELAY = Path(__file__).with_name("relay.py")
_MAX_LINE_BYTES, _MAX_SOCKET_PATH_BYTES = 4096, 100
# Go waits for as many answers at once as it has processors; its requests for source indexes come on top.
_ANSWERING_THREADS = 16


@contextlib.contextmanager
def shared_cache(
    store: str,
    *,
    key: bytes,
    folder: Path,
    work: Path,
    report: Callable[[str], None],
    patience: Patience | None = None,
) -> Iterator[tuple[dict[str, str], SharedCache]]:
    """Serve a shared build cache to the compilers that run inside the block, whatever network they are cut off from.

    The block's end waits for uploads within a limit (`Patience.flush_s`).

    Args:
        store: a folder, or an http(s) address.
        key: what the builders share; it stays in this process.
        folder: this machine's part of the cache.
        work: the build's private folder.
        report: told once when the store isn't used any more.
        patience: how long the store may take.

    Yields:
        What to add to the compiler's environment, and the cache with its counts.

    Raises:
        SettingsError: the store's address is of no known kind.
        LocalFileError: the server's socket can't be made.
    """
    opened, experience = _open(store)
    cache = SharedCache(opened, key=key, folder=folder, report=report, patience=patience, experience=experience)
    with contextlib.ExitStack() as stack:
        if len(os.fsencode(work)) > _MAX_SOCKET_PATH_BYTES - len("/cache.sock"):
            work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshbuild-", dir="/tmp")))
        path = work / "cache.sock"
        with local_errors(f"make the build cache's socket {path}"):
            listener = stack.enter_context(_listen(path))
            stack.callback(path.unlink, missing_ok=True)
        stack.callback(_stop_accepting, listener)
        threading.Thread(target=_accept, args=(listener, cache), name=f"{THREADS} accept", daemon=True).start()
        # Go's source indexes are kept by folder and say nothing to other machines; without them it reads import lines.
        env = {"GOCACHEPROG": quoted(sys.executable, "-I", "-S", str(_RELAY), str(path)), "GODEBUG": "goindex=0"}
        try:
            yield env, cache
        finally:
            cache.close()


@functools.cache
def _open(store: str) -> tuple[CacheStore, Experience]:
    """A store and what this process had with it: builds of one run share its connections, and give it up together."""
    return open_cache_store(store), Experience()


def serve(cache: SharedCache, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer one go command until it says that it closes, or its end of the line is gone."""
    lock = threading.Lock()

    def answer(**fields: Any) -> None:  # noqa: ANN401 - JSON
        with lock, contextlib.suppress(BrokenPipeError):  # a go command that was ended waits for nothing
            answers.write(json.dumps(fields).encode() + b"\n")
            answers.flush()

    answer(ID=0, KnownCommands=["get", "put", "close"])
    threads = ThreadPoolExecutor(_ANSWERING_THREADS, thread_name_prefix=f"{THREADS} answer")
    try:
        for request in _requests(requests):
            if request["Command"] == "get":
                task = threads.submit(_get, cache, _id(request["ActionID"]), request["ID"], answer)
                task.add_done_callback(functools.partial(_answer_failed, request["ID"], answer))
            elif request["Command"] == "put":
                _put(cache, request, requests, answer)
            else:
                threads.shutdown()
                answer(ID=request["ID"])
                return
    except (ValueError, KeyError, TypeError):  # not what a go command says; it will find the line closed
        return
    finally:
        threads.shutdown(wait=False, cancel_futures=True)


def quoted(*words: str) -> str:
    """A command as Go splits it (cmd/internal/quoted): at blanks, quotes around whole words, no escapes.

    Raises:
        SettingsError: a word holds blanks and both kinds of quotes.
    """
    return " ".join(_quote(word) for word in words)


def _quote(word: str) -> str:
    if word and not any(character in " \t\r\n" for character in word) and word[0] not in "'\"":
        return word
    for quote in "'\"":
        if quote not in word:
            return f"{quote}{word}{quote}"
    raise SettingsError(f"Go can't be given the path {word!r}: it has blanks and both kinds of quotes")


def _requests(stream: BinaryIO) -> Iterator[dict[str, Any]]:
    while line := stream.readline(_MAX_LINE_BYTES):
        if line.strip():
            yield json.loads(line)


def _get(cache: SharedCache, action: Sha256, number: int, answer: Callable[..., None]) -> None:
    entry = cache.get(action)
    if entry is None:
        answer(ID=number, Miss=True)
        return
    answer(
        ID=number,
        OutputID=base64.b64encode(bytes.fromhex(entry.output)).decode(),
        Size=entry.size_bytes,
        Time=dt.datetime.fromtimestamp(entry.time_ns / 1e9, dt.UTC).isoformat(),
        DiskPath=str(cache.output_file(entry)),
    )


def _answer_failed(number: int, answer: Callable[..., None], task: Future[None]) -> None:
    """Go waits for every answer for good, so that even a bug must give one; it takes an error for a miss."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        answer(ID=number, Err=repr(error))


def _put(cache: SharedCache, request: dict[str, Any], stream: BinaryIO, answer: Callable[..., None]) -> None:
    action, output, size_bytes = _id(request["ActionID"]), _id(request["OutputID"]), int(request.get("BodySize", 0))
    pieces = _body(stream, size_bytes)
    try:
        path = cache.put(action, output, size_bytes, pieces)
    except (OSError, RejectedEntryError) as error:
        for _ in pieces:  # the next request stands behind it
            pass
        answer(ID=request["ID"], Err=f"could not keep the output: {error}")
    else:
        answer(ID=request["ID"], DiskPath=str(path))


def _body(stream: BinaryIO, size_bytes: int) -> Iterator[bytes]:
    """A body of a known size, in pieces of about 1 MiB."""
    left = (size_bytes + 2) // 3 * 4
    if left and stream.read(2) != b'\n"':  # Go sends an empty line after each request
        raise ValueError("expected a JSON string")
    while left:
        text = stream.read(min(PIECE_BYTES, left))
        left -= len(text)
        if not text:
            raise ValueError("the body ends too early")
        yield binascii.a2b_base64(text, strict_mode=True)
    if size_bytes and stream.read(2) != b'"\n':
        raise ValueError("the body is longer than its size")


def _id(text: str) -> Sha256:
    return Sha256(base64.b64decode(text, validate=True).hex())


def _listen(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before anybody can connect: who can, can put entries that other machines will trust
        listener.listen()
    except OSError:
        listener.close()
        raise
    return listener


def _stop_accepting(listener: socket.socket) -> None:
    with contextlib.suppress(OSError):  # not every system lets a listening socket be shut down
        listener.shutdown(socket.SHUT_RDWR)  # closing alone would leave the thread in `accept` for good


def _accept(listener: socket.socket, cache: SharedCache) -> None:
    with contextlib.suppress(OSError):  # the listener was closed
        while True:
            connection, _ = listener.accept()
            threading.Thread(
                target=_serve_relay, args=(connection, cache), name=f"{THREADS} serve", daemon=True
            ).start()


def _serve_relay(connection: socket.socket, cache: SharedCache) -> None:
    with connection, contextlib.suppress(OSError, ValueError), contextlib.ExitStack() as stack:
        _, (requests, answers), _, _ = socket.recv_fds(connection, 1, 2)
        reader = stack.enter_context(os.fdopen(requests, "rb"))
        serve(cache, reader, stack.enter_context(os.fdopen(answers, "wb")))
