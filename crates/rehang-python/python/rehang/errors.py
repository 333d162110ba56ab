"""What can go wrong, by what has to be done about it.

Every exception is a :class:`Error`. Its message says what, where and what to do; ``remedy`` is the next step alone, or ``None``.
"""

from __future__ import annotations


class Error(Exception):
    """Something that rehang cannot do, and why."""

    remedy: str | None = None


class MismatchError(Error, ValueError):
    """Two things have to agree and do not: widths, counts, spaces, directions. Swap, transform or replace one of them."""


class CorruptError(Error, ValueError):
    """A file or its values are damaged: NaN, rows of different widths, duplicates, nothing at all."""


class OptionError(Error, ValueError):
    """An argument cannot have this value, or one that is needed is missing."""


class FileError(Error, OSError):
    """The system does not let a file be read or written; ``errno`` is its number for why, where it has one."""


class NotFoundError(Error, LookupError):
    """Something was asked for by a name that nothing has."""


class ConflictError(Error, RuntimeError):
    """The state of a gallery or of an upgrade does not allow it. Look at the state, then decide again."""


class UnavailableError(Error, RuntimeError):
    """A service, or an encoder, does not answer. Trying again later may help."""


class UnauthorisedError(Error, PermissionError):
    """A service refuses the credentials. Trying again does not help."""


class BudgetSpentError(Error, RuntimeError):
    """A budget is spent. A larger one goes on."""


class MissingFeatureError(Error, RuntimeError):
    """This build of rehang leaves out what was asked for."""


class CancelledError(Error, RuntimeError):
    """The work was asked to stop."""


class FindingWarning(UserWarning):
    """Something about data, a fit or a curve that its reader should know before acting on the numbers."""
