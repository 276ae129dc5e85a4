"""Counters, their way to Prometheus, and a log that repeats itself at most once a minute."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numpy")

from guard import BlockTableViolation, Violation
from guard._refusals import row_capacity
from guard.settings import Mode
from guard.vllm._watch import Watch


class Clock:
    """A clock that stands still until it is set."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_line_about_one_thing_is_logged_once_a_minute_with_the_number_left_out(caplog):
    clock = Clock()
    watch = Watch(Mode.COUNT, clock=clock)
    for clock.now in (0, 1, 2, 59, 61):
        watch.refuse(row_capacity(0, 1, 4, 1, 4))
    watch.refuse(row_capacity(0, 2, 4, 1, 4))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "(3 more like it since the last line)" in lines[1]
    assert "group 2" in lines[2]
    assert watch.metrics.refusals == {Violation.ROW_CAPACITY: 6}


def test_a_refusal_is_counted_before_it_is_raised(caplog):
    caplog.set_level(logging.INFO)
    watch = Watch(Mode.RAISE)
    with pytest.raises(BlockTableViolation):
        watch.refuse(row_capacity(0, 0, 4, 1, 4))
    assert watch.metrics.refusals == {Violation.ROW_CAPACITY: 1}
    assert caplog.text == ""


def test_a_worker_in_a_process_of_its_own_is_seen_on_the_engines_metrics_page(tmp_path):
    pytest.importorskip("prometheus_client")
    worker = (
        "from guard.settings import Mode\nfrom guard.vllm._watch import Watch\n"
        "from guard._refusals import row_capacity\nwatch = Watch(Mode.COUNT)\n"
        "watch.metrics.resize([8])\nwatch.metrics.steps, watch.metrics.appends = 5, 3\n"
        "watch.metrics.most_used = [6]\nwatch.refuse(row_capacity(0, 0, 8, 1, 8))\n"
        "watch.metrics.steps = 7\nwatch.publish(at_once=True)\nimport os; os._exit(0)\n"
    )
    page = (
        "from prometheus_client import CollectorRegistry, generate_latest\n"
        "from prometheus_client.multiprocess import MultiProcessCollector\n"
        "registry = CollectorRegistry()\nMultiProcessCollector(registry)\n"
        "print(generate_latest(registry).decode())\n"
    )
    environment = {
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "PATH": "",
    }
    for program in (worker, page):
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
    assert "rowbound_steps_total 7.0" in done.stdout
    assert "rowbound_appends_total 3.0" in done.stdout
    assert 'rowbound_refusals_total{kind="row-capacity"} 1.0' in done.stdout
    assert 'rowbound_row_share_max{group="0"' in done.stdout
    assert "0.75" in done.stdout
