"""`python -m dslearn` is the `dslearn` command."""

import sys

from dslearn.cli import main

if __name__ == "__main__":
    sys.exit(main())
