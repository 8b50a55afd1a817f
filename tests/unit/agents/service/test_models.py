"""Models of the operator: their file, and the refusal of all others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sandlot.agents.service.models import ModelEntry, ModelKind, Models, load_models
from sandlot.model.errors import ErrorCode, InvalidRequestError, UnsupportedError

ENTRY = ModelEntry("large", ModelKind.ANTHROPIC, "http://127.0.0.1:9", "the-key", "upstream")


def test_file_names_the_endpoint_of_each_model(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text(
        """
        [models."claude-sonnet-4"]
        kind = "anthropic"
        base_url = "https://api.example.com"
        api_key = "k1"
        model = "claude-sonnet-4-20250514"
        input_price = 3
        output_price = 15.0
        max_output_tokens = 1000
        timeout = 60

        [models.local]
        kind = "openai-chat"
        base_url = "http://127.0.0.1:11434/v1"
        api_key = "none"
        """
    )
    assert load_models(file) == {
        "claude-sonnet-4": ModelEntry(
            "claude-sonnet-4", ModelKind.ANTHROPIC, "https://api.example.com", "k1", "claude-sonnet-4-20250514", 3, 15.0, 1000, 60
        ),
        "local": ModelEntry("local", ModelKind.OPENAI_CHAT, "http://127.0.0.1:11434/v1", "none", "local"),
    }


@pytest.mark.parametrize(
    "text, told",
    [
        ("models = 1", "a table for each model"),
        ("[models.a]\nkind = 'openai-chat'", "lacks `base_url`"),
        ("[models.a]\nkind = 'x'\nbase_url = 'http://a'\napi_key = 'k'", "must be one of"),
        ("[models.a]\nkind = 'anthropic'\nbase_url = 'a'\napi_key = 'k'", "no URL"),
        ("[models.a]\nkind = 'anthropic'\nbase_url = 'http://a'\napi_key = 'k'\ninput_price = -1", "out of range"),
        ("[models.a]\nkind = 'anthropic'\nbase_url = 'http://a'\napi_key = 'k'\ntimeout = true", "wrong type"),
        ("[models.a]\nkey = 'k'", "unknown field 'key'"),
        ("[", "cannot be read"),
    ],
)
def test_invalid_files_are_refused_with_the_reason(tmp_path: Path, text: str, told: str) -> None:
    file = tmp_path / "models.toml"
    file.write_text(text)
    with pytest.raises(InvalidRequestError, match=told) as refused:
        load_models(file)
    assert "SANDLOT_AGENT_MODELS" in refused.value.hint


def test_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="cannot be read"):
        load_models(tmp_path / "models.toml")


def test_price_needs_both_prices() -> None:
    assert ENTRY.cost_usd(1, 1) is None
    assert ModelEntry("a", ModelKind.ANTHROPIC, "", "", "", 1.0, 2.0).cost_usd(1_000_000, 500_000) == 2.0


def test_key_of_a_model_is_not_shown() -> None:
    assert "the-key" not in repr(ENTRY)


def test_model_that_is_not_configured_is_refused_with_the_names_of_the_others() -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Models({"large": ENTRY}).entry("small")
    assert (refused.value.code, refused.value.fields["models"]) == (ErrorCode.MODEL_NOT_CONFIGURED, ["large"])


async def test_service_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    with pytest.raises(UnsupportedError) as missing:
        Models({"large": ENTRY}).build("large")
    assert "sandlot[server,agents]" in missing.value.hint
