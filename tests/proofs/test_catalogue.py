"""Public faults: the numbers of their threads, the faulty variants refuted and the repaired ones proved.

The numbers below were written down from the threads, or worked out by hand where a thread gives none, and
not copied from the catalogue, so that a wrong number in the catalogue fails here.
"""

import dataclasses
import json
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from proofs.catalogue_command import EXIT_CODES, SCHEMA, finding_lines
from proofs.faults import FAULTS, UNMODELLED, Kind
from proofs.faults.integers import signed
from proofs.reproduce import check_fault, legal_sizes, unproved

CHANGELOG = Path(__file__).parents[2] / "CHANGELOG.md"
COMMAND = [sys.executable, "-W", "error", "-m", "proofs.catalogue"]

# Each line is one example: what the faulty variant gives, the first failing value included.
NUMBERS = {
    "vllm#50287": [{"entries": 17, "row width": 16, "num_tokens": 257}],
    "vllm#50493": [{"entries": 65_536, "row width": 8_192}],
    "local-inference-lab/vllm#418": [{"num_tokens": 83 * 768, "needed": 1_310}],
    "vllm-ascend#9724": [{"entries": 66, "row width": 18}],
    "vllm-ascend#11466": [{"draft blocks": 2, "room left": 0}],
    "vllm-ascend#16562": [{"entries": 4, "row width": 1}],
    "vllm-0.27:wrapped-mamba": [{"entries": 10, "row width": 8}],
    "vllm#50825": [{"metadata width": 8_192, "row width": 16_384}],
    "vllm#58149": [{"asked": 8_192, "buffer": 7_680}],
    "vllm_tt_plugin:row-width": [{"position": 1_509 * 64, "row width": 1_509, "needed": 2_048}],
    "vllm-ascend#14024": [{"positions": 110, "slots": 104}],
    "sgl-project/sglang#19016": [
        {"columns": 202_754, "row width": 202_752},
        {"columns": 163_842, "row width": 163_840},
    ],
    "sgl-project/sglang#24236": [{"index": 32, "map length": 32, "request": 32}],
    "vllm#5563": [{"blocks": 513, "captured width": 512, "num_tokens": 8_186}],
    "NVIDIA/TensorRT-LLM#19514": [{"positions": 1_500, "room": 1_024}],
    "vllm-ascend#10769": [{"rows sliced": 20, "rows wanted": 21}],
    "cpp-port:state-row": [{"entries": 7, "row width": 4}, {"entries": 6, "row width": 4}],
    "vllm#53982": [{"column": 32}, {"column": 2_048}, {"column": 262_143}],
    "vllm#45462": [{"column": 1_414, "row width": 1_024}],
    "vllm#57941": [{"position": 131_072, "draft table": 131_072}, {"position": 149_999}],
    "flashinfer-ai/flashinfer#4737": [{"columns read": 6, "row width": 5}],
    "NVIDIA/TensorRT-LLM#3736": [{"last index": 180, "held": 180}],
    "vllm-0.32:drafter-clamp": [
        {"column": 64, "row width": 64, "num_speculative_tokens": 3},
        {"column": 320, "row width": 320, "num_speculative_tokens": 3},
    ],
    "vllm-0.33:draft-aliasing": [{"later slot": 112}, {"later slot": 117}],
    "vllm-0.29:append-group-by-group": [{"group 0 count": 9, "count before": 0, "second_new": 17}],
    "vllm#53812": [{"tokens": 262_145, "max model len": 262_144}],
    "vllm#42489": [{"tokens": 302, "row width": 256}],
    "vllm-0.33:session-rows": [
        {"entries": 9, "row width": 8, "num_tokens": 129},
        {"entries": 12, "row width": 11, "num_tokens": 129},
    ],
    "vllm#47671": [{"index": 7_767 + 1}],
    "flashinfer-ai/flashinfer#3136": [{"index": 262_144, "exact offset": 2**32}],
    "vllm-xpu-kernels#445": [{"index": 2_066}],
    "sgl-project/sglang#34025": [{"page": 14_339}],
    "sgl-project/sglang#20389": [{"index": 262_144}, {"index": 131_072}],
    "vllm:hisparse-row-cap": [{"blocks": 58_254 + 1}],
    "vllm-0.33:slot-width": [
        {"index": 134_217_728},
        {"index": 16_777_216},
        {"index": 524_288},
        {"index": 8_192},
        {"index": 2_048},
    ],
    "vllm-0.27:token-rows": [{"index": 2_048}],
    "gittensor-ai-lab/sparkinfer#135": [{"taken": 13}],
    "vllm#30772": [{"tokens": 8_192}],
    "vllm#49962": [{"planned": 2, "state blocks": 4, "attention blocks": 2}],
    "vllm#39324": [{"row width": 295}],
    "local-inference-lab/vllm#166": [{"consumer width": 1_875, "row width": 1_876}],
    "vllm#57477": [{"used offset": 1_024, "offset": 19_008}],
    "vllm#54359": [{"row width": 410, "addressed": 52_480, "tokens": 262_144}],
    "vllm-ascend#7019": [
        {"used offset": 528, "offset": 16, "factor": 33},
        {"used offset": 128, "offset": 64},
    ],
    "vllm-ascend#15817": [{"staged": 131_072, "room": 16_384}],
    "vllm-0.33:sink-columns": [{"consumer width": 63, "row width": 64}],
    "vllm-ascend#14714": [{"table rows": 6, "query segments": 5}],
}
# The same for threads that give no numbers, or not all of them; worked out by hand.
BY_HAND = {
    "vllm-project/tpu-inference#2536": [
        {"states": 2, "row width": 1}
    ],  # one draft, one block of max_model_len
    "vllm#49980": [{"virtual batches": 2, "rows": 1, "num_tokens": 8_193}],  # one token past a chunk of 8,192
    "sgl-project/sglang#27338": [{"indices": 4_100, "buffer": 4_096}],  # 1,025 x 4 against 2 x 2,048
    "vllm#10730": [{"entries": 33, "row width": 32}],  # 30 + 3
    "vllm#57317": [{"column": 16_383, "row width": 16}],  # (131,072 - 1) // 8; one block of 8 padded to 128
    "gittensor-ai-lab/sparkinfer#41": [{"column": 2, "held": 2, "position": 32}],  # 32 // 16
    "vllm#16209": [{"last column": 1_023, "row width": 513}],  # two chunks of 512 blocks; 8,193 tokens
    "vllm#41898": [{"index": 3, "held": 3}],  # 2 + 2 - 1
    "microsoft/onnxruntime#32391": [{"block": 64, "pool blocks": 64}],
    "vllm#56059": [{"block": 3_535}],  # the first of the thread's block IDs
    "vllm-0.33:count-before-write": [{"count": 17, "row width": 16}],  # one more for a full row of 16
    "gittensor-ai-lab/sparkinfer#33": [{"count": 4_097, "row width": 4_096}],
    "vllm#23316": [{"worker row": 257, "scheduler list": 256}],
    "RBLN-SW/vllm-rbln#676": [{"emitted": 2, "owned": 0}],
    "vllm#10013": [{"blocks left": 94}],
    "vllm#39589": [{"entry": 7, "column": 2}],
    "InternLM/lmdeploy#4569": [{"entry": 5}],
    "vllm:move-row": [{"entry": 11}],
    "vllm#42273": [{"worker entry": 21, "scheduler entry": 0}],
    "vllm-ascend#9818": [{"slot read": 80, "padding": -1}],
    "vllm-ascend#10032": [{"length used": 132, "length": 129}],  # 128 + 1 + 3 drafts, none accepted
    "vllm#50427": [{"blocks": 65_537}],  # 2**31 / (16 x 2 x 8 x 128) = 65,536 blocks fit
    "vllm#1486": [{"computed offset": -65_536, "exact offset": 2**32 - 65_536}],
    "vllm#50531": [{"reserved": 1, "allocated": 2}],
    "vllm-ascend#15984": [{"predicted": 38_750, "pulled": 1_211}],  # 155,000 / 4, and / 128 rounded up
    "NVIDIA/TensorRT-LLM#13274": [{"states taken": 1, "free states": 0}],
    "vllm#29094": [{"column": 1, "entries": 1, "position": 16}],
    "NVIDIA/TensorRT-LLM#13151": [{"states": 12, "slots": 8}],
    "NVIDIA/TensorRT-LLM#16957": [{"chosen": 6, "past alignment": 2}],
    "vllm-ascend#10112": [{"used offset": 64, "offset": 65}],
}
# What the threads say that the repair gives.
REPAIRED = {
    "vllm#50287": {"row width": 32},
    "vllm#50493": {"row width": 65_536},
    "local-inference-lab/vllm#418": {"row width": 1_310},
    "vllm-ascend#9724": {"row width": 72},
    "vllm-ascend#16562": {"row width": 4},
    "vllm_tt_plugin:row-width": {"row width": 2_048},
    "vllm-ascend#14024": {"slots": 128},
    "cpp-port:state-row": {"row width": 7},
    "vllm#5563": {"blocks": 512},
    "gittensor-ai-lab/sparkinfer#135": {"taken": 6},
    "vllm#30772": {"tokens": 1_500},
    "vllm#49962": {"planned": 4},
    "vllm#39324": {"row width": 296},
    "flashinfer-ai/flashinfer#4737": {"columns read": 5},
}
# Every public thread of the survey that the catalogue answers to, class by class, in the survey's order.
_SURVEYED = """
vllm#50287 vllm#50493 local-inference-lab/vllm#418 vllm-ascend#9724 vllm-ascend#11466 vllm-ascend#11659
vllm-ascend#16562 vllm#50825 vllm#50823 vllm#48404 vllm#58149 vllm#57034 vllm#29094 vllm#49962
vllm-project/tpu-inference#2536 vllm_tt_plugin:row-width vllm-ascend#14024 vllm#49980 vllm#50022
sgl-project/sglang#19016 sgl-project/sglang#19641 sgl-project/sglang#18980 sgl-project/sglang#18780
sgl-project/sglang#27338 sgl-project/sglang#27460 sgl-project/sglang#26532 sgl-project/sglang#27485
sgl-project/sglang#24236 sgl-project/sglang#23570 Ascend/sglang#428 vllm#10730 vllm#5563 vllm#8145 vllm#8340
vllm#8068 vllm#8432 vllm#9963 NVIDIA/TensorRT-LLM#19514 NVIDIA/TensorRT-LLM#19516 vllm#30772
vllm-ascend#10769 gittensor-ai-lab/sparkinfer#33 gittensor-ai-lab/sparkinfer#34
gittensor-ai-lab/sparkinfer#110 gittensor-ai-lab/sparkinfer#111 gittensor-ai-lab/sparkinfer#413
gittensor-ai-lab/sparkinfer#135 gittensor-ai-lab/sparkinfer#387 gittensor-ai-lab/sparkinfer#196
cpp-port:state-row vllm#56059 vllm#57477 vllm#53982 vllm#54296 vllm#57317 vllm#57227 vllm#56469 vllm#53896
vllm#53781 write-up:ring-clamp gittensor-ai-lab/sparkinfer#41 gittensor-ai-lab/sparkinfer#42
gittensor-ai-lab/sparkinfer#152 vllm#45462 vllm#16209 vllm#16157 vllm#16274 sgl-project/sglang#5173
sgl-project/sglang#5170 vllm#41898 vllm#41884 vllm#51723 vllm#42084 vllm#50021 vllm#48475 vllm#37052
vllm#57941 vllm#57964 vllm#21986 vllm#24662 sgl-project/sglang#9388 flashinfer-ai/flashinfer#4737
NVIDIA/TensorRT-LLM#3736 microsoft/onnxruntime#32391 vllm-ascend#14320 vllm#50852 vllm#48043 vllm#23316
vllm#26661 vllm#28558 vllm#53812 vllm#53962 RBLN-SW/vllm-rbln#676 LMCache/LMCache#2327 vllm#10013
tenstorrent/vllm#55 NVIDIA/TensorRT-LLM#13320 vllm#39589 vllm#39591 vllm#42494 vllm#42273 vllm#42276
vllm:move-row vllm-ascend#9818 vllm-ascend#11774 vllm-ascend#3482 vllm-ascend#1416 InternLM/lmdeploy#4569
vllm#55951 NVIDIA/TensorRT-LLM#13151 NVIDIA/TensorRT-LLM#13278 gittensor-ai-lab/sparkinfer#185
gittensor-ai-lab/sparkinfer#146 vllm-ascend#14055 sgl-project/sglang#23037 vllm-ascend#10032 vllm#47671
vllm#50427 vllm#50483 flashinfer-ai/flashinfer#3136 flashinfer-ai/flashinfer#3130 vllm-xpu-kernels#445
sgl-project/sglang#34025 sgl-project/sglang#34027 sgl-project/sglang#20389 vllm#1486
lightseekorg/tokenspeed#501 lightseekorg/tokenspeed#530 ModelTC/LightLLM#998 syv-ai/qwen38-27b-rtx3090#86
vllm:hisparse-row-cap vllm#50531 vllm#51438 NVIDIA/TensorRT-LLM#13619 vllm-ascend#15984 vllm#43382
ggml-org/llama.cpp#13194 ggml-org/llama.cpp#13833 ggml-org/llama.cpp#14097 unslothai/unsloth#7530
NVIDIA/TensorRT-LLM#13274 vllm#39324 local-inference-lab/vllm#166 vllm#54359 vllm#56380 vllm#57536
vllm#53906 vllm#51031 vllm-ascend#7019 vllm#47698 vllm#38831 vllm#27753 ovg-project/kvcached#330
vllm-ascend#15817 vllm-ascend#16120 tenstorrent/tt-metal#52270 tenstorrent/tt-xla#5897
flashinfer-ai/flashinfer#3916 vllm-ascend#10112 vllm-ascend#14714 NVIDIA/TensorRT-LLM#16957 vllm#42489
vllm#42502 vllm#40072 vllm-0.27:wrapped-mamba vllm-0.32:drafter-clamp vllm-0.33:draft-aliasing
vllm-0.33:sink-columns vllm-0.33:session-rows vllm-0.32:kernel-tables vllm-0.33:dummy-lengths
vllm-0.33:slot-width vllm-0.27:token-rows vllm-0.29:append-group-by-group vllm-0.33:count-before-write
"""
SURVEYED = _SURVEYED.split()

BY_THREAD = {fault.thread: fault for fault in FAULTS}
of_each_fault = pytest.mark.parametrize("thread", BY_THREAD)


@pytest.fixture(scope="module")
def findings():
    return {fault.thread: check_fault(fault) for fault in FAULTS}


def given_by(example):
    """Return the quantities that an example gave, the first failing value that the solver found included."""
    found = {} if example.report.first is None else {example.report.first: example.first}
    return example.faulty.quantities() | found


@of_each_fault
def test_a_fault_is_reproduced_refuted_and_its_repair_proved_in_less_than_a_second(findings, thread):
    finding = findings[thread]
    assert (finding.unreproduced, finding.unrepaired) == ((), ())
    assert finding.holds
    assert finding.seconds < 3  # a second, and what other work on the machine may add


@of_each_fault
def test_the_numbers_are_those_of_the_thread_or_of_hand_arithmetic(findings, thread):
    examples = findings[thread].examples
    expected = (NUMBERS | BY_HAND)[thread]
    assert len(expected) == len(examples)
    for numbers, example in zip(expected, examples, strict=True):
        assert numbers.items() <= given_by(example).items()
        assert example.report.by_hand == (thread in BY_HAND)


@pytest.mark.parametrize("thread", REPAIRED)
def test_the_repair_gives_what_the_thread_says_it_does(findings, thread):
    for example in findings[thread].examples:
        assert REPAIRED[thread].items() <= example.repaired.quantities().items()


@of_each_fault
def test_the_solver_finds_legal_sizes_so_no_repair_is_proved_of_nothing(thread):
    fault = BY_THREAD[thread]
    sizes = legal_sizes(fault)
    assert fault.legal(fault.domain.build(sizes))


@of_each_fault
def test_the_faulty_variant_cannot_be_proved(thread):
    fault = BY_THREAD[thread]
    assert unproved(fault, fault.faulty).startswith("the variant fails at {")


@of_each_fault
def test_the_smallest_case_breaks_the_faulty_variant_and_not_the_repaired_one(findings, thread):
    fault = BY_THREAD[thread]
    sizes = fault.domain.build(findings[thread].smallest)
    assert fault.legal(sizes)
    assert not fault.faulty(sizes).holds()
    assert fault.repaired(sizes).holds()


@of_each_fault
def test_repairs_hold_in_plain_python_on_random_sizes(thread):
    fault, draw, tried = BY_THREAD[thread], random.Random(thread), 0
    for _ in range(3_000):
        values = {
            p.name: draw.random() < 0.5
            if p.is_switch
            else draw.choice([p.usual, draw.randint(p.minimum, p.minimum + draw.choice([1, 4, 40]))])
            if p.usual is not None
            else draw.randint(p.minimum, p.minimum + draw.choice([1, 4, 40]))
            for p in fault.domain.parameters
        }
        if any(p.problem(values[p.name]) for p in fault.domain.parameters):
            continue
        sizes = fault.domain.build(values)
        if not fault.legal(sizes):
            continue
        tried += 1
        assert fault.repaired(sizes).holds(), values
        if tried == 60:
            return
    assert tried >= 3, "no sizes were legal"


@pytest.mark.parametrize("thread", [f.thread for f in FAULTS if any(r.first for r in f.reports)])
def test_nothing_below_the_first_failing_value_fails_in_plain_python(thread):
    fault = BY_THREAD[thread]
    for report in fault.reports:
        if report.first is None:
            continue
        name, first = report.first, report.sizes[report.first]
        low = next(p.minimum for p in fault.domain.parameters if p.name == name)
        smaller = {low, *range(low, first, max(1, first // 997)), first - 1, first - 2}
        for value in (value for value in smaller if low <= value < first):
            sizes = fault.domain.build(fault.values(report) | {name: value})
            assert not fault.legal(sizes) or fault.faulty(sizes).holds(), value


def test_a_checkpoint_leaves_a_row_divided_by_16_ranks_at_the_83rd_of_them():
    columns = -(-(-(-1_000_000 // 768) + 7) // 16)
    assert columns == 82
    first = next(tokens for tokens in range(768, 1_000_000, 768) if tokens // 768 > columns)
    assert first == 63_744


def test_the_mask_of_two_draft_places_per_request_fits_three_drafts_and_hid_the_fault(findings):
    assert findings["vllm-ascend#14024"].smallest["num_speculative_tokens"] == 4


def test_the_smallest_case_of_the_reference_fault_is_the_checkers_own(findings):
    smallest = findings["vllm#50287"].smallest
    names = ("max_model_len", "decode_context_parallel_size", "block_size", "num_tokens")
    assert [smallest[name] for name in names] == [18, 2, 16, 17]


@pytest.mark.parametrize(
    ("value", "bits", "held"),
    [
        (0, 32, 0),
        (2**31 - 1, 32, 2**31 - 1),
        (2**31, 32, -(2**31)),
        (2**32 - 1, 32, -1),
        (2**32, 32, 0),
        (-1, 32, -1),
        (200, 8, -56),
    ],
)
def test_a_signed_integer_holds_the_low_bits(value, bits, held):
    assert signed(value, bits) == held


def replaced(fault, **changes):
    """Return a fault whose first example is changed."""
    first, *rest = fault.reports
    return dataclasses.replace(fault, reports=(dataclasses.replace(first, **changes), *rest))


REFERENCE = BY_THREAD["vllm#50287"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"faulty": {"entries": 18}}, "the faulty variant gives entries 17, not 18"),
        ({"faulty": {"rows": 1}}, "the faulty variant gives rows None, not 1"),
        ({"sizes": {"max_model_len": 512, "num_tokens": 257}}, "the faulty variant holds"),
        ({"sizes": {**REFERENCE.reports[0].sizes, "num_tokens": 512}}, "sizes are not legal"),
        (
            {"sizes": {**REFERENCE.reports[0].sizes, "num_tokens": 258}},
            "num_tokens fails from 257 on, not from 258",
        ),
        ({"sizes": {**REFERENCE.reports[0].sizes, "tokens": 1}}, "there is no size tokens"),
        ({"sizes": {**REFERENCE.reports[0].sizes, "block_size": 0}}, "block_size must be at least 1, not 0"),
    ],
)
def test_a_wrong_number_in_the_catalogue_is_told(changes, problem):
    finding = check_fault(replaced(REFERENCE, **changes))
    assert not finding.holds
    assert any(problem in line for line in finding.unreproduced)
    assert "NOT reproduced" in finding_lines(finding)[0]


def test_a_wrong_number_of_the_repair_is_told():
    finding = check_fault(replaced(REFERENCE, repaired={"row width": 31}))
    assert finding.unrepaired == ("the repaired variant gives row width 32, not 31",)
    assert "repair NOT proved" in finding_lines(finding)[0]


def test_a_repair_that_repairs_nothing_is_not_proved():
    finding = check_fault(dataclasses.replace(REFERENCE, repaired=REFERENCE.faulty))
    assert finding.unreproduced == ()
    assert any(line.startswith("the variant fails at {") for line in finding.unrepaired)


def test_a_fault_that_is_none_is_not_reproduced():
    finding = check_fault(dataclasses.replace(REFERENCE, faulty=REFERENCE.repaired))
    assert "the solver finds no sizes that break the faulty variant" in finding.unreproduced


def test_a_repair_about_no_sizes_at_all_is_not_proved():
    impossible = dataclasses.replace(REFERENCE, assumes=lambda case: case.request.num_tokens < 1)
    assert unproved(impossible, impossible.repaired) == "no sizes are legal, so nothing would be said"
    assert not legal_sizes(impossible)


def test_every_surveyed_thread_is_modelled_or_left_out_with_a_reason():
    modelled = [thread for fault in FAULTS for thread in (fault.thread, *fault.also)]
    left_out = [thread for item in UNMODELLED for thread in item.threads]
    assert set(SURVEYED) <= {*modelled, *left_out}
    assert [thread for thread, count in Counter([*modelled, *left_out]).items() if count > 1] == []
    assert all(item.reason for item in UNMODELLED)


def test_the_catalogue_is_spread_over_all_classes():
    counts = Counter(fault.kind for fault in FAULTS)
    assert min(counts[kind] for kind in Kind) >= 5
    assert sum(thread in NUMBERS for thread in BY_THREAD) >= 40


# The command.


def run(*arguments, **options):
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120, **options
    )


def with_faults(code):
    """Run the command in a child after changing what it knows by a line of Python."""
    text = (
        "import dataclasses, sys\n"
        "import proofs.catalogue_command as command\n"
        f"{code}\n"
        "sys.exit(command.main(sys.argv[1:]))"
    )
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=120
    )


def test_a_run_prints_a_line_per_fault_and_a_tally_and_writes_all_of_it(tmp_path):
    file = tmp_path / "catalogue.json"
    done = run("--json", str(file))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    reference = next(line for line in lines if line.startswith("vllm#50287 "))
    assert re.split(r"  +", reference) == [
        "vllm#50287",
        "capacity",
        "reproduced entries 17 > row width 16, first at num_tokens 257; repaired: proved",
    ]
    assert sum("; repaired: proved" in line for line in lines) == len(FAULTS)
    assert sum(line.startswith("not modelled: ") for line in lines) == len(UNMODELLED)
    assert f"{len(FAULTS)} reproduced and repaired, 0 not" in lines[-1]
    document = json.loads(file.read_text())
    assert (document["schema"], document["complete"], document["exit_code"]) == (SCHEMA, True, 0)
    assert [entry["thread"] for entry in document["faults"]] == list(BY_THREAD)
    assert all(entry["reproduced"] and entry["repaired"] for entry in document["faults"])
    assert document["faults"][0]["examples"][0]["first_failing"] == {"num_tokens": 257}
    assert list(tmp_path.iterdir()) == [file]


def test_one_fault_is_told_in_full_and_under_any_of_its_threads():
    done = run("--only", "vllm#8145")
    assert done.returncode == 0
    first, *rest = done.stdout.splitlines()
    assert first.startswith("vllm#5563 ")
    text = "\n".join(rest)
    assert "seen: could not broadcast input array from shape (513,) into shape (512,)" in text
    assert "at capture_len 8,192, num_lookahead_tokens 7, num_tokens 8,186" in text
    assert "repaired  blocks 512, captured width 512" in text
    assert "not modelled: " not in text.splitlines()[0]
    assert rest[-1].startswith("1 fault (1 capacity): 1 reproduced and repaired, 0 not; ")


def test_list_names_every_fault_and_what_is_left_out_and_checks_nothing():
    done = run("--list")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) == len(FAULTS) + len(UNMODELLED)
    assert all(any(line.startswith(f"{thread} ") for line in lines) for thread in BY_THREAD)
    assert "proved" not in lines[0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--only", "vllm#5028"], "no thread is named 'vllm#5028'; did you mean vllm#50287?"),
        (["--only", "vllm#51723"], "nothing to reproduce: not modelled: vllm#51723, vllm#42084: disputed"),
        (["--json", "-"], "--json takes a file; /dev/stdout is one"),
        (["--json", "/nowhere/at/all.json"], "cannot write /nowhere/at/all.json: No such file or directory"),
        (["--json", "/"], "cannot write /: "),
        (["fault"], "unrecognized arguments: fault"),
    ],
)
def test_a_call_that_cannot_be_meant_is_refused_in_one_line(arguments, said):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert said in line


def test_help_names_every_exit_code():
    done = run("--help")
    assert done.returncode == 0
    assert all(f"{code:3}  {meaning}" in done.stdout for code, meaning in EXIT_CODES.items())


def test_a_fault_that_is_not_reproduced_ends_the_run_with_1():
    done = with_faults(
        "bad = command.FAULTS[0]\n"
        "bad = dataclasses.replace(bad, faulty=bad.repaired)\n"
        "command.FAULTS = (bad, command.FAULTS[1])"
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert "NOT reproduced; repaired: proved" in done.stdout
    assert "2 faults (2 capacity): 1 reproduced and repaired, 1 not" in done.stdout


def test_a_mistake_in_a_model_is_an_internal_error():
    done = with_faults(
        "bad = dataclasses.replace(command.FAULTS[0], faulty=lambda case: 1 // 0)\ncommand.FAULTS = (bad,)"
    )
    assert done.returncode == 5
    assert done.stderr.splitlines()[-1] == "python -m proofs.catalogue: internal error; nothing is claimed"


def test_a_reader_that_leaves_ends_the_run_quietly():
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(60) == 128 + signal.SIGPIPE
        assert not child.stderr.read()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_claims_nothing_of_the_rest(tmp_path, number, code):
    file = tmp_path / "catalogue.json"
    with subprocess.Popen(
        [*COMMAND, "--json", str(file)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        child.stdout.readline()
        child.send_signal(number)
        output, said = child.communicate(timeout=60)
    assert child.returncode == code
    assert re.fullmatch(
        rf"python -m proofs.catalogue: interrupted with \d+ of {len(FAULTS)} checked; "
        r"nothing is claimed of the rest\n",
        said,
    )
    assert "reproduced and repaired" not in output
    document = json.loads(file.read_text())
    assert (document["complete"], document["exit_code"]) == (False, None)


def test_the_command_loads_neither_torch_nor_numpy():
    done = with_faults(
        "command.FAULTS = command.FAULTS[:1]\nimport atexit; "
        "atexit.register(lambda: print(sorted({'torch', 'numpy', 'guard'} & set(sys.modules))))"
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_models_need_no_solver():
    text = "import sys, proofs.faults; print('z3' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_the_changelog_counts_the_faults():
    (line,) = (line for line in CHANGELOG.read_text().splitlines() if "proofs.catalogue" in line)
    assert f"the numbers of {len(FAULTS)} public faults" in line
