"""Public faults near this class that the catalogue does not model, each with the reason."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["UNMODELLED", "Unmodelled"]


@dataclass(frozen=True, slots=True)
class Unmodelled:
    """Threads that have no model here, and why."""

    threads: tuple[str, ...]
    reason: str


UNMODELLED: tuple[Unmodelled, ...] = (
    Unmodelled(
        ("write-up:ring-clamp",),
        "no fault of its own: a clamp that changed nothing because another path made the mapping",
    ),
    Unmodelled(
        ("vllm#51723", "vllm#42084"),
        "disputed, and no fault: proofs.check proves column-fits of aligned recurrent rows; the bound in the "
        "report is a vocabulary's size",
    ),
    Unmodelled(
        ("vllm#50021", "vllm#48475", "vllm#37052"),
        "the index is right and its value comes late: a matter of streams, which no bound repairs",
    ),
    Unmodelled(
        ("vllm-ascend#14320",), "a suspicion only: the reporter's own probe saw no block ID out of range"
    ),
    Unmodelled(
        ("LMCache/LMCache#2327",),
        "a shorter slot list after a tracker's change that is not described further",
    ),
    Unmodelled(("NVIDIA/TensorRT-LLM#13320",), "only its title is known: block IDs frozen while tokens grow"),
    Unmodelled(("vllm#55951",), "a row mapping several pipeline steps old: needs a model of steps in flight"),
    Unmodelled(
        ("vllm-ascend#14055",), "blocks freed while an asynchronous step reads them: needs steps in flight"
    ),
    Unmodelled(
        ("NVIDIA/TensorRT-LLM#13619",), "tokens left out of a clamp's argument; the thread gives no sizes"
    ),
    Unmodelled(("vllm#43382",), "an assertion as a symptom, without a cause that was shown"),
    Unmodelled(
        (
            "ggml-org/llama.cpp#13194",
            "ggml-org/llama.cpp#13833",
            "ggml-org/llama.cpp#14097",
            "unslothai/unsloth#7530",
        ),
        "counts cells of a ring in place of blocks of a row; which count is needed depends on how it prunes",
    ),
    Unmodelled(
        ("tenstorrent/tt-metal#52270", "tenstorrent/tt-xla#5897"),
        "one large read hangs a device; the limit of the device is not known",
    ),
    Unmodelled(("flashinfer-ai/flashinfer#3916",), "no fault: it lifts the alignment rule for one backend"),
    Unmodelled(
        ("vllm-0.32:kernel-tables",),
        "its rows and its encoder length differ from the first table's; neither was shown to be reached",
    ),
    Unmodelled(
        ("vllm-0.33:dummy-lengths",),
        "a dummy step may be longer than max_model_len; only a warning results",
    ),
)
"""What is left out, so that nobody takes silence for a proof."""
