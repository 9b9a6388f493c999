"""`python -m uni_agent` is the `uni-agent` command."""

import sys

from uni_agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
