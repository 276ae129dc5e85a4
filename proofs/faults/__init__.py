"""The public faults of this class, each as a faulty variant, its repair and the numbers of its thread."""

from proofs.faults import accounting, alignment, capacity, columns, integers, stale, updates
from proofs.faults.model import Claim, Domain, Fault, Kind, Report
from proofs.faults.unmodelled import UNMODELLED, Unmodelled

__all__ = ["FAULTS", "UNMODELLED", "Claim", "Domain", "Fault", "Kind", "Report", "Unmodelled"]

FAULTS: tuple[Fault, ...] = (
    *capacity.FAULTS,
    *columns.FAULTS,
    *updates.FAULTS,
    *stale.FAULTS,
    *integers.FAULTS,
    *accounting.FAULTS,
    *alignment.FAULTS,
)
"""Every fault that is modelled, class by class."""
