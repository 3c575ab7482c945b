"""The one exception that a user's input may cause."""

#: More names than this are not all shown.
LONG = 60


class InputError(ValueError):
    """Input that the lab refuses: one sentence with what, where and what is allowed.

    The command line prints the sentence to standard error and exits with code 2; from Python it is a
    `ValueError` like any other.
    """


def one_of(what: str, value: object, allowed: "list[str] | tuple[str, ...]") -> InputError:
    """Return the error for `value` of `what` that is not among `allowed`, with a close match if there is one.

    A short list is shown whole. Of a long one only what is close is shown, or where it begins.
    """
    import difflib

    close = difflib.get_close_matches(str(value), allowed, n=3, cutoff=0.6)
    hint = f"did you mean {' or '.join(close)}?" if close else ""
    if len(allowed) <= LONG:
        return InputError(f"{what} is {value!r}; allowed: {', '.join(allowed)}{'; ' * bool(close)}{hint}")
    some = f"allowed: {len(allowed)} names, the first of them {', '.join(allowed[:5])}"
    return InputError(f"{what} is {value!r}; {hint or some}")


class UnsupportedError(InputError, NotImplementedError):
    """An `InputError` where verl raises `NotImplementedError`: code that catches either keeps working."""


class AssertedError(InputError, AssertionError):
    """An `InputError` where verl asserts."""


class InputTypeError(InputError, TypeError):
    """An `InputError` where verl raises `TypeError`."""


class ShapeError(InputError, RuntimeError):
    """A tensor of the wrong shape or dtype; a `RuntimeError` too, which torch raises there in verl."""


class InputIndexError(InputError, IndexError):
    """An `InputError` where verl raises `IndexError`."""
