"""What a handler declares about itself."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from tasks_app.domain.handlers.outcomes import Cancel, Fail, Reaction, Retry, Skip, Snooze
from tasks_app.domain.handlers.spec import Handler, HandlerSpec
from tasks_app.domain.tasks.payload_type import PayloadType


class Order(BaseModel):
    order_id: int


def only_ctx(ctx): ...


def test_a_handler_gets_its_model_or_the_dict_itself() -> None:
    text = '{"order_id": 1}'

    typed = HandlerSpec("t", only_ctx, payload_type=PayloadType(Order))

    assert typed.payload(text) == Order(order_id=1)
    assert HandlerSpec("t", only_ctx).payload(text) == {"order_id": 1}


@pytest.mark.parametrize("name", ["delay", "apply_async", "s"])
def test_who_calls_a_handler_as_a_task_of_celery_is_told_what_to_call(name: str) -> None:
    handler = Handler(HandlerSpec("mail.send", only_ctx), only_ctx)

    with pytest.raises(AttributeError) as refused:
        getattr(handler, name)

    assert str(refused.value) == (
        f"mail.send is a handler, which has no {name}(). Create a task in your transaction: "
        "create_task(session, only_ctx, payload)."
    )
    assert not hasattr(handler, name)


def test_without_a_rule_there_is_no_reaction() -> None:
    assert HandlerSpec("t", only_ctx).reaction(ValueError()) is None


def test_a_rule_is_found_through_the_ancestry_nearest_first() -> None:
    spec = HandlerSpec(
        "t", only_ctx, on_error={OSError: Reaction.RETRY_FREE, ConnectionError: Reaction.FAIL}
    )

    assert spec.reaction(ConnectionResetError()) is Reaction.FAIL
    assert spec.reaction(FileNotFoundError()) is Reaction.RETRY_FREE
    assert spec.reaction(ValueError()) is None


@pytest.mark.parametrize("ending", [Fail, Cancel, Skip, Retry])
def test_an_ending_may_say_why(ending) -> None:
    assert (ending().reason, ending("because").reason) == ("", "because")
    assert str(ending("because")) == "because"


def test_an_ending_with_a_wait_reads_it_as_people_write_it() -> None:
    assert Retry().after is None
    assert Retry(after="90s").after.total_seconds() == 90
    assert Snooze("1.5h", "busy").after.total_seconds() == 5400
    assert Snooze(5).after.total_seconds() == 5


@pytest.mark.parametrize("make", [lambda: Snooze("soon"), lambda: Retry(after=-1)])
def test_an_ending_with_a_wait_that_is_none_is_a_value_error(make) -> None:
    with pytest.raises(ValueError, match=r"^after is .*(duration|outside)"):
        make()
