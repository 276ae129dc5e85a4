"""Arrays that lie elsewhere than the tables: a launch is given addresses, and nothing else would notice."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from kernels import (
    KernelError,
    SlidingWindow,
    SlotGeometry,
    StagedWriter,
    TableLayout,
    ViolationRecord,
    Write,
    gather_rows,
    map_slots,
    pack_writes,
    select_states,
)

pytestmark = pytest.mark.gpu


@pytest.fixture
def cuda(device):
    if device.type == "cpu":
        pytest.skip("there is one device, and it has the tables")
    return device


def layout_on(device):
    return TableLayout.of([torch.zeros((2, 4), dtype=torch.int32, device=device)])


def numbers(device, *shape, dtype=torch.int32):
    return torch.zeros(shape, dtype=dtype, device=device)


def gather_arguments(device):
    return {
        "counts": numbers(device, 1, 2),
        "idx_mapping": numbers(device, 2),
        "out": layout_on(device),
        "filled": numbers(device, 1, 2),
        "window": SlidingWindow(numbers(device, 2), numbers(device, 1), numbers(device, 1) + 16),
        "record": ViolationRecord.on(device),
    }


def slots_arguments(device):
    return {
        "geometry": SlotGeometry.of([16], device),
        "idx_mapping": numbers(device, 2),
        "query_start_loc": numbers(device, 3),
        "positions": numbers(device, 4),
        "out": numbers(device, 1, 4, dtype=torch.int64),
        "counts": numbers(device, 1, 2),
        "record": ViolationRecord.on(device),
    }


def states_arguments(device):
    return {
        "rows": numbers(device, 2),
        "seq_lens": numbers(device, 2),
        "out": numbers(device, 2, 1),
        "record": ViolationRecord.on(device),
    }


def writer_arguments(device):
    return {
        "counts": numbers(device, 1, 2),
        "expansion": numbers(device, 1),
        "record": ViolationRecord.on(device),
    }


def gather(layout, **arguments):
    gather_rows(layout, num_reqs_padded=2, **arguments)


def select(layout, **arguments):
    select_states(layout.tables[0], block_size=16, num_states=1, **arguments)


def write(layout, **arguments):
    packed = pack_writes([Write(0, 1, 0, [5])], 1, layout.device)
    StagedWriter(layout, **{**arguments, "expansion": arguments["expansion"] + 1}).write(packed)


LAUNCHES = {
    gather: gather_arguments,
    map_slots: slots_arguments,
    select: states_arguments,
    write: writer_arguments,
}
ARRAYS = [(launch, name) for launch, arguments in LAUNCHES.items() for name in arguments(torch.device("cpu"))]


@pytest.mark.parametrize("launch", LAUNCHES, ids=lambda launch: launch.__name__)
def test_arrays_beside_the_tables_are_accepted_again_and_again(launch, cuda):
    layout, arguments = layout_on(cuda), LAUNCHES[launch](cuda)
    for _ in range(3):
        launch(layout, **arguments)
    torch.cuda.synchronize()


@pytest.mark.parametrize(
    ("launch", "name"), ARRAYS, ids=lambda value: value if isinstance(value, str) else value.__name__
)
def test_an_array_on_another_device_is_refused(launch, name, cuda):
    layout, arguments = layout_on(cuda), LAUNCHES[launch](cuda)
    # Launched before, so that the compiled kernel is there.
    launch(layout, **arguments)
    arguments[name] = LAUNCHES[launch](torch.device("cpu"))[name]
    with pytest.raises(KernelError, match="another device"):
        launch(layout, **arguments)


@pytest.mark.parametrize("name", ["num_computed_tokens", "reach", "block_sizes"])
def test_a_windows_array_on_another_device_is_refused(name, cuda):
    layout, arguments = layout_on(cuda), gather_arguments(cuda)
    arguments["window"] = replace(arguments["window"], **{name: numbers("cpu", 2 if "num" in name else 1)})
    with pytest.raises(KernelError, match=f"{name} lies on another device"):
        gather(layout, **arguments)


def test_writes_that_the_kernel_cannot_reach_are_refused(cuda):
    writer = StagedWriter(layout_on(cuda), numbers(cuda, 1, 2))
    writes = [Write(0, 1, 0, [5])]
    packed = pack_writes(writes, 1, cuda)
    writer.write(packed)
    with pytest.raises(KernelError, match="not pinned"):
        writer.write(pack_writes(writes, 1, torch.device("cpu")))
    writer.write(replace(packed, buffer=packed.buffer.cpu().pin_memory()))
    torch.cuda.synchronize()
