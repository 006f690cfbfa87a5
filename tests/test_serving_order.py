"""Events between calls, lines and sessions in random order: no request waits for ever, is lost, or is answered twice.

One thread plays all: a call that waits lets others act until it is woken. Sessions decode nothing, but join, finish, fail and are
refused like real ones.
"""

import random
from collections import Counter, deque
from types import SimpleNamespace

import pytest

from specdec_plugins.decoding.options import Beam
from specdec_plugins.decoding.requests import Commit, Hypothesis, ModelLimits, Request
from specdec_plugins.decoding.roles import Roles
from specdec_plugins.serving import line as lines
from specdec_plugins.serving.guest import Cancelled, Guest
from specdec_plugins.serving.line import Line

ROWS = 6  # of a line
REFUSED = 9  # the token of a request that sessions refuse
ACTS = 3000  # of all, until a call that waits is said to wait for ever


class Session:
    """``prefix`` is itself: what is in flight."""

    def __init__(self, chance, faults, rows, stats):
        self.chance, self.faults = chance, faults
        self.waiting, self.flying, self.left = deque(), {}, {}
        self.prefix, self.rows, self.stats = self, rows, stats

    def __len__(self):
        return self.reserved

    @property
    def reserved(self):
        return sum(request.rows for request in self.flying.values())

    @property
    def idle(self):
        return not self.waiting and not self.flying

    def submit(self, request):
        if REFUSED in request.tokens or request.rows > ROWS:
            raise ValueError("refused")
        self.waiting.append(request)

    def cancel(self, number):
        self.waiting = deque(request for request in self.waiting if request.index != number)
        if self.flying.pop(number, None) and self.chance.random() < self.faults:
            raise RuntimeError("a role cannot forget")

    def step(self, times, partial):
        while self.waiting and (not self.flying or self.reserved + self.waiting[0].rows <= self.rows):
            request = self.waiting.popleft()
            self.flying[request.index], self.left[request.index] = request, [*range(request.outputs)]
        self.stats.passes += 1
        commits = []
        for number in [each for each in self.flying if self.chance.random() < 0.4]:
            error = ValueError("a drafter raised") if self.chance.random() < self.faults else None
            ends = [self.left[number].pop(0)]
            if error or self.flying[number].beam:  # a search ends with all its outputs, which may be few
                ends += self.left[number][self.chance.randrange(len(self.left[number]) + 1) :]
                self.left[number] = []
            commits += [Commit(number, n, [5], [0.0], Hypothesis(number, [5], [], [], False, n, error=error)) for n in ends]
            if not self.left[number]:
                del self.flying[number]
        if partial:
            commits += [Commit(number, self.left[number][0], [5], [0.0]) for number in self.flying]
        if self.chance.random() < self.faults:
            raise RuntimeError("a pass failed")
        return commits


class Thread:
    """What `EngineThread._run` does, a bit at a time."""

    alive = True

    def __init__(self):
        self.mail, self.desks = deque(), []

    def post(self, job):
        self.mail.append(job)

    def act(self):
        """Whether there was something to do."""
        if self.mail:
            self.mail.popleft()()
        elif self.desks:
            self.desks = [desk for desk in self.desks if desk.step()]
        else:
            return False
        return True


class World:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.faults = self.chance.choice((0.0, 0.03, 0.1))
        self.threads = [Thread() for _ in range(self.chance.randint(1, 2))]
        self.lines, self.guests, self.calls, self.acts = [], [], self.chance.randint(2, 12), 0
        self.load()

    def load(self):
        """A model, in place of the present one."""
        limits = ModelLimits(10, 10, 10, 10)
        settings, roles = SimpleNamespace(adaptive=False), Roles(None, None, None, None)
        model = SimpleNamespace(limits=limits, settings=settings, roles=roles, session=self.session, join=lambda running: None)
        self.lines.append(Line(model, ROWS, self.threads))

    def session(self, rows, usual_rows, roles, stats):
        if self.chance.random() < 5 * self.faults:
            raise MemoryError
        return Session(self.chance, self.faults, usual_rows, stats)

    def wait(self, bell):
        """Let others act until the bell rings."""
        while not bell:
            self.acts += 1
            able = [thread for thread in self.threads if thread.mail or thread.desks]
            draw = self.chance.random()
            if draw < 0.03:
                self.load()
            elif draw < 0.2 and self.calls:
                self.call()
            elif draw < 0.25:
                self.chance.choice(self.guests).cancel()
            else:
                assert able, "a call waits for ever"
                self.chance.choice(able).act()
            assert self.acts < ACTS, "a call waits for ever"
        return bell.popleft()

    def call(self):
        """A call that decodes once or twice. All its outputs come, once each; unless it was cancelled, or something failed."""
        self.calls -= 1
        rung = deque()
        bell = SimpleNamespace(ring=lambda: rung.append(None), wait=lambda: self.wait(rung))
        guest = Guest(self.lines[-1], bell, self.chance.choice((None, lambda commit: None)))
        self.guests.append(guest)
        bad = False
        for _ in range(self.chance.randint(1, 2)):
            requests = [self.request(number) for number in range(self.chance.randint(1, 4))]
            bad = bad or any(REFUSED in request.tokens or request.rows > ROWS for request in requests)
            try:
                found = Counter((each.index, each.output) for each in guest.run(requests))
                assert set(found.values()) == {1} and {number for number, _ in found} == {*range(len(requests))}
                assert all(each.beam or (each.index, n) in found for each in requests for n in range(each.outputs))
            except Cancelled:
                assert guest.cancelled
                with pytest.raises(Cancelled):  # nor does it wait again
                    guest.step()
            except (RuntimeError, ValueError):
                assert bad or self.faults
            else:
                assert guest.idle and not guest.fresh
                continue
            return guest.cancel()

    def request(self, number):
        tokens = [4, REFUSED if self.chance.random() < 0.05 else 5, 2]
        beam = Beam(self.chance.choice((2, 3, 5, ROWS, ROWS + 1)), nbest=2) if self.chance.random() < 0.3 else None
        return Request(number, tokens, 5, beam=beam, seeds=(0,) if beam else (*range(self.chance.randint(1, 3)),))


@pytest.mark.parametrize("seeds", [range(150), pytest.param(range(150, 5000), marks=pytest.mark.long)])
def test_every_call_ends_and_leaves_nothing(monkeypatch, seeds):
    monkeypatch.setattr(lines, "SOONEST", 0.0)  # no session is waited for
    monkeypatch.setattr(lines.log, "error", lambda *given, **how: None)
    for seed in seeds:
        world = World(seed)
        while world.calls:
            world.call()
        assert any(not any(thread.act() for thread in world.threads) for _ in range(ACTS)), "the threads do not come to rest"
        for desk in (desk for line in world.lines for desk in line.desks):
            assert not desk.line.guests and not desk.owners and not desk.unfinished, seed
            assert desk.session is None or desk.session.idle, seed


def test_a_call_whose_requests_were_all_taken_does_not_line_up():
    """Desks may take them between its look and its turn; nobody would look for it later."""
    (line,) = World(0).lines
    line.enter(Guest(line, None))
    assert not line.guests
