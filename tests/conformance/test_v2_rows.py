"""What V2's rows must hold, and how their comparison tells a difference; vLLM itself is not needed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import recording
import worker_rows
from comparison import Mismatch, Tally
from expected_rows import ExpectedRows
from setups import Setup

from invariants import (
    CircularBufferSpec,
    Deployment,
    FullAttentionSpec,
    MambaAlignSpec,
    Runner,
    SlidingWindowSpec,
    UniformTypeSpec,
)
from proofs.mutated import MUTANTS

NAME = "request"


def expected(spec, release="vllm-0.33", **deployment):
    return ExpectedRows(Deployment(max_model_len=64, **deployment), (spec,), release, Runner.V2)


# --- what must hold --------------------------------------------------------------------------------


def test_a_row_holds_what_it_was_told_wherever_the_list_is_not_nulled():
    rows = expected(FullAttentionSpec(block_size=16))
    assert rows.row(0, [None, 8], [7, 8], 2, [7, 8]) is None
    assert rows.row(0, [7, 9], [7, 8], 2, [7, 8]) == ("entry 1 is 8", "the list has block 9")
    assert rows.row(0, [7, 8], [7, 8], 2, [7, 0])[0] == "row is [7, 0]"
    assert rows.row(0, [7, 8, 9], [7, 8], 2, [7, 8])[0] == "counts 2 entries"


def test_a_row_of_split_blocks_holds_their_kernel_blocks_side_by_side():
    rows = expected(FullAttentionSpec(block_size=16, blocks_per_kv_block=2), release="vllm-0.28")
    assert rows.row(0, [3, 5], [3, 5], 4, [6, 7, 10, 11]) is None
    assert rows.row(0, [3, 5], [3, 5], 2, [6, 7]) == ("counts 2 entries", "the scheduler lists 2 blocks of 2")


def test_only_entries_that_no_query_reads_may_be_null_in_a_gathered_row():
    rows = expected(SlidingWindowSpec(block_size=16, sliding_window=20))
    step = rows.step(40, 1)  # position 40 reads 21 and up: block 1 has some of them, block 0 has none
    assert rows.gathered(0, [7, 8, 9], [0, 8, 9], step) is None
    assert rows.gathered(0, [7, 8, 9], [0, 0, 9], step) == ("gathered entry 1 is 0", "the row has 8")
    assert rows.gathered(0, [7, 8, 9], [1, 8, 9], step) is not None
    full = expected(FullAttentionSpec(block_size=16))
    assert full.gathered(0, [7, 8, 9], [0, 8, 9], step) == ("gathered entry 0 is 0", "the row has 7")


def test_a_slot_is_the_blocks_and_the_offset_and_padding_on_other_ranks():
    rows = expected(FullAttentionSpec(block_size=4), decode_context_parallel_size=2)
    # Of positions 8 to 11 rank 0 has the even ones, in the second virtual block: block 9, offsets 0 and 1.
    assert rows.slots(0, [[7, 9]], [range(8, 12)], 0, [36, -1, 37, -1]) is None
    assert rows.slots(0, [[7, 9]], [range(8, 12)], 1, [-1, 36, -1, 37]) is None
    assert (
        rows.slots(0, [[7, 9]], [range(8, 12)], 0, [36, -1, 38, -1])[0]
        == "slot of position 10 on rank 0 is 38"
    )


@pytest.mark.parametrize(
    "edit",
    [
        "specs.AttentionSpec.column: one column back",
        "specs.AttentionSpec.place_on_rank: not sharded",
        "specs.AttentionSpec.owner: the next rank",
    ],
)
def test_a_broken_formula_of_v2s_columns_is_noticed(edit):
    rows = expected(FullAttentionSpec(block_size=4), decode_context_parallel_size=2)
    with next(mutant for mutant in MUTANTS if mutant.name == edit).applied():
        assert rows.slots(0, [[7, 9]], [range(8, 12)], 0, [36, -1, 37, -1]) is not None


def test_only_a_ring_may_be_left_out_of_the_slot_mapping():
    ring = expected(CircularBufferSpec(block_size=4))
    assert ring.unmapped(0, [-1, -1]) is None
    assert ring.unmapped(0, [-1, 5]) is not None
    assert expected(FullAttentionSpec(block_size=4)).unmapped(0, [-1, -1]) is not None


def test_slots_of_kernel_blocks_shorter_than_a_run_are_those_of_the_release():
    spec = FullAttentionSpec(block_size=4, blocks_per_kv_block=2)
    sizes = {"decode_context_parallel_size": 2, "cp_kv_cache_interleave_size": 4}
    # Runs of 4 in turn, against positions modulo 4, all of which are less than a run.
    for name, slots in (
        ("vllm-0.31", [10, 11, 14, 15, *[-1] * 4]),
        ("vllm-0.28", [10, 11, 12, 13, 14, 15, 16, 17]),
    ):
        assert expected(spec, name, **sizes).slots(0, [[5, 7]], [range(8)], 0, slots) is None


# --- V2's rows on a stand-in -----------------------------------------------------------------------


class Tables:
    """Appends into plain tensors as V2 does; an edit makes it err."""

    def __init__(self, widths, edit=None):
        self.block_tables = [
            SimpleNamespace(gpu=torch.zeros((4, width), dtype=torch.int32)) for width in widths
        ]
        counts = torch.zeros((len(widths), 4), dtype=torch.int32)
        self.num_blocks = SimpleNamespace(np=counts.numpy(), gpu=counts)
        self.edit = edit

    def append_block_ids(self, row, lists, overwrite):
        for group, blocks in enumerate(lists):
            start = 0 if overwrite else int(self.num_blocks.np[group, row])
            written = [block + 1 for block in blocks] if self.edit == "other blocks" else blocks
            self.block_tables[group].gpu[row, start : start + len(blocks)] = torch.tensor(written)
            self.num_blocks.np[group, row] = start + len(blocks) + (self.edit == "counts one more")


class Worker:
    """One request in row 2, whose lists are taken over step by step; slots are as its blocks have them."""

    edit, width = None, 4

    def __init__(self, setup):
        self.tables, self.arguments = Tables([self.width] * len(setup.specs), self.edit), {}

    def take(self, out):
        for data in out.scheduled_new_reqs:
            self.tables.append_block_ids(2, data.block_ids, True)
        for lists in out.scheduled_cached_reqs.new_block_ids:
            self.tables.append_block_ids(2, lists, False)

    def row_of(self, name):
        return 2

    def name_of(self, row):
        return NAME

    def attend(self, rows, spans, rank):
        gathered = [table.gpu[rows].tolist() for table in self.tables.block_tables]
        if self.edit == "gathers another row":
            gathered = [table.gpu[[3]].tolist() for table in self.tables.block_tables]
        row = self.tables.block_tables[0].gpu[2].tolist()
        slots = [row[p // 16] * 16 + p % 16 + (self.edit == "slots one further") for p in spans[0]]
        return gathered, [slots] * len(self.tables.block_tables)


@pytest.fixture
def play(monkeypatch):
    """Return a function that hands one request's list over in two steps, and returns what was recorded."""

    def start(edit=None, listed=(5, 6), spec=None, release="vllm-0.33", width=8, recorder=None, **deployment):
        spec = spec or FullAttentionSpec(block_size=16)
        monkeypatch.setattr(
            worker_rows.v2_runner, "Worker", type("Made", (Worker,), {"edit": edit, "width": width})
        )
        monkeypatch.setattr(worker_rows.engine, "version", lambda: "0.0.0")
        now = []
        monkeypatch.setattr(worker_rows.engine, "lists_of", lambda *_: [[(block, False) for block in now]])
        setup = Setup("kind", release, Deployment(max_model_len=128, **deployment), (spec,), 64)
        tally = Tally()
        rows = worker_rows.V2Rows(setup, tally, recorder)
        empty = SimpleNamespace(req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set())
        new = SimpleNamespace(req_id=NAME, block_ids=([listed[0]],), num_computed_tokens=0)
        more = SimpleNamespace(
            req_ids=[NAME],
            new_block_ids=[(list(listed[1:]),)],
            num_computed_tokens=[16],
            resumed_req_ids=set(),
        )
        scheduler = SimpleNamespace(kv_cache_manager=None)
        for told, new_ones, cached, tokens in (((listed[0],), [new], empty, 16), (listed, [], more, 16)):
            now[:] = told
            out = SimpleNamespace(
                scheduled_new_reqs=new_ones, scheduled_cached_reqs=cached, finished_req_ids=set(),
                num_scheduled_tokens={NAME: tokens},
            )  # fmt: skip
            rows.take(out, scheduler)
        return tally.record("kind")

    return start


def test_rows_and_slots_that_agree_are_counted(play):
    record = play()
    assert (record.v2_rows, record.v2_slots, record.narrow) == (2, 32, 0)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        ("other blocks", r"row is \[6\], where it was told \[5\]"),
        ("counts one more", "counts 2 entries, where the scheduler lists 1 blocks of 1"),
        ("gathers another row", "gathered entry 0 is 0, where the row has 5"),
        ("slots one further", "slot of position 0 on rank 0 is 81, where invariants.column leads to 80"),
    ],
)
def test_tables_that_err_are_told_with_their_name_and_the_sizes(play, edit, said):
    with pytest.raises(Mismatch, match=rf"V2's BlockTables of group 0: {said}: max_model_len 128"):
        play(edit)


def test_tables_of_another_width_than_the_formula_says_are_told(play):
    with pytest.raises(Mismatch, match=r"BlockTables makes rows of 9 entries .* invariants.row_width says 8"):
        play(width=9)


def test_a_list_that_does_not_fit_differs_unless_the_release_has_too_narrow_a_row(play):
    nine = range(1, 10)
    with pytest.raises(Mismatch, match=r"cannot take 9 entries at 32 tokens for V2's row of 8"):
        play(listed=nine)
    # vLLM 0.28 divides rows of recurrent state by dcp: max_model_len 128 and blocks of 16 give 4.
    record = play(
        listed=range(1, 6), spec=MambaAlignSpec(block_size=16), release="vllm-0.28", width=4,
        decode_context_parallel_size=2,
    )  # fmt: skip
    assert record.narrow == 1
    assert record.narrow_first.startswith("5 entries at 32 tokens for V2's row of 4; max_model_len 128")
    assert record.v2_rows == 1  # the step before


def test_a_recording_has_each_append_and_what_the_scheduler_lists(play, tmp_path, monkeypatch):
    recorder = recording.Recorder()
    play(recorder=recorder)
    recording.write(tmp_path / "runs.gz", recorder.kept(1))
    (run,) = recording.read(tmp_path / "runs.gz")
    assert run["steps"] == [
        {"appends": [[2, [[5]], True, True]], "rows": [[2, [[5]], 0, 16]]},
        {"appends": [[2, [[6]], False, True]], "rows": [[2, [[5, 6]], 16, 16]]},
    ]
    assert recording.deployment_of(run) == Deployment(max_model_len=128)
    assert [recording.spec_of(spec) for spec in run["specs"]] == [FullAttentionSpec(block_size=16)]


def test_a_list_that_a_row_does_not_take_is_recorded_as_refused(play):
    recorder = recording.Recorder()
    play(
        listed=range(1, 6), spec=MambaAlignSpec(block_size=16), release="vllm-0.28", width=4,
        decode_context_parallel_size=2, recorder=recorder,
    )  # fmt: skip
    assert recorder.runs[0]["steps"][1] == {"appends": [[2, [[2, 3, 4, 5]], False, False]], "rows": []}


def test_a_wrapped_spec_comes_back_from_its_recording():
    spec = UniformTypeSpec(inner=MambaAlignSpec(block_size=16, num_speculative_blocks=2))
    recorder = recording.Recorder()
    recorder.begins(Setup("kind", "vllm-0.33", Deployment(max_model_len=8), (spec,), 9), {})
    assert recording.spec_of(recorder.runs[0]["specs"][0]) == spec
