"""SpecDec: speculative decoding for fairseq translation models.

Importing this package does nothing; fairseq finds the plugin through ``--user-dir specdec_plugins``.
``specdec_plugins.Translator`` and ``AsyncTranslator`` are loaded on first access.
"""

__version__ = "0.3.0"


def __getattr__(name: str):
    if name == "Translator":
        from specdec_plugins.translator import Translator

        return Translator
    if name == "AsyncTranslator":
        from specdec_plugins.serving.translator import AsyncTranslator

        return AsyncTranslator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
