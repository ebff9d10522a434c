"""The cells: each class of file of a store, each damage, and what is expected of verify and repair."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import apsw

from damage.world import Damaged, World, pack_of, writable
from storekit import Kit

DAMAGES = ("flip", "truncate", "delete", "old copy")
MENDED, LISTED, HARMLESS, UNKNOWN = "mended", "listed", "harmless", "not known"
"""Are what becomes of damage: restored from the store itself; listed where it is lost, and restored from a backup;
nothing that anybody reads; not to be known, because the file is the user's own or has no second copy."""
AUTHORS = "authors.toml"


class Cell(NamedTuple):
    """Is one class and one damage: kinds of findings, of which one must come, a part of its name, and the outcome.

    `option` is what `repair` needs besides, `same` whether a backup brings everything back.
    """

    group: str
    damage: str
    spoil: Callable[[Damaged], None]
    outcome: str
    kinds: tuple[str, ...] = ()
    name: str = ""
    rebuild: bool = False
    same: bool = True

    @property
    def title(self) -> str:
        """Gives the cell's name."""
        return f"{self.group}, {self.damage}"


Place = Callable[[Damaged], Path]
Prepare = Callable[[Damaged], None]


def flip(path: Path, at: float = 0.5) -> None:
    """Turns one bit around."""
    writable(path)
    data = bytearray(path.read_bytes())
    data[int(len(data) * at) if at < 1 else int(at)] ^= 0x10
    path.write_bytes(data)


def cut(path: Path, keep: float = 0.5) -> None:
    """Cuts a file to a part of its length."""
    writable(path)
    os.truncate(path, int(path.stat().st_size * keep) if keep < 1 else int(keep))


def spoiler(place: Place, damage: str, prepare: Prepare | None, at: float) -> Callable[[Damaged], None]:
    """Gives what does a damage to the file at a place."""

    def spoil(damaged: Damaged) -> None:
        if prepare is not None:
            prepare(damaged)
        path = place(damaged)
        if damage == "flip":
            flip(path, at)
        elif damage == "truncate":
            cut(path)
        elif damage == "delete":
            path.unlink()
        else:
            before = damaged.world.old / path.relative_to(damaged.root)
            path.unlink()
            if before.exists():
                shutil.copy2(before, path)

    return spoil


def at(name: str) -> Place:
    """Gives the place of a file of the store."""
    return lambda damaged: damaged.root / name


def loose(name: str) -> Place:
    """Gives the place of an object's loose file."""
    return lambda d: d.root / "repo.git/objects" / d.world.ids[name][:2] / d.world.ids[name][2:]


def pack(prefix: str, end: str = ".pack") -> Place:
    """Gives the place of a file of the pack whose name begins so."""
    return lambda d: pack_of(d.root, prefix).with_suffix(end)


def with_twin(name: str) -> Prepare:
    """Puts a loose twin beside an object that is elsewhere too."""

    def prepare(damaged: Damaged) -> None:
        kit = Kit(str(damaged.root))
        oid = damaged.world.ids[name]
        kind, content = kit.store.objects.find(oid) or ("", b"")
        kit.store.objects.loose.write(kind, content)
        kit.close()

    return prepare


def emptied_log(damaged: Damaged) -> None:
    """Moves all of SQLite's log into the database file, so that what is damaged there is what is read."""
    con = apsw.Connection(str(damaged.root / "store.db"))
    con.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    con.close()


def page(table: str) -> Callable[[Damaged], None]:
    """Gives what turns a byte around in the head of a table's root page."""

    def spoil(damaged: Damaged) -> None:
        emptied_log(damaged)
        con = apsw.Connection(str(damaged.root / "store.db"))
        root = next(iter(con.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))))[0]
        size = next(iter(con.execute("PRAGMA page_size")))[0]
        con.close()
        flip(damaged.root / "store.db", (root - 1) * size + 3)

    return spoil


def sql(*statements: str) -> Callable[[Damaged], None]:
    """Gives what edits rows behind the store's back."""

    def spoil(damaged: Damaged) -> None:
        con = apsw.Connection(str(damaged.root / "store.db"))
        for statement in statements:
            con.execute(statement, {"oid": damaged.world.ids["journalled"]})
        con.close()

    return spoil


def no_other_copy(damaged: Damaged) -> None:
    """Takes away what else there is of an object that is in the journal."""
    loose("journalled")(damaged).unlink()


def unflushed(damaged: Damaged) -> None:
    """Leaves an operation in the log that nobody was told of, and loses it."""
    before = (damaged.root / "flushed").read_bytes()
    kit = Kit(str(damaged.root))
    with kit.store.lock_held(), kit.store.begun() as tx:
        tx.record("ref_set", "a/b", note="never answered")
    pages = kit.store.db.wal_pages
    kit.close()
    assert (damaged.root / "flushed").read_bytes() == before and pages
    cut(damaged.root / "store.db-wal", 32 + (pages - 1) * 4120 + 100)


def first_frames(damaged: Damaged) -> None:
    """Damages the log so early that answered operations are behind it."""
    flip(damaged.root / "store.db-wal", 32 + 24 + 500)


def few_frames(damaged: Damaged) -> None:
    """Cuts the log behind its third frame."""
    cut(damaged.root / "store.db-wal", 32 + 3 * 4120)


def rows(
    group: str, place: Place, outcomes: dict[str, tuple[str, tuple[str, ...]]], name: str = "",
    prepare: Prepare | None = None, where: float = 0.5, **more: bool,
) -> list[Cell]:  # fmt: skip
    """Gives the cells of a class of file."""
    return [Cell(group, damage, spoiler(place, damage, prepare, where), outcome, kinds, name, **more)
            for damage, (outcome, kinds) in outcomes.items()]  # fmt: skip


def every(outcome: str, *kinds: str, but: dict[str, tuple[str, tuple[str, ...]]] | None = None) -> dict[
    str, tuple[str, tuple[str, ...]]
]:  # fmt: skip
    """Gives one expectation for all damages, with exceptions."""
    return {damage: (outcome, kinds) for damage in DAMAGES} | (but or {})


FLIP_CUT = ("flip", "truncate")
NONE: tuple[str, tuple[str, ...]] = (HARMLESS, ())
GONE = {"delete": (LISTED, ("missing",))}


def _three(outcome: str, *kinds: str, but: dict[str, tuple[str, tuple[str, ...]]] | None = None) -> dict[
    str, tuple[str, tuple[str, ...]]
]:  # fmt: skip
    """Gives the same without an old copy: the file never had other bytes."""
    found = every(outcome, *kinds, but=but)
    return {damage: found[damage] for damage in DAMAGES if damage != "old copy"}


def cells(world: World) -> list[Cell]:
    """Gives all cells."""
    found: list[Cell] = []
    for kind in ("blob", "tree", "commit"):
        found += rows(f"loose {kind}, no other copy", loose(kind), _three(LISTED, "damaged", "missing"),
                      world.ids[kind])  # fmt: skip
    found += rows("loose tag, no other copy", loose("tag"),
                  _three(LISTED, "damaged", but={"delete": (UNKNOWN, ())}), world.ids["tag"])  # fmt: skip
    found += rows("loose object, twin in the journal", loose("journalled"),
                  _three(MENDED, "damaged", but={"delete": (MENDED, ("projection",))}),
                  world.ids["journalled"])  # fmt: skip
    found += rows("loose object, twin in a pack", loose("packed"),
                  _three(MENDED, "damaged", but={"delete": NONE}), world.ids["packed"],
                  prepare=with_twin("packed"))  # fmt: skip
    found += rows("pack of a projection (rw-…)", pack("rw-"), _three(MENDED, "pack"), "rw-")
    found += rows("index of that pack", pack("rw-", ".idx"), _three(MENDED, "pack", "projection"))
    found += rows("git's pack", pack("pack-"), _three(LISTED, "pack"), "pack-", where=0.6)
    found += rows("index of git's pack (.idx)", pack("pack-", ".idx"),
                  _three(MENDED, "index", but={"delete": (MENDED, ("pack", "missing"))}))  # fmt: skip
    found += rows("multi-pack-index", at("repo.git/objects/pack/multi-pack-index"),
                  _three(MENDED, "derived", but={"delete": NONE}), "multi-pack-index")  # fmt: skip
    found += rows("commit-graph", at("repo.git/objects/info/commit-graph"),
                  every(MENDED, "derived", but={"delete": NONE, "old copy": NONE}), "commit-graph")  # fmt: skip
    found += rows("packed-refs", at("repo.git/packed-refs"),
                  _three(MENDED, "packed_refs", "projection"), where=60)  # fmt: skip
    found += rows("ref file", at("repo.git/refs/heads/other"), every(MENDED, "projection", "foreign_move"),
                  "refs/heads/other")  # fmt: skip
    found += rows("HEAD", at("repo.git/HEAD"), _three(MENDED, "head"), "HEAD")
    found += rows("config", at("repo.git/config"), _three(MENDED, "config"), "config")
    found += rows("hook", at("repo.git/hooks/reference-transaction"), _three(MENDED, "hook"), "reference-transaction")
    found += rows("`projected`", at("projected"), every(HARMLESS, but={}), where=7)
    found += rows("`flushed`", at("flushed"), every(HARMLESS, but={}), where=20)
    found += rows("FORMAT", at("FORMAT"), _three(MENDED, "format"), "FORMAT", where=30)
    found += rows("authors.toml", at(AUTHORS), _three(UNKNOWN, but={"truncate": (LISTED, ("authors",))}), AUTHORS,
                  where=22, same=False)  # fmt: skip
    found += rows("spool", at("spool/9-dead.req"), _three(HARMLESS))
    found += rows("writer.lock", at("writer.lock"), {"delete": NONE})
    found += rows("store.db-shm", at("store.db-shm"), every(HARMLESS), where=40)
    found += _database()
    for name in ("git/HEAD", "git/config", "git/objects/info/alternates", "git/index", "stat"):
        found += rows(f"workspace: {name.split('/')[-1]}", at(f"workspaces/w/{name}"),
                      _three(MENDED, "workspace", but={"delete": NONE if name in ("git/index", "stat")
                                                       else (MENDED, ("workspace",))}), name)  # fmt: skip
    for name in ("events.jsonl", "summary.json"):
        found += rows(f"runs: {name}", at(f"runs/r1/{name}"), _three(LISTED, "run", but={"delete": (UNKNOWN, ())}),
                      name, where=0, same=False)  # fmt: skip
    return found


def _database() -> list[Cell]:
    found = rows("store.db, header", at("store.db"), every(LISTED, "database", "cut"), "store.db",
                 prepare=emptied_log, where=5, rebuild=True)  # fmt: skip
    found[3] = found[3]._replace(kinds=("cut",), name="", rebuild=False)
    found += [
        Cell("store.db, page of the journal", "flip", page("object_journal"), LISTED, ("database",), "store.db", True),
        Cell("store.db, page of refs", "flip", page("refs"), LISTED, ("database",), "store.db", True),
        Cell("store.db, page of the log", "flip", page("ops"), LISTED, ("database",), "store.db", True),
        Cell("store.db, row of a ref", "flip", sql("UPDATE refs SET target = 'ffff' || substr(target, 5) "
             "WHERE name = 'refs/heads/other'"), MENDED, ("ref",), "refs/heads/other"),
        Cell("store.db, row of a ref", "delete", sql("DELETE FROM refs WHERE name = 'refs/heads/other'"), MENDED,
             ("ref",), "refs/heads/other"),
        Cell("store.db, row of the log", "flip", sql("UPDATE ops SET body = replace(body, 'main', 'maim') "
             "WHERE op = 1"), LISTED, ("chain",), "1"),
        Cell("store.db, row of the log", "truncate", sql("UPDATE ops SET body = substr(body, 1, 9) WHERE op = 3"),
             LISTED, ("chain",), "3"),
        Cell("store.db, row of the log", "delete", sql("DELETE FROM ops WHERE op = 4"), LISTED, ("chain",), "4"),
        Cell("store.db, end of the log", "delete", sql("DELETE FROM ops WHERE op > (SELECT max(op) - 2 FROM ops)"),
             LISTED, ("cut",)),
        Cell("store.db, row of the journal", "flip", sql("UPDATE object_journal SET packed = zeroblob(20) "
             "WHERE id = :oid"), MENDED, ("journal",)),
        Cell("store.db, row of the journal, no other copy", "flip", _both(sql(
             "UPDATE object_journal SET packed = zeroblob(20) WHERE id = :oid"), no_other_copy), LISTED, ("damaged",)),
        Cell("store.db, row of the journal, no other copy", "delete", _both(sql(
             "DELETE FROM object_journal WHERE id = :oid"), no_other_copy), LISTED, ("missing",)),
        Cell("store.db-wal, answered operations", "flip", first_frames, LISTED, ("cut", "database")),
        Cell("store.db-wal, not answered", "truncate", unflushed, HARMLESS),
    ]  # fmt: skip
    wal = rows("store.db-wal, answered operations", at("store.db-wal"), every(LISTED, "cut", "database"))
    found += [cell for cell in wal if cell.damage in ("delete", "old copy")]
    return [*found, Cell("store.db-wal, answered operations", "truncate", few_frames, LISTED, ("cut", "database"))]


def _both(*spoils: Callable[[Damaged], None]) -> Callable[[Damaged], None]:
    def spoil(damaged: Damaged) -> None:
        for one in spoils:
            one(damaged)

    return spoil
