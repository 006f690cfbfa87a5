#!/usr/bin/env python3
"""Calibration of `glide`: how often a drafted token passes, by the probability that the drafter gives it.

    benchmarks/calibration.py --model DIR --input FILE [--sentences 300] [--block-size 8]

One sentence at a time, greedy, int8. Counts tokens before which all drafted ones passed. The expected calibration error is the
mean distance between probability and share passed over ten bins of equal width, weighted by their tokens.
"""

import argparse
from collections.abc import Sequence

from specdec_plugins.decoding.drafters import after_the_last, draft_in_turn
from specdec_plugins.decoding.drafters.glide import GlideDrafter, GlideState
from specdec_plugins.decoding.prefix import Prefix
from specdec_plugins.decoding.values import Draft, Plan
from specdec_plugins.text.lines import read_lines
from specdec_plugins.translator import Translator

BINS = (0.0, 0.5, 0.7, 0.9, 0.97, 0.99, 0.999)  # lower bounds


class Noting(GlideDrafter):
    """Notes the probability of each drafted token, in lists by draft of the only row."""

    def __init__(self, drafter: GlideDrafter):
        super().__init__(drafter.model)
        self.noted: list[list[float]] = []

    def propose(self, state: GlideState, prefix: Prefix, plan: Plan) -> Draft:
        inner, noted = after_the_last(self.model, state.cache, confident=True), list[float]()

        def choose(ahead: Prefix, wanted: Sequence[bool]) -> Draft:
            draft = inner(ahead, wanted)
            noted.extend(draft.confidence)
            return draft

        self.noted.append(noted)
        return draft_in_turn(prefix, plan, choose, self.model.xp)


def main() -> None:
    p = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0], allow_abbrev=False)
    p.add_argument("--model", required=True, metavar="DIR")
    p.add_argument("--input", required=True, metavar="FILE")
    p.add_argument("--sentences", type=int, default=300, metavar="N")
    p.add_argument("--block-size", type=int, default=8, metavar="K")
    args = p.parse_args()
    translator = Translator.from_pretrained(args.model, strategy="specdec", block_size=args.block_size, dtype="int8", threads=1)
    engine = translator.engine
    if not isinstance(engine.roles.drafter, GlideDrafter):
        p.error(f"{args.model}: its drafter is not glide")
    drafter = Noting(engine.roles.drafter)
    engine.roles = engine.roles._replace(drafter=drafter)
    session, tokens = engine.session(1), list[tuple[float, bool]]()
    lines = [line for _, line in zip(range(args.sentences), read_lines(args.input))]
    for index, source in enumerate(translator.encode(lines)):
        drafter.noted.clear()
        (output,) = session.run([engine.request(index, source)])
        for step, probabilities in zip(filter(lambda step: step.drafted, output.steps), drafter.noted, strict=True):
            tokens += [(one, at < step.accepted) for at, one in enumerate(probabilities[: step.accepted + 1])]
    print("probability      tokens    mean  passed")
    for low, high in zip(BINS, (*BINS[1:], 1.1)):
        found = [each for each in tokens if low <= each[0] < high]
        means = [sum(part) / max(1, len(found)) for part in zip(*found)] or [0.0, 0.0]
        print(f"{low:5.3f} to {min(high, 1):5.3f} {len(found):7,} {means[0]:7.3f} {means[1]:7.3f}")
    tenths = [[each for each in tokens if min(int(10 * each[0]), 9) == tenth] for tenth in range(10)]
    error = sum(abs(sum(one - passed for one, passed in tenth)) for tenth in tenths) / len(tokens)
    print(f"expected calibration error {error:.3f}, {len(tokens):,} tokens")


if __name__ == "__main__":
    main()
