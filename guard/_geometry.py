"""The constructor arguments of `BlockTables`: both forms, bound by name and checked.

vLLM up to 0.31 passes `kernel_block_sizes` sixth and later releases leave it out, so what stands sixth
tells the forms apart. With it, each manager block becomes block size // kernel block size kernel blocks
and a row is that many times as wide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from guard._text import shown
from guard.errors import GuardUsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["INT32_END", "Geometry", "bind_options", "whole_number"]

INT32_END = 2**31
_MAX_ROWS = 2**20
_MAX_TABLE_BYTES = 2**40
_LATER_FORM = (
    "cp_size",
    "cp_rank",
    "cp_interleave",
    "slot_mapping_enabled",
    "dcp_sharded",
    "sliding_window_reach",
)
_EARLIER_FORM = ("kernel_block_sizes", *_LATER_FORM[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of the block tables, checked. Tuples have one element per group."""

    block_sizes: tuple[int, ...]
    kernel_block_sizes: tuple[int, ...]
    blocks_per_kv_block: tuple[int, ...]
    row_widths: tuple[int, ...]
    max_num_reqs: int
    max_num_batched_tokens: int
    cp_size: int
    cp_rank: int
    cp_interleave: int
    slot_mapping_enabled: tuple[bool, ...]
    dcp_sharded: tuple[bool, ...]
    sliding_window_reach: tuple[int, ...]

    @classmethod
    def of(
        cls,
        block_sizes: Sequence[int],
        max_num_reqs: int,
        max_num_batched_tokens: int,
        max_num_blocks_per_group: Sequence[int],
        options: Mapping[str, Any],
    ) -> Geometry:
        """Check every argument and derive the rows' widths."""
        sizes = _numbers("block_sizes", block_sizes)
        groups = len(sizes)
        kernel_sizes = _numbers("kernel_block_sizes", options.get("kernel_block_sizes", sizes), groups)
        for group, (size, kernel_size) in enumerate(zip(sizes, kernel_sizes, strict=True)):
            _require(
                size % kernel_size == 0,
                f"kernel block size {kernel_size} of group {group} does not divide its block size {size}",
            )
        factors = tuple(s // k for s, k in zip(sizes, kernel_sizes, strict=True))
        blocks = _numbers("max_num_blocks_per_group", max_num_blocks_per_group, groups)
        cp_size = whole_number("cp_size", options.get("cp_size", 1), minimum=1)
        geometry = cls(
            block_sizes=sizes,
            kernel_block_sizes=kernel_sizes,
            blocks_per_kv_block=factors,
            row_widths=tuple(b * f for b, f in zip(blocks, factors, strict=True)),
            max_num_reqs=whole_number("max_num_reqs", max_num_reqs, minimum=1, maximum=_MAX_ROWS),
            max_num_batched_tokens=whole_number("max_num_batched_tokens", max_num_batched_tokens, minimum=1),
            cp_size=cp_size,
            cp_rank=whole_number("cp_rank", options.get("cp_rank", 0), minimum=0, maximum=cp_size - 1),
            cp_interleave=whole_number("cp_interleave", options.get("cp_interleave", 1), minimum=1),
            slot_mapping_enabled=_switches("slot_mapping_enabled", options, groups),
            dcp_sharded=_switches("dcp_sharded", options, groups),
            sliding_window_reach=_reach(options, groups, cp_size),
        )
        geometry.check_memory()
        return geometry

    def check_memory(self) -> None:
        """Refuse tables so large that no device holds them."""
        table_bytes = 4 * self.max_num_reqs * sum(self.row_widths)
        _require(
            table_bytes <= _MAX_TABLE_BYTES and all(w < INT32_END for w in self.row_widths),
            f"block tables of {self.max_num_reqs} rows and {list(self.row_widths)} entries per row "
            f"would take {table_bytes} bytes",
        )

    def dealt_sizes(self, *, within_kernel_blocks: bool) -> tuple[int, ...]:
        """Return each group's blocks within which context parallelism deals tokens out.

        Raises:
            GuardUsageError: a run of `cp_interleave` tokens would leave a kernel block, for the block behind
                it. Whole blocks are the engine's to check: of a Mamba group any size will do.
        """
        if not within_kernel_blocks:
            return self.block_sizes
        for group, size in enumerate(self.kernel_block_sizes):
            mapped = self.cp_size > 1 and self.dcp_sharded[group] and self.slot_mapping_enabled[group]
            _require(
                not mapped or self.blocks_per_kv_block[group] == 1 or size % self.cp_interleave == 0,
                f"cp_interleave {self.cp_interleave} does not divide the kernel block size {size} of group "
                f"{group}: a run of tokens would leave its block; lower cp_interleave",
            )
        return self.kernel_block_sizes


def bind_options(positional: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
    """Name the optional arguments of either form; an argument left at None counts as not given."""
    earlier = bool(positional) and not isinstance(positional[0], int | np.integer)
    names = _EARLIER_FORM if earlier else _LATER_FORM
    _require(
        len(positional) <= len(names), f"BlockTables takes at most {5 + len(names)} positional arguments"
    )
    bound = dict(zip(names, positional, strict=False))
    for name, value in named.items():
        known = name in _LATER_FORM or name in _EARLIER_FORM
        _require(known, f"BlockTables has no argument {name!r}")
        _require(name not in bound, f"BlockTables got {name!r} twice")
        bound[name] = value
    return {name: value for name, value in bound.items() if value is not None}


def whole_number(name: str, value: Any, *, minimum: int, maximum: int = INT32_END - 1) -> int:
    """Return `value` as an int if it is a whole number from `minimum` to `maximum`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise GuardUsageError(f"{name} must be a whole number, not {shown(value)}")
    if not minimum <= value <= maximum:
        raise GuardUsageError(f"{name} must be from {minimum} to {maximum}, not {shown(value)}")
    return int(value)


def _numbers(name: str, values: Any, length: int | None = None, minimum: int = 1) -> tuple[int, ...]:
    return tuple(
        whole_number(f"{name} of group {group}", value, minimum=minimum)
        for group, value in enumerate(_listed(name, values, length))
    )


def _switches(name: str, options: Mapping[str, Any], groups: int) -> tuple[bool, ...]:
    return tuple(bool(value) for value in _listed(name, options.get(name, (True,) * groups), groups))


def _reach(options: Mapping[str, Any], groups: int, cp_size: int) -> tuple[int, ...]:
    reach = _numbers(
        "sliding_window_reach", options.get("sliding_window_reach", (0,) * groups), groups, minimum=0
    )
    # Under context parallelism a column is no contiguous range of tokens, so none lies below a window.
    return reach if cp_size == 1 else (0,) * groups


def _listed(name: str, values: Any, length: int | None) -> list[Any]:
    _require(isinstance(values, list | tuple | np.ndarray), f"{name} must be a list, not {shown(values)}")
    listed = list(values)
    _require(length is None or len(listed) == length, f"{name} has {len(listed)} entries for {length} groups")
    return listed


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise GuardUsageError(otherwise)
