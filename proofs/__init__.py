"""The checker: it proves the claims of `invariants` for all sizes, or finds the smallest case that fails."""
