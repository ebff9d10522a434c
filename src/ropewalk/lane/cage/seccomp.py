"""The filter of system calls that every caged lane runs under (G20), as a program of the kernel's own small machine.

It runs on a bare Python before the agent does, and imports nothing of ours and little else: a lane pays its memory. A
program of another architecture than the filter's, and on x86-64 one that uses 32-bit or x32 calls, is refused all of
them: it would pass by the rules.
"""

import ctypes
import os
import struct

EPERM, EACCES, ENOSYS, EAFNOSUPPORT, EOPNOTSUPP = 1, 13, 38, 97, 95
ALLOW = 0

_ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    # name: (x86_64, aarch64); None where there is none
    "ioctl": (16, 29), "clone": (56, 220), "clone3": (435, 435), "unshare": (272, 97), "keyctl": (250, 219),
    "add_key": (248, 217), "request_key": (249, 218), "bpf": (321, 280), "perf_event_open": (298, 241),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "userfaultfd": (323, 282), "socket": (41, 198), "sendto": (44, 206), "sendmsg": (46, 211), "sendmmsg": (307, 269),
    "truncate": (76, 45), "open": (2, None), "openat": (257, 56), "openat2": (437, 437),
}  # fmt: skip
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_NEWUSER = 0x10000000
_UNIX, _INET, _INET6, _NETLINK, _ALG, _VSOCK = 1, 2, 10, 16, 38, 40
_STREAM, _TCP, _FASTOPEN = 1, 6, 0x20000000
_TRUNC, _ACCMODE = 0o1000, 0o3
_ALL = 0xFFFFFFFF


class Test:
    """Is a question about one argument: its low 32 bits, masked, are (or with `same=False` are not) a value."""

    __slots__ = ("argument", "mask", "same", "value")

    def __init__(self, argument: int, value: int, mask: int = _ALL, same: bool = True) -> None:
        self.argument, self.value, self.mask, self.same = argument, value, mask, same


class Rule:
    """Is what becomes of a call for which all tests hold: an error number, or `ALLOW`; the first rule decides."""

    __slots__ = ("answer", "call", "tests")

    def __init__(self, call: str, answer: int, tests: tuple[Test, ...] = ()) -> None:
        self.call, self.answer, self.tests = call, answer, tests


def rules(*, namespaces: bool = False, sockets: str = "", truncates: bool = False) -> list[Rule]:
    """Gives what a lane is refused; without `namespaces` also user namespaces.

    `sockets` is empty where a network namespace holds them, else what the lane may reach without one: `gateway` (TCP),
    `none`, or `open`. `truncates` refuses to shorten files that are not open, which Landlock did not do at first.
    """
    found = [
        Rule("ioctl", EPERM, (Test(1, _TIOCSTI),)),
        Rule("ioctl", EPERM, (Test(1, _TIOCLINUX),)),
        *(Rule(name, EPERM) for name in ("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd")),
        # programs that know these also know systems without them
        *(Rule(name, ENOSYS) for name in ("io_uring_setup", "io_uring_enter", "io_uring_register")),
        # neither is bounded by a network namespace
        Rule("socket", EAFNOSUPPORT, (Test(0, _VSOCK),)),
        Rule("socket", EAFNOSUPPORT, (Test(0, _ALG),)),
    ]
    if not namespaces:
        found += [
            Rule("unshare", EPERM, (Test(0, _NEWUSER, _NEWUSER),)),
            Rule("clone", EPERM, (Test(0, _NEWUSER, _NEWUSER),)),
            Rule("clone3", ENOSYS),  # its flags are in memory, where a filter can't look
        ]
    if sockets:
        found += _sockets(sockets)
    if truncates:
        found += [
            Rule("truncate", EACCES),
            *(
                Rule(name, EACCES, (Test(at, 0, _ACCMODE), Test(at, _TRUNC, _TRUNC)))
                for name, at in (("open", 1), ("openat", 2))
            ),
            Rule("openat2", ENOSYS),
        ]
    return found


def _sockets(network: str) -> list[Rule]:
    """Gives what holds a lane that shares the host's network to what Landlock can judge.

    Sockets in folders are left to no other rule: what listens there (a container engine, an agent of keys) would do for
    the lane what it may not. Landlock knows TCP by `connect` alone: neither UDP nor a first packet sent without it.
    """
    found = [Rule("socket", ALLOW, (Test(0, _NETLINK), Test(2, 0)))]
    for family in (_INET, _INET6):
        if network == "open":
            found.append(Rule("socket", ALLOW, (Test(0, family),)))
        elif network == "gateway":
            kind = (Test(0, family), Test(1, _STREAM, 0xF))
            found += [Rule("socket", ALLOW, (*kind, Test(2, protocol))) for protocol in (0, _TCP)]
    if network == "gateway":
        for name, at in (("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)):
            found.append(Rule(name, EOPNOTSUPP, (Test(at, _FASTOPEN, _FASTOPEN),)))
    return [*found, Rule("socket", EACCES)]


def program(wanted: list[Rule], machine: str) -> bytes:
    """Gives the filter for a machine (`os.uname().machine`); `OSError` for one that it is not written for."""
    if machine not in _ARCHES:
        raise OSError(ENOSYS, f"there is no filter of system calls for {machine}")
    column = list(_ARCHES).index(machine)
    code = [_load(4), _jump(_ARCHES[machine], 1, 0), _answer(ENOSYS), _load(0)]
    if machine == "x86_64":
        code += [struct.pack("<HBBI", 0x35, 0, 1, 0x40000000), _answer(ENOSYS)]
    for rule in wanted:
        number = _NUMBERS[rule.call][column]
        if number is None:
            continue
        body: list[bytes] = []
        for test in reversed(rule.tests):
            # from its own end on, over what is there already
            skip = len(body) + 1
            body = [
                _load(16 + 8 * test.argument),
                struct.pack("<HBBI", 0x54, 0, 0, test.mask),
                _jump(test.value, 0, skip) if test.same else _jump(test.value, skip, 0),
                *body,
            ]
        code += [_load(0), _jump(number, 0, len(body) + 1), *body, _answer(rule.answer)]
    return b"".join([*code, _answer(ALLOW)])


def _load(offset: int) -> bytes:
    return struct.pack("<HBBI", 0x20, 0, 0, offset)


def _jump(value: int, yes: int, no: int) -> bytes:
    return struct.pack("<HBBI", 0x15, yes, no, value)


def _answer(error: int) -> bytes:
    return struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000 if error == ALLOW else 0x00050000 | error)


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("code", ctypes.c_void_p)]


def libc() -> ctypes.CDLL:
    """Gives the C library."""
    return ctypes.CDLL(None, use_errno=True)


def control(option: int, *words: object) -> None:
    """Calls prctl; `OSError` when the kernel refuses."""
    given = [*words, 0, 0, 0, 0][:4]
    if libc().prctl(option, *(w if isinstance(w, ctypes.c_void_p) else ctypes.c_ulong(w) for w in given)) < 0:  # type: ignore[arg-type]
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def no_new_privileges() -> None:
    """Keeps programs with a set-user-id bit from giving more than there is."""
    control(38, 1)


def install(wanted: list[Rule]) -> None:
    """Puts this process, and all it will start, under rules for good; `OSError` when the kernel refuses."""
    code = program(wanted, os.uname().machine)
    held = ctypes.create_string_buffer(code, len(code))
    what = _Program(len(code) // 8, ctypes.cast(held, ctypes.c_void_p).value)
    no_new_privileges()
    control(22, 2, ctypes.c_void_p(ctypes.addressof(what)))


def drop(uid: int) -> None:
    """Becomes another user for good, with no group and no power left."""
    _close_bounds()
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    _no_capabilities()


def drop_capabilities() -> None:
    """Gives up all that root may beyond other users, also for programs started later, without another user id."""
    control(28, 0x2F)  # neither root's id nor a change of it brings any back, and this is locked
    _close_bounds()
    _no_capabilities()


def _close_bounds() -> None:
    """Takes every capability from what may ever be had again."""
    try:
        for number in range(64):
            control(24, number)
    except OSError as error:
        if error.errno != 22:  # past the last one there is
            raise


def _no_capabilities() -> None:
    header = struct.pack("<Ii", 0x20080522, 0)
    if libc().capset(header, bytes(24)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
