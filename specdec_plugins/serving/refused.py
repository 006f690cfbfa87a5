"""Answers without a translation."""

SPENT = 456  # the status of a spent quota, in DeepL's numbering
GONE = 499  # the status of an answer that nobody waits for, in nginx's numbering


class Refused(Exception):
    """An answer without a translation: an HTTP status, and what is wrong and what to do."""

    def __init__(self, status: int, message: str, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.retry_after = status, retry_after
