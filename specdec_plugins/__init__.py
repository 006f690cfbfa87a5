"""SpecDec: fast and speculative decoding of encoder-decoder models from fairseq and Hugging Face.

Importing this package does nothing; ``--user-dir specdec_plugins`` makes it fairseq's plugin.
``specdec_plugins.Translator`` and ``AsyncTranslator`` are loaded on first access.
"""

TYPE_CHECKING = False  # typing's, without importing it
if TYPE_CHECKING:
    from specdec_plugins.serving.translator import AsyncTranslator
    from specdec_plugins.translator import Translator

__all__ = ["AsyncTranslator", "Translator", "__version__"]
__version__ = "0.3.0"


def __getattr__(name: str):
    if name == "Translator":
        from specdec_plugins.translator import Translator

        return Translator
    if name == "AsyncTranslator":
        from specdec_plugins.serving.translator import AsyncTranslator

        return AsyncTranslator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
