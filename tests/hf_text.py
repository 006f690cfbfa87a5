"""Small tokenizers of every family, as ``transformers`` saves them, and lines of text that tokenizers stumble over."""

import json
import random
from pathlib import Path

TRAINING = [
    "The quick brown fox jumps over the lazy dog.",
    "Ein Hund läuft über die Straße, während die Katze schläft.",
    "Le chat est assis sur l'arbre; il n'a pas peur.",
    "Быстрая коричневая лиса прыгает через ленивую собаку.",
    "素早い茶色の狐は怠け者の犬を飛び越える。",
    "الثعلب البني السريع يقفز فوق الكلب الكسول.",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है।",
    "빠른 갈색 여우가 게으른 개를 뛰어넘는다.",
    "Numbers: 1, 22, 333 and 4,444.55 — “quotes”, (brackets) & more…",
    "Übermäßig naïve façade, café, coöperate.",
    "Η γρήγορη καφέ αλεπού πηδάει πάνω από το σκυλί.",
    "Don't you've we're I'm he's isn't.",
] * 8
SCRIPTS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFG", "äöüßéèçñøåž", "абвгдежзиклмн", "αβγδεζηθ", "日本語中文字漢",
    "ひらがなカタカナ", "한국어빠른", "العربية", "हिन्दी", "עברית", "ภาษาไทย", "0123456789", "①½Ⅳﬁﬂ", "ａｂｃ１２３", "𝒜𝔅𐍈",
    ".,;:!?'\"()[]{}<>-–—…", "&@#%^*_=+|~`\\/",
]  # fmt: skip
ODD = [
    " ", " ", " ", "  ", "   ", "\t", "\u00a0", "\u2009", "\u3000", "\u200b", "\u200d", "\ufeff", "\u0001", "\u001f", "\u007f",
    "\u0085", "\u2028", "\u00ad", "\u0301", "🙂", "👩‍👩‍👧", "🇩🇪", "▁", "▁▁", "\ufffd", "\U0010fffd", "\u202e", "\r", "\v", "\n",
]  # fmt: skip
SPECIAL = [
    *"<s> </s> <pad> <unk> <mask> <mask_1> <unk_2> </s <unk >> << >>fra<< >>xyz<< <2fr>".split(),
    " n't",
    " 's",
    " .",
    " ,",
    " ' ",
    *"__en__ __fr__ __ en_XX fr_XX eng_Latn fra_Latn fr s> <".split(),
]


def lines(count: int, seed: int = 1) -> list[str]:
    """Lines of words, odd characters and special tokens, in any order."""
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        parts = []
        for _ in range(rng.randrange(0, 14)):
            kind = rng.random()
            if kind < 0.5:
                parts.append("".join(rng.choices(rng.choice(SCRIPTS), k=rng.randrange(1, 9))))
            elif kind < 0.6:
                parts.append(rng.choice(rng.choice(TRAINING).split()))
            elif kind < 0.75:
                parts.append(rng.choice(ODD))
            elif kind < 0.85:
                parts.append(rng.choice(SPECIAL))
            else:
                parts.append(rng.choice([*ODD, chr(rng.randrange(1, 0xD800)), chr(rng.randrange(0xE000, 0x2FFFF))]))
            parts.append(rng.choice([" ", " ", " ", ""]))
        found.append("".join(parts).replace("\0", ""))
    return found


def train(folder: Path, name: str, kind: str = "unigram", size: int = 300, **more) -> Path:
    """A SentencePiece model."""
    import sentencepiece

    (folder / "training.txt").write_text("\n".join(TRAINING), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "training.txt"),
        model_prefix=str(folder / name),
        vocab_size=size,
        model_type=kind,
        character_coverage=0.98,
        minloglevel=2,
        hard_vocab_limit=False,
        **more,
    )
    (folder / f"{name}.vocab").unlink()
    return folder / f"{name}.model"


def pieces(model: Path) -> list[str]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [processor.id_to_piece(number) for number in range(len(processor))]


def write(folder: Path, **contents) -> None:
    """JSON files, by name without its end."""
    for name, content in contents.items():
        (folder / f"{name}.json").write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def marian(folder: Path, kind: str = "unigram", codes: tuple[str, ...] = (), separate: bool = False, **settings) -> dict:
    """As OPUS-MT's folders. Returns the model's config."""
    folder.mkdir(parents=True, exist_ok=True)
    models = [train(folder, name, kind, size) for name, size in (("source", 300), ("target", 260))]
    own = [list(dict.fromkeys(pieces(model)[3:])) for model in models]  # without <unk>, <s>, </s>
    for model in models:
        model.rename(model.with_suffix(".spm"))
    (folder / "training.txt").unlink()
    vocabularies = own if separate else [list(dict.fromkeys(own[0] + own[1]))]
    vocabularies = [["</s>", "<unk>", *codes, *sorted(each, key=hash_of), "<pad>"] for each in vocabularies]
    names = ("vocab", "target_vocab")
    write(folder, **{name: {piece: n for n, piece in enumerate(each)} for name, each in zip(names, vocabularies)})
    write(
        folder,
        tokenizer_config={
            "source_lang": "en",
            "target_lang": "de",
            **({"separate_vocabs": True} if separate else {}),
            **settings,
        },
    )
    sizes = [len(each) for each in vocabularies]
    config = {"model_type": "marian", "vocab_size": sizes[0], "eos_token_id": 0, "pad_token_id": sizes[0] - 1}
    config |= {"decoder_vocab_size": sizes[-1]} if separate else {}
    write(folder, config=config)
    return config


def hash_of(piece: str) -> int:
    """Any order but SentencePiece's."""
    return random.Random(piece).random()


def m2m100(folder: Path, kind: str = "bpe", **settings) -> dict:
    """As M2M100's folders."""
    from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

    folder.mkdir(parents=True, exist_ok=True)
    train(folder, "sentencepiece.bpe", kind)
    (folder / "training.txt").unlink()
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces(folder / "sentencepiece.bpe.model")[3:], key=hash_of)]
    write(folder, vocab={piece: number for number, piece in enumerate(vocabulary)})
    languages = [f"__{code}__" for code in FAIRSEQ_LANGUAGE_CODES["m2m100"]]
    special = {"bos_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    write(folder, special_tokens_map={**special, "additional_special_tokens": languages})
    write(
        folder,
        tokenizer_config={
            **special,
            "src_lang": None,
            "tgt_lang": None,
            "language_codes": "m2m100",
            "tokenizer_class": "M2M100Tokenizer",
            "additional_special_tokens": languages,
            **settings,
        },
    )
    config = {"model_type": "m2m_100", "vocab_size": len(vocabulary) + len(languages) + 8, "eos_token_id": 2, "pad_token_id": 1}
    write(folder, config=config)
    return config


def character_table(model: Path) -> bytes:
    """A SentencePiece model's table of characters: field 2 of field 3. Written again, as the oracle of `read_pieces`."""

    def of(data: bytes, wanted: int) -> bytes:
        at, found = 0, b""

        def varint() -> int:
            nonlocal at
            value = shift = 0
            while True:
                byte, at = data[at], at + 1
                value, shift = value | (byte & 127) << shift, shift + 7
                if byte < 128:
                    return value

        while at < len(data):
            number, kind = divmod(varint(), 8)
            size = {0: 0, 1: 8, 5: 4}.get(kind) if kind != 2 else varint()
            if kind == 0:
                varint()
            at += size
            found = data[at - size : at] if kind == 2 and number == wanted else found
        return found

    return of(of(model.read_bytes(), 3), 2)


def scored(model: Path) -> list[tuple[str, float]]:
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return [(processor.id_to_piece(number), processor.get_score(number)) for number in range(len(processor))]


def save(folder: Path, tokenizer, kind: str, **config) -> dict:
    """A tokenizer of transformers and a config with its ids."""
    tokenizer.save_pretrained(folder)
    config = {
        "model_type": kind,
        "vocab_size": len(tokenizer) + 3,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": 1,
        **config,
    }
    write(folder, config=config)
    return config


def nllb(folder: Path, legacy: bool = False, table: bool = True, **settings) -> dict:
    from transformers import NllbTokenizer
    from transformers.tokenization_utils_base import generate_merges

    folder.mkdir(parents=True, exist_ok=True)
    model = train(folder, "sentencepiece.bpe", "bpe")
    vocabulary = {piece: number for number, piece in enumerate(["<s>", "<pad>", "</s>", "<unk>", *pieces(model)[3:]])}
    tokenizer = NllbTokenizer(
        vocab=vocabulary,
        merges=generate_merges(vocabulary),
        legacy_behaviour=legacy,
        _spm_precompiled_charsmap=character_table(model) if table else None,
        **settings,
    )
    model.unlink()
    return save(folder, tokenizer, "m2m_100")


def mbart(folder: Path, fifty: bool = False, model_only: bool = False, **config) -> dict:
    """With ``model_only``, the folder has the SentencePiece model, and its ``reference`` what transformers makes of it."""
    from transformers import MBart50Tokenizer, MBartTokenizer
    from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as FEW
    from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MANY

    folder.mkdir(parents=True, exist_ok=True)
    model, codes = train(folder, "sentencepiece.bpe"), MANY if fifty else FEW
    special = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    vocabulary = [*special, *scored(model)[3:], *((code, 0.0) for code in codes), ("<mask>", 0.0)]
    table = {"_spm_precompiled_charsmap": character_table(model)} if fifty else {}
    tokenizer = (MBart50Tokenizer if fifty else MBartTokenizer)(vocab=vocabulary, **table)
    if not model_only:
        model.unlink()
        return save(folder, tokenizer, "mbart", **config)
    write(folder, special_tokens_map={"mask_token": "<mask>", "eos_token": "</s>", "additional_special_tokens": codes})
    write(folder, tokenizer_config={"tokenizer_class": "MBart50Tokenizer" if fifty else "MBartTokenizer"})
    return save(folder / "reference", tokenizer, "mbart")


def pegasus(folder: Path, table: bool = True, model_only: bool = False) -> dict:
    from transformers import PegasusTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    model = train(folder, "spiece", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    masks = {"mask_token": "<mask_2>", "mask_token_sent": "<mask_1>"}
    first = [(token, 0.0) for token in ("<pad>", "</s>", *masks.values())]
    vocabulary = [*first, *((f"<unk_{n}>", -100.0) for n in range(2, 103)), *scored(model)[2:]]
    tokenizer = PegasusTokenizer(vocab=vocabulary, _spm_precompiled_charsmap=character_table(model) if table else None)
    if not model_only:
        model.unlink()
        return save(folder, tokenizer, "pegasus", pad_token_id=0)
    write(folder, tokenizer_config={"tokenizer_class": "PegasusTokenizer", "offset": 103, "model_max_length": 512, **masks})
    return save(folder / "reference", tokenizer, "pegasus", pad_token_id=0)


def bart(folder: Path, files: bool = False, **settings) -> dict:
    """With ``files``, as vocab.json and merges.txt."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import BartTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(TRAINING, vocab_size=500, special_tokens=["<s>", "<pad>", "</s>", "<unk>"], show_progress=False)
    trained.add_special_tokens(["<mask>"])
    trained.save_model(str(folder))
    vocabulary = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    write(folder, vocab={**vocabulary, "<mask>": len(vocabulary)})
    tokenizer = BartTokenizer(vocab=str(folder / "vocab.json"), merges=str(folder / "merges.txt"), **settings)
    config = save(folder, tokenizer, "bart")
    for name in ("tokenizer.json",) if files else ("vocab.json", "merges.txt"):
        (folder / name).unlink()
    return config


def t5(folder: Path, table: bool = True, model_only: bool = False, madlad: bool = False, unknown: int = 0, **settings) -> dict:
    """As T5's folders, with ``madlad`` as MADLAD's: other special tokens, languages among the pieces, and an ``unknown`` token.
    With ``model_only``, the folder has the SentencePiece model, which has two tokens of its users."""
    from transformers import T5Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    languages = [f"<2{code}>" for code in ("de", "en", "fr", "iw", "zh", "zh_Latn", "ndc_ZW")]
    ids = (
        {"pad_id": -1, "unk_id": 0, "bos_id": 1, "eos_id": 2} if madlad else {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    )
    own = languages if madlad else ["<x>", "dog"] if model_only else []
    model = train(folder, "spiece", user_defined_symbols=own, **ids)
    config = {"pad_token_id": int(madlad), "eos_token_id": 1 + madlad, "decoder_start_token_id": 0}
    if model_only:
        (folder / "training.txt").unlink()
        write(folder, tokenizer_config={"tokenizer_class": "T5Tokenizer", "model_max_length": 512, **settings})
        config |= {"model_type": "t5", "vocab_size": len(pieces(model)) + settings.get("extra_ids", 100)}
        write(folder, config=config)
        return config
    names = {"pad_token": "<s>", "extra_ids": 0, "additional_special_tokens": []} if madlad else {}
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(names.get("extra_ids", 100)))]
    vocabulary = [*scored(model), *((name, 0.0) for name in sentinels)]
    map_ = character_table(model) if table else None
    tokenizer = T5Tokenizer(vocab=vocabulary, _spm_precompiled_charsmap=map_, **names, **settings)
    model.unlink()
    config = save(folder, tokenizer, "t5", **config)
    if madlad:  # as version 4 wrote it
        content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        content["model"]["unk_id"] = unknown
        write(folder, tokenizer=content)
    return config


def umt5(folder: Path) -> dict:
    """As UMT5's folders, whose tokenizer is what the file says, here that of T5 as version 4 wrote it."""
    t5(folder, tokenizer_class="T5Tokenizer")
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    table = content["normalizer"]
    collapse = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u2581"}
    strip = {"type": "Strip", "strip_left": False, "strip_right": True}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    content |= {
        "normalizer": {"type": "Sequence", "normalizers": [table, strip, collapse]},
        "pre_tokenizer": metaspace,
        "decoder": metaspace,
    }
    write(folder, tokenizer=content)
    config = {**json.loads((folder / "config.json").read_text()), "model_type": "umt5"}
    write(folder, config=config)
    return config


def byt5(folder: Path, old: bool = False) -> dict:
    """With ``old``, as version 4 saved it."""
    from transformers import ByT5Tokenizer

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = ByT5Tokenizer()
    config = save(folder, tokenizer, "t5", vocab_size=384, pad_token_id=0, decoder_start_token_id=0)
    if old:
        token = {"lstrip": False, "normalized": True, "rstrip": False, "single_word": False}
        named = {
            f"{name}_token": {"content": content, **token}
            for name, content in (("eos", "</s>"), ("pad", "<pad>"), ("unk", "<unk>"))
        }
        extra = [f"<extra_id_{number}>" for number in range(125)]
        for path in folder.glob("*token*.json"):
            path.unlink()
        settings = {**named, "additional_special_tokens": extra, "extra_ids": 125, "tokenizer_class": "ByT5Tokenizer"}
        write(folder, tokenizer_config=settings, special_tokens_map={**named, "additional_special_tokens": extra})
    return config


def gemma(folder: Path, old: bool = False) -> dict:
    """As T5Gemma's folders; with ``old``, as version 4 saved them and they are published."""
    from transformers import GemmaTokenizer
    from transformers.tokenization_utils_base import generate_merges

    folder.mkdir(parents=True, exist_ok=True)
    ids = {"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}
    how = {"byte_fallback": True, "add_dummy_prefix": False, "user_defined_symbols": ["<mask>"]}
    model = train(folder, "tokenizer", "bpe", 600, **how, **ids)
    vocabulary = {piece: number for number, piece in enumerate(["<pad>", "<eos>", "<bos>", *pieces(model)[3:]])}
    model.unlink()
    tokenizer = GemmaTokenizer(vocab=vocabulary, merges=generate_merges(vocabulary), add_bos_token=True, add_eos_token=False)
    config = save(folder, tokenizer, "t5gemma", pad_token_id=0, bos_token_id=2)
    if old:
        names = ("content", "lstrip", "normalized", "rstrip", "single_word", "special")
        added = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
        decoder = {str(each["id"]): {name: each[name] for name in names} for each in added}
        named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
        flags = {"add_bos_token": True, "add_eos_token": False, "clean_up_tokenization_spaces": False, "sp_model_kwargs": {}}
        flags |= {"spaces_between_special_tokens": False, "use_default_system_prompt": False, "model_max_length": 10**30}
        write(folder, tokenizer_config={"added_tokens_decoder": decoder, "tokenizer_class": "GemmaTokenizer", **named, **flags})
    return config
