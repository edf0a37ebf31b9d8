"""Quantities of Kubernetes, compared."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rallypoint.job.quantity import is_quantity, quantity


@pytest.mark.parametrize(
    ("text", "number"),
    [
        pytest.param("500m", Fraction(1, 2), id="thousandths"),
        pytest.param("2", Fraction(2), id="no unit"),
        pytest.param(3, Fraction(3), id="a number"),
        pytest.param("1.5Gi", Fraction(3 * 1024**3, 2), id="binary, with decimals"),
        pytest.param("200M", Fraction(200 * 1000**2), id="decimal"),
        pytest.param("1k", Fraction(1000), id="kilo is small"),
        pytest.param("1e3", Fraction(1000), id="an exponent"),
        pytest.param("5n", Fraction(5, 10**9), id="the smallest unit"),
    ],
)
def test_a_quantity_is_a_number(text, number):
    """Exactly that one."""
    assert quantity(text) == number
    assert is_quantity(str(text))


@pytest.mark.parametrize(
    "text", [pytest.param(text, id=repr(text)) for text in ("", "1 Gi", "Gi", "1Kib", "-1", "1K", "one", "1e99999999")]
)
def test_what_is_no_quantity_is_an_error(text):
    """Nothing is guessed."""
    assert not is_quantity(text)
    with pytest.raises(ValueError):
        quantity(text)
