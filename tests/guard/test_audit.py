"""The audit finds the rows that are too narrow; the numbers are those of a public report."""

from __future__ import annotations

import pytest

from guard import Finding, GroupAudit, GuardUsageError, Side, UnsafeDeployment, audit
from invariants import (
    CrossAttentionSpec,
    Deployment,
    FullAttentionSpec,
    HiSparseHotSpec,
    IllegalDeployment,
    MambaAlignSpec,
    MLAAttentionSpec,
    Runner,
    UniformTypeSpec,
    release,
)

DEPLOYMENT = Deployment(max_model_len=512, decode_context_parallel_size=2)
SPECS = (FullAttentionSpec(block_size=16), MambaAlignSpec(block_size=16))
FINDING = Finding(
    group=1, kind="mamba-align", row_width=16, entries_needed=32, first_tokens=257, side=Side.WORKER
)


def test_vllm_026_rows_overflow_from_257_tokens_on():
    report = audit(DEPLOYMENT, SPECS, release=release("vllm-0.26"))
    assert not report.ok
    assert report.findings == (FINDING,)


def test_the_same_rows_given_as_numbers_are_found_too():
    assert audit(DEPLOYMENT, SPECS, row_widths=[16, 16]).findings == (FINDING,)


def test_the_v1_runner_of_the_same_release_is_safe():
    assert audit(DEPLOYMENT, SPECS, release=release("vllm-0.26"), runner=Runner.V1).ok


def test_todays_rows_are_safe_and_the_report_says_so():
    report = audit(DEPLOYMENT, SPECS)
    report.require_ok()
    assert str(report) == (
        "Every block-table row is wide enough.\n"
        "  group 0 (full-attention): row of 16 entries, needs 16\n"
        "  group 1 (mamba-align): row of 32 entries, needs 32"
    )


def test_an_unsafe_deployment_is_refused_with_every_finding_and_the_remedy():
    report = audit(DEPLOYMENT, SPECS, row_widths=[15, 16])
    with pytest.raises(UnsafeDeployment) as caught:
        report.require_ok()
    assert str(caught.value) == (
        "2 block-table rows are too narrow for max_model_len 512:\n"
        "  group 0 (full-attention): row of 15 entries, needs 16; overflows from 481 tokens on; "
        "the worker's row width is off\n"
        "  group 1 (mamba-align): row of 16 entries, needs 32; overflows from 257 tokens on; "
        "the worker's row width is off\n"
        "Remedy: widen the row of group 0 to 16 entries, group 1 to 32 entries, or lower max_model_len "
        "until every request fits."
    )


def test_a_row_of_no_entries_overflows_at_the_first_token():
    (finding,) = audit(DEPLOYMENT, SPECS[:1], row_widths=[0]).findings
    assert finding.first_tokens == 1


def test_a_scheduler_that_hands_over_more_than_today_is_named():
    (finding,) = audit(DEPLOYMENT, SPECS, scheduler_entries=[16, 33]).findings
    assert (finding.group, finding.entries_needed) == (1, 33)
    assert (finding.first_tokens, finding.side) == (None, Side.SCHEDULER)
    assert "the scheduler's entry count is off" in str(finding)


def test_both_sides_are_named_when_both_are_off():
    (finding,) = audit(DEPLOYMENT, SPECS, row_widths=[16, 16], scheduler_entries=[16, 33]).findings
    assert (finding.side, finding.first_tokens) == (Side.BOTH, 257)


def test_a_row_wider_than_needed_is_reported_as_waste_and_not_as_a_finding():
    report = audit(DEPLOYMENT, SPECS, row_widths=[20, 32])
    assert report.ok
    assert report.groups[0] == GroupAudit(group=0, kind="full-attention", row_width=20, entries_needed=16)
    assert report.groups[0].waste == 4
    assert "row of 20 entries, needs 16, 4 unused" in str(report)


def test_a_cross_attention_row_overflows_by_encoder_tokens():
    deployment = Deployment(max_model_len=512, max_num_encoder_input_tokens=1000)
    (finding,) = audit(deployment, [CrossAttentionSpec(block_size=16)], row_widths=[32]).findings
    assert (finding.first_tokens, finding.counts_encoder_tokens) == (513, True)
    assert "overflows from 513 encoder tokens on" in str(finding)


def test_an_illegal_deployment_is_refused_by_the_assumption_it_breaks():
    with pytest.raises(IllegalDeployment, match="max_model_len"):
        audit(Deployment(max_model_len=0), SPECS)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"row_widths": [16]}, "row_widths has 1 numbers for 2 groups"),
        ({"row_widths": [16, -1]}, "row_widths of group 1 must be a whole number of at least 0, not -1"),
        ({"row_widths": [True, 1]}, "row_widths of group 0 must be a whole number"),
        ({"scheduler_entries": []}, "scheduler_entries has 0 numbers for 2 groups"),
        ({"scheduler_entries": [1, 2.0]}, "scheduler_entries of group 1 must be a whole number"),
    ],
)
def test_numbers_that_do_not_match_the_groups_are_refused(numbers, message):
    with pytest.raises(GuardUsageError, match=message):
        audit(DEPLOYMENT, SPECS, **numbers)


@pytest.mark.parametrize("specs", [[], ()])
def test_an_audit_of_nothing_is_refused_and_not_passed(specs):
    with pytest.raises(GuardUsageError, match="specs is empty, so there is no row to audit"):
        audit(DEPLOYMENT, specs)


def test_a_huge_context_is_audited_in_no_time():
    deployment = Deployment(max_model_len=10**15)
    (finding,) = audit(deployment, SPECS[1:], row_widths=[10**6]).findings
    assert finding.first_tokens == 16 * 10**6 + 1


@pytest.mark.parametrize("named", ["V1", Runner.V1])
def test_a_runner_may_be_named_and_means_the_same(named):
    deployment = Deployment(max_model_len=400)
    specs = [UniformTypeSpec(inner=MambaAlignSpec(block_size=16, num_speculative_blocks=3))]
    report = audit(deployment, specs, runner=named, release="vllm-0.27")
    assert not report.ok
    assert report.findings[0].kind == "uniform-mamba-align"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"runner": "V3"}, "runner must be one of V1, V2, not 'V3'"),
        ({"runner": None}, "runner must be one of V1, V2, not None"),
        ({"specs": FullAttentionSpec(block_size=16)}, "specs must be a list with one spec per cache group"),
        ({"specs": None}, "specs must be a list with one spec per cache group, not None"),
        ({"specs": [16]}, "the spec of group 0 must be one of invariants' spec types, not 16"),
        ({"row_widths": {0: 1}}, "row_widths must be a list with one number per cache group"),
        ({"row_widths": 32}, "row_widths must be a list with one number per cache group, not 32"),
        ({"row_widths": [True]}, "row_widths of group 0 must be a whole number"),
        ({"row_widths": [32.0]}, "row_widths of group 0 must be a whole number"),
        ({"specs": [HiSparseHotSpec(blocks_per_request=3)], "runner": Runner.V1}, "V1 has no hisparse-hot"),
    ],
)
def test_what_an_audit_cannot_mean_is_one_line(change, message):
    call = {"specs": [FullAttentionSpec(block_size=16)], **change}
    with pytest.raises(GuardUsageError) as refused:
        audit(Deployment(max_model_len=512), **call)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrapper_around_any_attention_type_is_audited():
    specs = [UniformTypeSpec(inner=MLAAttentionSpec(block_size=16))]
    assert audit(Deployment(max_model_len=512), specs, row_widths=[32]).ok
    assert not audit(Deployment(max_model_len=512), specs, row_widths=[31]).ok


def test_a_group_that_the_release_does_not_have_is_refused():
    with pytest.raises(IllegalDeployment, match="has no hisparse-hot groups"):
        audit(Deployment(max_model_len=512), [HiSparseHotSpec(blocks_per_request=3)], release="vllm-0.26")


@pytest.mark.parametrize(("name", "needed"), [("vllm-0.31", 32), ("vllm-0.33", 8)])
def test_entries_are_kernel_blocks_up_to_031_and_manager_blocks_since(name, needed):
    """511 tokens are 8 blocks of 64, each split in 4."""
    deployment = Deployment(max_model_len=512)
    specs = [FullAttentionSpec(block_size=64, blocks_per_kv_block=4)]
    report = audit(deployment, specs, release=name)
    assert report.groups == (
        GroupAudit(group=0, kind="full-attention", row_width=needed, entries_needed=needed),
    )
    narrow = audit(deployment, specs, row_widths=[7], release="vllm-0.33").findings
    assert [(f.entries_needed, f.first_tokens, f.side) for f in narrow] == [(8, 449, Side.WORKER)]


def test_025_divides_lists_by_the_prefill_context_parallel_size_too():
    """511 tokens over two ranks: 16 blocks of 32 tokens, where a later release needs 32 of 16."""
    deployment = Deployment(max_model_len=512, prefill_context_parallel_size=2)
    for name, needed in (("vllm-0.25", 16), ("vllm-0.26", 32)):
        report = audit(deployment, [FullAttentionSpec(block_size=16)], runner=Runner.V1, release=name)
        assert [(group.row_width, group.entries_needed) for group in report.groups] == [(needed, needed)]
