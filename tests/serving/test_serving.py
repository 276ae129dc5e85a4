"""A real engine with the plugin installed: what it serves, and what becomes of faults in it.

The engine has an environment of its own, with rowbound installed there: ROWBOUND_ENGINE_PYTHON names its
Python (`make serving` sets it). A start takes half a minute.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import uuid
from pathlib import Path

import pytest

ENGINE_PYTHON = os.environ.get("ROWBOUND_ENGINE_PYTHON")
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    ENGINE_PYTHON is None, reason="ROWBOUND_ENGINE_PYTHON names no engine's Python; see make serving"
)

TINY_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
    # Dummy weights are tiny; without a larger spread the last token alone would decide.
    "initializer_range": 0.5,
}


class Served:
    """What one run of serve.py printed."""

    def __init__(self, output):
        self.output = output
        results = [line for line in output.splitlines() if line.startswith("RESULT ")]
        self.result = json.loads(results[-1].removeprefix("RESULT ")) if results else None


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    model = tmp_path_factory.mktemp("model")
    (model / "config.json").write_text(json.dumps(TINY_LLAMA))
    metrics = tmp_path_factory.mktemp("metrics")
    known = {}

    def run(scenario, mode="raise", fault=None):
        environment = {}
        if mode is None:
            environment["PROMETHEUS_MULTIPROC_DIR"] = str(metrics)
        key = (scenario, mode, fault)
        if key not in known:
            known[key] = _run(
                ["serve.py", scenario, model], model, mode, _plugin(tmp_path_factory, fault), environment
            )
        return known[key]

    return run


def _plugin(tmp_path_factory, fault):
    """Lay out the plugin as an installed distribution, so that every process of the engine loads it."""
    if fault is None:
        return {}
    directory = tmp_path_factory.mktemp("fault")
    shutil.copy(HERE / "faulty_plugin.py", directory)
    metadata = directory / "faulty_plugin-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty-plugin\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nfaulty = faulty_plugin:install\n")
    return {"PYTHONPATH": str(directory), "FAULT": fault}


def _run(program, directory, mode, plugin, environment):
    settings = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        **({} if mode is None else {"ROWBOUND_MODE": mode}),
        **plugin,
        **environment,
    }
    # Files, not pipes: a worker that outlives a failed start would hold a pipe open.
    output = directory / f"{uuid.uuid4()}.log"
    with output.open("w") as written:
        process = subprocess.Popen(
            [ENGINE_PYTHON, HERE / program[0], *program[1:]],
            env=settings,
            cwd=directory,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(timeout=600)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return Served(output.read_text())


def test_the_engine_serves_the_same_with_the_guard_as_without(serve):
    guarded, unguarded = serve("batch", mode=None), serve("batch", mode="off")
    assert unguarded.result is not None, unguarded.output
    assert guarded.result is not None, guarded.output
    assert guarded.result["tokens"] == unguarded.result["tokens"]
    assert guarded.result["logprobs"] == unguarded.result["logprobs"]
    assert "rowbound" not in unguarded.output


def test_the_run_had_prefix_hits_and_preemptions(serve):
    result = serve("batch", mode="off").result
    assert result["cached"] > 0
    assert result["preempted"] > 0


def test_the_guard_works_in_the_worker_without_any_setting(serve):
    served = serve("batch", mode=None)
    (guarded,) = served.result["guarded"]
    assert guarded["mode"] == "raise"
    assert served.result["guarded_here"] == 0, "the worker is a process of its own"
    assert guarded["steps"] > 60
    assert guarded["appends"] > 8
    assert guarded["refusals"] == {}
    # 67 prompt tokens and 60 more take four blocks of 32: the whole row.
    assert (guarded["row_widths"], guarded["most_used"]) == ([4], [4])
    assert "rowbound: Model Runner V1 guarded, mode raise" in served.output
    assert "group 0 (full-attention): row of 4 entries, needs 4" in served.output


def test_the_engines_metrics_page_has_the_guards_numbers(serve):
    served = serve("batch", mode=None)
    (guarded,) = served.result["guarded"]
    assert f"rowbound_steps_total {guarded['steps']:.1f}" in served.result["page"]
    assert f"rowbound_appends_total {guarded['appends']:.1f}" in served.result["page"]
    assert [line for line in served.result["page"] if "row_share_max" in line and line.endswith(" 1.0")]


def test_a_row_that_is_too_narrow_stops_the_start_up_by_group_and_token_count(serve):
    served = serve("batch", fault="narrow-row")
    assert served.result is None
    assert "1 block-table row is too narrow for max_model_len 128" in served.output
    # Three blocks of 32 hold 96 tokens.
    assert "group 0 (full-attention): row of 3 entries, needs 4; overflows from 97 tokens on" in served.output
    assert "widen the row of group 0 to 4 entries, or lower max_model_len" in served.output


def _dies_elsewhere_or_answers_otherwise(served, sound):
    """Say whether a run that began to serve was harmed.

    What a read outside a row finds is undefined: the slot may lie outside the cache (a segmentation fault), a
    row may not take a list (an error of numpy's), or the answers change.
    """
    assert "BlockTableViolation" not in served.output
    if served.result is None:
        return "vllm.v1.engine.exceptions.EngineDeadError" in served.output
    return served.result["logprobs"] != sound.result["logprobs"]


def test_without_the_guard_a_narrow_row_corrupts_answers_or_dies_elsewhere(serve):
    served = serve("batch", mode="off", fault="narrow-row")
    assert _dies_elsewhere_or_answers_otherwise(served, serve("batch", mode="off")), served.output


def test_a_narrow_row_is_counted_where_the_mode_is_count(serve):
    served = serve("batch", mode="count", fault="narrow-row")
    assert "row of 3 entries, needs 4; overflows from 97 tokens on" in served.output
    assert "exceeds row capacity (4 > 3)" in served.output
    assert "The mode is count: the engine goes on." in served.output


def test_blocks_appended_twice_after_a_preemption_are_refused_by_request_and_row(serve):
    served = serve("batch", fault="double-append")
    assert served.result is None
    assert "guard.errors.BlockTableViolation: Block table write for request" in served.output
    assert "group 0 exceeds row capacity" in served.output


def test_without_the_guard_blocks_appended_twice_die_elsewhere_or_corrupt(serve):
    served = serve("batch", mode="off", fault="double-append")
    assert _dies_elsewhere_or_answers_otherwise(served, serve("batch", mode="off")), served.output


def test_a_session_whose_chunks_outgrow_max_model_len_ends_alone(serve):
    result = serve("long-chunks").result
    # 100 tokens, then 40 more.
    assert "BlockTableViolation: Request 'talk' has 140 tokens, but max_model_len is 128" in result["talk"]
    assert (result["after"], result["answered"]) == (None, {"talk": 1, "after": 1})


def test_a_session_that_its_answers_carry_beyond_max_model_len_is_refused_by_the_worker(serve):
    served = serve("long-answers")
    # 90 tokens, 19 of the 20 answered ones that stay, 30 more.
    assert "has 139 tokens" in served.output
    assert "but max_model_len is 128 and the worker's row of tokens holds 128" in served.output
    assert served.result["answered"] == {"talk": 20, "after": 0}


def test_without_the_guard_the_session_reaches_the_worker_and_ends_the_engine(serve):
    served = serve("long-chunks", mode="off")
    assert "could not broadcast input array from shape (140,) into shape (128,)" in served.output
    assert served.result["after"] is not None


@pytest.fixture(scope="module")
def v2_tables(tmp_path_factory):
    return _run(["v2_tables.py"], tmp_path_factory.mktemp("v2"), "raise", {}, {})


def test_v2s_real_tables_stage_and_count_the_same_and_refuse_for_all_groups(v2_tables):
    result = v2_tables.result
    assert result is not None, v2_tables.output
    assert result["same"]
    assert "group 1 exceeds row capacity (4097 > 4096)" in result["refused"]
    assert result["untouched"]
    assert result["restored"]


def test_v1s_real_tables_hold_the_same_and_refuse_for_all_groups_before_a_count_moves(tmp_path_factory):
    served = _run(["v1_tables.py"], tmp_path_factory.mktemp("v1"), "raise", {}, {})
    assert served.result is not None, served.output
    assert served.result["same"]
    assert "group 1 exceeds row capacity (10 > 8)" in served.result["appended"]
    assert "group 1 exceeds row capacity (9 > 8)" in served.result["added"]
    assert served.result["untouched"]
    # What the refusal prevents: the engine's own call has written group 0 when group 1 fails.
    assert served.result["own_half_written"]
    assert served.result["restored"]
