"""Offsets that do not fit the integer type that computes them.

A kernel's address is modelled as the low bits of the exact product, with a sign or without, and the claim is
that it is the exact product. Indices and strides are themselves 32-bit numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from invariants.arithmetic import modulo, where
from invariants.parameters import size
from proofs.faults.model import Claim, Fault, Kind, Report, at_most, equal, sizes_of

__all__ = ["FAULTS", "signed"]

_INT32_MAX = (1 << 31) - 1


def signed(value: int, bits: int) -> int:
    """Return what a signed integer of that many bits holds after a value was computed in it."""
    half = 1 << (bits - 1)
    return modulo(value + half, 2 * half) - half


def _unsigned(value: int, bits: int) -> int:
    return modulo(value, 1 << bits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Offset:
    """An index times a stride."""

    stride: int = size("elements or bytes from one index to the next", minimum=1, maximum=_INT32_MAX)
    index: int = size("page, block, row or token, from 0", maximum=_INT32_MAX)


def _addresses(sizes: _Offset, computed: Callable[[int, int], int], bits: int) -> Claim:
    exact = sizes.index * sizes.stride
    return equal(computed_offset=computed(exact, bits), exact_offset=exact)


def _product_fits(sizes: _Offset) -> Iterator[bool]:
    """Lead to: a product of two 31-bit numbers has 62 bits."""
    yield sizes.index * sizes.stride <= _INT32_MAX * sizes.stride
    yield sizes.index * sizes.stride <= _INT32_MAX * _INT32_MAX


def _first_wrapping(**sizes: int) -> Report:
    """Return the example whose index is the first of which the offset wraps to the most negative numbers."""
    exact = sizes["stride"] * sizes["index"]
    return Report(
        sizes=sizes, faulty={"exact offset": exact}, repaired={"computed offset": exact}, first="index"
    )


def _product(  # noqa: PLR0913  # what a fault is made of
    thread: str,
    title: str,
    seen: str,
    reports: tuple[Report, ...],
    *,
    also: tuple[str, ...] = (),
    wraps: Callable[[int, int], int] = signed,
) -> Fault:
    """Return the fault of a 32-bit index times a 32-bit stride; the repair computes in 64 bits."""
    return Fault(
        thread=thread,
        also=also,
        kind=Kind.INTEGER,
        title=title,
        seen=seen,
        domain=sizes_of(_Offset),
        faulty=lambda sizes: _addresses(sizes, wraps, 32),
        repaired=lambda sizes: _addresses(sizes, wraps, 64),
        steps=_product_fits,
        reports=reports,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    """A page that is copied as several smaller ones."""

    parts: int = size("small pages per page", minimum=1, maximum=64, usual=4)
    stride: int = size("bytes from one small page to the next", minimum=1, maximum=1 << 24)
    page: int = size("page, from 0", maximum=_INT32_MAX)
    part: int = size("small page in the page, from 0", maximum=63)


def _split_offset(sizes: _Split) -> int:
    return (sizes.page * sizes.parts + sizes.part) * sizes.stride


def _split_addresses(sizes: _Split, bits: int) -> Claim:
    exact = _split_offset(sizes)
    return equal(computed_offset=signed(exact, bits), exact_offset=exact)


def _split_fits(sizes: _Split) -> Iterator[bool]:
    """Lead to: a split page's offset has 62 bits."""
    small = sizes.page * sizes.parts + sizes.part
    yield sizes.page * sizes.parts <= _INT32_MAX * sizes.parts
    yield small < 1 << 37
    yield small * sizes.stride <= (1 << 37) * sizes.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """A pool of which every element must be addressed."""

    stride: int = size("elements of one block", minimum=1, maximum=_INT32_MAX)
    blocks: int = size("blocks in the pool", minimum=1, maximum=_INT32_MAX)


def _pool_addressed(sizes: _Pool, blocks: int) -> Claim:
    return at_most(last_offset=blocks * sizes.stride - 1, int32_max=_INT32_MAX)


def _capped(sizes: _Pool) -> int:
    """Refuse a pool that is too large: no block is then served."""
    cap = (_INT32_MAX + 1) // sizes.stride
    return where(sizes.blocks <= cap, sizes.blocks, 0)


def _cap_fits(sizes: _Pool) -> Iterator[bool]:
    cap = (_INT32_MAX + 1) // sizes.stride
    yield where(sizes.blocks <= cap, sizes.blocks * sizes.stride <= cap * sizes.stride, True)


def _limits(blocks: Mapping[int, int]) -> tuple[Report, ...]:
    return tuple(_first_wrapping(stride=stride, index=index) for stride, index in blocks.items())


FAULTS: tuple[Fault, ...] = (
    _product(
        "vllm#47671",
        "a page times its stride wraps in a decode kernel of latent attention",
        "an illegal access blamed on later kernels; 285 of 1,319 requests failed",
        (_first_wrapping(stride=480 * 576, index=7_768),),
        also=(
            "lightseekorg/tokenspeed#501",
            "lightseekorg/tokenspeed#530",
            "ModelTC/LightLLM#998",
            "syv-ai/qwen38-27b-rtx3090#86",
        ),
    ),
    Fault(
        thread="vllm#50427",
        also=("vllm#50483",),
        kind=Kind.INTEGER,
        title="keys and values share a buffer, and one 32-bit offset spans both",
        seen="a crash, or silently wrong output",
        domain=sizes_of(_Pool),
        faulty=lambda sizes: _pool_addressed(sizes, sizes.blocks),
        repaired=lambda sizes: _pool_addressed(sizes, _capped(sizes)),
        steps=_cap_fits,
        reports=(
            Report(
                sizes={"stride": 16 * 2 * 8 * 128, "blocks": 65_537},
                faulty={"last offset": 2_147_516_415, "int32 max": 2_147_483_647},
                first="blocks",
                by_hand=True,
            ),
        ),
    ),
    _product(
        "flashinfer-ai/flashinfer#3136",
        "an unsigned 32-bit page times its stride wraps",
        "output that is all zero",
        (
            Report(
                sizes={"stride": 16_384, "index": 262_144},
                faulty={"computed offset": 0, "exact offset": 4_294_967_296},
                repaired={"computed offset": 4_294_967_296},
                first="index",
            ),
        ),
        also=("flashinfer-ai/flashinfer#3130",),
        wraps=_unsigned,
    ),
    _product(
        "vllm-xpu-kernels#445",
        "a block times a large stride wraps",
        "a page fault every time",
        (_first_wrapping(stride=1_039_680, index=2_066),),
    ),
    Fault(
        thread="sgl-project/sglang#34025",
        also=("sgl-project/sglang#34027",),
        kind=Kind.INTEGER,
        title="a page that is split into four small ones wraps on the side of the copies",
        seen="a stray write about 2 GiB below the buffer once the pool is large enough",
        domain=sizes_of(_Split),
        assumes=lambda sizes: sizes.part < sizes.parts,
        faulty=lambda sizes: _split_addresses(sizes, 32),
        repaired=lambda sizes: _split_addresses(sizes, 64),
        steps=_split_fits,
        reports=(
            Report(
                sizes={"parts": 4, "stride": 37_440, "page": 14_339, "part": 3},
                faulty={"exact offset": 2_147_520_960},
                repaired={"computed offset": 2_147_520_960},
                first="page",
            ),
        ),
    ),
    _product(
        "sgl-project/sglang#20389",
        "a query's token times its stride wraps",
        "an illegal memory access at many tokens",
        _limits({32 * 256: 262_144, 128 * 128: 131_072}),
    ),
    _product(
        "vllm#1486",
        "a block times its size wraps in a cache of 64K blocks",
        "offsets past the largest 32-bit integer",
        (
            Report(
                sizes={"stride": 16 * 32 * 128, "index": 65_535},
                faulty={"computed offset": -65_536, "exact offset": 4_294_901_760},
                repaired={"computed offset": 4_294_901_760},
                by_hand=True,
            ),
        ),
        also=("vllm#1514",),
    ),
    Fault(
        thread="vllm:hisparse-row-cap",
        kind=Kind.INTEGER,
        title="a pool of more blocks than 32 bits address",
        seen="accuracy falls from 0.905 to 0, and nothing faults",
        domain=sizes_of(_Pool),
        faulty=lambda sizes: _pool_addressed(sizes, sizes.blocks),
        repaired=lambda sizes: _pool_addressed(sizes, _capped(sizes)),
        steps=_cap_fits,
        reports=(
            Report(
                sizes={"stride": 64 * 576, "blocks": 58_255},
                faulty={"last offset": 2_147_512_319, "int32 max": 2_147_483_647},
                first="blocks",
            ),
        ),
    ),
    _product(
        "vllm-0.33:slot-width",
        "a slot is computed in 32 bits from block ID and block size",
        "nothing reported; large block sizes occur for state groups, whose slots nobody reads",
        _limits(
            {
                16: 134_217_728,
                128: 16_777_216,
                4_096: 524_288,
                262_144: 8_192,
                1_048_576: 2_048,
            }
        ),
    ),
    _product(
        "vllm-0.27:token-rows",
        "a request's row of token IDs is addressed in 32 bits",
        "nothing reported; wraps at 2,048 requests of a million tokens",
        _limits({1_048_576: 2_048}),
    ),
)
