"""The host side of the violation record: poll its flag for nothing, and read it once something is there.

Contract of `ViolationRecord`:

* `words`: int64 [kinds, FIELDS] on the device, laid out as `kernels.record.kernel` says.
* `flag`: int32 [1] in pinned host memory, ordinary memory for a CPU device. A kernel stores 1 there, and
  the host sees it at the latest when that launch has ended.
* `pending()` reads the flag in host memory: no copy, no launch and no synchronisation. It may be late by
  the launches that are still running, and it may be early: True although `read()` finds nothing, when a
  launch that was under way during `reset()` set the flag. It never misses a launch that has ended.
* `read()` and `reset()` belong on the stream on which the kernels run, and outside of graph capture.
  Everything that was launched before `read()` is in what it returns.
* A kernel that is given no record masks the same lanes and tells nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch

from kernels.record import kernel

__all__ = ["DeviceFault", "DeviceViolation", "Refusal", "ViolationRecord"]


class DeviceFault(IntEnum):
    """What a kernel refused, and what `wanted` and `limit` mean for it."""

    WRITE_PAST_ROW = kernel.WRITE_PAST_ROW.value
    """A store to column `wanted` of a row of `limit` entries; negative columns too."""
    WRITE_ROW = kernel.WRITE_ROW.value
    """A store to row `wanted` of a table of `limit` rows."""
    READ_PAST_ROW = kernel.READ_PAST_ROW.value
    """A load from column `wanted` of a row of `limit` entries."""
    READ_ROW = kernel.READ_ROW.value
    """A load from row `wanted` of a table of `limit` rows."""
    STATE_PAST_ROW = kernel.STATE_PAST_ROW.value
    """A recurrent state in column `wanted` of a row of `limit` entries."""
    POSITION = kernel.POSITION.value
    """A position `wanted` below 0, in a row of `limit` positions."""
    COUNT = kernel.COUNT.value
    """A row's count `wanted` that is not in 0..`limit`, the entries that the row holds."""
    READ_PAST_COUNT = kernel.READ_PAST_COUNT.value
    """A load from column `wanted` of a row of which `limit` entries are in use."""
    TOKEN = kernel.TOKEN.value
    """A token `wanted` of batch row `row`, in buffers of `limit` tokens."""


class Refusal(NamedTuple):
    """One lane that a reference refuses, described as a kernel would."""

    fault: DeviceFault
    group: int
    row: int
    wanted: int
    limit: int


@dataclass(frozen=True, slots=True)
class DeviceViolation:
    """The first recorded refusal of one kind, and how many of that kind there were."""

    fault: DeviceFault
    group: int
    row: int
    wanted: int
    limit: int
    launch: int
    total: int


@dataclass(frozen=True, slots=True)
class ViolationRecord:
    """Violations of every kind on one device."""

    words: torch.Tensor
    flag: torch.Tensor
    _host_flag: Any

    @classmethod
    def on(cls, device: torch.device) -> ViolationRecord:
        """Allocate an empty record whose kernels run on `device`."""
        words = torch.zeros((len(DeviceFault), kernel.FIELDS.value), dtype=torch.int64, device=device)
        flag = torch.zeros(1, dtype=torch.int32)
        if device.type != "cpu":
            flag = flag.pin_memory()
        return cls(words, flag, flag.numpy())

    def pending(self) -> bool:
        """Whether a kernel has reported something; costs a read of host memory."""
        return bool(self._host_flag[0])

    def read(self) -> tuple[DeviceViolation, ...]:
        """Wait for the current stream and return what its kernels refused since the last reset."""
        found = []
        for fault, row in zip(DeviceFault, self.words.tolist(), strict=True):
            total, _, group, line, wanted, limit, launch = row
            if total:
                found.append(DeviceViolation(fault, group, line, wanted, limit, launch, total))
        return tuple(found)

    def reset(self) -> None:
        """Empty the record, so that the next violation of each kind is described again."""
        # The flag first: whatever is launched after this call finds it cleared and stays visible.
        self._host_flag[0] = 0
        self.words.zero_()
