"""What a job can report, as strategies of hypothesis: every float, every text, every size and type."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

__all__ = ["FLOATS", "INTEGERS", "RESERVED", "TEXTS", "VALUES", "parsed"]

FLOATS = st.floats(allow_nan=True, allow_infinity=True)
INTEGERS = (
    st.integers() | st.integers(min_value=-(2**70), max_value=2**70) | st.sampled_from([2**63, 2**64, 10**400, -(10**4000)])
)
# All code points, halves of surrogate pairs among them, and often those that somebody refuses.
TEXTS = st.text(st.characters() | st.sampled_from("\x00\x01\x07\x1b\x7f\x85\ud800\udfff\ufffe\U0010ffff\n\t\r"), max_size=40)
#: Keys with which Airflow's serializers mark a class.
RESERVED = st.sampled_from(["__classname__", "__id__", "__version__", "__data__", "__type", "__var", "__source"])
SCALARS = st.none() | st.booleans() | FLOATS | INTEGERS | TEXTS | st.binary(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS | INTEGERS | RESERVED, inner, max_size=4),
    max_leaves=12,
)


def parsed(text: str) -> Any:
    """Return the value of JSON text as a strict parser does: bare NaN and Infinity are errors."""
    import json

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is not JSON")

    text.encode()  # raises for half a surrogate pair
    return json.loads(text, parse_constant=refuse)
