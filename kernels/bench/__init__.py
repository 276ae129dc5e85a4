"""Timings of the guarded tables beside vLLM's own, on one GPU and in one run."""
