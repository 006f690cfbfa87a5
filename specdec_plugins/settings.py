"""How to decode. Imports neither torch nor fairseq, so that a command can check its options at once."""

from dataclasses import dataclass, replace

STRATEGIES = ("specdec", "ar", "drafter", "fairseq")
DTYPES = ("float32", "bfloat16", "int8", "float16", "float64", "auto")


@dataclass(frozen=True)
class Settings:
    """How to decode; the names are those of ``specdec-translate``'s options. Raises ValueError with everything wrong."""

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
    dtype: str = "float32"  # "auto": the fastest, as `load_roles` says
    threads: int | None = None  # of the whole process; None: torch's choice

    def __post_init__(self):
        faults = []
        if self.strategy not in STRATEGIES:
            faults.append(f"no strategy '{self.strategy}'; available: {', '.join(STRATEGIES)}")
        if self.dtype not in DTYPES:
            faults.append(f"no dtype '{self.dtype}'; available: {', '.join(DTYPES)}")
        if isinstance(self.block_size, str) and self.block_size != "auto":
            faults.append(f"block_size '{self.block_size}' is neither a number nor auto")
        if self.block_size == "auto" and self.strategy == "drafter":
            faults.append("strategy drafter has no use for block_size auto")
        if isinstance(self.block_size, int) and self.block_size < 1:
            faults.append(f"block_size {self.block_size} is less than 1")
        for name in ("beta", "beam", "threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                faults.append(f"{name} {getattr(self, name)} is less than 1")
        if not self.tau >= 0:
            faults.append(f"tau {self.tau} is negative or no number")
        if not self.max_len_a >= 0 or self.max_len_b < 0 or self.max_len_a + self.max_len_b < 1:
            faults.append(f"max_len_a {self.max_len_a} and max_len_b {self.max_len_b} leave no room for an output")
        users = {"block_size": ("specdec", "drafter"), "beta": ("specdec",), "tau": ("specdec",), "beam": ("fairseq",)}
        for name, strategies in users.items():
            if (
                getattr(self, name) != getattr(type(self), name)
                and self.strategy in STRATEGIES
                and self.strategy not in strategies
            ):
                faults.append(f"strategy {self.strategy} has no use for {name}")
        if self.strategy == "fairseq" and self.dtype in ("int8", "auto"):
            faults.append(f"strategy fairseq has no dtype {self.dtype}")
        if self.beta == 1 and self.tau != float("inf") and self.strategy == "specdec":
            faults.append("tau has a use only with beta over 1")
        if faults:
            raise ValueError("; ".join(faults))

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


def usual_threads() -> int:
    """As many as torch would take."""
    import torch

    return torch.get_num_threads()
