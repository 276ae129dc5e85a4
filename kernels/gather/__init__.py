"""Copy the rows of a batch, for all groups, into the tables that the forward pass reads."""

from kernels.gather.host import RowGatherer, SlidingWindow, gather_rows
from kernels.gather.reference import gather_rows_reference

__all__ = ["RowGatherer", "SlidingWindow", "gather_rows", "gather_rows_reference"]
