"""`python -m proofs.mutants`: break each formula by one edit and see that a claim notices.

The command itself is `proofs.mutants_command`. Child processes import this module again under another name,
so it holds nothing else.
"""

import sys

if __name__ == "__main__":
    try:
        from proofs.mutants_command import main
    except ModuleNotFoundError as missing:
        line = f"python -m proofs.mutants: needs {missing.name}: install rowbound with what it depends on"
        print(line, file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
