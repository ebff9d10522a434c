"""Graphs: how attempts at a task followed each other, and which tasks need which."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

import msgspec

from ropewalk.board import state
from ropewalk.board.base import Board
from ropewalk.board.scan import Scan, attempts, frozen, scan
from ropewalk.board.state import State


class Vertex(msgspec.Struct, frozen=True):
    """Is one attempt; `ts` is what its object says, `final` whether the task's verdict is its own."""

    att: str
    ts: int | None
    model: str
    kind: str
    harness: str
    fixed: bool | None
    final: bool


class Chain(msgspec.Struct, frozen=True):
    """Is a task's attempts in order, and the attempt that its verdict names."""

    attempts: list[Vertex]
    verdict_att: str | None


class Edge(msgspec.Struct, frozen=True):
    """Is that one attempt followed another."""

    task: str
    from_att: str
    to_att: str
    from_model: str
    to_model: str


class Score(msgspec.Struct, frozen=True):
    """Is how many attempts a model made, and how many of them fixed their task."""

    attempts: int
    fixed: int


class CorrectionGraph(msgspec.Struct, frozen=True):
    """Is the attempts of every task, which followed which, and each model's score."""

    board: str
    tasks: dict[str, Chain]
    edges: list[Edge]
    models: dict[str, Score]


def correction_graph(board: Board, *, found: Scan | None = None) -> CorrectionGraph:
    """Gives how attempts followed each other; a model's `fixed` counts its verdicts that say true."""
    seen = found or scan(board)
    tasks: dict[str, Chain] = {}
    edges: list[Edge] = []
    counts: dict[str, tuple[int, int]] = {}
    for task in seen.tasks:
        listed = attempts(seen, task)
        final = next((a.id for a in listed if a.is_live and a.verdict is not None), None)
        chain = []
        for one in listed:
            fixed = one.verdict.fixed if one.verdict is not None else None
            chain.append(Vertex(one.id, one.at, one.model, one.kind, one.harness, fixed, one.id == final))
            made, done = counts.get(one.model, (0, 0))
            counts[one.model] = (made + 1, done + (fixed is True))
        tasks[task] = Chain(chain, final)
        for a, b in pairwise(chain):
            edges.append(Edge(task, a.att, b.att, a.model, b.model))
    return CorrectionGraph(board.name, tasks, edges, {m: Score(*pair) for m, pair in sorted(counts.items())})


class Node(msgspec.Struct, frozen=True):
    """Is a task in the graph of needs."""

    task: str
    title: str
    state: State
    needs: list[str]


class DependencyGraph(msgspec.Struct, frozen=True):
    """Is which tasks need which; `missing` are needs that are no task of the board."""

    board: str
    nodes: list[Node]
    missing: list[str]


def dependency_graph(board: Board) -> DependencyGraph:
    """Gives the graph of needs of all tasks."""
    statuses = state.look(frozen(board)[0], everything=True)
    nodes = [
        Node(task, one.spec.task.name, one.state, list(one.spec.task.needs)) for task, one in sorted(statuses.items())
    ]
    missing = {need for node in nodes for need in node.needs} - statuses.keys()
    return DependencyGraph(board.name, nodes, sorted(missing))


_COLOURS = {
    "ready": "#cfe8ff", "waiting": "#eeeeee", "claimed": "#fff3bf", "pending": "#e5dbff", "done": "#d3f9d8",
    "failed": "#ffc9c9", "infrastructure": "#ffd8a8", "cancelled": "#dee2e6", "half": "#ffc9c9", "invalid": "#ffc9c9",
    "missing": "#ffffff",
}  # fmt: skip


def drawn(graph: DependencyGraph, form: Literal["dot", "mermaid"]) -> str:
    """Gives the graph of needs as text for Graphviz or Mermaid; an arrow goes from what is needed to what needs it."""
    states: dict[str, str] = {node.task: node.state for node in graph.nodes} | dict.fromkeys(graph.missing, "missing")
    edges = [(need, node.task) for node in graph.nodes for need in node.needs]
    if form == "dot":
        lines = ["digraph tasks {", "  rankdir=LR;", "  node [shape=box, style=filled];"]
        lines += [f"  {_dot(t)} [label={_dot(f'{t}: {s}')}, fillcolor={_dot(_COLOURS[s])}];" for t, s in states.items()]
        lines += [f"  {_dot(a)} -> {_dot(b)};" for a, b in edges]
        return "\n".join([*lines, "}"]) + "\n"
    ids = {task: f"n{number}" for number, task in enumerate(states)}
    lines = ["graph LR", *(f'  {ids[t]}["{_mermaid(f"{t}: {s}")}"]:::{s}' for t, s in states.items())]
    lines += [f"  {ids[a]} --> {ids[b]}" for a, b in edges]
    used = sorted(set(states.values()))
    return "\n".join([*lines, *(f"  classDef {s} fill:{_COLOURS[s]},stroke:#555" for s in used)]) + "\n"


def _dot(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _mermaid(text: str) -> str:
    # names that flockwork takes may hold anything that prints; Mermaid reads `#NN;` as a character
    return "".join(c if c.isalnum() or c in " ._-/:+@" else f"#{ord(c)};" for c in text)
