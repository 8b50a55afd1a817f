"""Cost of a model's answers, from the offline price list of ``genai-prices``."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import TypeAlias

from sandlot.agents.extras import extra
from sandlot.agents.models.base import Usage
from sandlot.model.errors import InvalidRequestError

Price: TypeAlias = Callable[[Usage], Decimal]
"""Returns the cost of tokens in US dollars."""


def find_price(vendor: str, model: str) -> Price | None:
    """Return the price of a model; None if it is not known, or if ``genai-prices`` is not installed.

    Args:
        vendor: ``anthropic`` or ``openai``.
        model: Name of the model.
    """
    try:
        return require_price(vendor, model)
    except (InvalidRequestError, ModuleNotFoundError):
        return None


def require_price(vendor: str, model: str) -> Price:
    """Return the price of a model.

    Raises:
        InvalidRequestError: The price is not known, so that a limit of cost could not hold.
        ModuleNotFoundError: ``genai-prices`` is not installed.
    """
    with extra("agents", "genai_prices"):
        import genai_prices  # noqa: PLC0415 - only for costs

    def price(usage: Usage) -> Decimal:
        counts = genai_prices.Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens,
            cache_write_tokens=usage.cache_write_tokens,
        )
        return genai_prices.calc_price(counts, model, provider_id=vendor).total_price

    try:
        price(Usage())
    except LookupError:
        raise InvalidRequestError(
            f"The price of the model {model!r} is not known, so a limit of cost cannot hold.", hint="Limit `tokens` instead of `cost_usd`."
        ) from None
    return price
