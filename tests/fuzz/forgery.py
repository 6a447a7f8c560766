"""Odd payloads and forged messages."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

EXECUTE = "tasks_app.execute"
OTHER_NAMES = (
    "tasks_app.scan", "tasks_app.maintain", "celery.map", "celery.chord", "celery.group",
    "celery.backend_cleanup", "celery.accumulate", "os.system", "ok", "", "\x00", "a" * 3000,
)  # fmt: skip
TYPES = (
    "application/x-python-serialize", "application/pickle", "application/x-yaml", "text/plain",
    "application/x-msgpack", "application/data", "application/octet-stream", "", None, 7, [], {},
)  # fmt: skip
FIELDS = ("body", "content-encoding", "content-type", "headers", "properties")
HEADERS: dict[str, tuple[Any, ...]] = {
    "id": (None, 7, [], {}, "", "x" * 100_000, "two\nlines", True),
    "task": (None, 7, [], {}, *OTHER_NAMES),
    "eta": ("2099-01-01T00:00:00+00:00", "soon", 7, [], "9999-12-31T23:59:59-12:00"),
    "expires": ("2000-01-01T00:00:00", "0001-01-01T00:00:00+14:00", "never", 7, {}, -1e308),
    "timelimit": ([1e-9, 1e-9], [1, 1, 1], "ab", 7, ["a", "b"], [-1, -1], {}),
    "retries": (10**30, -1, "many", []),
    "shadow": ("os.system", 7, ["x"], "\n\nforged line"),
    "root_id": (7, [], {}),
    "parent_id": ([1], {"a": 1}),
    "group": ("g", 7, []),
    "group_index": ("a", -1),
    "argsrepr": ("x" * 100_000, 7, None, []),
    "kwargsrepr": ({}, "%s%n"),
    "ignore_result": ("no", None, []),
    "reply_to": ("celery", 7),
    "compression": ("application/x-gzip", "application/x-bz2", "nonsense", 7, []),
    "stamped_headers": (["a"], 7),
    "stamps": ({"a": 1}, 7),
    "replaced_task_nesting": ("x", -5),
    "lang": (7, "c"),
    "utc": (False, 7),
    "delivery_info": (7, {}),
    "hostname": ([], "x"),
}
PROPERTIES: dict[str, tuple[Any, ...]] = {
    "delivery_tag": (None, 7, [], {}, "same", True),
    "delivery_info": (None, 7, [], "x", {}, {"exchange": 1}, {"routing_key": ["a"]}),
    "body_encoding": (None, 7, [], "rot13", "hex", "zip"),
    "priority": ("high", -1, 10**30, []),
    "reply_to": ("default", 7, []),
    "correlation_id": (None, 7, []),
    "delivery_mode": ("x", None),
}
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 2**63, -(2**63), 10**400, "", "1", "\x00", "\ud800", "ä" * 999,
    [], [[]], {}, {"": None}, [None] * 600, float("nan"), float("inf"),
)  # fmt: skip


class Forger:
    """Makes one message after another; nothing of it may start anything that is not due."""

    def __init__(self, dice: random.Random, ids: Sequence[int], marker: Path) -> None:
        self._dice = dice
        self._ids = ids
        self._marker = marker
        self._kinds: tuple[Callable[[], bytes], ...] = (
            self._noise, self._cut, self._flipped, self._no_envelope, self._without_a_field,
            self._odd_field, self._odd_header, self._odd_property, self._other_task,
            self._other_type, self._canvas, self._typed_json, self._old_protocol, self._odd_body,
            self._odd_ids, self._bare_ids, self._deep, self._huge, self._compressed,
        )  # fmt: skip

    def message(self) -> bytes:
        return self._dice.choice(self._kinds)()

    def honest(self, ids: Sequence[Any], wake: Any = None) -> bytes:
        return _dumped(self._envelope([[wake, list(ids)], {}, _embed()]))

    def _envelope(self, body: Any) -> dict[str, Any]:
        name = str(UUID(int=self._dice.getrandbits(128)))
        return {
            "body": base64.b64encode(_dumped(body)).decode(),
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {
                "lang": "py", "task": EXECUTE, "id": name, "root_id": name, "parent_id": None,
                "group": None, "eta": None, "expires": None, "retries": 0, "shadow": None,
                "timelimit": [None, None], "argsrepr": "(ids)", "kwargsrepr": "{}",
                "origin": "forger", "ignore_result": True,
            },
            "properties": {
                "correlation_id": name, "reply_to": name, "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "default"}, "priority": 0,
                "body_encoding": "base64", "delivery_tag": name,
            },
        }  # fmt: skip

    def _some_ids(self) -> list[int]:
        return self._dice.choices(self._ids, k=self._dice.randint(1, 5))

    def _good(self) -> dict[str, Any]:
        return self._envelope([[None, self._some_ids()], {}, _embed()])

    # -- what is no message at all

    def _noise(self) -> bytes:
        return self._dice.randbytes(self._dice.randint(0, 200))

    def _cut(self) -> bytes:
        whole = _dumped(self._good())
        return whole[: self._dice.randrange(len(whole))]

    def _flipped(self) -> bytes:
        data = bytearray(_dumped(self._good()))
        for _ in range(self._dice.randint(1, 8)):
            data[self._dice.randrange(len(data))] ^= 1 << self._dice.randrange(8)
        return bytes(data)

    def _no_envelope(self) -> bytes:
        return _dumped(self._dice.choice(ODD))

    def _deep(self) -> bytes:
        depth = self._dice.choice((50, 2_000, 200_000))
        deep = b"[" * depth + b"]" * depth
        if self._dice.random() < 0.5:
            return deep
        good = self._good()
        return _dumped(good | {"body": base64.b64encode(deep).decode()})

    # -- a message with something wrong around its ids

    def _without_a_field(self) -> bytes:
        good = self._good()
        inner = self._dice.choice((good, good["headers"], good["properties"]))
        del inner[self._dice.choice(list(inner))]
        return _dumped(good)

    def _odd_field(self) -> bytes:
        return _dumped(self._good() | {self._dice.choice(FIELDS): self._dice.choice(ODD)})

    def _odd_header(self) -> bytes:
        return self._with_odd("headers", HEADERS)

    def _odd_property(self) -> bytes:
        return self._with_odd("properties", PROPERTIES)

    def _with_odd(self, field: str, known: dict[str, tuple[Any, ...]]) -> bytes:
        good = self._good()
        for key in self._dice.sample(sorted(known), self._dice.randint(1, 3)):
            values = known[key] if self._dice.random() < 0.8 else ODD
            good[field][key] = self._dice.choice(values)
        return _dumped(good)

    def _huge(self) -> bytes:
        good = self._good()
        good["headers"]["more"] = {str(n): "x" * 50 for n in range(self._dice.randint(10, 3000))}
        return _dumped(good)

    def _compressed(self) -> bytes:
        good = self._good()
        good["headers"]["compression"] = "application/x-gzip"
        zeros = self._dice.choice((10, 1_000_000))
        good["body"] = base64.b64encode(gzip.compress(b"[" + b" " * zeros + b"]")).decode()
        return _dumped(good)

    # -- a message that wants something else to run

    def _other_task(self) -> bytes:
        name = self._dice.choice(OTHER_NAMES)
        arguments = self._dice.choice(([], ["touch " + str(self._marker)], [EXECUTE, [[1]]]))
        message = self._envelope([arguments, self._dice.choice(({}, {"task": EXECUTE})), _embed()])
        message["headers"]["task"] = name
        return _dumped(message)

    def _other_type(self) -> bytes:
        command = f"touch {self._marker}"
        bodies = (
            pickle.dumps(_Bomb(command)),
            f"!!python/object/apply:os.system ['{command}']".encode(),
            b"\x93\x92\xc0\x91\x01\x80\x80",
            _dumped([[None, self._some_ids()], {}, _embed()]),
        )
        body = base64.b64encode(self._dice.choice(bodies)).decode()
        encoding = self._dice.choice(("binary", "utf-8", "utf-16", "nonsense", None, 7))
        changed = {"body": body, "content-type": self._dice.choice(TYPES)}
        return _dumped(self._good() | changed | {"content-encoding": encoding})

    def _canvas(self) -> bytes:
        name = self._dice.choice((EXECUTE, "tasks_app.scan", *OTHER_NAMES))
        signature = {
            "task": name, "args": [None, self._some_ids()], "kwargs": {}, "immutable": True,
            "options": {"queue": "default"}, "subtask_type": self._dice.choice((None, "group")),
        }  # fmt: skip
        where = self._dice.choice(("callbacks", "errbacks", "chain", "chord", "link", "group"))
        value = signature if where == "chord" else [signature] * self._dice.randint(1, 3)
        body = [[None, self._some_ids()], {}, _embed() | {where: value}]
        message = self._envelope(body)
        if self._dice.random() < 0.3:
            message["headers"][where] = value
        return _dumped(message)

    def _typed_json(self) -> bytes:
        kinds = ("uuid", "datetime", "decimal", "bytes", "base64", "os.system", "Model", "", 7)
        value: dict[str, Any] = {
            "__type__": self._dice.choice(kinds),
            "__value__": self._dice.choice(("1", str(self._marker), 1, None, {"a": []})),
        }
        bodies = ([[value, [1]], {}, {}], [[None, [value]], {}, _embed()], value, [[None, value]])
        return _dumped(self._envelope(self._dice.choice(bodies)))

    def _old_protocol(self) -> bytes:
        body = {
            "task": self._dice.choice((EXECUTE, EXECUTE, *OTHER_NAMES)),
            "id": self._dice.choice(("an-id", 7, None, [])),
            "args": self._dice.choice(([None, self._some_ids()], 7, {}, None)),
            "kwargs": self._dice.choice(({}, {"ids": self._some_ids()}, [], None)),
            "callbacks": self._dice.choice((None, [{"task": EXECUTE, "args": [], "kwargs": {}}])),
            "timelimit": self._dice.choice((None, [1e-9, 1e-9], 7)),
        }
        message = self._envelope(body)
        message["headers"] = self._dice.choice(({}, None, [], {"id": "x"}))
        return _dumped(message)

    # -- a message whose body is none of ours

    def _odd_body(self) -> bytes:
        bodies = (
            *ODD, [[]],
            [[], {}], [[], {}, {}, {}], [{}, [], {}], [[None, [1]], {"os": "system"}, {}],
            [[None, [1]], [], _embed()], [[None, [1]], {}, []], [[None, [1]], {}, 7],
            [[None, self._some_ids(), "more"], {}, _embed()], [[None], {}, _embed()],
            [[], {"wake": None, "ids": self._some_ids()}, _embed()],
        )  # fmt: skip
        return _dumped(self._envelope(self._dice.choice(bodies)))

    def _odd_ids(self) -> bytes:
        ids: list[Any] = [*self._some_ids(), *self._dice.choices(ODD, k=self._dice.randint(0, 2))]
        wake = self._dice.choice((None, *ODD, *self._some_ids()))
        return self.honest(ids * self._dice.choice((1, 1, 200)), wake)

    def _bare_ids(self) -> bytes:
        """Right in all but the ids: tasks that are not due, over, or nowhere."""
        return self.honest(self._some_ids(), self._dice.choice((None, 1, 2**62)))


class _Bomb:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (self._command,)


def _embed() -> dict[str, Any]:
    return {"callbacks": None, "errbacks": None, "chain": None, "chord": None}


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


GOOD: tuple[Any, ...] = (
    None, True, False, 0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, 1e23, 5e-324, 1.7976931348623157e308,
    "", "x" * 300, "ä😀", "\u2028", "\\u0000", '"', "\x01\x1f\x7f", "\uffff", "__type__", "null",
)  # fmt: skip
BAD: tuple[Any, ...] = (
    "\x00", "a\x00b", "\ud800", "😀\udfff", float("nan"), float("inf"), -float("inf"), 2**63,
    -(2**63) - 1, 10**5000, Decimal("1.5"), Decimal("NaN"), date(2026, 1, 1), datetime.now(UTC),
    UUID(int=1), b"bytes", bytearray(b"x"), {1, 2}, frozenset(), 1j, object(), int, len, range(3),
    iter([]), ..., Exception("x"),
)  # fmt: skip
BAD_KEYS: tuple[Any, ...] = (1, 1.5, None, True, b"k", (1,), "\x00", "\ud800", UUID(int=1))


class Oddities:
    """Makes one payload after another, and says whether it is plain JSON within the limits."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._spoilers: tuple[Callable[[dict[str, Any]], None], ...] = (
            self._bad_value, self._bad_value, self._bad_key, self._cycle, self._deep, self._long,
        )  # fmt: skip

    def payload(self) -> tuple[Any, bool]:
        """The next one; every third is spoilt somewhere, one in twenty is no object at all."""
        if self._dice.random() < 0.05:
            return self._dice.choice((*BAD, [], [1], "x", 7, True)), False
        whole = {"fuzz": self._value(4), "n": self._dice.getrandbits(40)}
        good = self._dice.random() < 0.67
        if not good:
            self._dice.choice(self._spoilers)(whole)
        return whole, good

    def _value(self, depth: int) -> Any:
        roll = self._dice.random()
        if depth == 0 or roll < 0.5:
            return self._leaf()
        size = self._dice.randint(0, 4)
        if roll < 0.75:
            return [self._value(depth - 1) for _ in range(size)]
        if roll < 0.8:
            return tuple(self._value(depth - 1) for _ in range(size))
        return {self._text(): self._value(depth - 1) for _ in range(size)}

    def _leaf(self) -> Any:
        return self._dice.choice(
            (
                self._dice.choice(GOOD),
                self._dice.randint(-(2**63), 2**63 - 1),
                self._dice.uniform(-1e6, 1e6) * 10.0 ** self._dice.randint(-300, 300),
                self._text(),
            )
        )

    def _text(self) -> str:
        tops = (0x7F, 0xFF, 0xD7FF, 0x10FFFF)
        points = (self._dice.randint(1, self._dice.choice(tops)) for _ in range(6))
        return "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)

    # -- one wrong thing, anywhere

    def _somewhere(self, whole: dict[str, Any]) -> Any:
        """A container in it, one down to four levels below the top."""
        inner: Any = whole
        for level in range(self._dice.randint(0, 4)):
            below: Any = self._dice.choice(({}, []))
            if isinstance(inner, dict):
                inner[f"level{level}"] = below
            else:
                inner.append(below)
            inner = below
        return inner

    def _put(self, whole: dict[str, Any], value: Any) -> None:
        inner = self._somewhere(whole)
        if isinstance(inner, dict):
            inner["odd"] = value
        else:
            inner.append(value)

    def _bad_value(self, whole: dict[str, Any]) -> None:
        self._put(whole, self._dice.choice(BAD))

    def _bad_key(self, whole: dict[str, Any]) -> None:
        self._put(whole, {self._dice.choice(BAD_KEYS): 1})

    def _cycle(self, whole: dict[str, Any]) -> None:
        self._put(whole, whole)

    def _deep(self, whole: dict[str, Any]) -> None:
        deep: Any = 1
        for _ in range(self._dice.choice((33, 100, 5000))):
            deep = self._dice.choice(([deep], {"d": deep}))
        self._put(whole, deep)

    def _long(self, whole: dict[str, Any]) -> None:
        self._put(whole, self._dice.choice(("x" * 70_000, ["y"] * 70_000, "ä" * 40_000)))
