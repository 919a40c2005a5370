"""The one base of every error that a user can mend, which the commands print and exit with 2; and a full disk."""

import errno

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of an OSError that says nothing of the job


class MayaError(Exception):
    """Bad input or a machine that cannot run Maya. The message says what is wrong and how to mend it."""
