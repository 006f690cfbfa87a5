"""Acceptance rules, one per file. A rule reads the verifier's `Pass`; backends run the common ones natively."""
