"""The rows of an installed engine are proved or refuted from its own code; here of engines made up."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import jsonschema
import pytest
from junitparser import Error, Failure, JUnitXml, Skipped
from referencing import Registry, Resource
from test_json_schema import broken_at, shipped

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
    return engine_in(tmp_path)


def engine_in(folder):
    """Return a function that writes an engine into a folder and returns what the command says about it."""

    def check(*arguments, body=RIGHT, version="0.32.0", changed=None, more=(), without=()):
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
        for name, old, new in [*([changed] if changed else []), *more]:
            assert old in sources[name]
            sources[name] = sources[name].replace(old, new)
        for name in without:
            del sources[name]
        for name, source in sources.items():
            path = folder / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source)
        return run_with(folder, *arguments)

    return check


def run_with(path, *arguments, flags=()):
    return subprocess.run(
        [sys.executable, *flags, "-m", "proofs.check", "--installed", "vllm", *arguments],
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


@pytest.mark.parametrize("version", ["0.25.1", "dev", ""])
def test_an_older_version_or_none_is_refused_with_what_to_do(engine, version):
    told = refused(engine(version=version))
    assert f"vLLM {version or 'without a version'} is installed; only 0.26 or newer" in told
    assert "--release checks the formulas" in told


@pytest.mark.skipif(importlib.util.find_spec("vllm") is not None, reason="vLLM is installed here")
def test_without_an_engine_one_line_says_so(tmp_path):
    assert "vllm is not installed in this environment" in refused(run_with(tmp_path))


@pytest.mark.parametrize("option", [("--release", "vllm-0.32"), ("--html", "page.html"), ("--jobs", "2")])
def test_other_options_are_refused(tmp_path, option):
    assert f"{option[0]} does not go with --installed" in refused(run_with(tmp_path, *option))


def test_without_the_engines_asserts_nothing_is_run(tmp_path):
    report = tmp_path / "report.json"
    told = refused(run_with(tmp_path, "--json", str(report), flags=("-O",)))
    assert "python -O leaves out the engine's own checks" in told
    assert "python -O" in json.loads(report.read_text())["note"]


def test_a_spec_type_that_the_release_lacks_is_named_beside_those_that_are_asked(engine):
    done = engine("--spec", "mamba-all", *V2)
    assert "not asked: mamba-all: vllm-0.32 has no such spec type" in done.stdout
    assert "nothing is selected" in refused(engine("--spec", "mamba-all"))


@pytest.mark.parametrize("kind", ["hisparse-hot", "hisparse-resident"])
def test_a_type_without_a_row_is_no_green_run(engine, kind):
    assert "nothing is selected" in refused(engine("--spec", kind, "--runner", "V1"))


def test_a_type_without_a_row_on_one_runner_is_named(engine):
    done = engine("--spec", "mla", "--spec", "hisparse-hot", "--runner", "V1")
    assert "not asked: hisparse-hot: it has no row on V1" in done.stdout


def test_a_proof_names_no_assumption_both_used_and_unused(written):
    _, document, _, _ = written("--spec", "full-attention")
    assert claims(document, verdict="PROVED")
    for claim in document["claims"]:
        assert not set(claim["assumptions"]["used"]) & set(claim["assumptions"]["unused"])


# --- an engine that goes wrong --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("added", "told"),
    [
        ("raise SystemExit(1)", "vllm cannot be imported: SystemExit: 1 "),
        (
            "import no_such_library",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_library'",
        ),
        (
            "raise OSError('libcudart.so.13: cannot open\\nfor real')",
            "OSError: libcudart.so.13: cannot open for",
        ),
        ("import os; os._exit(0)", "vllm ended the process before its end; nothing is claimed"),
        ("import os; os.abort()", "vllm ended the process by signal 6; nothing is claimed"),
    ],
)
def test_an_engine_that_cannot_be_imported_is_one_clear_line(engine, added, told):
    done = engine(*V2, changed=("vllm/__init__", "__version__", f"{added}\n__version__"))
    assert told in refused(done)


def test_a_folder_of_that_name_is_no_engine(tmp_path):
    (tmp_path / "vllm").mkdir()
    assert "vllm is no package but the folder" in refused(run_with(tmp_path))


def test_an_engine_that_ends_the_process_is_not_believed(engine):
    done = engine(*V2, body=f"import os\n{RIGHT}\nos._exit(0)")
    assert done.returncode == 2, done
    assert "vllm ended the process before its end; nothing is claimed" in done.stderr
    done = engine(*V2, body=f"{RIGHT}\nraise SystemExit(0)")
    assert done.returncode == 3, done
    the_line(done, "UNKNOWN", "V2 row-fits", "model_runner.py:25: SystemExit: 0")


def test_what_the_engine_prints_is_no_part_of_the_output(engine):
    done = engine(*V2, body=f"print('PROVED all')\n{RIGHT}")
    assert done.returncode == 0, done
    assert "PROVED all" not in done.stdout
    assert "PROVED all" in done.stderr


# --- an engine that is newer than what is described -----------------------------------------------

PADS = PADDING[: PADDING.index("class BlockTable")]
NEWER = {
    "version": "0.34.0",
    # as vLLM 0.34 did: Model Runner V1 is gone, and padding is the interface's
    "without": [f"{HERE}/worker/{name}" for name in ("block_table", "gpu_input_batch", "gpu_model_runner")],
    "more": [
        (f"{HERE}/kv_cache_interface", "from dataclasses", f"{PADS}from dataclasses"),
        (f"{HERE}/worker/gpu/model_runner", "worker.block_table import", "kv_cache_interface import"),
    ],
}


@pytest.mark.parametrize("version", ["0.34.0", "0.33.1.dev7+g1234567", "0.33.0rc1", "1.0.0"])
def test_nothing_of_a_release_that_is_not_described_is_proved(engine, version):
    done = engine(*FULL, version=version)
    assert done.returncode == 3, done
    assert "PROVED " not in done.stdout.replace("0 PROVED", "")
    assert f"vLLM {version} is not described here" in done.stdout
    for claim in ("V1 row-fits", "V2 row-fits", "V1 row-width", "V2 row-width", "get_block_table_width"):
        the_line(done, "UNKNOWN", claim, f"holds with the scheduler of vllm-0.33; that of vLLM {version} is")


@pytest.mark.parametrize("version", ["0.33.0", "0.33.2", "0.33.0.post1", "0.33.0+cpu"])
def test_a_repaired_or_local_build_of_a_release_counts_as_that_release(engine, version):
    done = engine(*V2, version=version)
    assert done.returncode == 0, done
    the_line(done, "PROVED", "V2 row-fits")


def test_a_newer_engine_without_the_older_runner_is_run_on_the_one_that_it_has(engine):
    done = engine(*FULL, **NEWER)
    assert done.returncode == 3, done
    assert "not asked: V1: this vLLM has no Model Runner V1" in done.stdout
    the_line(done, "UNKNOWN", "V2 row-fits", "10 paths")
    assert " V1 row-" not in done.stdout
    assert "padding  get_block_table_width (vllm/v1/kv_cache_interface.py:6)" in done.stdout
    assert "has no Model Runner V1" in refused(engine(*FULL, "--runner", "V1", **NEWER))


def test_a_newer_engine_whose_rows_are_too_narrow_is_refuted(engine):
    done = engine(*V2, body="width = cdiv(length, spec.block_size * self.dcp_size)", **NEWER)
    assert done.returncode == 1, done
    assert "at 129 tokens the scheduler hands over 9 entries for a row of 8: 1 too many" in done.stdout


def test_further_code_of_a_newer_engine_that_asks_for_widths_is_named(engine):
    more = (f"{HERE}/worker/__init__", "", "def other(spec):\n    return spec.max_num_blocks_per_req(1, 2)\n")
    done = engine(*V2, **{**NEWER, "more": [*NEWER["more"], more]})
    assert "not asked: vllm/v1/worker/__init__.py:2 asks a spec for its width too" in done.stdout


def test_a_known_release_without_the_older_runner_is_an_unknown_layout(engine):
    told = refused(engine(*FULL, **{**NEWER, "version": "0.33.0"}))
    assert "vllm.v1.worker.gpu_model_runner cannot be imported" in told


# --- files ----------------------------------------------------------------------------------------

REGISTRY = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema))
    for schema in (shipped("check-1.json"), shipped("installed-1.json"))
)
LAYOUT = jsonschema.Draft202012Validator(shipped("installed-1.json"), registry=REGISTRY)
SARIF = jsonschema.Draft4Validator(json.loads((Path(__file__).parent / "sarif-2.1.0-rtm.5.json").read_text()))
NOVEL = (f"{HERE}/kv_cache_interface", "pass\n", "pass\n\n\nclass NovelSpec(KVCacheSpec):\n    pass\n")
WRONG = "width = cdiv(length, spec.block_size * self.dcp_size)"
LOST = (
    f"{HERE}/worker/gpu_model_runner",
    "(self.max_model_len, self.max_encoder_len)",
    "(self.novel_length + 1)",
)


@pytest.fixture
def written(tmp_path):
    return files_in(tmp_path)


def files_in(folder):
    """Return a function that runs the checker with every file that it writes, and returns those as read."""

    def run(*arguments, **changes):
        names = {f"--{kind}": folder / f"report.{kind}" for kind in ("json", "junit", "sarif")}
        files = [text for option, path in names.items() for text in (option, str(path))]
        done = engine_in(folder)(*arguments, *files, **changes)
        document, sarif = (json.loads(names[f"--{kind}"].read_text()) for kind in ("json", "sarif"))
        LAYOUT.validate(document)
        SARIF.validate(sarif)
        (suite,) = JUnitXml.fromfile(str(names["--junit"]))
        return done, document, suite, sarif["runs"][0]

    return run


@pytest.fixture(scope="module")
def bad_run(tmp_path_factory):
    return files_in(tmp_path_factory.mktemp("bad"))(body=WRONG, changed=LOST, more=[NOVEL])


def claims(document, **wanted):
    return [c for c in document["claims"] if all(c[key] == value for key, value in wanted.items())]


def test_the_json_file_has_an_entry_for_every_line_that_is_printed(bad_run):
    done, document, _, _ = bad_run
    lines = [
        line.split()[:4] for line in done.stdout.splitlines() if re.match(r"[A-Z]{6,8} +\S+ +(-|V\d) ", line)
    ]
    entries = [[c["verdict"], c["spec"], c["runner"] or "-", c["invariant"]] for c in document["claims"]]
    assert entries == lines
    assert document["skipped_classes"] == ["NovelSpec"]
    assert document["exit_code"] == done.returncode == 1
    skipped = len(claims(document, verdict="SKIPPED"))
    assert document["tally"]["SKIPPED"] == skipped + 1
    assert document["engine"]["version"] == "0.32.0"
    assert document["engine"]["described"]


def test_a_refuted_claim_has_its_functions_its_paths_and_the_replay_on_plain_numbers(bad_run):
    _, document, _, _ = bad_run
    (entry,) = claims(document, spec="full-attention", runner="V2", invariant="row-fits")
    assert entry["verdict"] == "REFUTED"
    assert entry["counterexample"]["values"]["num_tokens"] == 129
    # 129 tokens in blocks of 16 on one rank; two ranks' rows of 130 tokens are 5 blocks, 8 when padded
    assert entry["replay"] == [
        {"side": "scheduler", "quantity": "entries", "value": 9},
        {"side": "engine", "quantity": "row width", "value": 8},
    ]
    assert entry["functions"][0] == {
        "name": "GPUModelRunner.initialize_kv_cache",
        "file": "vllm/v1/worker/gpu/model_runner.py",
        "line": 19,
    }
    # no encoder, or which of three lengths is the longest by two comparisons; sharded over dcp or not
    assert entry["paths"] == 10


def test_an_unknown_claim_has_the_place_in_the_engine(bad_run):
    _, document, suite, sarif = bad_run
    (entry,) = claims(document, spec="full-attention", runner="V1", invariant="row-fits")
    assert entry["verdict"] == "UNKNOWN"
    assert entry["place"] == {"file": "vllm/v1/worker/gpu_model_runner.py", "line": 7}
    (case,) = [case for case in suite if case.name == "full-attention V1 row-fits"]
    assert "gpu_model_runner.py:7: cannot follow" in case.result[0].message
    places = [result["locations"][0]["physicalLocation"] for result in sarif["results"]]
    assert ("vllm/v1/worker/gpu_model_runner.py", 7) in [
        (place["artifactLocation"]["uri"], place["region"]["startLine"]) for place in places
    ]


def test_the_junit_file_is_red_where_the_json_file_is(bad_run):
    _, document, suite, _ = bad_run
    kinds = {"REFUTED": [Failure], "UNKNOWN": [Error], "SKIPPED": [Skipped], "PROVED": []}
    cases = {case.name: [type(result) for result in case.result] for case in suite}
    named = {
        f"{c['spec']} {c['runner'] or '-'} {c['invariant']}": kinds[c["verdict"]] for c in document["claims"]
    }
    assert cases == named | {"NovelSpec": [Skipped]}
    assert (suite.failures, suite.skipped) == (document["tally"]["REFUTED"], document["tally"]["SKIPPED"])
    (case,) = [case for case in suite if case.name == "full-attention V2 row-fits"]
    assert case.result[0].message.startswith("at 129 tokens the scheduler hands over 9 entries")
    assert case.system_out.startswith(
        "10 paths through GPUModelRunner.initialize_kv_cache (vllm/v1/worker/gpu/"
    )
    stated = {item.name: item.value for item in suite.properties()}
    assert stated["engine.version"] == "0.32.0"
    assert stated["complete"] == "true"


def test_the_sarif_file_points_at_the_function_whose_row_is_too_narrow(bad_run):
    _, document, _, sarif = bad_run
    refuted = [result for result in sarif["results"] if result["level"] == "error"]
    assert len(refuted) == document["tally"]["REFUTED"]
    place = refuted[0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "vllm/v1/worker/gpu/model_runner.py"
    assert place["region"]["startLine"] == 19
    assert {rule["id"] for rule in sarif["tool"]["driver"]["rules"]} == {"row-fits", "row-width"}
    assert sarif["properties"]["skipped_classes"] == ["NovelSpec"]


def test_files_of_a_release_that_is_not_described_have_no_proof(written):
    done, document, suite, sarif = written(*FULL, **NEWER)
    assert done.returncode == document["exit_code"] == 3
    assert document["engine"]["described"] is False
    assert document["engine"]["scheduler"] == "vllm-0.33"
    assert {claim["verdict"] for claim in document["claims"]} == {"UNKNOWN"}
    assert document["not_asked"] == ["V1: this vLLM has no Model Runner V1"]
    assert suite.errors == len(document["claims"]) == len(sarif["results"]) == 4
    document["claims"][0]["verdict"] = "PROVED"
    assert not LAYOUT.is_valid(document)


def test_files_of_an_engine_that_cannot_be_run_are_incomplete_and_say_why(written):
    done, document, suite, sarif = written(version="0.25.1")
    assert done.returncode == 2, done
    assert not document["complete"]
    assert document["exit_code"] is None
    assert "vLLM 0.25.1 is installed; only 0.26 or newer" in document["note"]
    assert suite.errors == 1
    assert not sarif["invocations"][0]["executionSuccessful"]


def test_files_are_markers_before_the_engine_is_loaded(written):
    done, document, suite, sarif = written(
        changed=("vllm/__init__", "__version__", "import os; os._exit(0)\n#")
    )
    assert done.returncode == 2, done
    assert not document["complete"]
    assert document["engine"] is None
    assert suite.errors == 1
    assert not sarif["invocations"][0]["executionSuccessful"]


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("complete",), False),
        (("exit_code",), 6),
        (("engine",), None),
        (("note",), "not run"),
        (("claims",), []),
        (("news",), 1),
        (("claims", 0, "verdict"), "REFUTED"),
        (("claims", 0, "paths"), -1),
        (("claims", 0, "functions", 0, "line"), 0),
        (("claims", 0, "replay"), [{"side": "engine", "quantity": "row width", "value": 8}]),
    ],
)
def test_a_file_that_contradicts_itself_breaks_the_layout(proved_document, path, value):
    assert not LAYOUT.is_valid(broken_at(proved_document, path, value))


@pytest.fixture(scope="module")
def proved_document(tmp_path_factory):
    """Return the report of a run that proves everything, made by hand from what the layout names."""
    function = {"name": "get_block_table_width", "file": "vllm/v1/worker/block_table.py", "line": 29}
    claim = {
        "spec": "any", "invariant": "get_block_table_width", "runner": None, "verdict": "PROVED",
        "detail": "", "assumptions": {"used": ["sizes"], "unused": []}, "seconds": 0.1, "rlimit": 10,
        "counterexample": None, "witness": {"block_size": 16}, "slack": 0, "second": "",
        "paths": 1, "functions": [function], "place": None, "replay": [],
    }  # fmt: skip
    engine = {"version": "0.32.0", "path": "/x/vllm", "scheduler": "vllm-0.32", "described": True}
    document = {
        "complete": True, "schema": "rowbound.installed/1", "exit_code": 0, "note": "", "claims": [claim],
        "engine": {"name": "vllm", **engine}, "skipped_classes": [], "not_asked": [],
        "versions": {"rowbound": None, "z3-solver": "5.4.1", "rich": "15.0.0", "python": "3.11.7"},
        "tally": {"PROVED": 1, "REFUTED": 0, "VACUOUS": 0, "UNKNOWN": 0, "ERROR": 0, "SKIPPED": 0},
    }  # fmt: skip
    LAYOUT.validate(document)
    return document


# --- signals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_files_that_say_so(engine, tmp_path, number, code):
    engine("--spec", "mla")  # writes the engine
    report = tmp_path / "report.json"
    process = subprocess.Popen(
        [sys.executable, "-m", "proofs.check", "--installed", "vllm", *FULL, "--json", report],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"},  # noqa: PTH109  # as the call has it
    )
    printed = [process.stdout.readline() for _ in range(2)]
    process.send_signal(number)
    rest, errors = process.communicate(timeout=60)
    assert process.returncode == code, (printed, rest, errors)
    assert re.search(r"interrupted: [1-5] of 6 claims decided; nothing is claimed of the rest", errors)
    assert "functions that were run" not in rest
    document = json.loads(report.read_text())
    LAYOUT.validate(document)
    assert not document["complete"]
    assert document["claims"][0]["verdict"] == "PROVED"
    assert document["claims"][-1]["verdict"] is None
