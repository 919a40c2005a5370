"""Which rows may be looked at while fitting: a tenth, chosen by the hash of the id; all figures are of the rest."""

from __future__ import annotations

import hashlib
from enum import StrEnum

_TENTHS = 10
# The salt keeps the choice apart from whatever drew the rows of a table by a hash of the same ids.
_SALT = "maya:"
# Looked at before the split was made.
_SEEN = frozenset(f"vtrain_single_node_a100-{number}" for number in ("0274", "0382", "0678", "0860"))


class Share(StrEnum):
    ALL = "all"
    FIT = "fit"
    REPORT = "report"


def is_fit(row_id: str) -> bool:
    """Whether the row of that id belongs to the share that coefficients may be fitted on.

    sha256("maya:" + id) modulo 10 is 0, so about a tenth of every source, of rows that nobody has seen too.
    """
    digest = hashlib.sha256((_SALT + row_id).encode()).digest()
    return int.from_bytes(digest) % _TENTHS == 0 or row_id in _SEEN


def in_share(row_id: str, share: Share) -> bool:
    return share is Share.ALL or is_fit(row_id) == (share is Share.FIT)
