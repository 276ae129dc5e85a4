"""What the device recorded beside what a reference refused."""

from __future__ import annotations

from collections import Counter


def assert_recorded(record, refusals, launch):
    """Every kind counted exactly, and described by one of its own refusals and the launch's number."""
    found = record.read()
    assert record.pending() == bool(refusals)
    assert {violation.fault: violation.total for violation in found} == Counter(r.fault for r in refusals)
    for v in found:
        assert (v.fault, v.group, v.row, v.wanted, v.limit) in refusals
        assert v.launch == launch
