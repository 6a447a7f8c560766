"""A graph of steps as coordinates: each stands in a column to the right of all that it needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple

MOST_NODES, MOST_PIECES = 200, 2_000  # an edge has one for each column that it goes on
WIDTH, HEIGHT = 184, 46  # of a box
BESIDE, BETWEEN = 104, 14  # free space between columns, and between what a column holds
MARGIN = 4
SWEEPS = 8  # each draws what is linked closer together; more of them change little


class GraphNode(NamedTuple):
    name: str
    state: str = ""
    href: str = ""  # empty: it is no link
    needs: Mapping[str, str] = {}  # by the node that it needs, the label of the edge
    items: str = ""  # of a map: how many there are, and have ended well
    event: str = ""  # its key: the node is an event, and no step has its name


class Box(NamedTuple):
    node: GraphNode
    x: int
    y: int


class Edge(NamedTuple):
    path: str
    label: str  # empty: none
    x: int  # the middle of the label
    y: int


class Graph(NamedTuple):
    width: int
    height: int
    boxes: Sequence[Box]  # in the order of the nodes
    edges: Sequence[Edge]


class GraphCell(NamedTuple):
    """What stands in a column: a node, or an edge on its way to a later column."""

    column: int
    node: str
    to: str = ""


Links = Mapping[GraphCell, Sequence[GraphCell]]


def layout(nodes: Sequence[GraphNode]) -> Graph | None:
    """Return where boxes and edges are; None: there are too many, or nodes that need each other."""
    if len(nodes) > MOST_NODES:
        return None
    try:
        cells = columns_of({node.name: node.needs for node in nodes})
    except CycleError:
        return None
    edges = [
        (cells[need], cells[node.name], label)
        for node in nodes
        for need, label in node.needs.items()
        if need in cells
    ]
    if sum(end.column - start.column for start, end, _ in edges) > MOST_PIECES:
        return None  # nobody could read it
    columns: dict[int, list[GraphCell]] = defaultdict(list)
    for cell in (cells[node.name] for node in nodes):
        columns[cell.column].append(cell)
    routes: list[tuple[list[GraphCell], str]] = []
    for start, end, label in edges:
        lanes = [GraphCell(n, start.node, end.node) for n in range(start.column + 1, end.column)]
        for lane in lanes:
            columns[lane.column].append(lane)
        routes.append(([start, *lanes, end], label))
    left: dict[GraphCell, list[GraphCell]] = defaultdict(list)
    right: dict[GraphCell, list[GraphCell]] = defaultdict(list)
    for route, _ in routes:
        for one, other in pairwise(route):
            right[one].append(other)
            left[other].append(one)
    ordered = [columns[n] for n in range(len(columns))]
    sort_rows(ordered, left, right)
    middle = _heights(ordered, left, right)
    return Graph(
        width=len(ordered) * (WIDTH + BESIDE) - BESIDE + 2 * MARGIN,
        height=max(middle.values(), default=0) + HEIGHT // 2 + MARGIN,
        boxes=[
            Box(node, _x(cells[node.name]), middle[cells[node.name]] - HEIGHT // 2)
            for node in nodes
        ],
        edges=[_edge(route, label, middle) for route, label in routes],
    )


def columns_of(needs: Mapping[str, Iterable[str]]) -> dict[str, GraphCell]:
    """Return the cell of each node: its column is the longest path that leads to it.

    Raises CycleError.
    """
    known = {name: [need for need in of if need in needs] for name, of in needs.items()}
    cells: dict[str, GraphCell] = {}
    for name in TopologicalSorter(known).static_order():
        column = max((cells[need].column + 1 for need in known[name]), default=0)
        cells[name] = GraphCell(column, name)
    return cells


def sort_rows(columns: Sequence[list[GraphCell]], left: Links, right: Links) -> None:
    """Sort each column by the mean place of what its cells are linked with, to and fro."""
    place = {cell: row for column in columns for cell, row in _centred(column)}
    for sweep in range(SWEEPS):
        beside, order = (right, columns[::-1]) if sweep % 2 else (left, columns)
        for column in order:
            column.sort(key=lambda cell: _mean(cell, beside, place))
            place.update(_centred(column))


def _centred(column: Sequence[GraphCell]) -> Iterable[tuple[GraphCell, float]]:
    return ((cell, row - (len(column) - 1) / 2) for row, cell in enumerate(column))


def _mean(cell: GraphCell, beside: Links, place: Mapping[GraphCell, float]) -> float:
    """Return the mean place of what it is linked with; of a cell without links, its own."""
    linked = beside.get(cell) or [cell]
    return sum(place[each] for each in linked) / len(linked)


def _heights(columns: Sequence[list[GraphCell]], left: Links, right: Links) -> dict[GraphCell, int]:
    """Return the middle of each cell, near those of what it is linked with."""
    place = {cell: row * (HEIGHT + BETWEEN) for column in columns for cell, row in _centred(column)}
    for sweep in range(SWEEPS):
        beside, order = (right, columns[::-1]) if sweep % 2 else (left, columns)
        for column in order:
            place.update(_spread(column, [_mean(cell, beside, place) for cell in column]))
    top = min(place.values(), default=0.0) - HEIGHT / 2 - MARGIN
    return {cell: round(at - top) for cell, at in place.items()}


def _spread(
    column: Sequence[GraphCell], wanted: Sequence[float]
) -> Iterable[tuple[GraphCell, float]]:
    """Yield cells at places where they do not touch, in the middle between two ways to push."""
    apart = [(_height(one) + _height(other)) / 2 + BETWEEN for one, other in pairwise(column)]
    down, up = list(wanted), list(wanted)
    for row, gap in enumerate(apart):
        down[row + 1] = max(down[row + 1], down[row] + gap)
    for row, gap in reversed(list(enumerate(apart))):
        up[row] = min(up[row], up[row + 1] - gap)
    return ((cell, (one + other) / 2) for cell, one, other in zip(column, down, up, strict=True))


def _height(cell: GraphCell) -> int:
    return 0 if cell.to else HEIGHT


def _x(cell: GraphCell) -> int:
    return cell.column * (WIDTH + BESIDE) + MARGIN


def _edge(route: Sequence[GraphCell], label: str, middle: Mapping[GraphCell, int]) -> Edge:
    """Return a line that crosses the columns between its ends on a lane of its own."""
    path = f"M{_x(route[0]) + WIDTH} {middle[route[0]]}"
    bend = BESIDE // 2
    for one, other in pairwise(route):
        x, y, to = _x(other), middle[other], _x(one) + WIDTH
        path += f"C{to + bend} {middle[one]} {x - bend} {y} {x} {y}"
        if other.to:
            path += f"h{WIDTH}"
    return Edge(
        path, label, _x(route[0]) + WIDTH + bend, (middle[route[0]] + middle[route[1]]) // 2
    )
