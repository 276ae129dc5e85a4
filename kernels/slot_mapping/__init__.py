"""Map the positions of a batch to cache slots, for all groups, in one launch."""

from kernels.slot_mapping.host import PAD_SLOT, SlotGeometry, SlotMapper, map_slots
from kernels.slot_mapping.reference import map_slots_reference

__all__ = ["PAD_SLOT", "SlotGeometry", "SlotMapper", "map_slots", "map_slots_reference"]
