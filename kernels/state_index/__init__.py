"""Select the recurrent-state blocks that a batch reads and writes."""

from kernels.state_index.host import PAD_STATE, select_states
from kernels.state_index.reference import select_states_reference

__all__ = ["PAD_STATE", "select_states", "select_states_reference"]
