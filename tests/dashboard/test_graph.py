"""Where the boxes and edges of a graph are."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

from tasks_app.dashboard import graph
from tasks_app.dashboard.graph import HEIGHT, WIDTH, Graph, GraphNode, layout


def drawn(text: str) -> Graph:
    """Lay out ``a b:a c:ab``: names of one letter, each with those that it needs."""
    found = layout([GraphNode(word[0], needs=dict.fromkeys(word[2:], "")) for word in text.split()])
    assert found is not None
    return found


def rows(found: Graph) -> list[str]:
    """Return the names in each column, the topmost first."""
    columns: dict[int, list[graph.Box]] = {}
    for box in found.boxes:
        columns.setdefault(box.x, []).append(box)
    return [
        "".join(box.node.name for box in sorted(columns[x], key=lambda box: box.y))
        for x in sorted(columns)
    ]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("", []),
        ("a", ["a"]),
        ("a b c", ["abc"]),
        ("a b:a c:b", ["a", "b", "c"]),
        ("c:b b:a a", ["a", "b", "c"]),
        ("a b:a c:a d:bc", ["a", "bc", "d"]),
        ("a b:a c:ab", ["a", "b", "c"]),  # the longest path, not the shortest
        ("a b c:b d:a", ["ab", "dc"]),  # without a crossing
        ("a b c d:c e:b f:a", ["abc", "fed"]),
        ("a b:a c:a d:c e:b f:d g:e", ["a", "bc", "ed", "gf"]),
        ("a b:x", ["ab"]),  # a need that is no node
    ],
)
def test_columns_and_rows(text: str, columns: list[str]) -> None:
    assert rows(drawn(text)) == columns


WIDE = "a b:a c:a d:a e:bcd f g:f h:ge i:a j:hi k:af"


@pytest.mark.parametrize("text", ["a", "a b c", "a b:a c:ab", "a b:a c:a d:bc", WIDE])
def test_boxes_do_not_touch_and_lie_in_the_picture(text: str) -> None:
    found = drawn(text)
    for box in found.boxes:
        assert 0 < box.x <= found.width - WIDTH
        assert 0 < box.y <= found.height - HEIGHT
    for one, other in combinations(found.boxes, 2):
        assert abs(one.x - other.x) > WIDTH or abs(one.y - other.y) > HEIGHT


def test_a_chain_is_straight() -> None:
    assert len({box.y for box in drawn("a b:a c:b d:c").boxes}) == 1


def test_a_long_edge_goes_round_the_boxes_between() -> None:
    found = drawn("a b:a c:ab")
    a, b, c = found.boxes
    path = next(edge.path for edge in found.edges if "h" in edge.path)
    at = int(re.search(rf"{b.x} (\d+)h{WIDTH}", path)[1])  # type: ignore[index]
    assert not b.y <= at <= b.y + HEIGHT
    assert path.startswith(f"M{a.x + WIDTH} {a.y + HEIGHT // 2}")
    assert path.endswith(f"{c.x} {c.y + HEIGHT // 2}")


def test_a_label_is_in_the_middle_of_its_edge() -> None:
    found = layout([GraphNode("a"), GraphNode("b", needs={"a": "on failure"})])
    assert found is not None
    [edge], (a, b) = found.edges, found.boxes
    assert (edge.label, edge.x) == ("on failure", (a.x + WIDTH + b.x) // 2)
    assert edge.y == a.y + HEIGHT // 2


def test_what_cannot_be_read_is_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [GraphNode(str(n)) for n in range(graph.MOST_NODES)]
    assert layout(nodes) is not None
    assert layout([*nodes, GraphNode("more")]) is None
    monkeypatch.setattr(graph, "MOST_PIECES", 4)
    chain = [GraphNode("a"), GraphNode("b", needs={"a": ""}), GraphNode("c", needs={"b": ""})]
    assert layout([*chain, GraphNode("d", needs={"b": "", "x": ""})]) is not None
    assert layout([*chain, GraphNode("d", needs={"a": "", "c": ""})]) is None  # crosses two columns
    assert layout([GraphNode("a", needs={"b": ""}), GraphNode("b", needs={"a": ""})]) is None
