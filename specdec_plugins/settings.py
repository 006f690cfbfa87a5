"""How to decode. Imports neither torch nor fairseq, so that a command can check its options at once."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from specdec_plugins.cpus import usual_threads

STRATEGIES = ("specdec", "ar", "drafter", "fairseq")
DTYPES = ("float32", "bfloat16", "int8", "float16", "float64", "auto")

Fault = tuple[str, str]  # a field's name, and what is wrong with its value, to be read after the name


class OptionError(ValueError):
    """Options that cannot be used. ``faults`` are (field, message), such as ``("beta", "0 is less than 1")``.

    As text it names the fields as Python does; a command names its options (``--block-size``) from ``faults``.
    """

    def __init__(self, faults: Iterable[Fault]):
        self.faults = list(faults)
        super().__init__(self.faults)

    def __str__(self) -> str:
        return "; ".join(f"{field} {message}" for field, message in self.faults)


@dataclass(frozen=True)
class Settings:
    """How to decode; the names are those of ``specdec-translate``'s options. Raises `OptionError` with everything wrong."""

    strategy: str = "specdec"
    # Drafted tokens an iteration; "auto": as many as pay, down to none. None: auto where that cannot change the output (specdec
    # with beta 1), else the model's.
    block_size: int | str | None = None
    beta: int = 1
    tau: float = float("inf")  # nats
    max_len_a: float = 0.0
    max_len_b: int = 200
    beam: int = 1  # of strategy fairseq
    device: str = "cpu"
    dtype: str = "float32"  # "auto": the fastest, as `assemble` says
    threads: int | None = None  # of the whole process; None: `usual_threads`

    def __post_init__(self):
        if faults := [*self._values(), *self._combinations()]:
            raise OptionError(faults)

    def _values(self) -> Iterable[Fault]:
        """Values that cannot be used, whatever the others are."""
        for name, value, known in (("strategy", self.strategy, STRATEGIES), ("dtype", self.dtype, DTYPES)):
            if value not in known:
                yield name, f"'{value}' is unknown; available: {', '.join(known)}"
        if isinstance(self.block_size, str) and self.block_size != "auto":
            yield "block_size", f"'{self.block_size}' is neither a number nor auto"
        for name in ("block_size", "beta", "beam", "threads"):
            value = getattr(self, name)
            if isinstance(value, int) and value < 1:
                yield name, f"{value} is less than 1"
        for name in ("tau", "max_len_a", "max_len_b"):
            if not getattr(self, name) >= 0:
                yield name, f"{getattr(self, name)} is negative or no number"

    def _combinations(self) -> Iterable[Fault]:
        """Values that do not go together."""
        if self.max_len_a >= 0 and self.max_len_b >= 0 and self.max_len_a + self.max_len_b < 1:
            yield "max_len_b", f"{self.max_len_b} leaves no room for an output, with {self.max_len_a} tokens per source token"
        users = {"block_size": ("specdec", "drafter"), "beta": ("specdec",), "tau": ("specdec",), "beam": ("fairseq",)}
        for name, strategies in users.items():
            changed = getattr(self, name) != getattr(type(self), name)
            if changed and self.strategy in STRATEGIES and self.strategy not in strategies:
                yield name, f"is not used by strategy {self.strategy}"
        if self.block_size == "auto" and self.strategy == "drafter":
            yield "block_size", "auto is not available with strategy drafter"
        if self.strategy == "fairseq" and self.dtype in ("int8", "auto"):
            yield "dtype", f"{self.dtype} is not available with strategy fairseq"
        if self.beta == 1 and self.tau != float("inf") and self.strategy == "specdec":
            yield "tau", "has a use only with beta over 1"

    @property
    def adaptive(self) -> bool:
        """Whether drafts are as long as pays."""
        return self.block_size == "auto" or (self.block_size is None and self.strategy == "specdec" and self.beta == 1)

    def share(self, number: int, workers: int) -> "Settings":
        """The settings of worker ``number``, from 0, of so many: its part of the threads, or a GPU of its own."""
        if workers == 1:
            return self
        device = f"cuda:{number}" if self.device == "cuda" else self.device
        return replace(self, device=device, threads=max(1, (self.threads or usual_threads()) // workers))
