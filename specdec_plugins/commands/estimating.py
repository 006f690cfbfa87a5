"""What a drafter would bring before it is trained: ``specdec-draft --estimate``."""

import argparse
from itertools import islice
from typing import NamedTuple

from specdec_plugins.commands.draft_text import too_long
from specdec_plugins.commands.evaluation import Evaluator, by_rows
from specdec_plugins.cpus import usual_threads
from specdec_plugins.formats.folder import Pair
from specdec_plugins.measure.certificate import LINES
from specdec_plugins.measure.costs import pass_costs
from specdec_plugins.measure.expectation import REACHED, WORTH, Expected, expected_gain, tokens_per_pass
from specdec_plugins.text.lines import read_lines
from specdec_plugins.training.drafting import Plan, Training

READ, SENTENCES = 2_000, 24  # lines of the text, and those that are decoded, evenly spread
SECONDS = 25.0  # of measuring, about
# Tokens that are drafted: those that make up 99 % of the outputs for a text are 41 and 66 % of the shipped pairs' vocabularies.
DRAFTED, MOST_DRAFTED = 0.5, 16_000


class Estimate(NamedTuple):
    tokens: float  # a pass
    gains: dict[int, Expected]  # by batch size


def estimate(options: argparse.Namespace, pair: Pair) -> str:
    """In words, the gain to expect on this machine and whether to bother. Raises ValueError."""
    tokens, gains = estimated(options, pair)
    best = max(gains, key=lambda rows: gains[rows].gain)
    text = "" if options.sources else " (on built-in sentences; --sources TEXT estimates for yours)"
    speed = by_rows({rows: each.gain for rows, each in gains.items()})
    said = f"expected: {tokens:.1f} tokens a pass with drafts of {len(REACHED[options.recipe])}; gain {speed}{text}"
    if gains[best].gain < WORTH:
        return f"{said}\nnot worth training a drafter for this machine: drafts cost what they save"
    return f"{said}\nworth it at batch size {best}, with drafts of {gains[best].length} tokens"


def estimated(options: argparse.Namespace, pair: Pair) -> Estimate:
    """From the pair's measured costs and the acceptance on record. Raises ValueError."""
    if options.recipe not in REACHED:
        raise ValueError(
            f"--estimate: no acceptance by position is on record for {options.recipe}, only for {', '.join(REACHED)}"
        )
    rates = REACHED[options.recipe]
    symbols, size = pair.verifier.spec.symbols, len(pair.target)
    drafted = sorted({symbols.eos, *range(min(MOST_DRAFTED, int(DRAFTED * size)))})
    plan = Plan.of(options.recipe, options.drafter_options, pair.verifier.spec.decoder.layers, drafted)
    drafter = Training(plan, pair.verifier, []).drafter()  # untrained: a pass costs the same
    evaluator = Evaluator(pair, options.threads or usual_threads(), (options.source_lang, options.target_lang))
    translator = evaluator.translator(drafter, block_size=plan.block_size)
    lines = [line for line in islice(read_lines(options.sources or LINES), READ) if line.strip()]
    lines = [line for line in lines if not too_long(translator, line, evaluator.languages)]
    if not lines:
        raise ValueError(f"{options.sources}: no sentence that the model reads")
    requests = evaluator.requests(translator, lines[:: max(1, len(lines) // SENTENCES)][:SENTENCES])
    lengths = [len(each.tokens) + 1 - each.prefilled for each in translator.engine.decode(requests, 8, None)]
    costs = pass_costs(translator.engine, requests, SECONDS)
    gains = {rows: expected_gain(rates, lengths, each) for rows, each in costs.items()}
    return Estimate(tokens_per_pass(rates, lengths), gains)
