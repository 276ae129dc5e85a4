"""The mutants that today's claims must refute: formulas, further readers, steps of a row's life."""

from proofs.mutated.claims import CLAIM_MUTANTS
from proofs.mutated.formulas import FORMULA_MUTANTS
from proofs.mutated.steps import STEP_MUTANTS
from proofs.mutations import Mutant

__all__ = ["MUTANTS"]

MUTANTS: tuple[Mutant, ...] = (*FORMULA_MUTANTS, *CLAIM_MUTANTS, *STEP_MUTANTS)
"""Every mutant, in the order in which it is printed."""
