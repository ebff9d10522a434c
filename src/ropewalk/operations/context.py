"""What an operation is handed: the store, who asks, and where files of the request are."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from ropewalk.core import config
from ropewalk.core.errors import IdentityRequiredError, InvalidError, NotFoundError
from ropewalk.core.ids import check_agent
from ropewalk.store import layout
from ropewalk.store.changes import read_disk_file
from ropewalk.store.store import Store

if TYPE_CHECKING:
    from ropewalk.board.base import Board


class Context:
    """Is one caller's view: faces make it, operations use it. The store is opened at its first use and kept.

    `client` is what the program on the other side calls itself, where a protocol says so.
    """

    def __init__(
        self,
        *,
        cwd: str,
        store: str | None = None,
        agent: str | None = None,
        person: Callable[[], str | None] | None = None,
        auth: str = "trust",
        env: Mapping[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
        data_home: str = "",
        state_home: str = "",
        cache_home: str = "",
        config_home: str = "",
        settings: Mapping[str, config.Value] | None = None,
    ) -> None:
        self.cwd = cwd
        self._root = store
        self._agent = agent
        self._person = person
        self.auth = auth
        self.env = dict(env or {})
        self._progress = progress
        self.watch: Callable[[dict[str, Any]], None] | None = None
        self.asks: Callable[[str], bool] | None = None
        self.asks_line: Callable[[str, bool], str | None] | None = None
        self.data_home = data_home
        self.state_home = state_home
        self.cache_home = cache_home
        self.config_home = config_home
        self.settings = dict(settings) if settings is not None else config.resolve({}, {})
        self._store: Store | None = None
        self._board: tuple[str, Board] | None = None
        self.resolved: dict[str, str] = {}
        self.warnings: list[str] = []
        self.exit = 0
        self.client = ""

    @property
    def root(self) -> str:
        """Gives the store's folder: named by the caller, else found from the working folder."""
        if self._root is None:
            self._root = layout.discover(self.cwd)
        return self.path(self._root)

    @property
    def named_root(self) -> str | None:
        """Gives the store's folder as the caller named it, or None."""
        return None if self._root is None else self.path(self._root)

    @property
    def store(self) -> Store:
        """Gives the open store."""
        if self._store is None:
            self._store = Store(
                self.root,
                lock_wait=float(self.settings["lock_wait"].value or 0),
                structural=bool(self.settings["merge.structural"].value),
            )
        return self._store

    def adopt_root(self, root: str) -> None:
        """Goes on with a store that was just made."""
        self.close()
        self._root = root

    @property
    def remote_wait(self) -> float:
        """Gives how long another repository may be silent, in seconds."""
        return float(self.settings["remote_wait"].value or 0)

    @property
    def opened(self) -> Store | None:
        """Gives the store if it was opened."""
        return self._store

    @property
    def agent(self) -> str:
        """Gives who asks, as `family/instance`; `E_IDENTITY_REQUIRED` when nobody said."""
        agent = self.agent_or_none
        if agent is None:
            raise IdentityRequiredError("this write needs to know who makes it")
        return agent

    @property
    def agent_or_none(self) -> str | None:
        """Gives who asks, or None; `E_INVALID` for a name that is not `family/instance`."""
        if self._agent is None:
            mark = layout.workspace_mark(self.cwd) if os.path.isdir(self.cwd) else None
            self._agent = (mark.agent if mark is not None and mark.agent else None) or (
                self._person() if self._person else None
            )
        return None if self._agent is None else check_agent(self._agent)

    def adopt_agent(self, agent: str) -> None:
        """Acts as an agent where the caller named none."""
        if self._agent is None:
            self._agent = check_agent(agent)

    def board(self, named: str | None = None) -> Board:
        """Gives the board: the named one, else that of a variable, else the store's own; it is opened once and kept.

        `E_NO_BOARD` where nothing says which one is meant; nothing was contacted then.
        """
        from ropewalk.board import opening

        meant = opening.find(named, self.env, self.cwd, self.named_root)
        if self._board is None or self._board[0] != meant.where:
            self._close_board()
            store = self.store if meant.kind == "store" and meant.said_by == "store" else self._store
            self._board = (meant.where, opening.open_board(meant, self.cache_home, wait=self.remote_wait, store=store))
        return self._board[1]

    def store_for(self, board: Board) -> Store:
        """Gives the store in which one works on a board: its own, the one at hand, else one kept for that board."""
        from ropewalk.board.local import LocalBoard

        if isinstance(board, LocalBoard):
            return board.store
        if self._store is None and self._root is None:
            try:
                self._root = layout.discover(self.cwd)
            except NotFoundError:
                self._root = self._board_store(board)
        return self.store

    def _board_store(self, board: Board) -> str:
        """Gives the folder of the store that is kept for a board elsewhere, made at its first use."""
        from uuid import uuid4

        root = os.path.join(self.data_home, "ropewalk", "boards", os.path.basename(board.folder), "store")
        if not os.path.exists(os.path.join(root, "FORMAT")):
            try:
                layout.create(root, str(uuid4()), "board", "main")
            except InvalidError:
                if not os.path.exists(os.path.join(root, "FORMAT")):
                    raise  # else another process was faster
        return root

    def _close_board(self) -> None:
        if self._board is not None:
            self._board[1].close()
            self._board = None

    def path(self, path: str) -> str:
        """Gives a path of the request below the caller's working folder; `E_INVALID` for what no path can be."""
        if "\0" in path:
            raise InvalidError("a path holds a NUL byte", path=path)
        return os.path.normpath(os.path.join(self.cwd, path))

    @property
    def shared(self) -> str:
        """Gives the folder below which is what workspaces share, and what they are made of."""
        return os.path.join(self.data_home, "ropewalk", self.store.format.id)

    @property
    def trash(self) -> str:
        """Gives the folder where deleted workspaces are kept for a while."""
        return os.path.join(self.data_home, "ropewalk", self.store.format.id, "trash")

    @property
    def checks(self) -> str:
        """Gives the folder below which checks are run."""
        return os.path.join(self.data_home, "ropewalk", self.store.format.id, "checks")

    def read_file(self, path: str) -> BinaryIO:
        """Opens a file that the request names."""
        return read_disk_file(self.path(path))

    def show_on(self, say: Callable[[str], None], watch: Callable[[dict[str, Any]], None]) -> None:
        """Shows progress, and the events of runs, on a display that draws them itself."""
        self._progress, self.watch = say, watch

    def progress(self, line: str) -> None:
        """Shows a line of progress, where there is somewhere to show it."""
        if self._progress is not None:
            self._progress(line)

    def ask(self, question: str) -> bool | None:
        """Asks the person at the terminal for a yes or a no; None where nobody is there to be asked."""
        return None if self.asks is None else self.asks(question)

    def ask_line(self, prompt: str, *, hidden: bool = False) -> str | None:
        """Asks for a line, which is not shown where it is hidden; None at the end of input, and where nobody is."""
        return None if self.asks_line is None else self.asks_line(prompt, hidden)

    def close(self) -> None:
        """Closes the board and the store, as far as they were opened."""
        self._close_board()
        if self._store is not None:
            self._store.close()
            self._store = None
