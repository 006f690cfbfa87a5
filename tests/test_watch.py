"""The short lines that train.sh shows of fairseq's log."""

import pytest

from specdec_plugins.commands.watch import WINDOW, duration, reports


def inner(update: int, wall: int, ups: str = "1") -> str:
    """A line of fairseq's log."""
    figures = f'"nll_loss": "3.21", "ups": "{ups}", "num_updates": "{update}", "wall": "{wall}"'
    return f"2026 | INFO | train_inner | {{{figures}}}"


def test_reports_show_what_matters():
    log = [
        "2026 | INFO | fairseq.trainer | begin training epoch 1",
        '2026 | INFO | train_inner | {"epoch": 1, "loss": "9.1", "nll_loss": "8.5", "ups": "0.953", "num_updates": "50"}',
        '2026 | INFO | valid | {"epoch": 1, "valid_loss": "9", "valid_nll_loss": "8.1", "valid_num_updates": "1000"}',
        '2026 | INFO | valid | {"valid_nll_loss": "8.1", "valid_accept_len": "3.2", "valid_num_updates": "100"}',
        '2026 | INFO | valid | {"valid_nll_loss": "8.1", "valid_accept_len": "3.2"}',
        "ValueError: {no report}",
    ]
    assert list(reports(log, "drafter")) == [
        "drafter: update 50, nll_loss 8.5, 0.95 updates/s",
        "drafter valid: update 1,000, nll_loss 8.1",
        "drafter valid: update 100, accept_len 3.2",
        "drafter valid: accept_len 3.2",
    ]
    assert list(reports(log[1:3], "drafter", 4500)) == [
        "drafter: update 50 of 4,500, nll_loss 8.5, 0.95 updates/s, 1 h 18 min left",
        "drafter valid: update 1,000 of 4,500, nll_loss 8.1",
    ]


def test_the_time_left_is_estimated_from_the_updates_of_this_run():
    """Resumed at update 1,000, with a validation of 100 s that fairseq's own speed leaves out."""
    lines = list(reports([inner(1050, 60), inner(1100, 110), inner(1150, 260)], "verifier", 1250))
    assert [line.rsplit(", ", 1)[1] for line in lines] == ["3 min left", "2 min left", "3 min left"]  # at 1, 1, and 0.5 a second
    assert lines[0] == "verifier: update 1,050 of 1,250, nll_loss 3.21, 1.00 updates/s, 3 min left"


def test_the_speed_follows_the_last_reports():
    fast = [inner(50 * index, 5 * index, "10") for index in range(1, WINDOW)]
    slow = [inner(50 * (WINDOW + index), 5 * WINDOW + 100 * index, "0.5") for index in range(WINDOW)]
    *_, last = reports([*fast, *slow], "verifier", 50 * (2 * WINDOW - 1) + 60)
    assert last.endswith("0.50 updates/s, 2 min left")


def test_nothing_is_left_at_the_end():
    assert list(reports([inner(100, 50)], "verifier", 100)) == ["verifier: update 100 of 100, nll_loss 3.21, 1.00 updates/s"]
    assert "left" not in next(reports([inner(50, 0, "0")], "verifier", 100))  # a speed that cannot be told


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (40.4, "40 s"), (60, "1 min"), (3599, "1 h 0 min"), (4440, "1 h 14 min"), (3.6e6, "1,000 h 0 min")],
)
def test_durations(seconds, text):
    assert duration(seconds) == text
