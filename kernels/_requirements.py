"""What the kernels need, asked before it is imported.

A command of this package (`python -m kernels.compile`) is looked up through the package itself, so this is
the one place that can tell in a line what is missing.
"""

import importlib.util
import sys

__all__ = ["REQUIRED"]

REQUIRED = ("torch", "triton", "numpy")

if sys.argv[:1] == ["-m"]:
    _missing = [name for name in REQUIRED if importlib.util.find_spec(name) is None]
    if _missing:
        sys.stderr.write(f"needs {', '.join(_missing)}: install rowbound with its extra `gpu`\n")
        raise SystemExit(2)
