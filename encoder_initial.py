#!/usr/bin/env python3
"""Make a drafter's initial checkpoint from a verifier: python encoder_initial.py --verifier V.pt --output INIT.pt."""

import sys

from specdec_plugins.commands.initialise import main

if __name__ == "__main__":
    sys.exit(main())
