"""Locks on single rows of a user's own table."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.orm.exc import StaleDataError

from tasks_app import locks
from tasks_app.pool.locks.row_locks import RowKey, lock_row
from tests.factory import run_sql
from tests.pool.interleave import blocked, two
from tests.runtime.bench import Bench

SPAN = timedelta(seconds=5)


class Base(DeclarativeBase):
    pass


class Article(locks.Versioned, Base):
    __tablename__ = "article"
    id: Mapped[int] = mapped_column(primary_key=True)
    title: Mapped[str] = mapped_column()


class Account(locks.LockedRow, Base):
    __tablename__ = "account"
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column()


@pytest.fixture(autouse=True)
def rows(engine: Engine) -> Iterator[None]:
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        session.add_all([Article(id=1, title="first"), Account(id=7, balance=100)])
    yield
    Base.metadata.drop_all(engine)


def expire(engine: Engine) -> None:
    run_sql(engine, "UPDATE account SET locked_until = now()")


def title(engine: Engine) -> str:
    with engine.connect() as connection:
        return connection.execute(text("SELECT title FROM article")).scalar_one()


def balance(engine: Engine) -> int:
    with engine.connect() as connection:
        return connection.execute(text("SELECT balance FROM account")).scalar_one()


class TestVersions:
    def test_a_lost_update_is_refused(self, engine: Engine) -> None:
        with Session(engine) as one, Session(engine) as other:
            mine, theirs = one.get_one(Article, 1), other.get_one(Article, 1)
            mine.title, theirs.title = "mine", "theirs"
            one.commit()
            with pytest.raises(StaleDataError):
                other.commit()
        assert title(engine) == "mine"

    def test_so_is_one_from_a_form(self, engine: Engine) -> None:
        with Session(engine) as session, session.begin():
            seen = session.get_one(Article, 1).version
        with Session(engine) as session, session.begin():
            article = session.get_one(Article, 1)
            article.expect(seen)
            article.title = "second"
        with Session(engine) as session, pytest.raises(locks.LostUpdateError) as told:
            session.get_one(Article, 1).expect(seen)

        assert str(told.value) == (
            "article 1 was changed since it was read. Read it again, and decide again."
        )

    def test_what_was_only_read_can_be_guarded_too(self, engine: Engine) -> None:
        with Session(engine) as session:
            article = session.get_one(Article, 1)
            article.check(session)
            with engine.begin() as other:
                other.execute(text("SET LOCAL lock_timeout = '10ms'"))
                with pytest.raises(Exception, match="lock timeout"):
                    other.execute(text("UPDATE article SET version = 2"))
            session.expunge(article)
            session.rollback()
            run_sql(engine, "UPDATE article SET version = 2")
            with pytest.raises(locks.LostUpdateError):
                article.check(session)


class TestFlags:
    def test_one_holds_a_row_and_others_are_denied(self, engine: Engine) -> None:
        with (
            locks.hold_row(engine, Account, 7, who="batch"),
            pytest.raises(locks.LockDeniedError, match="account 7 is held by batch, exclusive"),
        ):
            locks.hold_row(engine, Account, 7).take()
        locks.hold_row(engine, Account, 7).take().release()

    def test_who_holds_it_writes(self, engine: Engine) -> None:
        with locks.hold_row(engine, Account, 7) as lock, Session(engine) as session:
            session.get_one(Account, 7).balance += 1
            lock.check(session)
            session.commit()
        assert balance(engine) == 101

    def test_an_expired_flag_is_taken_over_and_its_old_holder_refused(self, engine: Engine) -> None:
        old = locks.hold_row(engine, Account, 7).take()
        with Session(engine) as late:
            account = late.get_one(Account, 7)
            late.rollback()
            account.balance = 0
            expire(engine)
            with locks.hold_row(engine, Account, 7, who="new") as new:
                assert new.fence > old.fence
                for act in (old.renew, old.release, lambda: old.check(late)):
                    with pytest.raises(locks.LockLostError, match="The lock on account 7 was lost"):
                        act()
        assert balance(engine) == 100

    def test_its_write_is_refused_even_if_it_asks_nobody(self, engine: Engine) -> None:
        locks.hold_row(engine, Account, 7).take()
        with Session(engine) as late:
            account = late.get_one(Account, 7)
            expire(engine)
            locks.hold_row(engine, Account, 7, who="new").take()
            account.balance = 0
            with pytest.raises(StaleDataError):
                late.commit()
        assert balance(engine) == 100

    def test_an_expired_flag_that_nobody_took_is_still_its_holders(self, engine: Engine) -> None:
        lock = locks.hold_row(engine, Account, 7).take()
        expire(engine)
        lock.renew("10s")
        with pytest.raises(locks.LockDeniedError):
            locks.hold_row(engine, Account, 7).take()

    def test_a_flag_that_was_taken_down_is_nobodys(self, engine: Engine) -> None:
        lock = locks.hold_row(engine, Account, 7).take()
        lock.release()
        with pytest.raises(locks.LockLostError):
            lock.renew()

    def test_under_the_guard_nobody_takes_it_over(self, engine: Engine) -> None:
        lock = locks.hold_row(engine, Account, 7).take()
        expire(engine)
        with two(engine) as (one, other):
            lock.check(one)
            key = RowKey(Account.__table__, (7,))  # type: ignore[arg-type]
            late = blocked(engine, other, one, lambda c: lock_row(c, key, "late", SPAN))
            one.execute(text("UPDATE account SET balance = 1"))
            one.commit()
            assert late.result() == lock.fence + 1

    def test_a_later_request_goes_on_with_the_fence(self, engine: Engine) -> None:
        fence = locks.hold_row(engine, Account, 7).take().fence
        again = locks.RowLock(engine, Account, 7, fence)
        with Session(engine) as session, session.begin():
            again.check(session)
            again.release(session)
        locks.hold_row(engine, Account, 7).take()

    @pytest.mark.test_all
    def test_who_waits_gets_it(self, bench: Bench) -> None:
        lock = locks.hold_row(bench.engine, Account, 7).take()
        got = threading.Event()

        def other() -> None:
            with locks.hold_row(bench.engine, Account, 7, wait="20s"):
                got.set()

        bench.beside(other)
        lock.release()
        assert got.wait(10)

    def test_a_row_that_is_not_there_is_no_lock(self, engine: Engine) -> None:
        with pytest.raises(locks.InvalidLockError, match="key is of no row: account 8"):
            locks.hold_row(engine, Account, 8).take()
        with pytest.raises(locks.InvalidLockError, match="key has 2 values"):
            locks.hold_row(engine, Account, (1, 2))

    def test_who_is_denied_in_a_handler_comes_back_uncharged(self, bench: Bench) -> None:
        @bench.handler()
        def t(ctx: Any) -> None:
            locks.hold_row(bench.engine, Account, 7).take()

        locks.hold_row(bench.engine, Account, 7).take()
        task_id = bench.execute_one()
        task = bench.task(task_id)
        assert (task.state, task.failures) == ("PENDING", 0)
