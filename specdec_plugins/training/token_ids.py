"""Any model's token ids as fairseq's data, for training a drafter of a model that fairseq does not know.

fairseq reserves a dictionary's first symbols. The dictionary has them, then one symbol per token id, so that a token's index is
its id plus `RESERVED`. A source is stored with all its special tokens, a target without eos, and fairseq ends both. Knows the ids
of a model's special tokens, and no text.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdec_plugins.extras import needed
from specdec_plugins.model.spec import Symbols

if TYPE_CHECKING:
    from fairseq.data import Dictionary

RESERVED = 4  # <s>, <pad>, </s>, <unk>
LANGUAGES = "source", "target"
VALID, MOST = 100, 1000  # one pair in VALID is for validation, at most MOST
Pair = tuple[Sequence[int], Sequence[int]]


def dictionary(size: int, counts: Counter[int]) -> "Dictionary":
    """The dictionary of a vocabulary, with how often each token occurs."""
    with needed("train", "training data"):
        from fairseq.data import Dictionary

    made = Dictionary()
    for token in range(size):
        made.add_symbol(str(token), counts[token])
    return made


def counts_of(data: "Dictionary", size: int) -> Counter[int] | None:
    """How often each token of a vocabulary occurs, if this is its `dictionary`."""
    if data.symbols[RESERVED:] != [str(token) for token in range(size)]:
        return None
    return Counter(dict(enumerate(data.count[RESERVED:])))


def token_ids(data: Tensor, symbols: Symbols, end: int) -> Tensor:
    """Token ids for indices of a `dictionary`; ``end`` replaces fairseq's end of sentence."""
    special = data.new_tensor([symbols.start, symbols.pad, end, symbols.mask])
    return torch.where(data < RESERVED, special[data.clamp(max=RESERVED - 1)], data - RESERVED)


def binarise(pairs: Iterable[Pair], sizes: tuple[int, int], folder: Path) -> dict[str, int]:
    """Write a training and a validation set of pairs, sources with their special tokens and targets without eos, and both
    dictionaries. Returns the number of pairs in each set."""
    with needed("train", "training data"):
        from fairseq.data.indexed_dataset import make_builder

    folder.mkdir(parents=True, exist_ok=True)
    counts, written = (Counter[int](), Counter[int]()), {"train": 0, "valid": 0}
    names = {(split, lang): str(folder / f"{split}.{'-'.join(LANGUAGES)}.{lang}") for split in written for lang in LANGUAGES}
    builders = {key: make_builder(f"{name}.bin", "mmap", vocab_size=max(sizes) + RESERVED) for key, name in names.items()}
    for number, pair in enumerate(pairs):
        split = "valid" if number % VALID == 0 and written["valid"] < MOST else "train"
        written[split] += 1
        for lang, tokens, count in zip(LANGUAGES, pair, counts):
            count.update(tokens)
            builders[split, lang].add_item(torch.tensor([*(token + RESERVED for token in tokens), 2], dtype=torch.int32))
    for key, name in names.items():
        builders[key].finalize(f"{name}.idx")
    for lang, size, count in zip(LANGUAGES, sizes, counts):
        dictionary(size, count).save(str(folder / f"dict.{lang}.txt"))
    return written
