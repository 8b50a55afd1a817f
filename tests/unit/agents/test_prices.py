"""Costs come from the offline price list."""

from __future__ import annotations

import sys
from decimal import Decimal

import pytest

from sandlot.agents.models.base import Usage
from sandlot.agents.prices import find_price, require_price
from sandlot.model.errors import InvalidRequestError


def test_cached_input_is_cheaper() -> None:
    price = require_price("anthropic", "claude-opus-4-5")
    plain, cached = price(Usage(1_000_000, 0)), price(Usage(1_000_000, 0, cache_read_tokens=1_000_000))
    assert plain == Decimal(5)
    assert 0 < cached < plain


def test_model_without_price_has_no_cost() -> None:
    assert find_price("openai", "no-such-model") is None
    with pytest.raises(InvalidRequestError, match="not known"):
        require_price("openai", "no-such-model")


def test_missing_price_list_has_no_cost_and_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert find_price("openai", "gpt-4o") is None
    with pytest.raises(ModuleNotFoundError, match=r"sandlot\[agents\]"):
        require_price("openai", "gpt-4o")
