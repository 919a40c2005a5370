"""The one base of every error that a user can mend; the commands print it and exit with 2."""


class MayaError(Exception):
    """Bad input or a machine that cannot run Maya. The message says what is wrong and how to mend it."""
