"""`python -m hookboard` is the command `hookboard`, also where torchrun starts it."""

import sys

from hookboard.board.command import main

if __name__ == "__main__":
    sys.exit(main())
