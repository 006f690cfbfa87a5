"""What protected text, markup, glossaries and alignments cost and give: shares kept, BLEU, processor seconds.

    python benchmarks/text.py --model data/docs.en-fr --corpus TEXT [--files '*.md' ...] [--beam N] [PART ...]

TEXT has valid.en, test.en, train.en.gz and so on. PARTs are protection, names, markup, terms and alignments.
"""

import argparse
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

from alignments import Gold, Reader
from sacrebleu import corpus_bleu

from specdec_plugins import Translator
from specdec_plugins.files import Options, TextFile, Unreadable, format_of
from specdec_plugins.files.html import INLINE
from specdec_plugins.model.spec import Heads
from specdec_plugins.text.alignment import numbered
from specdec_plugins.text.glossary import Found, Glossary, Term, missing
from specdec_plugins.text.lines import read_lines
from specdec_plugins.text.numbers import NUMBER, missing_numbers
from specdec_plugins.text.patterns import PATTERNS, pattern
from specdec_plugins.text.placing import Aligned, Mark, Placed, Unit, place
from specdec_plugins.text.protected import Protected
from specdec_plugins.translations import Translation
from specdec_plugins.units import translate_units

Pairs = list[tuple[str, str]]
Wrap = Callable[[str], str]
ALL = pattern()
BRANCHES = re.compile(r"(?<=\{n, plural, one \{)[^{}#]*#[^{}#]*(\} other \{)[^{}#]*#[^{}#]*(?=\}\})")  # which are translated
GENERATED = 5_000  # segments
CODE = re.compile(r"(?<![\w.`])(?=[\w.:$\\-]*[_:.(\\$-])[\w$\\][\w.:$\\-]*(?:\(\))?(?<![.:-])(?![\w])")
KINDS: Sequence[Wrap] = (
    "`{}`".format,
    "{{{}}}".format,
    lambda word: "%s",
    "%({})s".format,
    "${{{}}}".format,
    "{{{{ {} }}}}".format,
    "https://example.org/{}".format,
)
PARTS = [
    *"%s %d %1$s %(name)s {name} {0} {}".split(),
    "{{ user }}",
    "{n, plural, one {# file} other {# files}}",
    *"${HOME} `f_g()` ``a`b`` https://example.org/x?y=1 a.b@example.org %5.2f %% {x!r:>10}".split(),
]
ELEMENTS: Sequence[Wrap] = ("<b>{}</b>".format, '<a href="x.html">{}</a>'.format, "<i><b>{}</b></i>".format)


def read(path: Path) -> list[str]:
    return [*read_lines(path if path.exists() else path.with_name(f"{path.name}.gz"))]


def with_parts(pairs: Pairs, kinds: Sequence[Wrap], plain: bool, draw: random.Random) -> Pairs:
    """The pairs with up to three words of code, once on each side, made parts of these kinds on both; ``plain``: of letters
    only."""
    made = []
    for source, target in pairs:
        words = [w for w in dict.fromkeys(CODE.findall(source)) if source.count(w) == 1 == target.count(w) and len(w) > 2]
        words = [w for w in words if not any(w != v and w in v for v in words)][:3]
        names = [re.sub(r"\W", "_", w).strip("_") if plain else w for w in words]
        parts = [draw.choice(kinds)(name) for name in names]
        if words and len({*parts}) == len(parts):
            for word, part in zip(words, parts):
                source, target = source.replace(word, part), target.replace(word, part)
            made.append((source, target))
    return made


def generated(lines: Sequence[str], draw: random.Random) -> Iterator[str]:
    """Sentences with one to four placeholders between their words."""
    while True:
        words = draw.choice(lines).split()
        for _ in range(draw.randint(1, 4)):
            words.insert(draw.randint(0, len(words)), draw.choice(PARTS))
        yield " ".join(words)


def timed(work: Callable[[], list[Translation]]) -> tuple[list[str], float]:
    began = time.process_time()
    texts = [each.text for each in work()]
    return texts, time.process_time() - began


def bleu(texts: Sequence[str], references: Sequence[str], chosen: Iterable[bool]) -> str:
    rows = [(text, reference) for text, reference, each in zip(texts, references, chosen) if each]
    return f"{corpus_bleu([text for text, _ in rows], [[other for _, other in rows]], force=True).score:.2f}" if rows else "-"


def table(name: str, texts: Sequence[str], references: Sequence[str], good: Sequence[bool], seconds: float) -> None:
    scores = (bleu(texts, references, which) for which in ([True] * len(texts), good, [not each for each in good]))
    print(f"  {name:12} BLEU all {next(scores)}, intact {next(scores)}, damaged {next(scores)}; {seconds:.1f} s")


def protection(translator: Translator, corpus: Path, draw: random.Random) -> None:
    pairs = [pair for split in ("valid", "test") for pair in zip(*(read(corpus / f"{split}.{side}") for side in ("en", "fr")))]
    rows = [(Protected.of(source, ALL), target) for source, target in with_parts(pairs, KINDS, True, draw)]
    rows = [(source, target) for source, target in rows if source.spans and source.intact(target)]
    sources, references = [source.text for source, _ in rows], [target for _, target in rows]
    plain, seconds = timed(lambda: translator.translate(sources))
    kept, more = timed(lambda: translator.translate(sources, protect=ALL))
    good, held = ([source.intact(text) for (source, _), text in zip(rows, texts)] for texts in (plain, kept))
    print(f"protection: {len(rows):,} segments, {sum(good):,} intact, protected {sum(held):,}")
    table("unprotected", plain, references, good, seconds)
    table("protected", kept, references, good, more)
    lines = [*islice(generated([source for source, _ in pairs], draw), GENERATED)]
    plain, seconds = timed(lambda: translator.translate(lines))
    kept, more = timed(lambda: translator.translate(lines, protect=ALL))
    kept = [BRANCHES.sub(r"# file\1# files", text) for text in kept]
    counts = (sum(Protected.of(line, ALL).intact(text) for line, text in zip(lines, texts)) for texts in (plain, kept))
    print(
        f"  generated: {len(lines):,} segments, {next(counts):,} intact, protected {next(counts):,}; {seconds:.1f}, {more:.1f} s"
    )


def tags(text: str) -> list[str]:
    return re.findall(r"</?\w[^>]*>", text)


def well_formed(text: str) -> bool:
    opened: list[str] = []
    for tag in tags(text):
        name = re.sub(r"\W", "", tag.split()[0])
        if not tag.startswith("</"):
            opened.append(name)
        elif not opened or opened.pop() != name:
            return False
    return not opened


def stripped(text: str) -> str:
    return re.sub(r"</?\w[^>]*>", "", text)


def spaced(text: str) -> str:
    """Tags as words of their own, so that BLEU sees where they are."""
    return re.sub(r"(</?\w[^>]*>)", r" \1 ", text)


def markup(translator: Translator, corpus: Path, draw: random.Random) -> None:
    pairs = [pair for split in ("valid", "test") for pair in zip(*(read(corpus / f"{split}.{side}") for side in ("en", "fr")))]
    rows = with_parts([pair for pair in pairs if not re.search("[<>&]", "".join(pair))], ELEMENTS, False, draw)
    sources, references = [source for source, _ in rows], [target for _, target in rows]
    raw, seconds = timed(lambda: translator.translate(sources))
    began = time.process_time()
    placed = marked_up(translator, sources)
    more = time.process_time() - began
    whole = (
        sum(sorted(tags(one)) == sorted(tags(other)) and well_formed(other) for one, other in zip(sources, texts))
        for texts in (raw, placed)
    )
    good = [sorted(tags(one)) == sorted(tags(other)) and well_formed(other) for one, other in zip(sources, raw)]
    print(
        f"markup: {len(rows):,} segments, well-formed with all tags {next(whole):,} as text, {next(whole):,} with --markup html"
    )
    bare = [stripped(each) for each in references]
    table("as text", [stripped(each) for each in raw], bare, good, seconds)
    table("--markup", [stripped(each) for each in placed], bare, good, more)
    table("untagged", [each.text for each in translator.translate([stripped(each) for each in sources])], bare, good, 0)
    table("as text, tags", [spaced(each) for each in raw], [spaced(each) for each in references], good, 0)
    table("--markup, tags", [spaced(each) for each in placed], [spaced(each) for each in references], good, 0)
    for path in sorted(Path(__file__).parents[1].glob(f"data/alignments.*-{translator.pair.config.target_lang}.tsv")):
        placing(translator, Gold(str(path)), draw)


def marked_up(translator: Translator, lines: Sequence[str]) -> list[str]:
    files = [TextFile(line, "html", Options()) for line in lines]
    placed = iter(translate_units(translator, [unit for file in files for unit in file.units]))
    return [file.translated(list(islice(placed, len(file.units)))) for file in files]


def placing(translator: Translator, gold: Gold, draw: random.Random) -> None:
    """Elements around one to four words, placed by the model's links and by hand-made ones, in lines that no heads were chosen
    by."""
    same = right = found = wanted = count = 0
    verifier = translator.pair.verifier.spec.decoder
    read_gold = Reader(translator, gold).alignments(translator.pair.alignment or Heads.usual(verifier))
    for number in range(1, len(gold.source), 2):
        source, text, own = gold.source[number], gold.target[number], read_gold(number)
        owners = [numbered(source, own.source), numbered(text, own.target)]
        known = [(i, j) for i, one in owners[0].items() for j, other in owners[1].items() if (one, other) in gold.sure[number]]
        for first in range(len(own.source)):
            last = min(len(own.source), first + draw.randint(1, 4)) - 1
            marks = [
                (0, Mark(own.source[first][0], own.source[first][0], 1)),
                (1, Mark(own.source[last][1], own.source[last][1], 0)),
            ]
            sides = (place(source, marks, Aligned(text, own.source, own.target, pairs)) for pairs in (known, own.pairs))
            one, other = ({*range(*inside(pieces))} for pieces in sides)
            count, same = count + 1, same + (one == other)
            right, found, wanted = right + len(one & other), found + len(other), wanted + len(one)
    print(
        f"  {count:,} elements around words of hand-aligned lines: {same / count:.1%} placed as by hand; characters inside: "
        f"precision {right / found:.1%}, recall {right / wanted:.1%}"
    )


def inside(pieces: Sequence[str | int]) -> tuple[int, int]:
    """The characters that the one element is around."""
    first, last = (next(n for n, piece in enumerate(pieces) if piece == mark) for mark in (0, 1))
    start = sum(len(piece) for piece in pieces[:first] if isinstance(piece, str))
    return start, start + sum(len(piece) for piece in pieces[first:last] if isinstance(piece, str))


def glossary_of(corpus: Path) -> Glossary:
    """For each frequent word of the training text the word of the other side that occurs with it most (Dice coefficient)."""
    letters, counts, both = re.compile(r"[^\W\d_]{5,}"), (Counter[str](), Counter[str]()), Counter[tuple[str, str]]()
    for pair in islice(zip(*(read(corpus / f"train.{side}") for side in ("en", "fr"))), 60_000):
        sides = [{*letters.findall(line.lower())} for line in pair]
        for tally, words in zip(counts, sides):
            tally.update(words)
        if len(sides[0]) * len(sides[1]) < 250:
            both.update((one, other) for one in sides[0] for other in sides[1])
    best: dict[str, tuple[float, str]] = {}
    for (one, other), count in both.items():
        dice = 2 * count / (counts[0][one] + counts[1][other])
        if count >= 15 and one != other and dice > max(0.35, best.get(one, (0.0, ""))[0]):
            best[one] = dice, other
    return Glossary([Term(one, other) for one, (_, other) in best.items()])


class Wanted(Glossary):
    """A glossary without the terms for which a line's reference has another word."""

    def find(self, text: str) -> list[Found]:
        return REFERRED.get(text, [])


REFERRED: dict[str, list[Found]] = {}


def terms(translator: Translator, corpus: Path, draw: random.Random) -> None:
    """On the lines of test whose reference has a term of the glossary, counting these terms."""
    known = glossary_of(corpus)
    for source, target in islice(zip(read(corpus / "test.en"), read(corpus / "test.fr")), 1_500):
        if found := [each for each in known.find(source) if not missing([each], target)]:
            REFERRED[source] = found
    lines = dict(zip(read(corpus / "test.en"), read(corpus / "test.fr")))
    sources, references, wanted = [*REFERRED], [lines[source] for source in REFERRED], sum(map(len, REFERRED.values()))
    print(f"terms: {len(known.terms):,}; {len(sources):,} segments whose references have {wanted:,}")
    for name, glossary in (("none", None), ("these", Wanted(known.terms)), ("all terms", known)):
        texts, seconds = timed(lambda glossary=glossary: translator.translate(sources, glossary=glossary))  # type: ignore[misc]
        kept = wanted - sum(len(missing(REFERRED[source], text)) for source, text in zip(sources, texts))
        score = bleu(texts, references, [True] * len(texts))
        print(f"  {name:10} {kept:,} kept ({kept / wanted:.1%}), BLEU {score}; {seconds:.1f} s")


def alignments(translator: Translator, corpus: Path, draw: random.Random) -> None:
    lines, times = read(corpus / "valid.en")[:200], dict[bool, list[float]]()
    for size in (1, 32):
        times = {asked: [] for asked in (False, True)}
        for _ in range(5):
            for asked in times:
                work = lambda size=size, asked=asked: translator.translate(lines, batch_size=size, alignments=asked)  # noqa: E731
                times[asked].append(timed(work)[1])
        plain, asked_for = (sorted(each)[2] for each in times.values())
        print(f"alignments, batch size {size}: {1000 * plain / len(lines):.2f} ms a line, aligned {asked_for / plain:.2f} times")


def structure(text: str, form: str) -> list[str]:
    """A file without its text: block by block, its inline tags and code in any order."""
    if form == "markdown":
        import markdown_it

        tokens = markdown_it.MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(text)
        each = [[token] if token.type != "inline" else token.children or [] for token in tokens]
        kept = [
            [
                f"{t.type} {t.markup} {t.attrs.get('href', '')} {t.content if 'code' in t.type or 'html' in t.type else ''}"
                for t in block
                if t.type not in ("text", "softbreak", "text_special")
            ]
            for block in each
        ]
        return [line for block in kept for line in sorted(block)]
    found, block = list[str](), list[str]()
    for tag in re.findall(r"<(?!!--)/?[^>]+>", text):
        name = re.sub(r"\W", "", tag.split()[0].lower())
        if name not in INLINE:
            found, block = [*found, *sorted(block), name], []
        else:
            block.append(name)
    return [*found, *sorted(block)]


def files(translator: Translator, paths: Sequence[str], output: Path | None) -> None:
    """Real files: whether each placeholder and each mark comes out once, and whether the structure is the same."""
    units = damaged = lost = 0
    for path in paths:
        form, text = format_of(path), Path(path).read_text(encoding="utf-8")
        try:
            content = TextFile(text, form or "lines", Options())
        except Unreadable as error:
            print(f"  {path}: {error.what}")
            continue
        placed = translate_units(translator, content.units, too_long="skip")
        for unit, each in zip(content.units, placed):
            parts = Protected.of(unit.text, ALL, [(mark.start, mark.end) for mark in unit.marks if mark.start < mark.end])
            units += bool(parts.spans or unit.marks)
            lost += each is not None and not once(parts, unit, each)
        new = content.translated(placed)
        if structure(new, form or "") != structure(text, form or ""):
            damaged += 1
            print(f"  {path}: another structure")
        if output:
            (output / Path(path).name).write_text(new, encoding="utf-8")
    print(
        f"files: {len(paths):,}, {units:,} texts with parts or tags, {lost:,} lost one; {damaged:,} files have another structure"
    )


def once(parts: Protected, unit: Unit, placed: Placed) -> bool:
    whole = "".join(
        each if isinstance(each, str) else unit.text[slice(unit.marks[each].start, unit.marks[each].end)]
        for each in placed.pieces
    )
    return sorted(each for each in placed.pieces if isinstance(each, int)) == [*range(len(unit.marks))] and parts.intact(whole)


def names(translator: Translator, corpus: Path, draw: random.Random) -> None:
    """Segments whose placeholders, names and numbers come through: of the model, with protection, and of the references."""
    for split in ("valid", "test"):
        source, reference = read(corpus / f"{split}.en"), read(corpus / f"{split}.fr")
        plain, seconds = timed(lambda lines=source: translator.translate(lines))  # type: ignore[misc]
        kept, more = timed(lambda lines=source: translator.translate(lines, protect=ALL))  # type: ignore[misc]
        print(f"names: {split}, {len(source):,} segments; {seconds:.1f}, {more:.1f} s")
        sides = plain, kept, reference
        for name, members in OF_PATTERNS.items():
            expression = re.compile("|".join(PATTERNS[each] for each in members))
            own = [Protected.of(line, expression) for line in source]
            count(name, [[each.intact(text) for each, text in zip(own, side) if each.spans] for side in sides])
        numbered = [(line, texts) for line, *texts in zip(source, *sides) if NUMBER.search(line)]
        count("numbers", [[not missing_numbers(line, texts[side], "fr") for line, texts in numbered] for side in range(3)])
        own = [Protected.of(line, ALL) for line in source]
        count("any", [[not each.lost(text) for each, text in zip(own, side) if each.spans or each.numbers] for side in sides])
        changed = [one != other for one, other in zip(plain, kept)]
        for label, side in (("plain", plain), ("protected", kept)):
            scores = bleu(side, reference, [True] * len(source)), bleu(side, reference, changed)
            print(f"  {label:9} BLEU {scores[0]}, of the {sum(changed)} that change {scores[1]}")


OF_PATTERNS = {
    "placeholders": ("code", "tag", "url", "e-mail", "mustache", "icu", "python", "printf"),
    "shell": ("shell",),
    "options": ("option",),
    "paths": ("absolute path", "relative path", "drive", "hidden file"),
    "names": ("call", "member", "underscores", "dots", "digits", "capitals"),
    "hexadecimal": ("hexadecimal",),
    "versions": ("version",),
}


def count(name: str, sides: Sequence[Sequence[bool]]) -> None:
    print(f"  {name:14} {len(sides[0]):5,}: {', '.join(f'{sum(side):,}' for side in sides)} intact")


TASKS = {task.__name__: task for task in (protection, names, markup, terms, alignments)}


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(TASKS)} (default: all)")
    p.add_argument("--model", required=True)
    p.add_argument("--corpus", type=Path)
    p.add_argument("--files", nargs="*", default=[])
    p.add_argument("--output", type=Path, help="folder for translated files")
    p.add_argument("--beam", type=int, default=1)
    options = p.parse_args(argv)
    searching = {"beam": options.beam, "strategy": "ar"} if options.beam > 1 else {}
    translator = Translator.from_pretrained(options.model, threads=1, dtype="auto", **searching)
    for part in options.parts or (TASKS if options.corpus else ()):
        TASKS[part](translator, options.corpus, random.Random(1))
    if options.files:
        files(translator, options.files, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
