"""Giving a tree to a lane's user and taking it back (G7, G8): by descriptors, never through a link.

What has another name outside the tree (a file that a package manager shares between trees) is not given away: the tree
gets a copy of its own, or the lane could write into what others use.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import struct
from typing import NamedTuple

from ropewalk.core.errors import WorkspaceGoneError, os_error

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEFAULT_ACL = "system.posix_acl_default"
_NOBODY = 0xFFFFFFFF


class Given(NamedTuple):
    """Is what a gift came to: entries whose owner changed, and files of which the tree got a copy of its own."""

    entries: int
    copies: int


def give(workspace: str, uid: int) -> Given:
    """Makes a tree a user's, all that is ours in it; no process of the user may work in it meanwhile."""
    return _Gift(os.geteuid(), uid).run(workspace)


def take_back(workspace: str, uid: int) -> Given:
    """Makes ours what is a user's in a tree, once none of that user's processes works in it."""
    return _Gift(uid, os.geteuid()).run(workspace)


class _Gift:
    def __init__(self, giver: int, taker: int) -> None:
        self.giver, self.taker = giver, taker
        self.entries = self.copies = 0
        self.names: dict[tuple[int, int], list[tuple[bytes, ...]]] = {}

    def run(self, workspace: str) -> Given:
        try:
            root = os.open(workspace, _FOLDER)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise WorkspaceGoneError("the workspace's folder is gone", path=workspace) from None
            raise os_error(error, "change of a workspace's owner") from None
        try:
            self._folder(root, ())
            for (_, inode), places in self.names.items():
                self._shared(root, inode, places)
        except OSError as error:
            raise os_error(error, "change of a workspace's owner") from None
        finally:
            os.close(root)
        return Given(self.entries, self.copies)

    def _folder(self, fd: int, above: tuple[bytes, ...]) -> None:
        """Gives all below a folder, and the folder last, so that nobody else may change it before."""
        with os.scandir(fd) as entries:
            found = [(os.fsencode(entry.name), entry.stat(follow_symlinks=False)) for entry in entries]
        for name, there in found:
            if stat.S_ISDIR(there.st_mode):
                below = os.open(name, _FOLDER, dir_fd=fd)
                try:
                    if os.fstat(below).st_dev == os.fstat(fd).st_dev:
                        self._folder(below, (*above, name))
                finally:
                    os.close(below)
            elif there.st_uid != self.giver:
                continue
            elif stat.S_ISREG(there.st_mode) and there.st_nlink > 1:
                self.names.setdefault((there.st_dev, there.st_ino), []).append((*above, name))
            else:
                os.chown(name, self.taker, self.taker, dir_fd=fd, follow_symlinks=False)
                self.entries += 1
        if os.fstat(fd).st_uid == self.giver:
            os.fchown(fd, self.taker, self.taker)
            self.entries += 1

    def _shared(self, root: int, inode: int, places: list[tuple[bytes, ...]]) -> None:
        """Gives a file of many names: itself when all of them are in the tree, else a copy for each."""
        for number, place in enumerate(places):
            fd = os.dup(root)
            try:
                for part in place[:-1]:
                    below = os.open(part, _FOLDER, dir_fd=fd)
                    os.close(fd)
                    fd = below
                there = os.stat(place[-1], dir_fd=fd, follow_symlinks=False)
                if there.st_ino != inode:
                    continue
                if number == 0 and there.st_nlink == len(places):
                    os.chown(place[-1], self.taker, self.taker, dir_fd=fd, follow_symlinks=False)
                    self.entries += 1
                    return
                self._copy(fd, place[-1], there)
                self.copies += 1
            finally:
                os.close(fd)

    def _copy(self, fd: int, name: bytes, there: os.stat_result) -> None:
        part = b".rw-own-%d" % os.getpid()
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        with open(source, "rb") as read:
            made = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=fd)
            with open(made, "wb") as written:
                shutil.copyfileobj(read, written, 1 << 20)
                os.fchown(made, self.taker, self.taker)
                os.fchmod(made, stat.S_IMODE(there.st_mode) & 0o777)
                written.flush()
                os.utime(made, ns=(there.st_atime_ns, there.st_mtime_ns))
        os.rename(part, name, src_dir_fd=fd, dst_dir_fd=fd)


def open_objects(folder: str) -> bool:
    """Lets every user read a store's objects, those that are still to come among them; says whether that is so.

    It is for root, whose lanes are another user, and who may work under a umask that closes all it makes. What is above
    the folder stays closed: a cage mounts the folder itself. A default access list takes the umask's place, once.
    """
    try:
        if os.stat(folder).st_mode & 0o005 == 0o005 and _opened(folder):
            return True
        for place, _, names, fd in os.fwalk(folder, topdown=False, follow_symlinks=False):
            for name in names:
                there = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat.S_ISREG(there.st_mode) and not there.st_mode & 0o004:
                    os.chmod(name, stat.S_IMODE(there.st_mode) | 0o044, dir_fd=fd)
            os.fchmod(fd, stat.S_IMODE(os.fstat(fd).st_mode) | 0o055)
            os.setxattr(fd, _DEFAULT_ACL, _acl())
            del place
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.EROFS, errno.ENOENT):
            return False
        raise os_error(error, "opening a store's objects to lanes") from None
    return True


def _opened(folder: str) -> bool:
    try:
        return os.getxattr(folder, _DEFAULT_ACL) == _acl()
    except OSError:
        return False


def _acl() -> bytes:
    """Gives the access list that says: the owner all, others to read and to enter."""
    rows = ((0x01, 7), (0x04, 5), (0x20, 5))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, rights, _NOBODY) for tag, rights in rows)
