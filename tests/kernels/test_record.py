"""The violation record, filled by a small kernel that refuses what it is told to refuse."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import triton.language as tl

from kernels.record import (
    COUNT,
    POSITION,
    READ_PAST_ROW,
    DeviceFault,
    DeviceViolation,
    ViolationRecord,
    report,
    report_scalar,
)

pytestmark = pytest.mark.gpu


@triton.jit(do_not_specialize=["limit", "launch"])
def refuse_from(values, rows, limit, words, flag, launch, LANES: tl.constexpr):  # noqa: N803 - Triton's style
    """Refuse each value that is not below `limit`; program p is group p."""
    group = tl.program_id(0)
    lane = tl.arange(0, LANES)
    value = tl.load(values + group * LANES + lane)
    row = tl.load(rows + group * LANES + lane)
    report(words, flag, READ_PAST_ROW, group, row, value, limit, launch, value >= limit)


@triton.jit(do_not_specialize=["launch"])
def refuse_many(words, flag, launch):
    """Refuse as many lanes as the program's number says."""
    program = tl.program_id(0)
    report_scalar(words, flag, COUNT, program, 0, 0, 0, launch, program)


@triton.jit(do_not_specialize=["launch"])
def refuse_whole_programs(words, flag, launch):
    """Refuse odd programs."""
    program = tl.program_id(0)
    report_scalar(words, flag, COUNT, program, 7, program + 40, 40, launch, program % 2 == 1)


def run(device, record, values, limit, launch):
    values_ = torch.tensor(values, dtype=torch.int64, device=device)
    rows = torch.arange(values_.numel(), dtype=torch.int64, device=device) + 100
    refuse_from[(values_.shape[0],)](
        values_, rows, limit, record.words, record.flag, launch, LANES=values_.shape[1]
    )


def synchronise(device):
    if device.type != "cpu":
        torch.cuda.synchronize(device)


def test_a_new_record_is_empty(device):
    record = ViolationRecord.on(device)
    assert not record.pending()
    assert record.read() == ()


def test_a_launch_that_refuses_nothing_leaves_words_and_flag_alone(device):
    record = ViolationRecord.on(device)
    record.words.fill_(-77)
    run(device, record, [[1, 2, 3, 4]], 5, 1)
    synchronise(device)
    assert not record.pending()
    assert (record.words == -77).all()


def test_the_lowest_refused_lane_is_described_and_all_are_counted(device):
    record = ViolationRecord.on(device)
    run(device, record, [[1, 2**40, 3, 2**41]], 5, 12)
    synchronise(device)
    assert record.pending()
    assert record.read() == (
        DeviceViolation(DeviceFault.READ_PAST_ROW, 0, 101, 2**40, 5, launch=12, total=2),
    )


def test_the_first_launch_is_described_until_the_record_is_reset(device):
    record = ViolationRecord.on(device)
    run(device, record, [[9, 1]], 5, 3)
    run(device, record, [[1, 8]], 5, 4)
    assert record.read() == (DeviceViolation(DeviceFault.READ_PAST_ROW, 0, 100, 9, 5, launch=3, total=2),)
    record.reset()
    assert not record.pending()
    assert record.read() == ()
    run(device, record, [[1, 8]], 5, 5)
    assert record.read() == (DeviceViolation(DeviceFault.READ_PAST_ROW, 0, 101, 8, 5, launch=5, total=1),)


def test_of_many_programs_one_is_described_whole_and_every_lane_is_counted(device):
    record = ViolationRecord.on(device)
    programs, lanes = (500, 128) if device.type != "cpu" else (20, 8)
    values = [[1000 * program + lane for lane in range(lanes)] for program in range(programs)]
    run(device, record, values, 1000 + 3, 1)
    (violation,) = record.read()
    assert violation.total == (programs - 2) * lanes + lanes - 3
    # Group, row and value are those of one program and its lowest lane.
    lane = 3 if violation.group == 1 else 0
    assert violation.wanted == 1000 * violation.group + lane
    assert violation.row == 100 + violation.group * lanes + lane


def test_a_refusal_of_a_whole_program_counts_once(device):
    record = ViolationRecord.on(device)
    refuse_whole_programs[(6,)](record.words, record.flag, 2**40)
    (violation,) = record.read()
    assert violation.fault is DeviceFault.COUNT
    assert (violation.total, violation.row, violation.limit, violation.launch) == (3, 7, 40, 2**40)
    assert violation.group % 2 == 1
    assert violation.wanted == violation.group + 40


def test_a_program_may_refuse_a_number_of_lanes_at_once(device):
    record = ViolationRecord.on(device)
    refuse_many[(1,)](record.words, record.flag, 1)
    assert record.read() == ()
    refuse_many[(5,)](record.words, record.flag, 1)
    (violation,) = record.read()
    assert violation.total == 0 + 1 + 2 + 3 + 4


def test_kinds_are_recorded_apart(device):
    record = ViolationRecord.on(device)
    run(device, record, [[9, 1]], 5, 1)
    refuse_whole_programs[(2,)](record.words, record.flag, 2)
    assert [(v.fault, v.launch) for v in record.read()] == [
        (DeviceFault.READ_PAST_ROW, 1),
        (DeviceFault.COUNT, 2),
    ]


def test_every_kind_has_its_own_words_in_the_order_of_its_number():
    assert [fault.value for fault in DeviceFault] == list(range(len(DeviceFault)))
    assert DeviceFault.POSITION.value == POSITION.value


def test_a_captured_graph_records_with_the_number_it_was_captured_with(device):
    if device.type == "cpu":
        pytest.skip("graphs are captured on a GPU alone")
    record = ViolationRecord.on(device)
    values = torch.tensor([[1, 1]], dtype=torch.int64, device=device)
    rows = torch.tensor([3, 4], dtype=torch.int64, device=device)
    arguments = (values, rows, 5, record.words, record.flag)
    refuse_from[(1,)](*arguments, 0, LANES=2)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        refuse_from[(1,)](*arguments, 41, LANES=2)
    graph.replay()
    synchronise(device)
    assert not record.pending()
    values.fill_(6)
    graph.replay()
    graph.replay()
    synchronise(device)
    assert record.pending()
    assert record.read() == (DeviceViolation(DeviceFault.READ_PAST_ROW, 0, 3, 6, 5, launch=41, total=4),)
