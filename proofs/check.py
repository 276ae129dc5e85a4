"""`python -m proofs.check`: prove every claim of a release, or show the smallest case that fails.

The command itself is `proofs.command`. Child processes import this module again under another name, so it
holds nothing else.
"""

import sys

if __name__ == "__main__":
    try:
        from proofs.command import main
    except ModuleNotFoundError as missing:
        line = f"python -m proofs.check: needs {missing.name}: install rowbound with what it depends on"
        print(line, file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
