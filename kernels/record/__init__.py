"""The record that kernels keep of what they refused, on the device, until the host asks for it."""

from kernels.record.host import DeviceFault, DeviceViolation, Refusal, ViolationRecord
from kernels.record.kernel import (
    COUNT,
    POSITION,
    READ_PAST_COUNT,
    READ_PAST_ROW,
    READ_ROW,
    STATE_PAST_ROW,
    TOKEN,
    WRITE_PAST_ROW,
    WRITE_ROW,
    report,
    report_scalar,
)

__all__ = [
    "COUNT",
    "POSITION",
    "READ_PAST_COUNT",
    "READ_PAST_ROW",
    "READ_ROW",
    "STATE_PAST_ROW",
    "TOKEN",
    "WRITE_PAST_ROW",
    "WRITE_ROW",
    "DeviceFault",
    "DeviceViolation",
    "Refusal",
    "ViolationRecord",
    "report",
    "report_scalar",
]
