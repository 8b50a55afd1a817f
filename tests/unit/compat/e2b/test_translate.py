"""Translation between E2B's control plane and the node, and of code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Self
from urllib.parse import parse_qs, quote, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.compat.e2b import translate
from sandlot.compat.e2b.access import is_inside
from sandlot.compat.e2b.control.schemas import CreateSandboxRequest, NetworkOptions, UpdateNetworkRequest
from sandlot.compat.e2b.interpreter import operations
from sandlot.compat.e2b.interpreter import translate as cells
from sandlot.compat.e2b_conventions import metadata_filter
from sandlot.model.errors import InvalidRequestError, UnsupportedError
from sandlot.model.executions import CellError, CellStarted, CodeEnded, CodeEvent, CodeStatus, Display, Output, OutputGap
from sandlot.model.ids import ProcessId, SandboxId
from sandlot.model.network import MOST_OPEN, NetworkMode, NetworkPolicy, NetworkUpTo, network_entries
from sandlot.model.specs import SandboxSpec
from sandlot.model.states import State, is_terminal
from sandlot.web.streaming import StreamEvent
from tests.support.cases import cases

NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def body(**more: Any) -> CreateSandboxRequest:  # noqa: ANN401 - JSON
    return CreateSandboxRequest.model_validate({"templateID": "base", **more})


@cases("name, ours", [("base", "base"), ("code-interpreter-v1", "code-interpreter"), ("base:latest", "base"), ("my:v2", "my:v2")])
def test_template_aliases_are_translated(name: str, ours: str) -> None:
    assert translate.template_name(name) == ours


@cases(
    "error, shown",
    [
        (
            "Step 1 (RUN echo 'a b' root123) failed: The sandbox has no user 'root123'. Pass a name.",
            "failed to run command 'echo 'a b'': command failed: unauthenticated: invalid username: 'root123'",
        ),
        ("Step 1 (RUN whoami) failed: The sandbox has no user 'nobody'.", "Step 1 (RUN whoami) failed: The sandbox has no user 'nobody'."),
        ("The build was cancelled.", "The build was cancelled."),
    ],
)
def test_step_of_an_unknown_user_fails_with_the_words_of_e2b(error: str, shown: str) -> None:
    assert translate.build_failure(error) == shown


@cases(
    "more",
    [
        {"iam": {"tokens": {"x": {}}}},
        {"iam": {"other": 1}},
        {"network": {"dnsServers": ["1.1.1.1"]}},
        {"network": {"egressProxy": {"address": "x"}}},
        {"network": {"httpsPorts": [443]}},
        {"network": {"rules": {"x": []}}},
    ],
)
def test_unenforced_options_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        translate.create_params(body(**more), 300)


@cases(
    "network, public",
    [
        (None, None),
        ({}, None),
        ({"allowPublicTraffic": None}, None),
        ({"allowPublicTraffic": True}, None),
        ({"allowPublicTraffic": False, "denyOut": ["0.0.0.0/0"]}, False),
    ],
)
def test_ports_are_public_by_default_where_the_key_may_have_public_ports(network: dict[str, Any] | None, *, public: bool | None) -> None:
    for snapshot in (None, "s"):
        assert translate.create_params(body(network=network), 300, snapshot=snapshot).public_ports is public


@cases("given, mask", [({}, None), ({"maskRequestHost": ""}, None), ({"maskRequestHost": "${PORT}-app.example.com"}, "${PORT}-app.example.com")])
def test_masked_host_is_stored_and_returned(given: dict[str, Any], mask: str | None) -> None:
    assert translate.create_params(body(network=given), 300).mask_request_host == mask
    shown = translate.network_object(SandboxSpec(SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa"), public_ports=True, mask_request_host=mask))["network"]
    assert (shown["allowPublicTraffic"], shown.get("maskRequestHost", None), "maskRequestHost" in shown) == (True, mask, mask is not None)


def test_masked_host_that_is_no_host_name_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        translate.create_params(body(network={"maskRequestHost": "a b"}), 300)


@cases(
    "given, may, public, mask",
    [
        ({"allowOut": ["8.8.8.8"]}, True, None, None),
        ({"allowPublicTraffic": True}, True, True, None),
        ({"allowPublicTraffic": True}, False, False, None),
        ({"allowPublicTraffic": False, "maskRequestHost": "a"}, True, False, "a"),
        ({"maskRequestHost": ""}, True, None, ""),
    ],
)
def test_update_of_the_network_changes_access_to_ports_only_if_it_names_it(
    given: dict[str, Any], *, may: bool, public: bool | None, mask: str | None
) -> None:
    params = translate.network_update(UpdateNetworkRequest.model_validate(given), may_have_public_ports=may)
    assert (params.public_ports, params.mask_request_host) == (public, mask)
    assert params.network == translate.network_policy(allow=None, network=NetworkOptions.model_validate(given))


def internet(*, allow: Sequence[str] = (), deny: Sequence[str] = ()) -> NetworkUpTo:
    return NetworkUpTo(NetworkPolicy(NetworkMode.INTERNET, network_entries(allow, deny, allow_first=True)))


def allowlist(*allow: str) -> NetworkPolicy:
    return NetworkPolicy(NetworkMode.ALLOWLIST, network_entries(allow), packages=False)


@cases(
    "allow, network, policy",
    [
        (None, None, MOST_OPEN),
        (True, None, MOST_OPEN),
        (None, {}, MOST_OPEN),
        (False, None, NetworkPolicy(NetworkMode.NONE)),
        (None, {"denyOut": ["0.0.0.0/0"]}, NetworkPolicy(NetworkMode.NONE)),
        (True, {"denyOut": ["0.0.0.0/0", "8.8.8.8"]}, NetworkPolicy(NetworkMode.NONE)),
        (None, {"denyOut": ["0.0.0.0/0"], "allowOut": ["1.1.1.1", "example.com"]}, allowlist("1.1.1.1", "example.com")),
        (False, {"allowOut": ["*.example.com"]}, allowlist("**.example.com")),
        (None, {"denyOut": ["0.0.0.0/0", "1.1.1.0/24"], "allowOut": ["1.1.1.1"]}, allowlist("1.1.1.1")),
        (None, {"denyOut": ["10.0.0.0/8"]}, internet(deny=["10.0.0.0/8"])),
        (True, {"denyOut": ["1.1.1.0/24"], "allowOut": ["1.1.1.1"]}, internet(allow=["1.1.1.1"], deny=["1.1.1.0/24"])),
        (None, {"allowOut": ["0.0.0.0/0"], "denyOut": ["0.0.0.0/0"]}, MOST_OPEN),
    ],
)
def test_network_fields_are_a_policy_in_which_allowed_destinations_come_first(
    allow: bool | None,  # noqa: FBT001 - a field of a body
    network: dict[str, Any] | None,
    policy: NetworkPolicy | NetworkUpTo,
) -> None:
    options = None if network is None else NetworkOptions.model_validate(network)
    assert translate.network_policy(allow=allow, network=options) == policy


@cases(
    "network, field",
    [
        ({"allowOut": ["example.com"]}, "network.allowOut"),
        ({"allowOut": ["1.1.1.1", "*.example.com"], "denyOut": ["8.8.8.8"]}, "network.allowOut"),
        ({"denyOut": ["example.com"]}, "network.denyOut"),
        ({"denyOut": ["0.0.0.0/0", "example.com"]}, "network.denyOut"),
        ({"allowOut": ["*"], "denyOut": ["0.0.0.0/0"]}, "network.allow"),
    ],
)
def test_invalid_network_is_refused_with_its_field(network: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        translate.create_params(body(network=network), 300)
    assert refused.value.fields["field"] == field


def test_sandbox_of_a_snapshot_keeps_its_policy_unless_the_request_limits_it() -> None:
    unlimited: list[dict[str, Any]] = [{}, {"allow_internet_access": True}, {"network": {}}]
    for more in unlimited:
        assert translate.create_params(body(**more), 300, snapshot="s").network is None
    assert translate.create_params(body(allow_internet_access=False), 300, snapshot="s").network == NetworkPolicy(NetworkMode.NONE)


@cases(
    "policy, allows, allowed, denied",
    [
        (NetworkPolicy(NetworkMode.NONE), False, [], ["0.0.0.0/0"]),
        (NetworkPolicy(), None, [], ["0.0.0.0/0"]),
        (allowlist("1.1.1.1", "**.example.com", "*.a.com"), None, ["1.1.1.1", "*.example.com", "*.a.com"], ["0.0.0.0/0"]),
        (internet().policy, True, [], []),
        (internet(allow=["1.1.1.1"], deny=["1.1.1.0/24"]).policy, True, ["1.1.1.1"], ["1.1.1.0/24"]),
    ],
)
def test_sandbox_shows_its_effective_policy(
    policy: NetworkPolicy,
    allows: bool | None,  # noqa: FBT001 - a row
    allowed: list[str],
    denied: list[str],
) -> None:
    spec = SandboxSpec(SandboxId("sb-aaaa-aaaaaaaaaaaaaaaa"), network=policy)
    shown = {"allowOut": allowed, "denyOut": denied, "allowPublicTraffic": False}
    assert translate.network_object(spec) == {"allowInternetAccess": allows, "network": shown}


@given(st.dictionaries(st.text(min_size=1, max_size=10), st.text(max_size=10), max_size=4))
def test_metadata_filter_is_decoded_as_the_client_encodes_it(entries: dict[str, str]) -> None:
    written = urlencode({quote(name): quote(value) for name, value in entries.items()})  # e2b, sandbox_sync/paginator.py
    sent = parse_qs(urlencode({"metadata": written}), keep_blank_values=True)["metadata"][0]
    assert metadata_filter(sent) == entries


@cases("state", State)
def test_live_states_map_to_running_or_paused(state: State) -> None:
    assert (state in translate.STATES) == (not is_terminal(state) and state not in {State.CREATING, State.STOPPING})


@cases(
    "path, inside",
    [
        ("/e2b/health", True),
        ("/e2b/files", True),
        ("/files", True),
        ("/e2b/contexts/ctx-1/restart", True),
        ("/e2b/process.Process/Start", True),
        ("/e2b/sandboxes", False),
        ("/e2b/v2/sandboxes", False),
        ("/e2b/templates/files", False),
        ("/e2b/", False),
        ("/v1/files", False),
    ],
)
def test_tokens_open_only_runtime_paths(path: str, *, inside: bool) -> None:
    assert is_inside(path) is inside


# ------------------------------------------------------------------------------------------------------------------------------ code


@cases("text, told", [("'ab'", "ab"), ('"a\'b"', "a'b"), ("'", "'"), ("''", ""), ("[1]", "[1]"), ("'a", "'a"), ("", "")])
def test_string_results_lose_their_quotes(text: str, told: str) -> None:
    assert cells.result(Display({"text/plain": text}, main=True)) == {"type": "result", "text": told, "is_main_result": True, "extra": {}}


def test_invalid_json_result_is_text_and_no_chart() -> None:
    told = cells.result(Display({"application/json": "{", cells.CHART: "[1]", cells.TABLE: "1"}, main=False))
    assert told["json"] == "{"
    assert not {"chart", "data"} & set(told)


def test_table_is_the_data_of_its_result() -> None:
    told = cells.result(Display({"text/html": "<table>", cells.TABLE: '{"a": [1, null]}'}, main=True))
    assert (told["html"], told["data"], told["extra"]) == ("<table>", {"a": [1, None]}, {})


def test_output_that_is_not_utf8_is_replaced() -> None:
    said = StreamEvent("output", {"stream": "stdout", "offset": 0, "encoding": "base64", "data": "/w=="})
    assert cells.output(said, NOW) == {"type": "stdout", "text": "\ufffd", "timestamp": "2026-01-02T03:04:05.678Z"}
    assert "5 bytes" in cells.output(StreamEvent("lost", {"stream": "stderr", "lost_bytes": 5}), NOW)["text"]


@pytest.mark.parametrize(
    "events, text",
    [
        ([Output(1, 0, b"\xe2"), CellStarted(1), Output(1, 1, b"\x98\x95")], "☕"),
        (
            [Output(1, 0, b"\xf0\x9f"), Display({"text/plain": "1"}, main=False), Output(1, 2, b"\x98"), Output(2, 0, b"e"), Output(1, 3, b"\x80")],
            "😀",
        ),
        ([Output(1, 0, b"\xff\xe2"), Output(1, 2, b"\x98\x95")], "\ufffd☕"),
        ([Output(1, 0, b"\xe2"), OutputGap(1, 2, 1), Output(1, 3, b"\x98")], "\ufffd[2 bytes were not kept]\n\ufffd"),
        ([Output(1, 0, b"a\xe2\x98")], "a\ufffd"),
    ],
)
async def test_characters_are_whole_whatever_comes_between_their_bytes(events: list[CodeEvent], text: str) -> None:
    class Events:
        def __init__(self) -> None:
            self._events = iter([*events, CodeEnded(CodeStatus(ProcessId("p"), "ok", 1, 0.1))])

        def __aiter__(self) -> Self:
            return self

        async def __anext__(self) -> CodeEvent:
            for event in self._events:
                return event
            raise StopAsyncIteration

        async def aclose(self) -> None:
            pass

    told = [json.loads(line) async for line in operations.lines(Events())]
    assert "".join(each["text"] for each in told if each["type"] == "stdout") == text


def test_abnormal_ends_are_reported_as_errors() -> None:
    for status in ("timeout", "killed", "died", "oom", "aborted", "error"):
        told = cells.end(CodeStatus(ProcessId("p"), status, 1, 0.1))
        assert told is not None
        assert told["type"] == "error"
    assert cells.end(CodeStatus(ProcessId("p"), "ok", 1, 0.1)) is None
    assert cells.error(CellError("N", "v", ("a", "b"))) == {"type": "error", "name": "N", "value": "v", "traceback": "a\nb"}


def test_code_without_context_runs_in_the_default_of_its_language() -> None:
    default = operations.DEFAULTS["python"]
    assert (
        operations.select_context(None, None)
        == operations.select_context("default", None)
        == operations.select_context(default, None)
        == (default, "python")
    )
    for name, language in (("JS", "javascript"), ("TypeScript", "typescript"), ("R", "r")):
        assert operations.select_context(None, name) == (operations.DEFAULTS[language], language)
    assert operations.select_context("ctx-1", None) == ("ctx-1", None)
    with pytest.raises(InvalidRequestError):
        operations.select_context("ctx-1", "python")
    with pytest.raises(InvalidRequestError) as refused:
        operations.select_context(None, "java")
    assert "`languages`" in refused.value.hint


def test_template_of_the_key_has_priority_over_a_name_of_e2b() -> None:
    assert translate.template_names("mine:latest") == ("mine:latest", "mine")
    assert translate.template_names("code-interpreter-v1") == ("code-interpreter-v1", "code-interpreter")
    assert translate.template_names("base") == ("base",)
