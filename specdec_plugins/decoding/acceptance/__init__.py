"""Acceptance rules, one a file. A rule reads the verifier's `Scores`; backends run the common ones natively."""
