"""The first program in a cage: it gives up root, opens the bridges to the gateway and the door, and runs the agent.

It runs on a bare Python (`-I -S`) and imports nothing of ours but what lies beside it, because the rest is not in the
cage. The bridges listen on the cage's own loopback address and pass every connection on to a socket; while what
listens there starts anew they try again for a minute. They end as the agent ends, and with them all that is left in
the cage.
"""

import os
import selectors
import signal
import socket
import sys
import time
from types import FrameType

RETRY_SECONDS = 60.0
CHUNK = 65536


def main(argv: list[str]) -> int:
    """Runs `inside.py [--uid N] [--cwd FOLDER] [--bridge PORT SOCKET]… [--namespaces] -- WORDS…`."""
    uid: int | None = None
    namespaces, cwd = False, "/"
    bridges: list[tuple[socket.socket, str]] = []
    while argv and argv[0] != "--":
        if argv[0] == "--uid":
            uid, argv = int(argv[1]), argv[2:]
        elif argv[0] == "--bridge":
            bridges.append((listening(int(argv[1])), argv[2]))
            argv = argv[3:]
        elif argv[0] == "--cwd":
            cwd, argv = argv[1], argv[2:]
        elif argv[0] == "--namespaces":
            namespaces, argv = True, argv[1:]
        else:
            sys.stderr.write(f"inside.py: what is {argv[0]!r}?\n")
            return 2
    words = argv[1:]
    if not close(uid, namespaces, cwd):
        return 126
    os.umask(0o022)
    child = os.fork()
    if child == 0:
        try:
            os.execvp(words[0], words)
        except OSError as error:
            os.write(2, f"{words[0]} can't be started: {error.strerror}\n".encode())
            os._exit(127)

    def passing(got: int, _: FrameType | None) -> None:
        _pass(child, got)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, passing)
    if not bridges:
        return ended(child)
    # the agent keeps the streams; a bridge that keeps them too would hold them open
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    return Bridge(bridges, child).run()


def listening(port: int) -> socket.socket:
    """Gives a socket that listens on the cage's loopback address; no child inherits it."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # its connections inherit it: an answer comes in small parts, and each would wait 40 ms for the one before
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.bind(("127.0.0.1", port))
    made.listen(128)
    return made


def close(uid: int | None, namespaces: bool, cwd: str) -> bool:
    """Gives up root, and puts this process with all it starts under the filter of system calls (G20)."""
    sys.path.insert(0, os.path.abspath(__file__).rsplit("/", 4)[0])
    from ropewalk.lane.cage import seccomp

    try:
        if uid is not None:
            seccomp.drop(uid)
        os.chdir(cwd)
        seccomp.install(seccomp.rules(namespaces=namespaces))
    except OSError as error:
        os.write(2, f"the cage can't be closed: {error.strerror}\n".encode())
        return False
    return True


def _nothing(got: int, frame: FrameType | None) -> None:
    """Lets the signal wake the selector."""


def _pass(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass


def ended(child: int) -> int:
    """Waits for the agent and gives its exit code; a signal is 128 and its number."""
    while True:
        try:
            pid, status = os.wait()
        except InterruptedError:
            continue
        if pid == child:
            return code_of(status)


def code_of(status: int) -> int:
    """Gives the exit code for a wait status."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class Bridge:
    """Passes bytes between connections of the cage and the sockets outside, until the agent ends."""

    def __init__(self, bridges: list[tuple[socket.socket, str]], child: int) -> None:
        self.paths, self.child = dict(bridges), child
        self.selector = selectors.DefaultSelector()
        for one in self.paths:
            self.selector.register(one, selectors.EVENT_READ)
        self.pending: list[tuple[socket.socket, str, float]] = []
        wake, self.woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(self.woken, False)
        signal.set_wakeup_fd(self.woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _nothing)
        self.wake = wake
        self.selector.register(wake, selectors.EVENT_READ)

    def run(self) -> int:
        """Gives the agent's exit code."""
        while True:
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return 1
                if pid == 0:
                    break
                if pid == self.child:
                    return code_of(status)
            for key, mask in self.selector.select(0.2 if self.pending else 5.0):
                if isinstance(key.fileobj, socket.socket) and key.fileobj in self.paths:
                    made, _ = key.fileobj.accept()
                    self.pending.append((made, self.paths[key.fileobj], time.monotonic() + RETRY_SECONDS))
                elif key.fileobj == self.wake:
                    try:
                        os.read(self.wake, 4096)
                    except BlockingIOError:
                        pass
                else:
                    assert isinstance(key.fileobj, socket.socket)
                    key.data.ready(key.fileobj, mask)
            self.connect()

    def connect(self) -> None:
        """Leads waiting connections to where they are for, if it is there."""
        waiting, self.pending = self.pending, []
        for made, path, until in waiting:
            there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                there.connect(path)
            except OSError:
                there.close()
                if time.monotonic() > until:
                    made.close()
                else:
                    self.pending.append((made, path, until))
                continue
            Pair(self.selector, made, there)


class Pair:
    """Is one connection and its other half; each way has a buffer that holds back a fast side."""

    def __init__(self, selector: selectors.BaseSelector, one: socket.socket, two: socket.socket) -> None:
        self.selector = selector
        self.other = {one: two, two: one}
        self.buffer = {one: b"", two: b""}  # what is still to be written to it
        self.closed: set[socket.socket] = set()  # those that have said all they will
        self.shut: set[socket.socket] = set()
        for end in (one, two):
            end.setblocking(False)
            selector.register(end, selectors.EVENT_READ, self)

    def ready(self, end: socket.socket, mask: int) -> None:
        """Moves what can be moved."""
        try:
            if mask & selectors.EVENT_READ and end not in self.closed and not self.buffer[self.other[end]]:
                data = end.recv(CHUNK)
                if data:
                    self.buffer[self.other[end]] = data
                else:
                    self.closed.add(end)
            for each in self.other:
                self.write(each)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.end()
            return
        if len(self.closed) == 2 and not any(self.buffer.values()):
            self.end()
            return
        self.watch()

    def write(self, end: socket.socket) -> None:
        """Writes what waits for one end, and passes on that no more will come."""
        while self.buffer[end]:
            sent = end.send(self.buffer[end])
            self.buffer[end] = self.buffer[end][sent:]
        if self.other[end] in self.closed and end not in self.shut:
            self.shut.add(end)
            end.shutdown(socket.SHUT_WR)

    def watch(self) -> None:
        """Says to the selector what is waited for."""
        for end in self.other:
            mask = 0
            if end not in self.closed and not self.buffer[self.other[end]]:
                mask |= selectors.EVENT_READ
            if self.buffer[end]:
                mask |= selectors.EVENT_WRITE
            try:
                if mask:
                    self.selector.modify(end, mask, self)
                else:
                    self.selector.unregister(end)
            except KeyError:
                if mask:
                    self.selector.register(end, mask, self)

    def end(self) -> None:
        """Closes both ends."""
        for each in self.other:
            try:
                self.selector.unregister(each)
            except (KeyError, ValueError):
                pass
            each.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
