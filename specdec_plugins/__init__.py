"""SpecDec: speculative decoding for fairseq translation models.

Importing this package does nothing; fairseq finds the plugin through ``--user-dir specdec_plugins``.
"""

__version__ = "0.1.0"
