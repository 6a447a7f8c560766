"""Every column whose type can hold a user's value, and what becomes of it.

A test asks the schema for all such columns: a new one needs a line here. ``erase`` makes its
statements of this list.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Erased(StrEnum):
    """What ``erase`` does with the values of a task."""

    OBJECT = "object"
    """An object that says when stands in their place."""
    WORD = "word"
    """A word does."""
    NULL = "null"
    ROW = "row"
    """The row is deleted."""
    PART = "part"
    """A statement of its own takes out what is about the tasks."""
    LEFT = "left"
    """They stay, and the receipt says so, while there is something to run."""
    KEPT = "kept"
    """They stay: keys, names, words of operators, and what belongs to no task."""


class UserValue(NamedTuple):
    """A column, and what protects its values."""

    table: str
    """Without the schema."""
    column: str
    erased: Erased
    masked: bool
    """What masked paths hold is not shown to people; in texts it is not stored."""
    encrypted: bool
    """Of encrypted tasks; texts say that they are."""
    exported: bool
    """By ``tasks-app export``, for another database."""

    @property
    def name(self) -> str:
        return f"{self.table}.{self.column}"


def _read(lines: str) -> tuple[UserValue, ...]:
    """Read lines of tables, columns and words; a table's name stands for all of its columns."""
    found = []
    for line in lines.strip().splitlines():
        tables, columns, erased, *words = line.split()
        for table in tables.split(","):
            found += [
                UserValue(
                    f"task_{table}",
                    column,
                    Erased(erased),
                    *(word in words for word in ("masked", "encrypted", "exported")),
                )
                for column in columns.split(",")
            ]
    return tuple(found)


USER_VALUES = _read("""
pending          payload                                 left    masked encrypted exported
pending          headers                                 left    exported
pending          sub_status                              left
completed,error  payload                                 object  masked encrypted
completed        result                                  object  masked encrypted
error            result                                  object
completed,error  headers                                 object
completed,error  error                                   word    masked
completed,error  sub_status                              word
attempt          kind                                    word
attempt          message                                 word    masked
attempt          encrypted_message                       null    encrypted
attempt          traceback                               null
transition       detail,why                              word
log              lines                                   part
progress         checkpoint                              row     masked
progress         note                                    row
large_value      content                                 row     encrypted
group            then_row,on_failure                     part    encrypted
worker           running                                 part
audit            what,patch                              part
fingerprint      kind,message,frames,known_by,note       part
alert            fact                                    part
schedule         payload                                 left    masked
schedule         options,declared                        left
pending          biz_key,unique_key,order_key,limit_key,fair_key,more_limit_keys  kept  exported
completed,error  biz_key,unique_key,order_key,limit_key,fair_key,more_limit_keys  kept
pending          parked,parked_for                       kept
key              unique_key                              kept
gate             gate                                    kept
limit            target                                  kept
queue_fair       weights                                 kept
lock,lock_part,lock_wait  resource                       kept
lock_holder,lock_wait     who                            kept
lock_part,lock_wait       blocked_by                     kept
batch            params,identity,error                   kept
batch_step       plan,result,error                       kept
batch_skip       key,reason                              kept
marker           key                                     kept
partition        num_range,time_range,text_range,source,checksum,checkpoint,error  kept
partition_value  value                                   kept
breaker          reason                                  kept
queue_pause      reason                                  kept
audit            role,who,answers,left_out               kept
transition       who                                     kept
alert            key                                     kept
error,attempt    fingerprint                             kept
schedule         remark                                  kept
""")
"""Columns that may hold a user's value. Those that hold names of code and words of ours alone are
listed by the test."""
