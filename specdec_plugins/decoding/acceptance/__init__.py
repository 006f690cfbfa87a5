"""Which drafted tokens are accepted, one rule a file. A rule reads the verifier's `Scores`; backends run the common one
natively."""
