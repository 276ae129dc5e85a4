"""The guard of a model runner: settings, audit at start-up, and the check of each step's requests."""

import logging

import pytest

np = pytest.importorskip("numpy")

import vllm_stand_in as engine

from guard import BlockTableViolation, GuardUsageError, UnsafeDeployment, Violation
from guard.vllm import snapshot
from guard.vllm._config import release_of
from guard.vllm._runner import attach, detach, detach_all
from invariants import Runner

FULL = engine.FullAttentionSpec()


@pytest.fixture(autouse=True)
def clean(monkeypatch, caplog):
    monkeypatch.delenv("ROWBOUND_MODE", raising=False)
    caplog.set_level(logging.INFO)
    yield
    detach_all()


def started(which, widths, specs, config=None, version="0.33.0"):
    config = engine.vllm_config() if config is None else config
    kind = engine.RunnerV2 if which is Runner.V2 else engine.RunnerV1
    runner = kind(config, widths)
    groups = engine.kv_cache_config(*specs)
    make = runner.initialize_kv_cache if which is Runner.V2 else runner.may_reinitialize_input_batch
    make(groups)
    attach(runner, groups, which, version)
    return runner


def take(runner, output):
    if isinstance(runner, engine.RunnerV1):
        return runner._update_states(output)
    runner.add_requests(output)
    return runner.update_requests(output)


both = pytest.mark.parametrize("which", list(Runner))


@both
def test_a_row_that_is_too_narrow_stops_the_start_up(which):
    # 512 tokens, blocks of 16, dcp 2: 16 entries hold full attention's 16, but not 32 of recurrent state.
    config = engine.vllm_config(max_model_len=512, dcp=2)
    kind = engine.RunnerV2 if which is Runner.V2 else engine.RunnerV1
    runner = kind(config, [16, 16], max_model_len=512)
    groups = engine.kv_cache_config(FULL, engine.MambaSpec())
    runner.initialize_kv_cache(groups) if which is Runner.V2 else runner.may_reinitialize_input_batch(groups)
    with pytest.raises(UnsafeDeployment) as refused:
        attach(runner, groups, which, "0.28.0")
    assert "group 1 (mamba-align): row of 16 entries, needs 32; overflows from 257 tokens" in str(
        refused.value
    )
    assert "widen the row of group 1 to 32 entries" in str(refused.value)


def test_counting_logs_the_audit_and_goes_on(caplog):
    started(Runner.V2, [7], [FULL], engine.vllm_config(mode="count"))
    assert "row of 7 entries, needs 8; overflows from 113 tokens on" in caplog.text


@both
def test_waste_is_logged(which, caplog):
    started(which, [32], [FULL])
    assert "group 0 (full-attention): row of 32 entries, needs 8, 24 unused" in caplog.text


@both
def test_a_spec_that_nobody_knows_is_named_and_the_others_are_audited(which, caplog):
    started(which, [8, 8], [engine.NewlyInventedSpec(), FULL])
    assert "not audited: group 0 (NewlyInventedSpec): invariants describes no cache spec" in caplog.text
    assert "group 1 (full-attention): row of 8 entries, needs 8" in caplog.text
    with pytest.raises(
        UnsafeDeployment, match="Mode strict starts no engine with rows that were not audited"
    ):
        started(which, [8, 8], [engine.NewlyInventedSpec(), FULL], engine.vllm_config(mode="strict"))


def test_v1_has_no_table_for_encoder_only_layers():
    started(Runner.V1, [8], [engine.EncoderOnlyAttentionSpec(), FULL])
    assert snapshot()[0]["rows"] == ["group 0 (full-attention): row of 8 entries, needs 8"]


def test_wrapped_layers_are_audited_as_their_first():
    started(Runner.V2, [8], [engine.UniformTypeKVCacheSpecs(engine.MambaSpec(drafts=0))])
    assert snapshot()[0]["rows"] == ["group 0 (uniform-mamba-align): row of 8 entries, needs 8"]


@both
def test_a_request_longer_than_max_model_len_is_refused_by_name_before_its_rows_are_touched(which):
    runner = started(which, [8], [FULL])
    tables = runner.block_tables if which is Runner.V2 else runner.input_batch.block_table
    take(runner, engine.step(new=[engine.new_request("talk", 100, [1] * 7)]))
    before = tables.state()
    # The session's next chunk: 100 tokens, then 40 more.
    chunk = engine.new_request("talk", 140, [1] * 8, computed=100)
    with pytest.raises(BlockTableViolation, match="Request 'talk' has 140 tokens, but max_model_len is 128"):
        take(runner, engine.step(new=[chunk]))
    assert tables.state() == before
    assert snapshot()[0]["refusals"] == {Violation.TOKEN_COUNT: 1}


@both
def test_the_engines_own_warm_up_may_send_a_longer_prompt_and_nobody_else_by_its_name(which):
    runner = started(which, [8], [FULL])
    longer = engine.step(new=[engine.new_request("_warmup_0_", 500, [1] * 8)])
    with pytest.raises(BlockTableViolation, match="has 500 tokens"):
        take(runner, longer)
    warm_up = {"__name__": "vllm.v1.worker.gpu.warmup", "take": take}
    exec("def warm_up(runner, step):\n    take(runner, step)\n", warm_up)
    warm_up["warm_up"](runner, longer)
    assert snapshot()[0]["refusals"] == {Violation.TOKEN_COUNT: 1}


@both
def test_a_known_request_may_not_compute_beyond_max_model_len(which):
    runner = started(which, [8], [FULL])
    take(runner, engine.step(new=[engine.new_request("talk", 120, [1] * 8)]))
    take(runner, engine.step(running=[("talk", 120, 8, None)]))
    with pytest.raises(BlockTableViolation, match="this step computes up to 129"):
        take(runner, engine.step(running=[("talk", 120, 9, None)]))


def test_v1_keeps_its_own_block_lists_too_when_it_refuses():
    runner = started(Runner.V1, [8], [FULL])
    take(runner, engine.step(new=[engine.new_request("one", 100, [1] * 7)]))
    with pytest.raises(BlockTableViolation, match=r"request one, group 0 exceeds row capacity \(9 > 8\)"):
        take(runner, engine.step(running=[("one", 100, 1, ([8, 9],))]))
    assert len(runner.requests["one"].block_ids[0]) == 7
    assert take(runner, engine.step(running=[("one", 100, 1, ([8],))])) == "deferred"
    assert runner.input_batch.block_table.block_tables[0].num_blocks_per_row[0] == 8


@both
def test_an_append_outside_the_steps_is_refused_with_the_request_that_owns_the_row(which):
    runner = started(which, [8], [FULL])
    take(runner, engine.step(new=[engine.new_request("one", 100, [1] * 7)]))
    if which is Runner.V2:
        append, where = runner.block_tables.append_block_ids, (0, ([8, 9],), False)
    else:
        append, where = runner.input_batch.block_table.append_row, (([8, 9],), 0)
    with pytest.raises(BlockTableViolation, match="The row belongs to request 'one'"):
        append(*where)


@both
def test_counters_and_high_water_marks_move(which):
    runner = started(which, [8], [FULL])
    take(
        runner,
        engine.step(new=[engine.new_request("one", 50, [1] * 4), engine.new_request("two", 20, [5, 6])]),
    )
    take(runner, engine.step(running=[("one", 50, 1, ([7, 8],)), ("two", 20, 1, None)]))
    (numbers,) = snapshot()
    assert (numbers["steps"], numbers["appends"], numbers["most_used"]) == (2, 3, [6])
    assert numbers["row_shares"] == [0.75]


@both
def test_off_leaves_the_runner_and_its_tables_alone(which):
    runner = started(which, [1], [FULL], engine.vllm_config(mode="off"))
    tables = runner.block_tables if which is Runner.V2 else runner.input_batch.block_table
    guarded = {"_update_states", "add_requests", "update_requests"} & set(vars(runner))
    assert not guarded
    assert not {"append_block_ids", "append_row"} & set(vars(tables))
    assert snapshot() == []


def test_configuration_goes_before_the_environment(monkeypatch):
    monkeypatch.setenv("ROWBOUND_MODE", "off")
    started(Runner.V2, [8], [FULL], engine.vllm_config(mode="strict"))
    assert snapshot()[0]["mode"] == "strict"


def test_a_setting_that_does_not_exist_is_named():
    with pytest.raises(GuardUsageError, match="has no setting 'modes'; there is one, \"mode\""):
        started(Runner.V2, [8], [FULL], engine.vllm_config(modes="raise"))
    config = engine.vllm_config()
    config.additional_config = {"rowbound": "raise"}
    with pytest.raises(GuardUsageError, match="must be a mapping"):
        started(Runner.V2, [8], [FULL], config)


@both
def test_a_runner_of_unknown_layout_goes_on_unguarded_with_one_warning(which, caplog):
    runner = (engine.RunnerV2 if which is Runner.V2 else engine.RunnerV1)(engine.vllm_config(), [8])
    attach(runner, engine.kv_cache_config(FULL), which, "0.99.0")
    assert caplog.text.count("vLLM 0.99.0 is not laid out as rowbound expects") == 1
    assert snapshot() == []
    runner.vllm_config = engine.vllm_config(mode="strict")
    with pytest.raises(GuardUsageError, match="Mode strict does not start an engine that is not guarded"):
        attach(runner, engine.kv_cache_config(FULL), which, "0.99.0")


@both
def test_tables_made_anew_are_guarded_anew_and_detaching_leaves_no_trace(which):
    runner = started(which, [8], [FULL])
    groups = engine.kv_cache_config(FULL)
    runner.initialize_kv_cache(groups) if which is Runner.V2 else runner.may_reinitialize_input_batch(groups)
    attach(runner, groups, which, "0.33.0")
    assert len(snapshot()) == 1
    detach(runner)
    tables = runner.block_tables if which is Runner.V2 else runner.input_batch.block_table
    assert not [name for name, value in vars(runner).items() if hasattr(value, "rowbound")]
    assert not [name for name, value in vars(tables).items() if hasattr(value, "rowbound")]


def test_a_release_is_found_by_its_version():
    assert release_of("0.32.0").name == "vllm-0.32"
    assert release_of("0.32.1+cpu").name == "vllm-0.32"
    assert release_of("0.99.0") is None
