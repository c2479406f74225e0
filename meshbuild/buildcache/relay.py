"""What Go starts as GOCACHEPROG: hands its standard input and output over to the build's own cache server.

    python -I -S relay.py SOCKET

It starts once a build, inside the compiler's private network namespace, where there is no network but the file system's
sockets still work. It knows neither the store nor the key. Only built-in modules: it starts in a third of the time
that `import socket` alone would cost.
"""

import _socket  # the built-in half of `socket`
import sys

try:
    import posix  # the built-in half of `os`
except ImportError:  # pragma: no cover - no POSIX, no build
    sys.exit("meshbuild's build cache needs a POSIX system")


def main() -> int:
    """Hand over, and wait for the server to be done; returns the exit status."""
    folder, _, name = sys.argv[1].rpartition("/")
    posix.chdir(folder)  # a socket's address holds some 100 bytes, a path may be longer
    server = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    server.connect(name)
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1))
    server.sendmsg([b"-"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
    while server.recv(1):
        pass
    return 0


if __name__ == "__main__":
    sys.exit(main())
