"""Simulated machines on which controllers are compared with the best fixed arm, known in hindsight, and with plain decoding.

A cell is a pair (how often tokens pass, by position), a data type (what passes cost) and a load (rows). Each row's step is easy
or hard; in hard ones fewer tokens pass, the verifier is less sure of its last token, and the drafter of the draft. Costs have
noise and stalls, and the process makes up to 16 iterations a call. What is scored has no noise: the tokens and the seconds that
are expected of the arms that were played, catching up included. In cells of trees drafts may branch: what does not pass is, half
of it each time, the drafter's next choice, and trees have the likeliest paths.
"""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from specdec_plugins.decoding.control.arms import GATES, lengths_for
from specdec_plugins.decoding.control.thompson import Thompson
from specdec_plugins.decoding.control.throughput import Throughput
from specdec_plugins.decoding.control.ucb import Ucb
from specdec_plugins.decoding.options import OPEN, Gate, Tree
from specdec_plugins.decoding.roles import Controller
from specdec_plugins.decoding.trees import grow, path_to
from specdec_plugins.decoding.values import Outcome, Step, first_nodes

BLOCK_SIZE, LONGEST = 8, 16
TOGETHER = 16  # iterations a call, as in the loop
SAMPLE = 4000  # steps that gated arms' expectations are taken from
STALLS, STALL = 0.005, 30.0  # share of the calls that are interrupted, and how many times as long an iteration then takes
SENTENCE = 25  # tokens
WORK = {1: 16_000, 8: 40_000, 32: 100_000, 128: 250_000}  # tokens, by rows: two to four thousand iterations
NODES, CHOICES = 32, 5  # of the largest tree; tokens after each of its nodes at most
OPEN_ARMS = [(0, OPEN), *((length, OPEN) for length in range(1, LONGEST + 1))]
TREE_ARMS = [(min(nodes, BLOCK_SIZE), OPEN, nodes) for nodes in range(2, NODES + 1)]
GATED_ARMS = [(length, gate) for gate in GATES for length in lengths_for(BLOCK_SIZE)]

MAKERS: dict[str, Callable[[int, int], Controller]] = {  # by block size and seed
    "throughput": lambda block_size, seed: Throughput(block_size),
    "thompson": lambda block_size, seed: Thompson(block_size, gates=GATES, seed=seed),
    "ucb": lambda block_size, seed: Ucb(block_size, gates=GATES),
}
TREE_MAKERS: dict[str, Callable[[int], Controller]] = {  # by seed
    "throughput": lambda seed: Throughput(BLOCK_SIZE, nodes=NODES),
    "thompson": lambda seed: Thompson(BLOCK_SIZE, nodes=NODES, seed=seed),
    "ucb": lambda seed: Ucb(BLOCK_SIZE, nodes=NODES),
}


class Pair(NamedTuple):
    """Probabilities that a token passes: the first, and the following ones, of easy and of hard steps."""

    easy: tuple[float, float]
    hard: tuple[float, float]
    hardness: float  # share of the steps that are hard

    def rates(self, hard: bool) -> list[float]:
        first, following = self.hard if hard else self.easy
        return [first] + [following] * (LONGEST - 1)


class Costs(NamedTuple):
    """Microseconds: of a pass and of each of its positions, for the verifier and for the drafter; and what a tree takes more in a
    pass, and for each node.
    """

    verifier: float
    position: float
    drafter: float
    drafted: float
    tree: float = 0.0
    node: float = 0.0

    def seconds(self, rows: float, drafted: float, length: int, drafting: float = 1.0, nodes: int = 0) -> float:
        """An iteration in which ``drafted`` tokens of a draft of that length are verified in all; ``drafting`` is the share of
        iterations with a draft, for means."""
        cost = self.verifier + self.position * (rows + drafted)
        if length:
            cost += drafting * (self.drafter + self.drafted * rows * length)
        if nodes:
            cost += self.tree + self.node * rows * nodes
        return cost * 1e-6


PAIRS = {
    "captions": Pair((0.94, 0.88), (0.55, 0.5), 0.3),
    "documentation": Pair((0.85, 0.75), (0.35, 0.4), 0.4),
}
HOSTILE = Pair((0.06, 0.2), (0.03, 0.2), 0.5)  # after its acceptance collapsed
DTYPES = {"int8": Costs(150, 9, 110, 6), "float32": Costs(600, 12, 200, 4)}


@dataclass(frozen=True)
class Cell:
    """Phases of a run: tokens to commit, rows, pair. The work is the same for each controller; its time is what is compared."""

    costs: Costs
    phases: tuple[tuple[int, int, Pair], ...]


def cells() -> Iterator[tuple[str, Cell]]:
    for pair_name, pair in PAIRS.items():
        for dtype, costs in DTYPES.items():
            loads = {f"batch {rows}": ((work, rows, pair),) for rows, work in WORK.items()}
            loads["1, 64, 1"] = ((8000, 1, pair), (64_000, 64, pair), (8000, 1, pair))
            loads["hostile"] = ((10_000, 1, pair), (3000, 1, HOSTILE))
            for load, phases in loads.items():
                yield f"{pair_name} {dtype} {load}", Cell(costs, phases)


CELLS = dict(cells())
TREE_COSTS = {  # positions that cost little, as on a GPU, and dear ones
    "cheap": Costs(900, 0.5, 250, 0.5, tree=200, node=1), "int8": DTYPES["int8"]._replace(tree=300, node=4),
    "float32": DTYPES["float32"]._replace(tree=300, node=4),
}  # fmt: skip


def tree_cells() -> Iterator[tuple[str, Cell]]:
    for pair_name, pair in PAIRS.items():
        for costs_name, costs in TREE_COSTS.items():
            for rows in (1, 8, 32):
                yield f"{pair_name} {costs_name} batch {rows}", Cell(costs, ((WORK[rows], rows, pair),))
    cheap, pair = TREE_COSTS["cheap"], PAIRS["captions"]
    yield "captions cheap 1, 64, 1", Cell(cheap, ((8000, 1, pair), (64_000, 64, pair), (8000, 1, pair)))
    yield "captions cheap hostile", Cell(cheap, ((10_000, 1, pair), (3000, 1, HOSTILE)))


TREE_CELLS = dict(tree_cells())


@cache
def tree_of(pair: Pair, hard: bool, length: int, nodes: int) -> tuple[list[int], list[int], list[float]]:
    """Of each node the rank among the choices there, the parent, and the probability that its path passes."""
    rates = pair.rates(hard)
    ranks = [[rate, *((1 - rate) / 2**rank for rank in range(1, CHOICES))] for rate in rates]

    def children(depth: int) -> list[tuple[float, int, int]]:
        return [(math.log(each), rank, depth + 1) for rank, each in enumerate(ranks[depth])] if depth < length else []

    tokens, parents = grow(children, 0, Tree(nodes))
    chances = [math.prod(ranks[depth][tokens[node]] for depth, node in enumerate(path_to(end, parents)))
               for end in range(len(tokens))]  # fmt: skip
    return tokens, parents, chances


def draw_tree(pair: Pair, length: int, nodes: int, uniform: Callable[[], float]) -> Step:
    hard = uniform() < pair.hardness
    tokens, parents, chances = tree_of(pair, hard, length, nodes)
    path = [-1]
    while True:
        left = uniform() * (chances[path[-1]] if len(path) > 1 else 1.0)
        for node in range(path[-1] + 1, len(tokens)):
            if parents[node] == path[-1]:
                left -= chances[node]
                if left < 0:
                    path.append(node)
                    break
        else:
            return Step([7] * len(tokens), len(path) - 1, 0, tuple(path[1:]), first_nodes(parents))


def draw(pair: Pair, length: int, gate: Gate, uniform: Callable[[], float]) -> tuple[int, int]:
    """How many tokens a step drafts behind the gate, and how many of them pass."""
    hard = uniform() < pair.hardness
    if gate.verifier and uniform() < (0.7 if hard else 0.1):
        return 0, 0
    if not gate.drafter:
        first, following = pair.hard if hard else pair.easy
        accepted, rate = 0, first
        while accepted < length and uniform() < rate:
            accepted, rate = accepted + 1, following
        return length, accepted
    drafted = accepted = 0
    passing, rates = True, pair.rates(hard)
    while drafted < length:
        passes = uniform() < rates[drafted]
        if uniform() < (0.03 if passes else 0.6):  # the drafter is unsure, mostly where it is wrong
            break
        drafted += 1
        passing = passing and passes
        accepted += passing
    return drafted, accepted


class Expectation(NamedTuple):
    tokens: float  # that a row commits
    drafted: float  # tokens of a row
    drafts: float  # probability that a row has a draft


@cache
def expectation(pair: Pair, length: int, gate: Gate, nodes: int = 0) -> Expectation:
    if nodes:
        easy, hard = (sum(tree_of(pair, hard, length, nodes)[2]) for hard in (False, True))
        return Expectation(1 + (1 - pair.hardness) * easy + pair.hardness * hard, float(nodes), 1.0)
    if gate == OPEN:
        tokens = 1.0
        for hard, share in ((False, 1 - pair.hardness), (True, pair.hardness)):
            survival = 1.0
            for rate in pair.rates(hard)[:length]:
                survival *= rate
                tokens += share * survival
        return Expectation(tokens, float(length), float(length > 0))
    uniform = random.Random(1).random
    steps = [draw(pair, length, gate, uniform) for _ in range(SAMPLE)]
    drafted, accepted = (sum(each) / SAMPLE for each in zip(*steps))
    return Expectation(1 + accepted, drafted, sum(drafted > 0 for drafted, _ in steps) / SAMPLE)


@cache
def fair(costs: Costs, rows: int, pair: Pair, length: int, gate: Gate, nodes: int = 0) -> tuple[float, float]:
    """Tokens and seconds that are expected of an iteration. The drafter drafts the whole length, and the gate cuts then."""
    tokens, drafted, drafts = expectation(pair, length, gate, nodes)
    drafting = 1 - (1 - drafts) ** rows
    return rows * tokens, costs.seconds(rows, rows * drafted, length, drafting, nodes)


def fixed(cell: Cell, length: int, gate: Gate, nodes: int = 0) -> float:
    """Seconds of the cell's work with an arm that is played all the time."""
    found = ((work, *fair(cell.costs, rows, pair, length, gate, nodes)) for work, rows, pair in cell.phases)
    return sum(work * seconds / tokens for work, tokens, seconds in found)


@cache
def best(cell: Cell, gated: bool = True) -> tuple[float, int, Gate]:
    """The best fixed arm, plain decoding included: seconds, length, gate."""
    arms = OPEN_ARMS + (GATED_ARMS if gated else [])
    return min(((fixed(cell, *arm), *arm) for arm in arms), key=lambda found: found[0])


class Run(NamedTuple):
    seconds: float  # that the work takes, without noise
    trace: list[tuple[int, float, float]]  # after so many iterations, so many tokens and seconds
    arms: dict[tuple[int, Gate, int], int]  # iterations of each: length, gate and nodes


def run(controller: Controller, cell: Cell, seed: int = 0, noise: float = 0.1) -> Run:
    """Drive a controller through a cell."""
    dice = random.Random(seed)
    uniform = dice.random
    total, time, done, pause = 0.0, 0.0, 0, 0
    trace: list[tuple[int, float, float]] = []
    arms: dict[tuple[int, Gate, int], int] = {}
    for work, rows, pair in cell.phases:
        left = float(work)
        while left > 0:
            plan = controller.plan(range(rows))
            length, gate, nodes = plan.lengths[0], plan.gate, plan.tree.nodes if plan.tree else 0
            tokens, seconds = fair(cell.costs, rows, pair, length, gate, nodes)
            # A call ends with a sentence.
            until_end = math.log(1 - uniform()) / math.log(1 - min(0.99, tokens / SENTENCE))
            times = min(plan.times, TOGETHER, 1 + int(until_end)) if not nodes else 1
            steps, real = [], 0.0
            if nodes:
                steps, real = [draw_tree(pair, length, nodes, uniform) for _ in range(rows)], seconds
                catching_up = cell.costs.drafted * 1e-6 * rows * min(pause, SENTENCE // 2)
                pause = 0
            elif length:
                for _ in range(times):
                    drawn = [draw(pair, length, gate, uniform) for _ in range(rows)]
                    steps += [Step([7] * drafted, accepted, 0) for drafted, accepted in drawn]
                    verified = sum(drafted for drafted, _ in drawn)
                    real += cell.costs.seconds(rows, verified, length, float(verified > 0))
                catching_up = cell.costs.drafted * 1e-6 * rows * min(pause, SENTENCE // 2)
                pause = 0
            else:
                steps = [Step([], 0, 0)] * (rows * times)
                real, catching_up = times * seconds, 0.0
                pause += times
            part = min(1.0, left / (times * tokens))  # the rest is not part of the work
            total, time = total + part * times * tokens, time + part * times * seconds + catching_up
            left -= times * tokens
            real = (real + catching_up) * (1 + noise * uniform())
            if uniform() < STALLS:
                real += STALL * seconds
            controller.update(Outcome(plan, steps, real, times))
            done += times
            arms[length, gate, nodes] = arms.get((length, gate, nodes), 0) + times
            trace.append((done, total, time))
    return Run(time, trace, arms)
