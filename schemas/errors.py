"""Errors are for people: one sentence that says what is wrong, where, and what to do, with an exit code."""


class HeadraceError(Exception):
    """A failure with a sentence for a person. `exit_code` is what the command line returns."""

    exit_code = 1


class RequestError(HeadraceError):
    """The request was wrong and was refused before any work started (exit code 2)."""

    exit_code = 2


class RunStopped(HeadraceError):
    """Work had started and had to stop; what was stored stays and can be resumed (exit code 1)."""

    exit_code = 1


class Fenced(RunStopped):
    """Another process took over: this one must stop without writing anything more."""


class PartnerLost(RunStopped):
    """Another process of the same learner has ended, so that this one can't go on; starting all again helps."""


class LogDamaged(RunStopped):
    """A ledger record or a shard that it names is gone or not what was recorded."""


class AuditViolation(HeadraceError):
    """An audit found that the store contradicts a promise (exit code 3)."""

    exit_code = 3
