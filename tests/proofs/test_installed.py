"""The rows of an installed engine are proved or refuted from its own code; here of engines made up."""

import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

INTERFACE = """
from dataclasses import dataclass


class torch:
    float32 = "float32"


def cdiv(a, b):
    return -(a // -b)


@dataclass(frozen=True, kw_only=True)
class KVCacheSpec:
    block_size: int

    def max_num_blocks_per_req(self, vllm_config, max_len):
        return cdiv(max_len, self.block_size)


@dataclass(frozen=True, kw_only=True)
class AttentionSpec(KVCacheSpec):
    num_kv_heads: int
    dcp_sharded: bool = True

    def max_num_blocks_per_req(self, vllm_config, max_len):
        ranks = vllm_config.parallel_config.decode_context_parallel_size if self.dcp_sharded else 1
        return cdiv(max_len, self.block_size * ranks)


@dataclass(frozen=True, kw_only=True)
class FullAttentionSpec(AttentionSpec):
    pass
"""
PADDING = """
import math


def get_block_table_width(blocks, block_size, token_alignment=128):
    alignment = token_alignment // math.gcd(token_alignment, block_size)
    return -(blocks // -alignment) * alignment


class BlockTable:
    def __init__(self, rows, columns):
        self._make_buffer(rows, columns)

    def _make_buffer(self, *size):
        raise NotImplementedError


class MultiGroupBlockTable:
    def __init__(self, max_num_reqs, max_num_batched_tokens, block_sizes, widths):
        for block_size, width in zip(block_sizes, widths):
            BlockTable(max_num_reqs, get_block_table_width(width, block_size))
"""
V1_BATCH = """
from vllm.v1.worker.block_table import MultiGroupBlockTable


class InputBatch:
    def __init__(self, max_num_reqs, max_model_len, max_num_batched_tokens, block_sizes, row_widths):
        self.table = MultiGroupBlockTable(
            max_num_reqs=max_num_reqs,
            max_num_batched_tokens=max_num_batched_tokens,
            block_sizes=block_sizes,
            widths=row_widths,
        )
"""
V1_RUNNER = """
from vllm.v1.worker.gpu_input_batch import InputBatch


class GPUModelRunner:
    def may_reinitialize_input_batch(self, kv_cache_config):
        length = max(self.max_model_len, self.max_encoder_len)
        specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
        self.input_batch = InputBatch(
            max_num_reqs=self.max_num_reqs,
            max_model_len=length,
            max_num_batched_tokens=1,
            block_sizes=[spec.block_size for spec in specs],
            row_widths=[spec.max_num_blocks_per_req(self.vllm_config, length) for spec in specs],
        )
"""
V2_TABLE = """
class StagedWriteTensor:
    def __init__(self, size, dtype):
        raise NotImplementedError


class BlockTables:
    def __init__(self, block_sizes, max_num_reqs, max_num_batched_tokens, widths):
        self.tables = [StagedWriteTensor((max_num_reqs, width), dtype="int32") for width in widths]
"""
V2_RUNNER = """
from vllm.v1.kv_cache_interface import cdiv
from vllm.v1.worker.block_table import get_block_table_width
from vllm.v1.worker.gpu.block_table import BlockTables


def init_attn_backend(config):
    raise NotImplementedError


def row_length(runner, scheduler_config, hf_config):
    if not runner.is_encoder_decoder:
        return runner.max_model_len
    encoder = max(scheduler_config.max_num_encoder_input_tokens, hf_config.max_source_positions)
    return max(runner.max_model_len, encoder)


class GPUModelRunner:
    def initialize_kv_cache(self, kv_cache_config):
        widths = []
        for group in kv_cache_config.kv_cache_groups:
            spec = group.kv_cache_spec
            length = row_length(self, self.scheduler_config, self.model_config.hf_config)
            {body}
            widths.append(get_block_table_width(width, spec.block_size))
        self.backends, support, sizes = init_attn_backend(kv_cache_config)
        self.block_tables = BlockTables(
            block_sizes=[spec.block_size],
            max_num_reqs=self.max_num_reqs,
            max_num_batched_tokens=self.max_num_tokens,
            widths=widths,
        )
"""
HERE = "vllm/v1"
FULL = ("--spec", "full-attention")
V2 = (*FULL, "--runner", "V2")
RIGHT = "width = spec.max_num_blocks_per_req(self.vllm_config, length)"


@pytest.fixture
def engine(tmp_path):
    """Write an engine and return what the command says about it."""

    def check(*arguments, body=RIGHT, version="0.32.0", changed=None):
        body = textwrap.indent(body, " " * 12).lstrip()
        sources = {
            "vllm/__init__": f"__version__ = {version!r}",
            "vllm/v1/__init__": "",
            "vllm/v1/worker/__init__": "",
            "vllm/v1/worker/gpu/__init__": "",
            "vllm/v1/kv_cache_interface": INTERFACE,
            "vllm/v1/worker/block_table": PADDING,
            "vllm/v1/worker/gpu_input_batch": V1_BATCH,
            "vllm/v1/worker/gpu_model_runner": V1_RUNNER,
            "vllm/v1/worker/gpu/block_table": V2_TABLE,
            "vllm/v1/worker/gpu/model_runner": V2_RUNNER.format(body=body),
        }
        for name, old, new in [changed] if changed else []:
            assert old in sources[name]
            sources[name] = sources[name].replace(old, new)
        for name, source in sources.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return run_with(tmp_path, *arguments)

    return check


def run_with(path, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "proofs.check", "--installed", "vllm", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": f"{path}:{os.getcwd()}"},  # noqa: PTH109  # as the call has it
    )


def the_line(done, *words):
    (line,) = [line for line in done.stdout.splitlines() if all(word in line for word in words)]
    return line


def refused(done):
    assert done.returncode == 2, done
    assert not done.stdout
    (line,) = done.stderr.splitlines()
    return line


def test_right_rows_are_proved_for_all_sizes_with_the_paths_that_were_followed(engine):
    done = engine(*FULL)
    assert done.returncode == 0, done
    # The encoder's length is longer or not (V2: no encoder, or which of three lengths is the longest by two
    # comparisons); the group is sharded over dcp or not.
    for claim in ("row-fits", "row-width"):
        assert "4 paths" in the_line(done, "PROVED", "full-attention", f"V1 {claim}")
        assert "10 paths" in the_line(done, "PROVED", "full-attention", f"V2 {claim}")
    assert "1 path " in the_line(done, "PROVED", "get_block_table_width")
    assert "2 paths" in the_line(done, "PROVED", "max_num_blocks_per_req", "length-covers-request")
    assert "vLLM 0.32.0" in done.stdout
    assert "GPUModelRunner.initialize_kv_cache (vllm/v1/worker/gpu/model_runner.py:19)" in done.stdout
    assert "6 claims of vLLM 0.32.0 as installed, 31 paths: 6 PROVED, 0 REFUTED" in done.stdout


def test_a_runner_that_divides_what_is_not_sharded_is_refuted_with_the_smallest_case(engine):
    body = "width = cdiv(length, spec.block_size * self.dcp_size)"
    done = engine(*V2, body=body)
    assert done.returncode == 1, done
    the_line(done, "PROVED", "max_num_blocks_per_req")
    the_line(done, "REFUTED", "V2 row-fits")
    # 128-token rows: 2 ranks share 256 tokens of 8 entries a row; 129 tokens need 9 entries of one rank
    assert "max_model_len 130, decode_context_parallel_size 2, block_size 16" in done.stdout
    assert "at 129 tokens the scheduler hands over 9 entries for a row of 8: 1 too many" in done.stdout


def test_a_row_that_is_wider_than_the_formula_is_told_from_one_that_is_right(engine):
    done = engine(*V2, body=f"{RIGHT} + 1_000")
    assert done.returncode == 1, done
    the_line(done, "PROVED", "V2 row-fits")
    the_line(done, "REFUTED", "V2 row-width")
    the_line(done, "the formula says 8, and the engine makes 1008")


def test_a_way_that_is_wrong_beyond_a_size_is_found(engine):
    done = engine(*V2, body=f"{RIGHT}\nif length > 1_000_000:\n    width -= 8")
    assert done.returncode == 1, done
    assert "max_model_len 1000001" in the_line(done, "smallest case", "num_tokens")
    the_line(done, "REFUTED", "V2 row-fits")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "width = int(length**0.5)",
            "vllm/v1/worker/gpu/model_runner.py:24: cannot follow the operation pow",
        ),
        ("width = self.new_option + 1", "model_runner.py:24: cannot follow a use of self.new_option"),
        ("width = len(range(length))", "model_runner.py:24: cannot follow what needs a plain number here"),
        (f"{RIGHT}\nassert length < 9, 'too long'", "model_runner.py:25: AssertionError: too long"),
        ("width = 'wide'", "block_table.py:7: TypeError: unsupported operand type(s) for //: 'str'"),
        (
            f"{RIGHT}\nfor p in 2, 3, 5, 7:\n    width += length % p == 0 and 1 or 0",
            "there are more than 64 paths",
        ),
        (
            f"try:\n    width = length**2\nexcept BaseException:\n    {RIGHT}",
            "model_runner.py:25: cannot follow the operation pow",
        ),
    ],
)
def test_what_cannot_be_followed_is_unknown_with_its_place_and_never_proved(engine, body, told):
    done = engine(*V2, body=body)
    assert done.returncode == 3, done
    assert told in the_line(done, "UNKNOWN", "V2 row-fits")
    the_line(done, "PROVED", "max_num_blocks_per_req")


@pytest.mark.parametrize(("symbolic", "plain"), [("0", RIGHT[8:]), (RIGHT[8:], "0")])
def test_code_that_does_otherwise_on_plain_numbers_is_an_error(engine, symbolic, plain):
    done = engine(*V2, body=f"width = {plain} if type(length) is int else {symbolic}")
    assert done.returncode == 5, done
    the_line(done, "ERROR", "V2 row-fits")


def test_a_spec_class_that_no_claim_is_about_is_named_and_told_in_the_exit_code(engine):
    added = "pass\n\n\nclass NovelSpec(KVCacheSpec):\n    pass\n"
    done = engine("--runner", "V1", changed=(f"{HERE}/kv_cache_interface", "pass\n", added))
    assert done.returncode == 3, done
    the_line(done, "SKIPPED  NovelSpec: a spec class of this engine that no claim is about")
    the_line(done, "PROVED", "full-attention", "row-fits")
    assert "0 REFUTED, 0 VACUOUS, 0 UNKNOWN, 0 ERROR" in done.stdout


def test_a_spec_type_that_the_engine_lacks_is_skipped_and_told_in_the_exit_code(engine):
    done = engine(*V2, "--spec", "mla")
    assert done.returncode == 3, done
    assert "the engine has no class MLAAttentionSpec" in the_line(done, "SKIPPED  mla", "row-fits")
    the_line(done, "PROVED", "full-attention", "row-fits")


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            ("worker/gpu/model_runner", "initialize_kv_cache", "prepare_kv_cache"),
            "vllm.v1.worker.gpu.model_runner has no GPUModelRunner.initialize_kv_cache; this layout is not",
        ),
        (
            ("kv_cache_interface", "vllm_config, max_len", "config, length"),
            "max_num_blocks_per_req takes (self, config, length), not (self, vllm_config, max_len, ...)",
        ),
        (
            ("worker/gpu_input_batch", "self.table =", "self.table ="[:-1]),
            "vllm.v1.worker.gpu_model_runner cannot be imported: SyntaxError: invalid syntax",
        ),
        (
            ("worker/gpu_input_batch", "= MultiGroup", "= tables.MultiGroup"),
            "InputBatch makes its table in no known way; this layout is not known",
        ),
        (
            ("kv_cache_interface", "num_kv_heads: int", "num_kv_heads: int\n    novel: int"),
            "FullAttentionSpec needs novel, which is not known; this layout is not known",
        ),
    ],
)
def test_an_unknown_layout_is_one_clear_line(engine, changed, told):
    name, old, new = changed
    done = engine(*FULL, changed=(f"{HERE}/{name}", old, new))
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert told in line


@pytest.mark.parametrize("version", ["0.25.1", "0.34.0", "dev", ""])
def test_a_version_whose_layout_is_not_known_is_refused(engine, version):
    assert "the layouts of 0.26 to 0.33 are known" in refused(engine(version=version))


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_an_engine_one_line_says_so(tmp_path):
    assert "vllm is not installed in this environment" in refused(run_with(tmp_path))


def test_other_options_are_refused(tmp_path):
    assert "--release does not go with --installed" in refused(run_with(tmp_path, "--release", "vllm-0.32"))
