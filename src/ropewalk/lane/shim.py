"""The shim of a lane: it starts the agent, outlives whoever supervises, and writes down how the agent ended (G3, G4).

It runs on a bare Python (`python -I -S shim.py FOLDER`), because there is one for each lane, and does as little as it
can: the agent's streams go straight into files, so nobody has to read them for it to go on. The cage dies with the
shim, and the shim's lock with it: whoever finds the lock free knows that nothing of the lane runs any more.
Every lane waits for its start, so it imports only modules in C: those of the standard library around them would take
twice as long as all else.

The folder holds `launch.json` (argv, env, cwd, stdin, keep_open). The shim adds `alive` (locked), `proc.json` (pid,
start, boot, child), `stdout`, `stderr`, `control` (a socket), and at the end `exit.json` (code, signal, wall seconds).
Its own standard output is closed once the lane is there for others to see.
"""

import fcntl
import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    import socket
    from typing import Any
else:
    import _signal as signal
    import _socket as socket


def parsed(text: str) -> "dict[str, Any]":
    """Gives what a JSON text says."""
    try:
        from _json import make_scanner
    except ImportError:
        import json

        found: dict[str, Any] = json.loads(text)
        return found

    class Plain:
        strict, object_hook, object_pairs_hook = True, None, None
        parse_float, parse_int, parse_constant = float, int, float

    found, _ = make_scanner(Plain)(text, 0)  # type: ignore[arg-type]
    return found


def started(pid: int) -> str:
    """Gives when a process started, in ticks since boot."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b")", 1)[1].split()[19].decode()


def put(folder: str, name: str, text: str) -> None:
    """Puts a file in place, whole, for whoever reads it while the host is up.

    A power loss may take it, as it may take the streams that tell what the agent did: how a lane ended is promised when
    it is in the store, and a lane that was not yet noted there counts as dead.
    """
    path = os.path.join(folder, name)
    with open(path + ".new", "w") as file:
        file.write(text)
    os.replace(path + ".new", path)


def adopt_orphans() -> None:
    """Makes this process the parent of whatever the agent leaves behind, so that it is found and ended."""
    try:
        from _ctypes import call_function, dlopen, dlsym
    except ImportError:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    else:
        call_function(dlsym(dlopen(None, 0), "prctl"), (36, 1, 0, 0, 0))  # type: ignore[arg-type]


def below(root: int) -> list[int]:
    """Gives the living processes below one."""
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    words = file.read().rsplit(b")", 1)[1].split()
            except (OSError, IndexError):
                continue
            if words[0] not in (b"Z", b"X"):
                parents.setdefault(int(words[1]), []).append(int(name))
    found, left = [], [root]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def is_alone() -> bool:
    """Says whether this process has no children, after it took in those that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


class Shim:
    """Is one lane's shim."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        with open(os.path.join(folder, "launch.json")) as file:
            self.launch = parsed(file.read())
        self.input = self.wake = -1
        self.child = 0
        self.began = time.monotonic()
        self.pending = bytearray()
        self.poll = select.poll()
        self.listening: socket.socket | None = None

    def start(self) -> None:
        """Starts the agent in a session of its own, with its streams in files."""
        launch = self.launch
        if launch.get("subreaper"):
            adopt_orphans()
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        out = os.open(os.path.join(self.folder, "stdout"), flags, 0o600)
        err = os.open(os.path.join(self.folder, "stderr"), flags, 0o600)
        if launch.get("keep_open"):
            source, self.input = os.pipe()
            os.set_blocking(self.input, False)
            with open(launch["stdin"], "rb") as file:
                self.pending += file.read()
        else:
            source = os.open(launch["stdin"], os.O_RDONLY)
        self.child = os.fork()
        if self.child == 0:
            try:
                os.setsid()
                for fd, number in ((source, 0), (out, 1), (err, 2)):
                    os.dup2(fd, number)
                os.chdir(launch["cwd"])
                os.execve(launch["argv"][0], launch["argv"], launch["env"])
            except OSError as error:
                os.write(2, f"{launch['argv'][0]} can't be started: {error.strerror}\n".encode())
                os._exit(127)
        for fd in (source, out, err):
            os.close(fd)
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        put(self.folder, "proc.json", f'{{"pid": {os.getpid()}, "start": "{started(os.getpid())}", "boot": "{boot}", '
            f'"child": {self.child}, "at": {time.time()}}}')  # fmt: skip

    def listen(self) -> None:
        """Opens the control socket; its path may be too long for one, so it is named from inside the folder."""
        os.chdir(self.folder)
        if os.path.exists("control"):
            os.unlink("control")
        self.listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listening.bind("control")
        os.chmod("control", 0o600)
        self.listening.listen(8)
        self.poll.register(self.listening.fileno(), select.POLLIN)

    def heed(self) -> None:
        """Takes signals from here on; one that is to end the shim ends the agent, whose end is written down."""
        self.wake, woken = os.pipe()
        os.set_blocking(self.wake, False)
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda got, frame: None)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda got, frame: self.end(signal.SIGKILL))
        self.poll.register(self.wake, select.POLLIN)

    def run(self) -> None:
        """Waits for the agent's end, and does what is asked meanwhile."""
        while True:
            while True:
                try:
                    pid, status = os.waitpid(-1, os.WNOHANG)
                except ChildProcessError:
                    return self.ended(1 << 8)
                if pid == self.child:
                    return self.ended(status)
                if pid == 0:
                    break
            self.feed()
            for ready, _ in self.poll.poll(50 if self.pending else 30_000):
                if self.listening is not None and ready == self.listening.fileno():
                    fd, _ = self.listening._accept()  # type: ignore[attr-defined]
                    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)
                    made.settimeout(5)
                    try:
                        self.answer(made)
                    finally:
                        made.close()
                elif ready == self.wake:
                    try:
                        os.read(self.wake, 4096)
                    except BlockingIOError:
                        pass

    def answer(self, asked: socket.socket) -> None:
        """Does what one connection asks, in one line of JSON."""
        import json

        try:
            line = b""
            while not line.endswith(b"\n") and len(line) < 1 << 24:
                part = asked.recv(65536)
                if not part:
                    break
                line += part
            what = json.loads(line)
            said: dict[str, Any] = {"ok": True, "child": self.child, "seconds": round(time.monotonic() - self.began, 3)}
            if what.get("do") == "input":
                if self.input < 0:
                    said = {"ok": False, "why": "its input is closed"}
                else:
                    self.pending += what["data"].encode("utf-8", "surrogateescape")
                    self.feed()
            elif what.get("do") == "close":
                self.close_input()
            elif what.get("do") == "signal":
                self.end(int(what["signal"]))
            elif what.get("do") != "state":
                said = {"ok": False, "why": "what is asked is unknown"}
            asked.sendall(json.dumps(said).encode() + b"\n")
        except (OSError, ValueError, KeyError, TypeError):
            pass  # whoever asked is gone, or asked for nothing that is

    def feed(self) -> None:
        """Gives the agent what waits for its input, as much as it takes."""
        try:
            while self.pending and self.input >= 0:
                sent = os.write(self.input, bytes(self.pending[:65536]))
                del self.pending[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.close_input()

    def close_input(self) -> None:
        """Closes the agent's input."""
        self.pending.clear()
        if self.input >= 0:
            os.close(self.input)
            self.input = -1

    def end(self, number: int) -> None:
        """Sends a signal to the agent's session; in a cage its end is the end of all in it."""
        try:
            os.killpg(self.child, number)
        except (ProcessLookupError, PermissionError):
            pass

    def ended(self, status: int) -> None:
        """Writes down how the agent ended."""
        self.end(signal.SIGKILL)  # what it left in its own session, and then in others
        until = time.monotonic() + 5
        while not is_alone() and time.monotonic() < until:
            for pid in below(os.getpid()):
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        seconds = round(time.monotonic() - self.began, 3)
        put(self.folder, "exit.json", f'{{"code": {code}, "seconds": {seconds}, "at": {time.time()}}}')


def main(argv: list[str]) -> int:
    """Runs `shim.py FOLDER`; gives 3 when the lane of the folder has a shim."""
    folder = os.path.abspath(argv[0])
    os.umask(0o077)
    alive = os.open(os.path.join(folder, "alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(alive, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return 3
    shim = Shim(folder)
    shim.start()
    shim.listen()
    shim.heed()  # before anybody is told that it is there, and may end it
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    shim.run()
    return 0


if __name__ == "__main__":
    os._exit(main(sys.argv[1:]))
