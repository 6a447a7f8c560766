"""Batch jobs in the dashboard: real ones, which are stopped, fail and go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine

from tasks_app import Settings
from tasks_app.batch.job import JOBS
from tasks_app.monitor.pages import batches as batches_page
from tests.batch.conftest import bench, yard  # noqa: F401  fixtures
from tests.batch.yard import Yard
from tests.dashboard.browser import Browser, browser_of, one, shows, text_of, write
from tests.dashboard.test_pages import failed_task


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    JOBS.pop("job", None)


def failed_job(yard: Yard) -> int:  # noqa: F811
    yard.rows(100)

    def broken(ctx: Any, rows: Any) -> None:
        raise ValueError("<b>row</b>")

    job = JOBS["job"] = yard.job(yard.step(broken, max_attempts=1))
    begun = yard.start(job)
    yard.bench.drain()
    return int(begun.batch_id)


@pytest.mark.test_all
def test_an_instance_with_its_steps(yard: Yard, browser: Browser) -> None:  # noqa: F811
    assert "No batch job has been started" in browser.get("/batches").text
    yard.rows(100)
    begun = yard.start(yard.job(yard.step()))
    yard.bench.drain()
    model = browser.get(f"/api/batches/{begun.batch_id}").json()
    [step] = model["steps"]
    assert model["batch"]["status"] == "COMPLETED"
    assert step["completed"] == step["total"] == len(step["cells"]) > 0
    assert step["read"] == 100
    page = browser.get(f"/batches/{begun.batch_id}").text
    assert page.count('<rect class="ok"') == step["total"]
    assert str(begun.batch_id) in text_of(browser.get("/batches?status=COMPLETED").text)
    assert browser.get("/api/batches?status=FAILED").json()["batches"] == []


@pytest.mark.test_all
def test_steps_are_drawn_if_the_job_is_known(yard: Yard, browser: Browser) -> None:  # noqa: F811
    job = yard.job(
        yard.step(name="load"),
        *(yard.step(name=name, after=["load"]) for name in ("sort", "count")),
        yard.step(name="report", after=["sort", "count"]),
    )
    unknown, known = (yard.start(job, {"n": n}).batch_id for n in range(2))
    page = browser.get(f"/batches/{unknown}").text
    assert "<marker" not in page
    shows(page, "<td>report</td>", 'class="badge wait">WAITING')
    JOBS["job"] = job
    page = browser.get(f"/batches/{known}").text
    assert page.count('<path class="edge"') == sum(map(len, job.after.values()))
    shows(page, "<title>report: WAITING</title>", '<td class="cut s">sort, count</td>')
    steps = browser.get(f"/api/batches/{known}").json()["steps"]
    assert {line["step"]["step"]: tuple(line["after"]) for line in steps} == job.after


@pytest.mark.test_all
def test_a_failed_one_is_shown_and_goes_on(yard: Yard, browser: Browser) -> None:  # noqa: F811
    batch_id = failed_job(yard)
    page = browser.get(f"/batches/{batch_id}").text
    assert "<b>row</b>" not in page
    shows(page, "ValueError", "Go on")
    answer = browser.act(f"/batches/{batch_id}/restart")
    assert answer.status_code == 303, answer.text
    assert browser.get(f"/api/batches/{batch_id}").json()["batch"]["run"] == 2
    browser.act(f"/batches/{batch_id}/stop")
    yard.bench.drain()
    status = browser.get(f"/api/batches/{batch_id}").json()["batch"]["status"]
    assert status in ("STOPPED", "FAILED")
    browser.act(f"/batches/{batch_id}/abandon")
    assert browser.get(f"/api/batches/{batch_id}").json()["batch"]["status"] == "ABANDONED"
    assert "was abandoned" in browser.act(f"/batches/{batch_id}/restart").text
    assert one(yard.engine, "SELECT DISTINCT who FROM task_audit") == "local (dashboard)"


@pytest.mark.test_all
def test_only_admins_act(yard: Yard, settings: Settings) -> None:  # noqa: F811
    batch_id = failed_job(yard)
    operator = browser_of(settings, "operator")
    assert 'method="post"' not in operator.get(f"/batches/{batch_id}").text
    for action in ("stop", "restart", "abandon"):
        assert operator.act(f"/batches/{batch_id}/{action}").status_code == 403


@pytest.mark.test_all
def test_many_partitions_share_cells(yard: Yard, browser: Browser) -> None:  # noqa: F811
    yard.rows(10)
    begun = yard.start(yard.job(yard.step()))
    many = """
        INSERT INTO task_partition (program_id, partition_no, batch_id, step, key_type, num_range,
            status)
        SELECT 'many', n, :batch_id, s.step, 'integer', numrange(n, n + 1),
            CASE WHEN n = 2500 THEN 'FAILED' ELSE 'COMPLETED' END
        FROM generate_series(0, 4999) n, (SELECT step FROM task_batch_step LIMIT 1) s"""
    write(yard.engine, many, batch_id=begun.batch_id)
    [step] = browser.get(f"/api/batches/{begun.batch_id}").json()["steps"]
    assert len(step["cells"]) == batches_page.MOST_CELLS
    assert sum(cell["number"] for cell in step["cells"]) == step["total"]
    assert [cell["failed"] for cell in step["cells"] if cell["failed"]] == [1]


@pytest.mark.test_all
def test_a_division_that_makes_no_sense(yard: Yard, browser: Browser) -> None:  # noqa: F811
    batch_id = failed_job(yard)
    answer = browser.act(f"/batches/{batch_id}/restart", {"divide": "1"})
    assert answer.status_code == 400
    assert "divide" in answer.text


@pytest.mark.test_all
def test_a_partition_whose_task_has_failed_is_red_before_the_join(
    yard: Yard,  # noqa: F811
    engine: Engine,
    browser: Browser,
) -> None:
    yard.rows(100)
    begun = yard.start(yard.job(yard.step()))
    yard.bench.drain()
    failed = failed_task(engine)
    mine = "partition_no = 2 AND batch_id = :batch"
    runs = f"UPDATE task_partition SET status = 'RUNNING', task_id = :id WHERE {mine}"
    write(engine, runs, id=failed, batch=begun.batch_id)
    [step] = browser.get(f"/api/batches/{begun.batch_id}").json()["steps"]
    assert (step["failed"], step["running"]) == (1, 0)
    assert [cell["failed"] for cell in step["cells"]][:3] == [0, 1, 0]
