"""Errors a person sees: the cause, and the next command to type."""


class DartError(Exception):
    """Generation failed (exit code 1). `hint` is what to do next."""

    exit_code = 1

    def __init__(self, cause: str, hint: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.hint = hint


class UsageError(DartError):
    """A wrong option, prompt or setting (exit code 2)."""

    exit_code = 2


class ModelError(DartError):
    """The model cannot be found, read or used (exit code 3)."""

    exit_code = 3
