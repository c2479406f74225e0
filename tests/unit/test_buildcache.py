"""The shared build cache: its objects, hostile ones among them, and stores that are away, slow, or take nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import io
import os
import shlex
import socket
import stat
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from meshbuild import buildcache
from meshbuild.buildcache.cache import CacheCounts, Patience, SharedCache
from meshbuild.buildcache.entry import (
    HEAD_BYTES,
    MAX_OUTPUT_BYTES,
    Entry,
    RejectedEntryError,
    object_name,
    read_head,
    read_output,
    write_entry,
)
from meshbuild.buildcache.key import read_cache_key
from meshbuild.buildcache.local import LocalLayer
from meshbuild.buildcache.server import quoted, shared_cache
from meshbuild.buildcache.stores import FolderStore, HttpStore, open_cache_store
from meshbuild.digests import Sha256
from meshbuild.errors import LocalFileError, SettingsError, StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from meshbuild.buildcache.stores import CacheStore

KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))
ACTION, OTHER_ACTION = Sha256.of(b"an action"), Sha256.of(b"another one")
OUTPUT = b"what the compiler wrote" * 1000
ENTRY = Entry(Sha256.of(OUTPUT), len(OUTPUT), 1_800_000_000_000_000_000)


def packed(output: bytes = OUTPUT, *, action: Sha256 = ACTION, key: bytes = KEY) -> bytes:
    sink = io.BytesIO()
    entry = Entry(Sha256.of(output), len(output), ENTRY.time_ns)
    write_entry(sink, io.BytesIO(output), action=action, entry=entry, key=key)
    return sink.getvalue()


def unpacked(data: bytes, *, action: Sha256 = ACTION, key: bytes = KEY) -> bytes:
    """The output of an object as the cache would take it."""
    source = io.BytesIO(data)
    entry = read_head(source, action=action, key=key)
    output = b"".join(read_output(source, entry))
    if Sha256.of(output) != entry.output:
        raise RejectedEntryError("another output")
    return output


class Pieces:
    """A stream that gives a byte or two at a time, as a socket may."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._data.read(min(size, 2))


class TestObject:
    """The format of one entry."""

    def test_comes_back_as_it_was_put(self) -> None:
        source = io.BytesIO(packed())
        assert read_head(source, action=ACTION, key=KEY) == ENTRY
        assert b"".join(read_output(source, ENTRY)) == OUTPUT

    def test_is_a_line_of_fixed_length_and_a_zstd_frame(self) -> None:
        head, frame = packed()[:HEAD_BYTES], packed()[HEAD_BYTES:]
        assert head.startswith(f"meshbuild-cache 1 {ACTION} {ENTRY.output} {len(OUTPUT):016x} ".encode())
        assert head.index(b"\n") == HEAD_BYTES - 1
        assert head[-65:-1].decode() == hmac.new(KEY, head[:-66], hashlib.sha256).hexdigest()
        assert zstandard.ZstdDecompressor().decompress(frame) == OUTPUT

    def test_an_empty_output_has_a_frame_too(self) -> None:
        assert unpacked(packed(b"")) == b""

    def test_is_read_from_a_stream_that_gives_little_at_a_time(self) -> None:
        source = Pieces(packed())
        assert b"".join(read_output(source, read_head(source, action=ACTION, key=KEY))) == OUTPUT

    @given(st.integers(0, len(packed()) - 1), st.integers(0, 7))
    def test_any_flipped_bit_is_noticed(self, place: int, bit: int) -> None:
        data = bytearray(packed())
        data[place] ^= 1 << bit
        try:
            assert unpacked(bytes(data)) == OUTPUT  # zstd has bits that don't matter
            assert place >= HEAD_BYTES
        except RejectedEntryError:
            pass

    @given(st.integers(0, len(packed()) - 1))
    def test_a_part_of_it_is_no_entry(self, length: int) -> None:
        with pytest.raises(RejectedEntryError):
            unpacked(packed()[:length])

    @given(st.binary(max_size=600))
    def test_anything_else_is_no_entry(self, data: bytes) -> None:
        with pytest.raises(RejectedEntryError):
            unpacked(data)

    @given(st.binary(max_size=600))
    def test_a_good_head_before_anything_else_is_no_entry(self, data: bytes) -> None:
        with pytest.raises(RejectedEntryError):
            unpacked(packed()[:HEAD_BYTES] + data)

    def test_of_another_key_or_action_is_no_entry(self) -> None:
        with pytest.raises(RejectedEntryError, match="not made with this key"):
            unpacked(packed(key=OTHER_KEY))
        with pytest.raises(RejectedEntryError, match="of another action"):
            unpacked(packed(action=OTHER_ACTION))

    def test_another_output_under_a_good_head_is_no_entry(self) -> None:
        evil = packed(b"evil" * 5750)
        assert len(b"evil" * 5750) == len(OUTPUT)
        with pytest.raises(RejectedEntryError):
            unpacked(packed()[:HEAD_BYTES] + evil[HEAD_BYTES:])

    def test_a_size_beyond_the_limit_is_refused_before_the_output_is_read(self) -> None:
        sink = io.BytesIO()
        huge = dataclasses.replace(ENTRY, size_bytes=MAX_OUTPUT_BYTES + 1)
        with pytest.raises(zstandard.ZstdError):
            write_entry(sink, io.BytesIO(OUTPUT), action=ACTION, entry=huge, key=KEY)
        source = io.BytesIO(sink.getvalue()[:HEAD_BYTES])
        with pytest.raises(RejectedEntryError, match="larger than"):
            read_head(source, action=ACTION, key=KEY)

    def test_a_frame_that_swells_or_asks_for_a_large_window_takes_little_memory(self) -> None:
        swollen = zstandard.ZstdCompressor(level=3).compress(bytes(256 << 20))
        parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27)
        wide = zstandard.ZstdCompressor(compression_params=parameters).compress(os.urandom(1 << 20) * 20)
        tracemalloc.start()
        for frame in (swollen, wide):
            with pytest.raises(RejectedEntryError):
                unpacked(packed()[:HEAD_BYTES] + frame)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 8 << 20
        source = io.BytesIO(packed()[:HEAD_BYTES] + swollen)
        entry = read_head(source, action=ACTION, key=KEY)
        assert sum(map(len, read_output(source, entry))) == len(OUTPUT) + 1


class TestKey:
    """What is taken for a key."""

    def test_hex_digits_or_a_file_of_them(self, tmp_path: Path) -> None:
        file = tmp_path / "key"
        file.write_text(KEY.hex() + "\n")
        assert read_cache_key(KEY.hex()) == read_cache_key(f"file:{file}") == KEY

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "MESHBUILD_CACHE_KEY is not set"),
            (KEY.hex()[:-2], "expected 64 hex digits or more, found 62 characters"),
            ("correct horse battery staple " * 3, "expected 64 hex digits or more"),
            (KEY.hex() + "0", "expected 64 hex digits or more"),
            ("00" * 32, "too regular"),
            ("0123456789abcdef" * 4, "too regular"),
        ],
    )
    def test_no_other_text(self, text: str, message: str) -> None:
        with pytest.raises(SettingsError, match=message) as caught:
            read_cache_key(text)
        assert "openssl rand -hex 32" in (caught.value.hint or "")
        assert not text or text not in str(caught.value)

    def test_a_file_that_is_missing_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(LocalFileError, match="nowhere"):
            read_cache_key(f"file:{tmp_path}/nowhere")


class TestLocalLayer:
    """This machine's part."""

    def test_what_was_added_is_there(self, tmp_path: Path) -> None:
        layer = LocalLayer(tmp_path, KEY)
        layer.add(ACTION, ENTRY, [OUTPUT[:100], OUTPUT[100:]])
        assert layer.get(ACTION) == ENTRY
        assert layer.output_file(ENTRY.output).read_bytes() == OUTPUT
        assert layer.get(OTHER_ACTION) is None

    def test_a_wrong_output_is_refused_and_leaves_nothing(self, tmp_path: Path) -> None:
        layer = LocalLayer(tmp_path, KEY)
        for pieces in ([OUTPUT[:-1]], [OUTPUT, b"x"], []):
            with pytest.raises(RejectedEntryError):
                layer.add(ACTION, ENTRY, pieces)
        assert not [path for path in tmp_path.rglob("*") if path.is_file()]

    @pytest.mark.parametrize("damage", ["output", "shorter", "no output", "record", "empty record", "not text"])
    def test_damaged_files_are_a_miss_and_mended_by_the_next_add(self, tmp_path: Path, damage: str) -> None:
        layer = LocalLayer(tmp_path, KEY)
        layer.add(ACTION, ENTRY, [OUTPUT])
        output, record = layer.output_file(ENTRY.output), layer._record_file(ACTION)
        {
            "output": lambda: output.write_bytes(b"x" + OUTPUT[1:]),
            "shorter": lambda: os.truncate(output, 100),
            "no output": output.unlink,
            "record": lambda: record.write_text(f"../../{ENTRY.output} 1 1\n"),
            "empty record": lambda: os.truncate(record, 0),
            "not text": lambda: record.write_bytes(b"\xff"),
        }[damage]()
        assert layer.get(ACTION) is None
        layer.add(ACTION, ENTRY, [OUTPUT])
        assert layer.get(ACTION) == ENTRY

    def test_another_key_sees_nothing_of_it(self, tmp_path: Path) -> None:
        LocalLayer(tmp_path, KEY).add(ACTION, ENTRY, [OUTPUT])
        assert LocalLayer(tmp_path, OTHER_KEY).get(ACTION) is None

    def test_what_was_not_used_for_five_days_goes_once_a_day(self, tmp_path: Path) -> None:
        layer, used = LocalLayer(tmp_path, KEY), dataclasses.replace(ENTRY, output=Sha256.of(b""), size_bytes=0)
        layer.add(ACTION, ENTRY, [OUTPUT])
        layer.add(OTHER_ACTION, used, [])
        six_days_ago = time.time() - 6 * 86_400
        for path in [path for path in tmp_path.rglob("*") if path.is_file()]:
            os.utime(path, (six_days_ago, six_days_ago))
        assert layer.get(OTHER_ACTION) == used
        layer.trim()
        assert layer.get(ACTION) is None
        assert not layer.output_file(ENTRY.output).exists()
        assert layer.get(OTHER_ACTION) == used
        layer.add(ACTION, ENTRY, [OUTPUT])
        os.utime(layer.output_file(ENTRY.output), (six_days_ago, six_days_ago))
        layer.trim()
        assert layer.output_file(ENTRY.output).exists()


class Machines:
    """Caches of several machines on one store."""

    def __init__(self, folder: Path, store: CacheStore) -> None:
        self.folder, self.store, self.said = folder, store, list[str]()

    def machine(self, name: str, key: bytes = KEY, **patience: float) -> SharedCache:
        return SharedCache(
            self.store,
            key=key,
            folder=self.folder / name,
            report=self.said.append,
            patience=Patience(**patience),  # type: ignore[arg-type]
        )


def put(cache: SharedCache, action: Sha256 = ACTION, output: bytes = OUTPUT) -> None:
    cache.put(action, Sha256.of(output), len(output), [output])


@pytest.fixture
def folder_machines(tmp_path: Path) -> Machines:
    return Machines(tmp_path, FolderStore(str(tmp_path / "store")))


class TestSharedCache:
    """Machines on a folder store."""

    def test_one_machine_fills_it_and_another_one_hits(self, folder_machines: Machines) -> None:
        first, second = folder_machines.machine("first"), folder_machines.machine("second")
        assert first.get(ACTION) is None
        put(first)
        first.close()
        assert first.counts == CacheCounts(misses=1, uploaded=1)
        entry = second.get(ACTION)
        assert entry is not None
        assert second.output_file(entry).read_bytes() == OUTPUT
        assert second.get(ACTION) == entry
        second.close()
        assert second.counts == CacheCounts(hits=1, local_hits=1)
        assert not folder_machines.said

    def test_a_machine_with_another_key_misses_and_then_replaces(self, folder_machines: Machines) -> None:
        first, other = folder_machines.machine("first"), folder_machines.machine("other", OTHER_KEY)
        put(first)
        first.close()
        assert other.get(ACTION) is None
        put(other)
        other.close()
        assert other.counts == CacheCounts(misses=1, rejected=1, uploaded=1)
        assert folder_machines.machine("third", OTHER_KEY).get(ACTION) is not None

    @pytest.mark.parametrize(
        "kind", ["garbage", "truncated", "another action", "empty", "folder", "pipe", "link", "huge"]
    )
    def test_what_else_lies_in_the_store_is_a_miss(self, folder_machines: Machines, tmp_path: Path, kind: str) -> None:
        path = tmp_path / "store" / object_name(ACTION)
        path.parent.mkdir(parents=True)
        good = tmp_path / "good"
        good.write_bytes(packed())
        {
            "garbage": lambda: path.write_bytes(os.urandom(100_000)),
            "truncated": lambda: path.write_bytes(packed()[:-1]),
            "another action": lambda: path.write_bytes(packed(action=OTHER_ACTION)),
            "empty": path.touch,
            "folder": path.mkdir,
            "pipe": lambda: os.mkfifo(path),
            "link": lambda: path.symlink_to(good),
            "huge": lambda: (path.touch(), os.truncate(path, 1 << 40)),
        }[kind]()
        cache = folder_machines.machine("first")
        assert cache.get(ACTION) is None
        assert cache.counts.misses == 1
        assert cache.counts.rejected == (0 if kind in {"folder", "pipe", "link"} else 1)
        assert not [each for each in (tmp_path / "first").rglob("*") if each.is_file()]

    def test_source_indexes_never_leave_the_machine(self, folder_machines: Machines, tmp_path: Path) -> None:
        cache = folder_machines.machine("first")
        put(cache, output=b"go index v2\n" + OUTPUT)
        cache.close()
        assert cache.get(ACTION) is not None
        assert not (tmp_path / "store").exists()
        assert cache.counts == CacheCounts(local_hits=1)

    def test_a_folder_that_cant_be_written_is_read_only(self, folder_machines: Machines, tmp_path: Path) -> None:
        first = folder_machines.machine("first")
        put(first)
        first.close()
        (tmp_path / "store").rename(tmp_path / "kept")
        store = _ReadOnlyStore(str(tmp_path / "kept"))
        machines = Machines(tmp_path, store)
        second = machines.machine("second")
        assert second.get(ACTION) is not None
        put(second, OTHER_ACTION)
        second.close()
        assert second.counts == CacheCounts(hits=1, not_uploaded=1)
        assert len(machines.said) == 1
        assert "takes no uploads" in machines.said[0]

    def test_many_threads_and_machines_at_once(self, folder_machines: Machines) -> None:
        actions = [Sha256.of(b"%d" % number) for number in range(30)]
        caches = [folder_machines.machine(name) for name in ("a", "b", "a")]

        def work(cache: SharedCache) -> None:
            for action in actions:
                if cache.get(action) is None:
                    put(cache, action, action.encode() * 100)

        threads = [threading.Thread(target=work, args=(cache,)) for cache in caches * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for cache in caches:
            cache.close()
            assert cache.counts.rejected == cache.counts.not_uploaded == 0
        fresh = folder_machines.machine("fresh")
        assert all(fresh.get(action) for action in actions)
        assert not folder_machines.said


class _ReadOnlyStore(FolderStore):
    """A folder whose permissions hold for root too."""

    def put(self, name: str, source: BinaryIO) -> bool:
        (self.folder / "v1").chmod(0o555)
        if os.geteuid() == 0:
            return False
        return super().put(name, source)


@pytest.fixture
def server() -> Iterator[Callable[[Callable[[socket.socket], None]], str]]:
    """Starts servers on loopback that do what they are told with each connection."""
    listeners = []

    def start(handle: Callable[[socket.socket], None]) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def loop() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=handle, args=(connection,), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/cache"

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def answering(status: str, body: bytes = b"") -> Callable[[socket.socket], None]:
    """Answers every request alike, on connections that stay open."""

    def handle(connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            while reader.readline():
                length = 0
                while (line := reader.readline()).strip():
                    if line.lower().startswith(b"content-length:"):
                        length = int(line.split(b":")[1])
                reader.read(length)
                connection.sendall(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body))

    return handle


def hanging(connection: socket.socket) -> None:
    """Takes what comes and never answers."""
    with connection:
        while connection.recv(1 << 16):
            pass


def dripping(connection: socket.socket) -> None:
    """Answers one byte at a time, so that no silence is ever long."""
    with connection:
        connection.recv(1 << 16)
        try:
            for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + bytes(100_000):
                connection.sendall(bytes([byte]))
                time.sleep(0.05)
        except OSError:
            return


Server = "Callable[[Callable[[socket.socket], None]], str]"


class TestStoresInTrouble:
    """Stores that are away, slow, or refuse: slower, never wrong, never stuck."""

    ACTIONS = tuple(Sha256.of(b"%d" % number) for number in range(20))

    def _get_all(self, tmp_path: Path, address: str, **patience: float) -> tuple[SharedCache, list[str], float]:
        machines = Machines(tmp_path, open_cache_store(address))
        cache = machines.machine("first", **patience)
        began = time.monotonic()
        assert [cache.get(action) for action in self.ACTIONS] == [None] * 20
        put(cache)
        cache.close()
        return cache, machines.said, time.monotonic() - began

    def test_nobody_listens(self, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        cache, said, took_s = self._get_all(tmp_path, address)
        assert took_s < 3
        assert len(said) == 1
        assert "is not read any more in this run" in said[0]
        assert "refused" in said[0]
        assert cache.counts == CacheCounts(misses=20, not_uploaded=1)

    @pytest.mark.parametrize("behaviour", [hanging, dripping], ids=lambda behaviour: behaviour.__name__)
    def test_no_answer_costs_a_bounded_time(self, tmp_path: Path, server: Server, behaviour) -> None:
        cache, said, took_s = self._get_all(tmp_path, server(behaviour), get_s=0.3)
        assert took_s < 0.3 * 3 + 0.5
        assert len(said) == 1
        assert "no whole answer after" in said[0]
        assert cache.counts == CacheCounts(misses=20, not_uploaded=1)

    def test_a_store_that_is_only_just_quick_enough_uses_up_a_budget(self, tmp_path: Path) -> None:
        class Slow(FolderStore):
            def get(self, name: str):
                time.sleep(1.2)
                return super().get(name)

        machines = Machines(tmp_path, Slow(str(tmp_path / "store")))
        cache = machines.machine("first", stall_s=0.3)
        began = time.monotonic()
        for action in self.ACTIONS:
            assert cache.get(action) is None
        assert time.monotonic() - began < 4
        assert len(machines.said) == 1
        assert "were spent waiting" in machines.said[0]

    def test_uploads_that_hang_are_given_up_at_the_end(self, tmp_path: Path, server: Server) -> None:
        machines = Machines(tmp_path, open_cache_store(server(hanging)))
        cache = machines.machine("first", flush_s=0.3)
        began = time.monotonic()
        for action in self.ACTIONS:
            put(cache, action)
        cache.close()
        assert time.monotonic() - began < 2
        assert cache.counts == CacheCounts(not_uploaded=20)
        assert len(machines.said) == 1
        assert "did not take all uploads in time" in machines.said[0]

    @pytest.mark.parametrize("status", ["405 Method Not Allowed", "403 Forbidden"])
    def test_a_server_that_takes_no_put_is_read_only(self, tmp_path: Path, server: Server, status: str) -> None:
        machines = Machines(tmp_path, open_cache_store(server(answering(status))))
        cache = machines.machine("first")
        for action in self.ACTIONS:
            put(cache, action)
        cache.close()
        assert cache.counts == CacheCounts(not_uploaded=20)
        assert len(machines.said) == 1
        assert "is not filled in this run: it takes no uploads from here" in machines.said[0]
        assert cache._reads.wanted

    @pytest.mark.parametrize("status", ["500 Oops", "403 Forbidden", "204 No Content", "416 No"])
    def test_other_answers_are_failures(self, tmp_path: Path, server: Server, status: str) -> None:
        cache, said, _ = self._get_all(tmp_path, server(answering(status)))
        assert len(said) == 1
        assert f"answered {status[:3]}" in said[0]
        assert cache.counts.misses == 20

    def test_an_object_that_is_missing_or_wrong_is_no_failure(self, tmp_path: Path, server: Server) -> None:
        cache, said, _ = self._get_all(tmp_path, server(answering("404 Not Found", b"gone")))
        assert not [line for line in said if "read" in line]
        assert cache._reads.wanted
        cache, said, _ = self._get_all(tmp_path, server(answering("200 OK", packed())))
        assert cache.counts.rejected == 20
        assert cache._reads.wanted

    def test_an_entry_comes_over_http(self, tmp_path: Path, server: Server) -> None:
        cache = Machines(tmp_path, open_cache_store(server(answering("200 OK", packed())))).machine("first")
        entry = cache.get(ACTION)
        assert entry == ENTRY
        assert cache.output_file(entry).read_bytes() == OUTPUT

    @pytest.mark.parametrize(("status", "body"), [("404 Not Found", b"gone"), ("200 OK", packed())])
    def test_a_connection_is_used_again(self, tmp_path: Path, server: Server, status: str, body: bytes) -> None:
        connections = []

        def counting(connection: socket.socket) -> None:
            connections.append(connection)
            answering(status, body)(connection)

        store = open_cache_store(server(counting))
        for number in range(5):
            machine = Machines(tmp_path, store).machine(f"machine {number}")
            assert (machine.get(ACTION) is None) == status.startswith("404")
        assert len(connections) == 1

    def test_a_full_disk_here_is_a_miss(self, folder_machines: Machines, tmp_path: Path) -> None:
        first = folder_machines.machine("first")
        put(first)
        first.close()
        (tmp_path / "second").write_text("a file where the folder should be")
        second = folder_machines.machine("second")
        assert second.get(ACTION) is None
        with pytest.raises(OSError, match="Not a directory"):
            put(second)


class TestServer:
    """What a build without a network reaches."""

    def _talk(self, env: dict[str, str], said: bytes) -> bytes:
        relay = subprocess.run(shlex.split(env["GOCACHEPROG"]), input=said, env={}, capture_output=True, check=True)
        assert relay.stderr == b""
        return relay.stdout

    def test_commands_come_one_after_another_and_nothing_is_left_behind(self, tmp_path: Path) -> None:
        work = tmp_path / "work"
        work.mkdir()
        before = set(threading.enumerate())
        for _ in range(2):
            with shared_cache(str(tmp_path / "store"), key=KEY, folder=tmp_path / "local", work=work, report=print) as (
                env,
                cache,
            ):
                for number in range(2):
                    answers = self._talk(env, b'{"ID":1,"Command":"get","ActionID":"%s="}\n' % (b"A" * 43) * number)
                    assert answers.startswith(b'{"ID": 0, "KnownCommands"')
                assert self._talk(env, b'{"ID":5,"Command":"close"}').endswith(b'{"ID": 5}\n')
                assert stat.S_IMODE((work / "cache.sock").stat().st_mode) == 0o600
                assert cache.counts.misses <= 1
                put(cache)
            assert not list(work.iterdir())
        for thread in set(threading.enumerate()) - before:
            thread.join(5)
            assert not thread.is_alive(), thread.name

    def test_a_store_that_was_given_up_stays_so_in_later_builds(self, tmp_path: Path) -> None:
        said: list[str] = []
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        for number in range(3):
            folder = tmp_path / str(number)
            with shared_cache(address, key=KEY, folder=folder, work=tmp_path, report=said.append) as (_, cache):
                for each in range(3):
                    assert cache.get(Sha256.of(b"%d" % each)) is None
                assert not cache._reads.wanted
                put(cache)
            assert cache.counts == CacheCounts(misses=3, not_uploaded=1)
        assert len(said) == 1

    def test_a_relay_whose_server_is_gone_fails(self, tmp_path: Path) -> None:
        with shared_cache(str(tmp_path), key=KEY, folder=tmp_path, work=tmp_path, report=print) as (env, _):
            words = shlex.split(env["GOCACHEPROG"])
        relay = subprocess.run(words, input=b"", capture_output=True, check=False)
        assert relay.returncode == 1
        assert b"No such file" in relay.stderr

    def test_the_relay_stays_light(self) -> None:
        """It starts with every build; `import socket` alone would double that."""
        code = "import sys; sys.path.insert(0, sys.argv[1]); import relay; print(*sys.modules)"
        words = [sys.executable, "-I", "-S", "-c", code, str(Path(buildcache.__file__).parent)]
        modules = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
        assert "relay" in modules
        assert not {"socket", "threading", "json", "selectors", "enum"} & set(modules)


def test_addresses() -> None:
    assert isinstance(open_cache_store("some/folder"), FolderStore)
    assert open_cache_store("file:///some/folder").address == "/some/folder"
    assert isinstance(open_cache_store("https://cache.example/x"), HttpStore)
    assert open_cache_store("https://user:secret@cache.example/x").address == "https://cache.example/x"
    for address in ("s3://bucket/x", "ftp:x", ""):
        with pytest.raises(SettingsError):
            open_cache_store(address)


def test_a_password_in_the_address_is_never_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://user:secret@127.0.0.1:{listener.getsockname()[1]}/x"
    store = open_cache_store(address)
    with pytest.raises(StoreError) as caught, store.get("v1/a"):
        pass
    assert "secret" not in str(caught.value)


def test_commands_are_quoted_as_go_splits_them() -> None:
    assert quoted("/a/b", "-I") == "/a/b -I"
    assert quoted("/a b/c", "it's", "'x", 'a" b', "") == """'/a b/c' it's "'x" 'a" b' ''"""
    with pytest.raises(SettingsError, match="both kinds of quotes"):
        quoted("""a ' " b""")
