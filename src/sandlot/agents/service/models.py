"""Models that the operator offers to agents.

Invariants:
- A request names a model and nothing else of it: addresses and keys of endpoints come from the operator's file only.
- A model is built with its first request. Until then, neither pydantic-ai nor the package of the model is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sandlot.agents.service.tables import read_tables
from sandlot.model.errors import ErrorCode, InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from pydantic_ai.models import Model

REQUEST_TIMEOUT_S: Final = 300.0
"""Seconds until a request to a model is given up, if the operator does not set ``timeout``."""
MAX_OUTPUT_TOKENS: Final = 8192
"""Maximum tokens of one response, if the operator does not set ``max_output_tokens``."""
_TOKENS_OF_PRICE = 1_000_000


class ModelKind(StrEnum):
    """API of a model's endpoint."""

    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A model as the operator has configured it.

    Args:
        name: Name in requests.
        kind: API of the endpoint.
        base_url: URL of the endpoint, such as ``https://api.anthropic.com`` or ``http://127.0.0.1:11434/v1``.
        api_key: Key for the endpoint.
        model: Name of the model at the endpoint. Default: ``name``.
        input_price: Price of 1,000,000 tokens that the model reads, in US dollars. None: unknown.
        output_price: Price of 1,000,000 tokens that the model writes, in US dollars. None: unknown.
        max_output_tokens: Maximum tokens of one response.
        timeout: Seconds until a request is given up.
    """

    name: str
    kind: ModelKind
    base_url: str
    api_key: str = field(repr=False)
    model: str = ""
    input_price: float | None = None
    output_price: float | None = None
    max_output_tokens: int = MAX_OUTPUT_TOKENS
    timeout: float = REQUEST_TIMEOUT_S

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float | None:
        """Return the price of tokens in US dollars; None if it is unknown."""
        if self.input_price is None or self.output_price is None:
            return None
        return (input_tokens * self.input_price + output_tokens * self.output_price) / _TOKENS_OF_PRICE


def load_models(path: Path) -> Mapping[str, ModelEntry]:
    """Read the models from a file in TOML: a table ``[models.NAME]`` for each, with the fields of :class:`ModelEntry`.

    Raises:
        InvalidRequestError: The file cannot be read, or a field is missing, unknown or out of range.
    """
    return {name: _entry(path, name, table) for name, table in read_tables(path, "model", _invalid).items()}


def _entry(path: Path, name: str, table: Mapping[str, Any]) -> ModelEntry:
    types = {"input_price": (int, float), "output_price": (int, float), "timeout": (int, float), "max_output_tokens": (int,)}
    known = {each.name for each in fields(ModelEntry)} - {"name"}
    for key, value in table.items():
        if key not in known:
            raise _invalid(path, f"the model {name!r} has the unknown field {key!r}; the fields are {', '.join(sorted(known))}")
        if not isinstance(value, types.get(key, (str,))) or isinstance(value, bool):
            raise _invalid(path, f"`{key}` of the model {name!r} has a value of a wrong type")
        if isinstance(value, (int, float)) and not (math.isfinite(value) and (value >= 0 if key.endswith("price") else value > 0)):
            raise _invalid(path, f"`{key}` of the model {name!r} is {value}, which is out of range")
    missing = [key for key in ("kind", "base_url", "api_key") if not table.get(key)]
    if missing:
        raise _invalid(path, f"the model {name!r} lacks `{missing[0]}`")
    if table["kind"] not in set(ModelKind):
        raise _invalid(path, f"`kind` of the model {name!r} is {table['kind']!r}; it must be one of {', '.join(ModelKind)}")
    if urlsplit(table["base_url"]).scheme not in {"http", "https"}:
        raise _invalid(path, f"`base_url` of the model {name!r} is no URL")
    return ModelEntry(**{**table, "name": name, "kind": ModelKind(table["kind"]), "model": table.get("model") or name})


def _invalid(path: Path, why: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"The models in {path} cannot be used: {why}.", hint="Correct the file that SANDLOT_AGENT_MODELS names.", fields={"field": "agent_models"}
    )


class Models:
    """The models by the names of requests.

    Args:
        entries: Configured models.
    """

    def __init__(self, entries: Mapping[str, ModelEntry]) -> None:
        self._entries = entries
        self._built: dict[str, Model] = {}
        self._clients: list[Any] = []

    def entry(self, name: str) -> ModelEntry:
        """Return a configured model.

        Raises:
            InvalidRequestError: The operator has not configured the model (``model_not_configured``).
        """
        entry = self._entries.get(name)
        if entry is None:
            names = ", ".join(sorted(self._entries))
            raise InvalidRequestError(
                f"The model {name[:64]!r} is not configured.",
                code=ErrorCode.MODEL_NOT_CONFIGURED,
                hint=f"Use one of {names}." if names else "The operator of the service configures models with SANDLOT_AGENT_MODELS.",
                fields={"model": name[:64], "models": sorted(self._entries)},
            )
        return entry

    def build(self, name: str) -> Model:
        """Return the client of a configured model.

        Raises:
            InvalidRequestError: The operator has not configured the model.
            UnsupportedError: The service was installed without the extra ``agents``.
        """
        entry = self.entry(name)
        if name not in self._built:
            try:
                self._built[name] = self._build(entry)
            except ModuleNotFoundError as error:
                raise UnsupportedError(
                    f"The service cannot run agents: the package {error.name} is missing.",
                    code=ErrorCode.UNSUPPORTED,
                    hint="Install it on the machine of the service: pip install 'sandlot[server,agents]'.",
                ) from None
        return self._built[name]

    async def aclose(self) -> None:
        """Close the connections to all endpoints."""
        for client in self._clients:
            await client.close()
        self._clients.clear()
        self._built.clear()

    def _build(self, entry: ModelEntry) -> Model:
        if entry.kind is ModelKind.ANTHROPIC:
            from anthropic import AsyncAnthropic  # noqa: PLC0415 - with the first request
            from pydantic_ai.models.anthropic import AnthropicModel  # noqa: PLC0415
            from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415

            anthropic = AsyncAnthropic(base_url=entry.base_url, api_key=entry.api_key, timeout=entry.timeout)
            self._clients.append(anthropic)
            return AnthropicModel(entry.model, provider=AnthropicProvider(anthropic_client=anthropic))
        from openai import AsyncOpenAI  # noqa: PLC0415
        from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: PLC0415
        from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415

        openai = AsyncOpenAI(base_url=entry.base_url, api_key=entry.api_key, timeout=entry.timeout)
        self._clients.append(openai)
        kind = OpenAIChatModel if entry.kind is ModelKind.OPENAI_CHAT else OpenAIResponsesModel
        return kind(entry.model, provider=OpenAIProvider(openai_client=openai))
