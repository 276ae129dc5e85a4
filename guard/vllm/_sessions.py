"""The length of a session whose prompt comes in chunks, checked before a chunk is sent to the engine.

vLLM checks each chunk by itself. Here the chunks of a session are added up in the process that takes
requests, where a refusal ends this session alone: its client gets the error, every other request goes on.
Output tokens that the session keeps are not known here; a session that they carry beyond max_model_len is
refused by the worker (`_runner`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

from guard import _refusals as refuse
from guard.settings import Mode, chosen_mode
from guard.vllm import _config
from guard.vllm._watch import Watch

__all__ = ["checking_chunks"]


def checking_chunks(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return the engine's method for one request or chunk, with the check before it."""

    @functools.wraps(original)
    async def add_request(self: Any, request: Any, *arguments: Any, **named: Any) -> Any:
        if getattr(request, "resumable", False):
            _check(self, request)
        return await original(self, request, *arguments, **named)

    return add_request


def _check(engine: Any, chunk: Any) -> None:
    mode = chosen_mode(configuration=_config.settings_of(engine.vllm_config))
    state = engine.output_processor.request_states.get(chunk.request_id)
    if mode is Mode.OFF or state is None:
        return
    waiting = getattr(state, "input_chunk_queue", None) or ()
    parts = [state, *(update for update in waiting if update is not None), chunk]
    tokens = sum(len(part.prompt_token_ids or ()) for part in parts)
    limit = engine.vllm_config.model_config.max_model_len
    if tokens > limit:
        name = getattr(chunk, "external_req_id", None) or chunk.request_id
        Watch(mode).refuse(refuse.token_count(name, tokens, tokens, limit, limit))
