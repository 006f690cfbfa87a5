"""The short lines that train.sh shows of fairseq's log."""

from specdec_plugins.commands.watch import reports


def test_reports_show_what_matters():
    log = [
        "2026 | INFO | fairseq.trainer | begin training epoch 1",
        '2026 | INFO | train_inner | {"epoch": 1, "loss": "9.1", "nll_loss": "8.5", "ups": "0.953", "num_updates": "50"}',
        '2026 | INFO | valid | {"epoch": 1, "valid_loss": "9", "valid_nll_loss": "8.1", "valid_num_updates": "100"}',
        '2026 | INFO | valid | {"valid_nll_loss": "8.1", "valid_accept_len": "3.2", "valid_num_updates": "100"}',
        '2026 | INFO | valid | {"valid_nll_loss": "8.1", "valid_accept_len": "3.2"}',
        "ValueError: {no report}",
    ]
    assert list(reports(log, "drafter")) == [
        "drafter: update 50, nll_loss 8.5, 0.95 updates/s",
        "drafter valid: update 100, nll_loss 8.1",
        "drafter valid: update 100, accept_len 3.2",
        "drafter valid: accept_len 3.2",
    ]
