"""Files of a workspace, reached by descriptors: never through a symbolic link, never outside, never a device.

An agent may turn any folder of its tree into a link to somewhere else between our look and our write. Each
folder is therefore opened below its parent's descriptor with O_NOFOLLOW, and each file below its folder's.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat

from ropewalk.core.durable import write_all
from ropewalk.core.errors import WorkspaceGoneError, os_error
from ropewalk.core.ids import path_text

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG)
_REMOVALS = 1000


class Files:
    """Is a hold on a workspace's root folder; paths are bytes relative to it, with `/` between parts."""

    def __init__(self, root: str) -> None:
        """Opens the folder; `E_WORKSPACE_GONE` when there is none."""
        try:
            self.root = os.open(root, _FOLDER)
        except OSError as error:
            if error.errno in _ABSENT:
                raise WorkspaceGoneError("the workspace's folder is gone", path=root) from None
            raise os_error(error, "open of the workspace") from None
        # the folders from the root to the one used last, so that sorted paths open each folder once
        self._open: list[tuple[bytes, int]] = []

    def close(self) -> None:
        """Lets go of all descriptors."""
        self._cut(0)
        os.close(self.root)

    def __enter__(self) -> Files:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cut(self, depth: int) -> None:
        while len(self._open) > depth:
            os.close(self._open.pop()[1])

    def folder(self, path: bytes, *, make: bool = False) -> int | None:
        """Gives the descriptor of a folder (`b""`: the root), valid until the next call; None when it is none."""
        parts = path.split(b"/") if path else []
        same = 0
        while same < len(parts) and same < len(self._open) and self._open[same][0] == parts[same]:
            same += 1
        self._cut(same)
        for part in parts[same:]:
            above = self._open[-1][1] if self._open else self.root
            try:
                fd = os.open(part, _FOLDER, dir_fd=above)
            except OSError as error:
                if error.errno not in _ABSENT:
                    raise os_error(error, "read of the workspace") from None
                if not make or error.errno != errno.ENOENT:
                    return None
                os.mkdir(part, dir_fd=above)
                fd = os.open(part, _FOLDER, dir_fd=above)
            self._open.append((part, fd))
        return self._open[-1][1] if self._open else self.root

    def _place(self, path: bytes, *, make: bool = False) -> tuple[int | None, bytes]:
        above, _, name = path.rpartition(b"/")
        return self.folder(above, make=make), name

    def stat(self, path: bytes) -> os.stat_result | None:
        """Gives the stat data of a path itself; None when it does not exist or lies behind a link."""
        fd, name = self._place(path)
        if fd is None:
            return None
        try:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)
        except OSError as error:
            if error.errno in _ABSENT:
                return None
            raise os_error(error, "read of the workspace") from None

    def read(self, path: bytes, limit: int | None = None) -> bytes | None:
        """Gives a regular file's bytes; None when it is gone, is something else, or is longer than `limit`."""
        fd, name = self._place(path)
        if fd is None:
            return None
        try:
            file = os.open(name, _FILE, dir_fd=fd)
        except OSError as error:
            if error.errno in (*_ABSENT, errno.ENXIO, errno.EISDIR):
                return None
            raise os_error(error, f"read of {path_text(path)!r}") from None
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode) or (limit is not None and found.st_size > limit):
                return None
            parts = []
            while part := os.read(file, 1 << 24):
                parts.append(part)
            return parts[0] if len(parts) == 1 else b"".join(parts)
        except OSError as error:
            raise os_error(error, f"read of {path_text(path)!r}") from None
        finally:
            os.close(file)

    def link(self, path: bytes) -> bytes | None:
        """Gives what a symbolic link says; None when it is none."""
        fd, name = self._place(path)
        if fd is None:
            return None
        try:
            return os.readlink(name, dir_fd=fd)
        except OSError:
            return None

    def put(self, path: bytes, data: bytes, *, mode: int = 0o666) -> None:
        """Writes a file whole or not at all, over a file or link that is there, and makes its folders.

        The bytes wait in the workspace's `.git` (which no capture reads) until a rename puts them in place.
        """
        self._install(path, lambda fd, name: _write(fd, name, data, mode))

    def put_link(self, path: bytes, says: bytes) -> None:
        """Makes a symbolic link, over a file or link that is there."""
        self._install(path, lambda fd, name: os.symlink(says, name, dir_fd=fd))

    def _install(self, path: bytes, make: object) -> None:
        assert callable(make)
        name = b"rw-new-%d" % os.getpid()
        try:
            staging = os.open(b".git", _FOLDER, dir_fd=self.root)
        except OSError:
            # without a git directory the file waits beside its place
            staging = os.dup(self.root)
            name = b"." + name
        try:
            try:
                os.unlink(name, dir_fd=staging)
            except FileNotFoundError:
                pass
            make(staging, name)
            fd, last = self._place(path, make=True)
            if fd is None:
                os.unlink(name, dir_fd=staging)
                raise OSError(errno.ENOTDIR, f"a folder of {path_text(path)!r} is a file")
            os.rename(name, last, src_dir_fd=staging, dst_dir_fd=fd)
        except OSError as error:
            raise os_error(error, f"write of {path_text(path)!r}") from None
        finally:
            os.close(staging)

    def make_folder(self, path: bytes) -> None:
        """Makes a folder and those above it."""
        self.folder(path, make=True)

    def remove(self, path: bytes) -> None:
        """Removes a file or link, and each folder above it that is empty then."""
        fd, name = self._place(path)
        if fd is None:
            return
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM, errno.ENOTDIR):
                raise os_error(error, f"removal of {path_text(path)!r}") from None
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                return
        above = path.rpartition(b"/")[0]
        while above:
            fd, name = self._place(above)
            if fd is None:
                return
            try:
                os.rmdir(name, dir_fd=fd)
            except OSError:
                return
            above = above.rpartition(b"/")[0]

    def set_aside(self, path: bytes, folder: bytes) -> bytes:
        """Moves whatever is at a path below a folder, under a name that is free there; gives that name."""
        fd, name = self._place(path)
        assert fd is not None
        source = os.dup(fd)
        try:
            target = self.folder(folder, make=True)
            assert target is not None
            flat = path.replace(b"/", b"__")[:200]
            number = 0
            while True:
                kept = flat if not number else b"%s.%d" % (flat, number)
                try:
                    os.stat(kept, dir_fd=target, follow_symlinks=False)
                    number += 1
                except FileNotFoundError:
                    break
            os.rename(name, kept, src_dir_fd=source, dst_dir_fd=target)
            return folder + b"/" + kept
        except OSError as error:
            raise os_error(error, f"setting aside {path_text(path)!r}") from None
        finally:
            os.close(source)


def _write(folder: int, name: bytes, data: bytes, mode: int) -> None:
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def remove_tree(path: str) -> None:
    """Removes a folder with all in it; links are removed, not followed, and missing write bits do not keep it.

    Another process may be at it at the same time: what it was faster with is no error.
    """
    try:
        for _ in range(_REMOVALS):
            try:
                return shutil.rmtree(path)
            except FileNotFoundError:
                if not os.path.lexists(path):
                    return
        shutil.rmtree(path)
    except PermissionError:
        # an agent may have taken the write bit off its folders
        os.chmod(path, 0o700)
        for _, folders, _, fd in os.fwalk(path, follow_symlinks=False):
            for folder in folders:
                if stat.S_ISDIR(os.stat(folder, dir_fd=fd, follow_symlinks=False).st_mode):
                    os.chmod(folder, 0o700, dir_fd=fd)
        shutil.rmtree(path)
