"""Run by the engine's own Python: serve a tiny, randomly initialised model and print what came of it.

Usage: serve.py SCENARIO MODEL_DIRECTORY. The last line of the output is RESULT and one JSON object.
"""

import asyncio
import json
import os
import sys

MAX_MODEL_LEN = 128
BLOCK_SIZE = 32
"""The smallest block that vLLM's attention on a CPU takes; a row has 4 entries."""
OPTIONS = {
    "load_format": "dummy",
    "skip_tokenizer_init": True,
    "max_model_len": MAX_MODEL_LEN,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "block_size": BLOCK_SIZE,
    "num_gpu_blocks_override": 12,
    "dtype": "float32",
    "enforce_eager": True,
    "seed": 0,
    "disable_log_stats": False,
}
"""11 usable blocks for four requests that grow to four each: requests are preempted and resumed."""


def prompt(number):
    """Return a prompt of 60 to 67 tokens; all start with the same block, which the prefix cache keeps."""
    common = [3 + 11 * position % 500 for position in range(BLOCK_SIZE)]
    return common + [3 + (7 * number + position) % 500 for position in range(28 + number)]


def batch(model):
    """Serve eight requests of up to 128 tokens each, four at a time."""
    from vllm import LLM, SamplingParams

    engine = LLM(model=model, **OPTIONS)
    parameters = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True, detokenize=False, logprobs=1)
    prompts = [{"prompt_token_ids": prompt(number)} for number in range(8)]
    answers = engine.generate(prompts, parameters, use_tqdm=False)
    guarded = []
    if os.environ.get("ROWBOUND_MODE") != "off":
        (guarded,) = engine.collective_rpc("rowbound_snapshot")
    preempted = sum(m.value for m in engine.get_metrics() if m.name == "vllm:num_preemptions")
    return {
        "tokens": [list(answer.outputs[0].token_ids) for answer in answers],
        "logprobs": [answer.outputs[0].cumulative_logprob for answer in answers],
        "cached": sum(answer.num_cached_tokens for answer in answers),
        "preempted": preempted,
        "guarded": guarded,
        "guarded_here": len(__import__("guard.vllm").vllm.snapshot()),
        "page": metrics_page() if "PROMETHEUS_MULTIPROC_DIR" in os.environ else [],
    }


def metrics_page():
    """Return rowbound's lines of what the engine's server shows as its metrics page."""
    from prometheus_client import generate_latest
    from vllm.v1.metrics.prometheus import get_prometheus_registry

    page = generate_latest(get_prometheus_registry()).decode()
    return [line for line in page.splitlines() if line.startswith("rowbound_")]


def long_chunks(model):
    """Send a session chunks that together exceed max_model_len, while another request is served."""
    return session(model, lengths=(100, 40), max_tokens=1)


def long_answers(model):
    """Send a session chunks that exceed max_model_len only together with the answers in between."""
    return session(model, lengths=(90, 30), max_tokens=20)


def session(model, lengths, max_tokens):
    """Keep a session going by chunks; afterwards, ask whether the engine still answers."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.engine.protocol import StreamingInput
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **OPTIONS))
    parameters = SamplingParams(
        max_tokens=max_tokens,
        temperature=0,
        ignore_eos=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,
    )
    answered = {"talk": 0, "after": 0}

    async def chunks():
        for number, length in enumerate(lengths):
            yield StreamingInput(prompt={"prompt_token_ids": list(range(3, 3 + length))})
            for _ in range(400):
                if answered["talk"] >= (number + 1) * max_tokens:
                    break
                await asyncio.sleep(0.05)

    async def ask(name, prompt):
        async for answer in engine.generate(prompt, parameters, request_id=name):
            answered[name] += len(answer.outputs[0].token_ids)

    async def ended_with(name, prompt):
        try:
            await asyncio.wait_for(ask(name, prompt), 60)
        except Exception as error:  # noqa: BLE001 - whatever it dies of is the result
            return f"{type(error).__name__}: {error}"
        return None

    async def both():
        talk = await ended_with("talk", chunks())
        after = await ended_with("after", {"prompt_token_ids": [5, 6, 7]})
        return {"talk": talk, "after": after, "answered": answered}

    try:
        return asyncio.run(both())
    finally:
        engine.shutdown()


def main():
    """Run the scenario and print its result."""
    scenario = {"batch": batch, "long-chunks": long_chunks, "long-answers": long_answers}[sys.argv[1]]
    print("RESULT", json.dumps(scenario(sys.argv[2])), flush=True)  # noqa: T201 - the test reads it


if __name__ == "__main__":
    main()
