"""What a new task may be, and how a payload is patched."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from tasks_app.domain.creation import NewTask, validate_task
from tasks_app.domain.errors import InvalidSelectionError, InvalidTaskError, TasksError
from tasks_app.domain.handlers.spec import HandlerSpec
from tasks_app.domain.operations import (
    apply_patch,
    check_patched_payload,
    parse_patch,
    paths_of_patch,
)
from tasks_app.domain.tasks.options import TaskOptions
from tasks_app.domain.tasks.payload_type import PayloadType, payload_type_of
from tasks_app.domain.tasks.records import RowTemplate, TaskRow
from tasks_app.domain.tasks.retry_policy import Exponential, Fixed, parse_policy
from tests.cases import in_one_test

LIMIT = 64 * 1024
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NINE = "5s,30s,1m,10m,30m,1h,6h,1d,2d"


class Grant(BaseModel):
    order_id: int = Field(alias="orderId")
    points: list[int] = []


def row(name="t", payload=None, spec: HandlerSpec | None = None, **options) -> TaskRow:
    return validate_task(NewTask(name, payload, options), spec, LIMIT)


def a_spec(**changes) -> HandlerSpec:
    return HandlerSpec("points.grant", lambda ctx: None, **changes)


def refusal(*args, **options) -> InvalidTaskError:
    with pytest.raises(InvalidTaskError) as refused:
        row(*args, **options)
    return refused.value


def test_a_name_alone_is_a_task_with_defaults() -> None:
    terms = RowTemplate(
        name="t", queue="default", priority=5, headers=None, enabled=True, retry_level=0,
        max_attempts=None, retry=None, run_at=None, delay=timedelta(0), expires_at=None,
        timeout_ms=None, hard_timeout_ms=None,
    )  # fmt: skip
    assert row() == TaskRow("{}", None, None, None, None, terms=terms)


def test_an_option_that_is_none_is_as_good_as_left_out() -> None:
    options = dict.fromkeys(TaskOptions.__annotations__)
    assert row(**options) == row()


def test_every_option_arrives_in_the_row() -> None:
    admitted = row(
        queue="q", priority=0, delay="90s", biz_key="order:1", unique_key="u", max_attempts=7,
        retry="fixed 5s", timeout=1.5, hard_timeout="1m", expires_at=NOON, enabled=False,
        headers={"trace": "1"},
    )  # fmt: skip
    assert (admitted.biz_key, admitted.unique_key) == ("order:1", "u")
    assert admitted.terms == RowTemplate(
        name="t", queue="q", priority=0, headers='{"trace":"1"}', enabled=False, retry_level=0,
        max_attempts=7, retry="fixed 5s", run_at=None, delay=timedelta(seconds=90),
        expires_at=NOON, timeout_ms=1500, hard_timeout_ms=60_000,
    )  # fmt: skip


def test_a_timeout_longer_than_the_hard_limit_is_refused_as_far_as_both_are_known() -> None:
    spec = HandlerSpec("t", print, timeout=timedelta(minutes=1), hard_timeout=timedelta(hours=1))
    for known, options, said in (
        (None, {"timeout": "2h", "hard_timeout": "1h"}, "is 2h, longer than the hard limit"),
        (spec, {"timeout": "61m"}, "longer than the hard limit"),
        (spec, {"hard_timeout": "59s"}, "is 1m, longer than the hard limit"),
    ):
        with pytest.raises(InvalidTaskError) as refused:
            validate_task(NewTask("t", {}, options), known, 1000)
        assert str(refused.value).startswith("options.timeout ")
        assert said in str(refused.value)
    assert row(timeout="2h", hard_timeout="2h").terms.timeout_ms == 7_200_000


def test_every_option_of_the_public_face_is_known() -> None:
    assert set(TaskOptions.__annotations__) == {
        *("queue", "priority", "run_at", "delay", "biz_key", "unique_key", "order_key"),
        *("max_attempts", "retry", "wait_first", "timeout", "hard_timeout", "expires_at"),
        *("enabled", "headers", "unique_scope", "on_conflict", "max_wait"),
        *("order_policy", "strict_order", "limit_key", "weight", "fair_key", "locks"),
    }


REFUSED_OPTIONS = [
    ("priority", -1, "an integer 0 .. 9"),
    ("priority", 10, "an integer 0 .. 9"),
    ("priority", "5", "an integer 0 .. 9"),
    ("priority", True, "an integer 0 .. 9"),
    ("priority", 5.0, "an integer 0 .. 9"),
    ("priority", 10**5000, "an integer 0 .. 9"),
    ("queue", "", "text that matches"),
    ("queue", 0, "text that matches"),
    ("queue", False, "text that matches"),
    ("queue", "a b", "text that matches"),
    ("queue", "q" * 101, "text that matches"),
    ("queue", "q\n", "text that matches"),
    ("queue", "q;drop", "text that matches"),
    ("run_at", datetime(2026, 1, 1), "an aware datetime"),  # noqa: DTZ001  naive on purpose
    ("run_at", "2026-01-01T00:00:00Z", "an aware datetime"),
    ("run_at", 0, "an aware datetime"),
    ("run_at", NOON.date(), "an aware datetime"),
    ("run_at", datetime.max.replace(tzinfo=UTC), "1970 .. 8999"),
    ("run_at", datetime.min.replace(tzinfo=UTC), "1970 .. 8999"),
    ("expires_at", datetime(2026, 1, 1), "an aware datetime"),  # noqa: DTZ001  naive on purpose
    ("expires_at", datetime.max.replace(tzinfo=UTC), "1970 .. 8999"),
    ("expires_at", "soon", "an aware datetime"),
    ("delay", -1, "seconds, a timedelta, or text"),
    ("delay", "soon", "seconds, a timedelta, or text"),
    ("delay", timedelta(days=4000), "seconds, a timedelta, or text"),
    ("delay", 10**400, "seconds, a timedelta, or text"),
    ("delay", float("nan"), "seconds, a timedelta, or text"),
    ("delay", True, "seconds, a timedelta, or text"),
    ("biz_key", "", "text of 1 to 255 characters"),
    ("biz_key", "x" * 256, "text of 1 to 255 characters"),
    ("biz_key", 42, "text of 1 to 255 characters"),
    ("biz_key", "a\x00", "text without"),
    ("biz_key", "\ud800", "valid Unicode"),
    ("unique_key", "", "text of 1 to 255 characters"),
    ("unique_key", b"k", "text of 1 to 255 characters"),
    ("unique_key", "a\x00", "text without"),
    ("order_key", "", "text of 1 to 255 characters"),
    ("order_key", 7, "text of 1 to 255 characters"),
    ("limit_key", "x" * 256, "text of 1 to 255 characters"),
    ("limit_key", {"bank:acme"}, "text of 1 to 255 characters"),
    ("limit_key", [f"k{n}" for n in range(9)], "at most 8"),
    ("weight", 0, "an integer 1 .. 2147483647"),
    ("weight", -5, "an integer 1 .. 2147483647"),
    ("weight", True, "an integer 1 .. 2147483647"),
    ("weight", "1500", "an integer 1 .. 2147483647"),
    ("weight", 1.5, "an integer 1 .. 2147483647"),
    ("weight", 2**31, "an integer 1 .. 2147483647"),
    ("order_policy", "waits", "blocks, skips"),
    ("order_policy", True, "blocks, skips"),
    ("strict_order", "yes", "True or False"),
    ("max_attempts", 0, "an integer 1 .. 32000"),
    ("max_attempts", 32_001, "an integer 1 .. 32000"),
    ("max_attempts", True, "an integer 1 .. 32000"),
    ("max_attempts", "3", "an integer 1 .. 32000"),
    ("retry", "often", "such as '5s,30s,1m'"),
    ("retry", [], "such as '5s,30s,1m'"),
    ("retry", b"5s", "such as '5s,30s,1m'"),
    ("retry", object(), "such as '5s,30s,1m'"),
    ("retry", Fixed("30s"), "such as '5s,30s,1m'"),
    ("retry", Fixed(timedelta(1), max_attempts=40_000), "such as '5s,30s,1m'"),
    ("wait_first", 1, "True or False"),
    ("enabled", "false", "True or False"),
    ("enabled", 0, "True or False"),
    ("timeout", 0, "1 ms .. 24 days"),
    ("timeout", "30d", "1 ms .. 24 days"),
    ("timeout", -1, "seconds, a timedelta, or text"),
    ("hard_timeout", 0.0001, "1 ms .. 24 days"),
    ("headers", [], "a dict with string keys"),
    ("headers", "x", "a dict with string keys"),
    ("headers", {"a": "x" * 9000}, "at most 8192 bytes"),
    ("headers", {"a": object()}, "dict, list, str"),
    ("countdown", 5, "queue, retry, run_at"),
    ("eta", NOON, "queue, retry, run_at"),
    ("Priority", 5, "queue, retry, run_at"),
]


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    REFUSED_OPTIONS,
    ids=[f"{n}-{option}" for n, (option, _, _) in enumerate(REFUSED_OPTIONS)],
)
def test_a_bad_option_is_refused_with_what_is_allowed(option: str, value, allowed: str) -> None:
    refused = refusal(**{option: value})
    assert refused.path.partition(".a")[0] == f"options.{option}"
    assert allowed in str(refused).partition("Allowed: ")[2]
    assert len(str(refused)) < 400


@pytest.mark.parametrize(
    "name",
    [
        *("", "9lives", "a b", "a/b", "a\n", ".a", "-a", "é", "x" * 256, "a\x00", "\ud800", None),
        *(7, b"a", object(), print),
    ],
    ids=range(16),
)
def test_a_bad_name_is_refused(name) -> None:
    refused = refusal(name)
    assert refused.path == "name"
    assert "^[A-Za-z_][A-Za-z0-9_.:-]{0,254}$" in str(refused)


@pytest.mark.parametrize("name", ["a", "_", "A.b:c-d_9", "x" * 255])
def test_a_good_name_is_admitted(name: str) -> None:
    assert row(name).terms.name == name


def test_an_order_key_has_a_policy_and_may_be_strict() -> None:
    plain, skips = row(order_key="k"), row(order_key="k", order_policy="skips", strict_order=True)
    assert plain.order_key == "k"
    assert (plain.terms.order_skips, plain.terms.strict_order) == (None, False)
    assert (skips.terms.order_skips, skips.terms.strict_order) == (True, True)
    assert row(limit_key="tenant:7").limit_key == "tenant:7"


def test_a_task_has_up_to_eight_limit_keys_each_once() -> None:
    made = row(limit_key=["bank:acme", "tenant:7", "bank:acme", 'a "quote" and \\'])
    assert made.limit_key == "bank:acme"
    assert made.terms.more_limit_keys == r"""{"tenant:7","a \"quote\" and \\"}"""
    assert row(limit_key=[]).limit_key is None
    assert row(limit_key=("bank:acme",)).terms == row(limit_key="tenant:7").terms


def test_a_wrong_limit_key_is_named_by_its_place() -> None:
    assert refusal(limit_key=["bank:acme", ""]).path == "options.limit_key[1]"


def test_a_weight_is_of_limit_keys() -> None:
    made = row(limit_key="model", weight=1500)
    assert (made.limit_key, made.terms.weight) == ("model", 1500)
    assert row(weight=None).terms == row(limit_key="model").terms
    alone = refusal(weight=1500)
    assert alone.path == "options.weight"
    assert "is given without a limit_key. Allowed: both" in str(alone)


@pytest.mark.parametrize("options", [{"order_policy": "skips"}, {"strict_order": True}])
def test_what_is_said_of_an_order_key_needs_one(options) -> None:
    assert refusal(**options).path == "options.order_key"


def test_an_unknown_option_names_the_known_ones() -> None:
    message = str(refusal(run_in=5))
    assert "options.run_in is unknown; a value for the handler goes" in message
    assert "; perhaps run_at is meant. Allowed" in message
    assert "biz_key, delay" in message
    of_payload = 'a value for the handler goes into the payload: {"order_id": …}; perhaps order_key'
    assert of_payload in str(refusal(order_id=5))


@in_one_test(
    "elsewhere, here",
    [
        *(("countdown", "delay"), ("eta", "run_at"), ("max_retries", "max_attempts")),
        *(("soft_time_limit", "timeout"), ("expires", "expires_at")),
    ],
)
def test_what_other_systems_call_an_option_is_translated(elsewhere: str, here: str) -> None:
    assert f"is unknown; perhaps {here} is meant. Allowed" in str(refusal(**{elsewhere: 5}))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"retry": "exponential"}, "'fixed 30s' or 'exponential 5s x2 cap 1h'"),
        ({"payload": {"at": datetime.now(UTC)}}, "a model writes others as text"),
        (
            {"run_at": NOON, "delay": 5},
            "options.delay is given together with run_at. Allowed: one of the two.",
        ),
    ],
)
def test_a_refusal_says_what_to_do(given: dict[str, Any], said: str) -> None:
    assert said in str(refusal(**given))


def test_wait_first_without_known_waits_is_refused() -> None:
    refused = refusal(wait_first=True)
    assert refused.path == "options.wait_first"
    assert "a known handler" in str(refused)


SECOND = timedelta(seconds=1)
INDIA = timezone(timedelta(hours=5, minutes=30))
POLICY = Exponential(SECOND, 3, timedelta(minutes=5), max_attempts=6)
TERMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # options of the task, those of its handler, and what is kept
    "run_at in any zone is the instant that it is": (
        {"run_at": NOON.astimezone(INDIA)}, {}, {"run_at": NOON}
    ),
    "wait_first waits level one and gives each level one run": (
        {"wait_first": True, "retry": NINE}, {},
        {"delay": 5 * SECOND, "retry_level": 1, "max_attempts": 9},
    ),
    "wait_first takes the waits of a known handler": (
        {"wait_first": True}, {"retry": parse_policy("7s,1m"), "max_attempts": 3},
        {"delay": 7 * SECOND, "retry_level": 1, "retry": None, "max_attempts": 2},
    ),
    "wait_first leaves a number of attempts that the handler gave alone": (
        {"wait_first": True}, {"retry": parse_policy("7s,1m"), "max_attempts": 20},
        {"max_attempts": None},
    ),
    "wait_first comes on top of a delay": (
        {"wait_first": True, "retry": "fixed 5s", "delay": 60}, {}, {"delay": 65 * SECOND}
    ),
    "a level table implies one attempt more than it has levels": (
        {"retry": NINE}, {}, {"max_attempts": 10}
    ),
    "max_attempts wins over what the policy implies": (
        {"retry": NINE, "max_attempts": 2}, {}, {"max_attempts": 2}
    ),
    "max_attempts wins also with wait_first": (
        {"retry": NINE, "max_attempts": 2, "wait_first": True}, {}, {"max_attempts": 2}
    ),
    "a policy object is stored as its text": (
        {"retry": POLICY}, {}, {"retry": "exponential 1s x3 cap 5m", "max_attempts": 6}
    ),
    "without a policy of its own a task leaves it to its handler": (
        {}, {"retry": parse_policy(NINE), "max_attempts": 10}, {"retry": None, "max_attempts": None}
    ),
    "a known handler gives name and queue": (
        {}, {"queue": "points"}, {"name": "points.grant", "queue": "points"}
    ),
    "the task's own queue wins over its handler's": (
        {"queue": "slow"}, {"queue": "points"}, {"queue": "slow"}
    ),
}  # fmt: skip


@pytest.mark.parametrize(("options", "spec", "kept"), TERMS.values(), ids=TERMS)
def test_terms(options: dict[str, Any], spec: dict[str, Any], kept: dict[str, Any]) -> None:
    found = row(spec=a_spec(**spec) if spec else None, **options).terms._asdict()
    assert {name: found[name] for name in kept} == kept


def test_a_model_of_the_handlers_own_type_with_aliases_is_admitted() -> None:
    spec = a_spec(payload_type=PayloadType(Grant))
    admitted = row(spec=spec, payload=Grant(orderId=3, points=[1]))
    assert admitted.payload == '{"orderId":3,"points":[1]}'


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (None, "payload.orderId"),
        ({}, "payload.orderId"),
        ({"orderId": "three"}, "payload.orderId"),
        ({"orderId": 3, "points": [1, "two"]}, "payload.points[1]"),
        ([], "payload"),
        ("text", "payload"),
    ],
)
def test_a_payload_that_the_known_handler_cannot_take_is_refused(payload, path: str) -> None:
    refused = refusal(spec=a_spec(payload_type=PayloadType(Grant)), payload=payload)
    assert refused.path == path
    assert "what Grant takes" in str(refused)


def test_a_model_that_cannot_be_written_is_refused_where_the_handler_is_known() -> None:
    class Opaque(BaseModel):
        thing: object

    refused = refusal(spec=a_spec(payload_type=PayloadType(Opaque)), payload=Opaque(thing=object()))
    assert refused.path == "payload"


def test_a_refusal_is_both_a_tasks_error_and_a_value_error() -> None:
    assert isinstance(refusal(""), TasksError)
    assert isinstance(refusal(""), ValueError)


class TestWhatIsRemembered:
    """Producers repeat themselves; what is remembered must not let anything else pass."""

    def test_the_same_options_give_equal_rows_and_their_own_payloads_and_keys(self) -> None:
        first = row(payload={"n": 1}, biz_key="a", unique_key="b", priority=3, delay="5s")
        second = row(payload={"n": 2}, biz_key="c", priority=3, delay="5s")
        assert first.terms is second.terms
        assert (first.payload, first.biz_key, first.unique_key) == ('{"n":1}', "a", "b")
        assert (second.payload, second.biz_key, second.unique_key) == ('{"n":2}', "c", None)

    @pytest.mark.parametrize(
        ("option", "good", "bad"),
        [("priority", 1, True), ("priority", 0, False), ("delay", 1, True), ("enabled", True, 1)],
    )
    def test_an_equal_value_of_another_type_is_refused(self, option: str, good, bad) -> None:
        row(**{option: good})
        assert refusal(**{option: bad}).path == f"options.{option}"

    def test_a_refusal_is_repeated(self) -> None:
        assert str(refusal(priority=10)) == str(refusal(priority=10))

    def test_a_list_that_changes_is_read_again(self) -> None:
        waits = ["5s"]
        before = row(retry=waits)
        waits.append("9s")
        assert (before.terms.retry, row(retry=waits).terms.retry) == ("5s", "5s,9s")

    def test_headers_that_change_are_read_again(self) -> None:
        headers = {"a": 1}
        before = row(headers=headers)
        headers["a"] = 2
        assert (before.terms.headers, row(headers=headers).terms.headers) == ('{"a":1}', '{"a":2}')

    def test_a_handler_that_is_declared_anew(self) -> None:
        assert row(spec=a_spec(queue="a")).terms.queue == "a"
        assert row(spec=a_spec(queue="b")).terms.queue == "b"
        assert row("points.grant").terms.queue == "default"

    def test_a_random_first_wait_is_drawn_each_time(self) -> None:
        policy = "exponential 1h x2 cap 9h"
        waits = {row(wait_first=True, retry=policy).terms.delay for _ in range(9)}
        assert len(waits) == 9

    def test_instants_differ_though_they_look_alike(self) -> None:
        there = NOON.replace(tzinfo=timezone(timedelta(hours=5)))
        assert row(run_at=NOON).terms.run_at != row(run_at=there).terms.run_at


VALUES = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9)),
    *(st.binary(max_size=4), st.datetimes(), st.datetimes(timezones=st.just(UTC)), st.timedeltas()),
    st.lists(st.integers() | st.text(max_size=4), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.builds(object),
)
NAMES = st.sampled_from([*TaskOptions.__annotations__, "eta", "countdown"])


@given(st.dictionaries(NAMES, VALUES, max_size=4), VALUES)
def test_any_options_at_all_are_admitted_or_refused_by_path(options, payload) -> None:
    try:
        admitted = validate_task(NewTask("t", payload, options), None, LIMIT)
    except InvalidTaskError as error:
        refused = error
    else:
        assert 0 <= admitted.terms.priority <= 9
        assert timedelta(0) <= admitted.terms.delay
        return
    assert refused.path.startswith(("options.", "payload"))


class Mail(BaseModel):
    """A payload whose validator tells what it was given."""

    to: str
    copies: dict[str, int] = {}

    @field_validator("to")
    @classmethod
    def has_an_at(cls, to: str) -> str:
        if "@" not in to:
            raise ValueError(f"{to} is no address")
        return to


SPEC = HandlerSpec("mail", lambda: None, payload_type=PayloadType(Mail))


@pytest.mark.parametrize(
    ("payload", "patch", "after"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_objects_are_merged_and_null_removes(payload: Any, patch: Any, after: Any) -> None:
    """Among the examples of RFC 7396's appendix, those of objects."""
    before = repr(payload)
    assert apply_patch(payload, patch) == after
    assert repr(payload) == before


def test_paths_make_a_patch() -> None:
    assert parse_patch({"a.b": 1, "a.c": [2], "d": None}) == {"a": {"b": 1, "c": [2]}, "d": None}


@pytest.mark.parametrize("paths", [("a", "a.b"), ("a.b", "a"), ("a.b.c", "a.b"), ("",), ("a.",)])
def test_paths_in_each_others_way_are_refused(paths: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSelectionError, match="cannot be set"):
        parse_patch(dict.fromkeys(paths, 1))


def test_the_paths_of_a_patch_are_told_without_its_values() -> None:
    assert list(paths_of_patch({"a": {"b": "secret"}, "c": {}})) == ["payload.a.b", "payload.c"]


def test_what_the_model_takes_is_written_as_it_is() -> None:
    given = {"to": "a@b", "more": 1}
    assert check_patched_payload("mail", given, SPEC, 100) == '{"to":"a@b","more":1}'


def test_what_is_given_as_it_is_stored_is_not_wrapped_once_more() -> None:
    either = HandlerSpec("t", print, payload_type=payload_type_of(dict[str, int] | list[int]))
    assert check_patched_payload("t", {"value": [1]}, either, 100) == '{"value":[1]}'
    with pytest.raises(InvalidSelectionError, match="its handler refuses the payload"):
        check_patched_payload("t", {"a": 1}, either, 100)


@pytest.mark.parametrize(
    ("payload", "where"),
    [
        ({"to": "secret"}, "payload.to"),
        ({"to": "a@b", "copies": {"secret": "secret"}}, "payload.copies"),
        ({"to": "a@b", "secret": "x" * 200}, "the payload"),
        ({"to": "a@b", "secret": float("nan")}, "the payload"),
    ],
)
def test_a_refusal_says_where_and_shows_no_value(payload: Any, where: str) -> None:
    with pytest.raises(InvalidSelectionError) as refusal:
        check_patched_payload("mail", payload, SPEC, 100)
    assert str(refusal.value) == f"its handler refuses {where}"
