"""The error classes: one class a code, with its exit number, its message template and its hint.

`docs/errors.md` is generated from these classes. A part that needs a code of its own defines the class
here, so that the table stays in one place, and raises it beside the code that knows the reason.
"""

from __future__ import annotations

from typing import Any, ClassVar


class RopewalkError(Exception):
    """Is the base of every error that a command or a tool answers with.

    `message` is one sentence for a person, `details` are typed facts for a program, and `hint` is the next
    command to run. `retryable` says whether the same request may succeed later without a change.
    """

    code: ClassVar[str] = "E_INTERNAL"
    exit: ClassVar[int] = 1
    retryable: ClassVar[bool] = False
    hint_template: ClassVar[str] = ""

    def __init__(self, message: str, *, hint: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.hint = hint if hint is not None else self.hint_template

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.code, self.message, self.hint, self.details)


def _rebuild(code: str, message: str, hint: str, details: dict[str, Any]) -> RopewalkError:
    return error_class(code)(message, hint=hint, **details)


class InternalError(RopewalkError):
    """A fault of ropewalk's own; please report it with the command that led to it."""

    code = "E_INTERNAL"
    exit = 1
    hint_template = "report this with the command and the output of `rw verify`"


class UsageError(RopewalkError):
    """The command line does not fit the command."""

    code = "E_USAGE"
    exit = 2
    hint_template = "run the command with --help"


class InvalidError(RopewalkError):
    """A value has the wrong type, form or size, or names something that can't be."""

    code = "E_INVALID"
    exit = 2


class EmptyCommitError(RopewalkError):
    """The changes leave the tree as it was."""

    code = "E_EMPTY_COMMIT"
    exit = 2
    hint_template = "check the paths and contents of the change list"


class UnsupportedError(RopewalkError):
    """This platform, repository or tool version is not supported."""

    code = "E_UNSUPPORTED"
    exit = 2


class ConflictError(RopewalkError):
    """The change and the target changed the same thing in ways that do not fit together."""

    code = "E_CONFLICT"
    exit = 3
    hint_template = "say in a JSON file what becomes of each path, and land again with --resolve FILE"


class CasMismatchError(RopewalkError):
    """A ref is not where the request expected it."""

    code = "E_CAS_MISMATCH"
    exit = 3
    hint_template = "read the ref again with `rw ref list` and repeat with its present value"


class LandMismatchError(RopewalkError):
    """A land would publish something other than the change, or take back what others landed."""

    code = "E_LAND_MISMATCH"
    exit = 3


class KeyReusedError(RopewalkError):
    """An idempotency key was used before for another request."""

    code = "E_KEY_REUSED"
    exit = 3
    hint_template = "use a new UUID for a new request"


class GitImportDivergedError(RopewalkError):
    """The target ref holds commits that the imported branch does not have."""

    code = "E_GIT_IMPORT_DIVERGED"
    exit = 3
    hint_template = "undo what was not exported (`rw op undo`), import, land it again with --allow-reland"


class CheckFailedError(RopewalkError):
    """The check command did not pass on the tree that would land."""

    code = "E_CHECK_FAILED"
    exit = 3
    hint_template = "mend the change until the check passes on the merged tree"


class UnlandedWorkError(RopewalkError):
    """A workspace holds work that is not landed, so it is not deleted."""

    code = "E_UNLANDED"
    exit = 3
    hint_template = "land it with `rw ws land`, or delete it with --force, which archives its files but not its stashes"


class FencedError(RopewalkError):
    """The claim under which the caller works is no longer the caller's."""

    code = "E_FENCED"
    exit = 3
    hint_template = "stop this attempt; the task belongs to another worker now"


class ClaimedError(RopewalkError):
    """Another worker holds the task, or finished it."""

    code = "E_CLAIMED"
    exit = 3
    hint_template = "take another: `rw task next` names one"


class NotFoundError(RopewalkError):
    """A revision, path, ref, operation, workspace or store does not exist."""

    code = "E_NOT_FOUND"
    exit = 4


class NoBoardError(RopewalkError):
    """Nothing says which board is meant."""

    code = "E_NO_BOARD"
    exit = 4
    hint_template = "name one with --board URL or ROPEWALK_BOARD, or work inside a store"


class AmbiguousError(RopewalkError):
    """A short id fits more than one object."""

    code = "E_AMBIGUOUS"
    exit = 4
    hint_template = "give more digits of the id"


class ShallowError(RopewalkError):
    """History that the command needs was cut off by a shallow or partial clone."""

    code = "E_SHALLOW"
    exit = 4
    hint_template = "run `git fetch --unshallow` in the source first"


class WorkspaceGoneError(RopewalkError):
    """The workspace's directory is not there any more."""

    code = "E_WORKSPACE_GONE"
    exit = 4
    hint_template = "run `rw ws delete NAME` to forget it, or create it again"


class WorkspaceDamagedError(RopewalkError):
    """The workspace's own repository can't be read."""

    code = "E_WORKSPACE_DAMAGED"
    exit = 4


class WorkspaceNotMountedError(RopewalkError):
    """The workspace's overlay is not mounted here, and can't be; what lies under its place is not its tree."""

    code = "E_WORKSPACE_NOT_MOUNTED"
    exit = 4
    hint_template = "run a `rw ws` command as the user that made it, outside of any sandbox; that mounts it again"


class IdentityRequiredError(RopewalkError):
    """A write must say which agent makes it."""

    code = "E_IDENTITY_REQUIRED"
    exit = 5
    hint_template = "add --as family/instance or set ROPEWALK_AGENT"


class ForbiddenError(RopewalkError):
    """The caller may not do this."""

    code = "E_FORBIDDEN"
    exit = 5


class BusyError(RopewalkError):
    """Another process holds the writer lock for longer than the bound."""

    code = "E_BUSY"
    exit = 6
    retryable = True
    hint_template = "try again; `rw repair --unblock` looks at the process that holds the lock"


class CasRetryExhaustedError(RopewalkError):
    """The target kept moving for as many attempts as were allowed."""

    code = "E_CAS_RETRY_EXHAUSTED"
    exit = 6
    retryable = True
    hint_template = "try again, or raise --max-attempts"


class StoreIOError(RopewalkError):
    """The operating system refused a read or a write."""

    code = "E_IO"
    exit = 7
    hint_template = "check the disk, and the owner and the mount of what was read or written"


class NoSpaceError(RopewalkError):
    """The disk, the quota or the file table is full."""

    code = "E_NO_SPACE"
    exit = 7
    retryable = True
    hint_template = "free some space and run the command again; nothing was recorded"


class StoreCorruptError(RopewalkError):
    """Something in the store is damaged."""

    code = "E_STORE_CORRUPT"
    exit = 8
    hint_template = "run `rw verify --deep`, then `rw repair`"


class StoreFormatError(RopewalkError):
    """The store was written by a newer ropewalk, or its FORMAT file can't be read."""

    code = "E_STORE_FORMAT"
    exit = 8
    hint_template = "upgrade ropewalk, or restore the store from a backup"


class UnsupportedFilesystemError(RopewalkError):
    """The file system lacks working locks or memory maps."""

    code = "E_UNSUPPORTED_FS"
    exit = 8
    hint_template = "put the store on a local disk with --store PATH"


class RemoteError(RopewalkError):
    """Another repository refused, was out of reach, or broke off."""

    code = "E_REMOTE"
    exit = 9


class HarnessError(RopewalkError):
    """An agent program is missing, or did not accept its command line."""

    code = "E_HARNESS"
    exit = 11


class AdapterMismatchError(RopewalkError):
    """The installed version of an agent program does not take the command line that its adapter gives it."""

    code = "E_ADAPTER_MISMATCH"
    exit = 11
    hint_template = "install a version that was tested: `rw doctor` names it"


class CageUnavailableError(RopewalkError):
    """What a cage of the wanted level needs is missing here."""

    code = "E_CAGE_UNAVAILABLE"
    exit = 11
    hint_template = "apt-get install bubblewrap; or ask for less by name with --cage files or --cage none"


class LoginUncagedError(RopewalkError):
    """The agent program's own login can't be used by a caged lane without damage to it."""

    code = "E_LOGIN_UNCAGED"
    exit = 11
    hint_template = "name an endpoint with a key: `rw setup` asks for one, endpoints.toml holds them"


class LoginError(RopewalkError):
    """An agent program's own login is missing, or its provider refuses to renew it."""

    code = "E_LOGIN"
    exit = 11
    hint_template = "log in anew with the program itself"


class EscapedError(RopewalkError):
    """A lane changed something outside its workspace."""

    code = "E_ESCAPED"
    exit = 12
    hint_template = "`rw lane restore LANE --dry-run` names what changed; without --dry-run it is put back"


class ProviderError(RopewalkError):
    """A model's provider is out of reach, refuses, or limits."""

    code = "E_PROVIDER"
    exit = 13
    retryable = True
    hint_template = "`rw probe URL` says what is wrong with it"


class BudgetError(RopewalkError):
    """What may be spent is spent."""

    code = "E_BUDGET"
    exit = 13
    hint_template = "`rw gateway status` shows budgets; --budget, --max-tokens and [budget] of endpoints.toml set them"


class CassetteMissError(RopewalkError):
    """A cassette that is played has no answer to a request; no model was asked."""

    code = "E_CASSETTE_MISS"
    exit = 13
    hint_template = "record it anew with --record; the message says where the request differs"


class StalledError(RopewalkError):
    """A lane did nothing for as long as it may, or stopped at a gate."""

    code = "E_STALLED"
    exit = 14


class PlanningError(RopewalkError):
    """No plan came of it: what the manager answered was no good plan, as often as it was asked."""

    code = "E_PLAN"
    exit = 15
    hint_template = "say more in the goal, name another manager, or write it yourself: `rw plan draft --spec FILE`"


def all_errors() -> list[type[RopewalkError]]:
    """Gives every error class, by exit number and code."""
    return sorted(RopewalkError.__subclasses__(), key=lambda c: (c.exit, c.code))


def error_class(code: str) -> type[RopewalkError]:
    """Gives the class of a code; `InternalError` for a code this version does not know."""
    return next((c for c in all_errors() if c.code == code), InternalError)


def is_memory(error: BaseException) -> bool:
    """Says whether an error is a lack of memory, by whatever name Python met it."""
    if isinstance(error, ImportError):
        return any(words in str(error) for words in ("failed to map", "annot allocate"))
    if isinstance(error, SystemError):
        # the compiler and some C modules forget to say why they gave up
        return any(words in str(error) for words in ("without setting an exception", "without exception set"))
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == 12)  # ENOMEM


def fault(error: Exception, **details: Any) -> RopewalkError:
    """Gives the error for what nobody foresaw: a lack of memory, or a fault of ours."""
    if is_memory(error):
        return InvalidError(
            "the request needs more memory than there is", hint="give the process more memory, or send less at once"
        )
    return InternalError(f"{type(error).__name__}: {error}", **details)


def os_error(error: OSError, operation: str) -> RopewalkError:
    """Turns an error of the operating system into `E_NO_SPACE` or `E_IO`, without host paths."""
    import errno

    text = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
        return NoSpaceError(f"{operation}: {text}", operation=operation, errno=error.errno)
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StoreIOError(
            f"{operation}: {text}",
            hint="check the owner and the mount of the store",
            operation=operation,
            errno=error.errno,
        )
    return StoreIOError(f"{operation}: {text}", operation=operation, errno=error.errno)
