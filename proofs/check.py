"""`python -m proofs.check`: prove every claim of a release, or show the smallest case that fails.

The command itself is `proofs.command`. Child processes import this module again under another name, so it
holds nothing else.
"""

import sys

from proofs.command import main

if __name__ == "__main__":
    sys.exit(main())
