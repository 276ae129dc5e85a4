"""`python -m proofs.catalogue`: reproduce the public faults of this class and prove their repairs.

The command itself is `proofs.catalogue_command`.
"""

import sys

if __name__ == "__main__":
    try:
        from proofs.catalogue_command import main
    except ModuleNotFoundError as missing:
        line = f"python -m proofs.catalogue: needs {missing.name}: install rowbound with what it depends on"
        print(line, file=sys.stderr)  # noqa: T201
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(main())
