"""The service responds to every request as its OpenAPI document says: no other status, no other shape, and never 500.

schemathesis makes requests out of the document, valid and invalid ones, half of them about sandboxes, files, pools and so on that exist.
Sandboxes are containers, where the requests do no harm.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import re
import secrets
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky
from schemathesis import Case, GenerationMode
from schemathesis.checks import CheckFunction
from schemathesis.config import SchemathesisConfig
from schemathesis.core.result import Ok
from schemathesis.specs.openapi import checks

from sandlot import Network, Sandbox, SandlotError
from sandlot.model.access import Quota
from sandlot.sdk import Client
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Say
from tests.support.tcpservice import TcpService, tcp_service

DOCUMENT: dict[str, Any] = json.loads((Path(__file__).parents[2] / "docs" / "openapi.json").read_text(encoding="utf-8"))
CONFIG = SchemathesisConfig.from_dict(
    # A made-up key would be the only reason why a request is refused. Inferred links would take the secret of a key for its id.
    {"generation": {"with-security-parameters": False}, "phases": {"stateful": {"inference": {"algorithms": []}}}}
)
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=CONFIG)
OPERATIONS = {found.definition.raw["operationId"]: found for each in SCHEMA.get_all_operations() if isinstance(each, Ok) for found in [each.ok()]}
CHECKS = [
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TEMPLATE = "base"
AGENT = {"name": "Analyst", "model": "large"}
BINARY = "application/octet-stream"
PATIENCE_S = 150.0
SILENCE_S = 0.7
"""How long an event stream that has no end is read."""


class World:
    """A service, somebody who asks, and what there is to ask about."""

    def __init__(self, service: TcpService) -> None:
        self.key = service.client.keys.create("schema", operator=True, quota=Quota(installs=False)).key  # no made-up name is asked of an index
        self.url = service.url
        self.client = Client(url=service.url, api_key=self.key)
        self.session = requests.Session()
        self.session.trust_env = False
        self._sandbox: Sandbox | None = None
        self._deep: Sandbox | None = None
        self._bare: Sandbox | None = None

    def empty(self) -> None:
        """Delete all resources but the key."""
        for pool in self.client.pools.list():
            self.client.pools.delete(pool.id)
        for sandbox in self.client.sandboxes.list(limit=1000):
            self.client.sandboxes.kill(sandbox.id)
        for snapshot in self.client.snapshots.list(limit=1000):
            self.client.snapshots.delete(snapshot.id)
        lists = (("files", "files"), ("volumes", "volumes"), ("webhooks", "webhooks"), ("agent-sessions", "sessions"), ("agents", "agents"))
        for path, name in lists:
            for each in self.call("GET", f"/v1/{path}")[name]:
                self.session.delete(f"{self.url}/v1/{path}/{each['id']}", headers={"Authorization": f"Bearer {self.key}"}, timeout=PATIENCE_S)

    def close(self) -> None:
        for pool in self.client.pools.list():
            self.client.pools.delete(pool.id)  # a pool that a made-up request created keeps warm sandboxes
        self.session.close()
        self.client.close()

    @property
    def sandbox(self) -> Sandbox:
        """One that lives, with a file and a folder in it."""
        if self._sandbox is None or not self._lives(self._sandbox):
            self._sandbox = Sandbox.create(TEMPLATE, isolation="container", timeout=600, network=Network("none"), client=self.client)
            self._sandbox.commands.run("mkdir /workspace/folder && echo hello >/workspace/file && cp file /workspace/folder")
        return self._sandbox

    @property
    def deep(self) -> Sandbox:
        """One whose memory can be written down."""
        if self._deep is None or not self._lives(self._deep):
            self._deep = Sandbox.create(TEMPLATE, isolation="gvisor", timeout=600, network=Network("none"), client=self.client)
        return self._deep

    def snapshot(self) -> str:
        """A snapshot of files."""
        taken = self.client.snapshots.list(limit=1)
        return (taken[0] if taken else self.sandbox.snapshot(kind="files")).id

    def pool(self) -> str:
        """A pool that holds nothing."""
        pools = self.call("GET", "/v1/pools")["pools"]
        return str((pools[0] if pools else self.call("POST", "/v1/pools", json=EMPTY_POOL))["id"])

    def process(self, command: str = "cat", **more: object) -> str:
        """A process in the sandbox; by default one that reads for as long as somebody may write."""
        body = {"command": command, "background": True, **({"stdin_open": True} if command == "cat" else {}), **more}
        return str(self.call("POST", f"/v1/sandboxes/{self.sandbox.id}/processes", json=body)["id"])

    def stored(self) -> str:
        """A file in the file store."""
        answer = self.call("POST", "/v1/files?filename=data.csv", data=b"1,2")
        return str(answer["id"])

    def execution(self) -> str:
        """A run that the log has."""
        self.sandbox.run_code("1")
        return str(self.call("GET", "/v1/executions?limit=1")["executions"][0]["id"])

    def spoken(self) -> Sandbox:
        """The sandbox, after a run that wrote something."""
        self.sandbox.run_code("print(1)")
        return self.sandbox

    def context(self) -> str:
        """A context in the sandbox; of those there is a most."""
        contexts = self.sandbox.contexts
        return next((each.id for each in contexts.list() if each.id.startswith("ctx-")), "") or contexts.create().id

    def watcher(self) -> str:
        """A folder that is watched; of those there is a most."""
        url = f"/v1/sandboxes/{self.sandbox.id}/files/watchers"
        kept = self.call("GET", url)["watchers"]
        return str((kept[0] if kept else self.call("POST", url, json={"path": "/workspace/folder"}))["id"])

    @property
    def bare(self) -> Sandbox:
        """One that can have volumes, and has none: another one, because who has volumes is not copied."""
        if self._bare is None or not self._lives(self._bare):
            self._bare = Sandbox.create(TEMPLATE, isolation="gvisor", timeout=600, network=Network("none"), client=self.client)
        for mount in self._bare.info().volumes:
            self._bare.detach_volume(mount.path)
        return self._bare

    def to_attach(self) -> Asked:
        """A volume, and a sandbox that can have it."""
        return {"path_parameters": {"sandbox": self.bare.id}, "body": {"volume": self.volume(), "path": "/mounted"}}

    def to_detach(self) -> Asked:
        """A volume, and the sandbox that has it."""
        bare = self.bare
        bare.attach_volume(self.volume(), "/mounted")
        return {"path_parameters": {"sandbox": bare.id}, "query": {"path": "/mounted"}}

    def volume(self) -> str:
        """A volume that no sandbox has."""
        kept = [each for each in self.call("GET", "/v1/volumes")["volumes"] if not each["attached"]]
        return str((kept[0] if kept else self.call("POST", "/v1/volumes", json=volume()))["id"])

    def webhook(self) -> str:
        """A webhook; of those there is a most."""
        kept = self.call("GET", "/v1/webhooks")["webhooks"]
        return str((kept[0] if kept else self.call("POST", "/v1/webhooks", json=WEBHOOK))["id"])

    def agent(self) -> str:
        """An agent."""
        return str(self.call("POST", "/v1/agents", json=AGENT)["id"])

    def talk(self) -> str:
        """A session with an agent, which has a message."""
        session = str(self.call("POST", "/v1/agent-sessions", json={"agent": self.agent()})["id"])
        self.call("POST", f"/v1/agent-sessions/{session}/messages", json={"content": "Hi"})
        self.call("POST", f"/v1/agent-sessions/{session}/interrupt")
        return session

    def build(self) -> str:
        """A build of a template, which has failed."""
        build = self.call("POST", f"/v1/templates/{BUILT}/builds", json={"dockerfile": NO_BASE})["id"]
        list(self.client.templates.follow_log(build))
        return str(build)

    def of_build(self) -> Mapping[str, Any]:
        """A request about a template that was built."""
        self.build()
        return {"path_parameters": {"template": BUILT, "tag": "v1"}}

    def new_key(self) -> str:
        """Somebody else's key."""
        return str(self.call("POST", "/v1/keys", json={"name": secrets.token_hex(8)})["id"])

    def call(self, method: str, path: str, **more: Any) -> Any:  # noqa: ANN401 - requests' own, and JSON
        answer = self.session.request(method, self.url + path, headers={"Authorization": f"Bearer {self.key}"}, timeout=PATIENCE_S, **more)
        assert answer.ok, answer.text
        return answer.json()

    def send(self, case: Case[Any], **headers: str) -> schemathesis.Response:
        sent = {"Authorization": f"Bearer {self.key}", **headers}
        return case.call(base_url=self.url, session=self.session, headers=sent, timeout=SILENCE_S if endless(case) else PATIENCE_S)

    def ask(self, case: Case[Any], **headers: str) -> schemathesis.Response:
        """Send a request and hold its answer against the document."""
        answer = self.send(case, **headers)
        case.validate_response(answer, checks=CHECKS)
        # A full host or an ability that is not there is 503 or 501, and tells so; what nobody meant is 500.
        assert answer.status_code != 500, answer.text
        return answer

    def _lives(self, sandbox: Sandbox) -> bool:
        try:
            if sandbox.info().state == "paused":
                sandbox.resume(timeout=600)
            return sandbox.is_running()
        except SandlotError:
            return False


def endless(case: Case[Any]) -> bool:
    """Whether it asks for events that never end."""
    return case.operation.definition.raw["operationId"] in {"files_watch", "events_list", "sandboxes_get_logs", "agent_sessions_list_events"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    models = tmp_path_factory.mktemp("models") / "models.toml"
    env = {"SANDLOT_ISOLATION_ALLOWED": "gvisor,container", "SANDLOT_PREVIEW_PORT": "0", "SANDLOT_AGENT_MODELS": str(models)}
    with scripted_model(lambda _: Say("Hello.")) as endpoint:
        models.write_text(f'[models.large]\nkind = "openai-chat"\nbase_url = "{endpoint.openai_url}"\napi_key = "k"\n')
        with tcp_service(env) as service:
            made = World(service)
            try:
                yield made
            finally:
                made.close()


@schemathesis.serializer("application/x-tar")
def as_it_is(_context: object, value: bytes) -> bytes:
    return value


def archive() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("empty"))
    return packed.getvalue()


def volume() -> Mapping[str, Any]:
    """A volume to make."""
    return {"name": secrets.token_hex(8), "size_bytes": 16 << 20}


WEBHOOK = {"url": "https://sandlot.invalid/", "events": ["sandbox.promoted"]}
"""Whom nobody ever tells of anything: there is no such name (RFC 6761)."""
BUILT, NO_BASE = "schema", "FROM sandlot.invalid/none\n"
"""A template, and a build of it that fails at once."""
EMPTY_POOL = {"template": TEMPLATE, "warm": 0, "max": 0}
Asked = Mapping[str, Any]
FILE: Asked = {"query": {"path": "/workspace/file"}}
FOLDER: Asked = {"query": {"path": "/workspace/folder"}}
THROWAWAY: Asked = {"template": TEMPLATE, "isolation": "container"}

GOOD: Mapping[str, Callable[[World], Asked] | Asked] = {
    "sandboxes_create": {"body": {"template": TEMPLATE, "isolation": "container", "timeout": 60, "metadata": {"a": "b"}}},
    "sandboxes_update": {"body": {"timeout": 600, "metadata": {}, "limits": {"pids": 300}, "on_timeout": "kill", "auto_resume": True}},
    "sandboxes_resume": {"body": {"timeout": 600}},
    "sandboxes_hibernate": lambda world: {"path_parameters": {"sandbox": world.deep.id}},
    "forks_create": lambda world: {"path_parameters": {"sandbox": world.deep.id}, "body": {"count": 1, "timeout": 60}},
    "sandboxes_promote": lambda world: {"path_parameters": {"sandbox": world.deep.fork()[0].id}},
    "snapshots_create": {"body": {"kind": "files"}},
    "pools_create": lambda _world: {"body": {**EMPTY_POOL, "limits": {"pids": 100 + secrets.randbelow(1000)}}},
    "pools_update": {"body": {"warm": 0, "max": 0}},
    "processes_create": {"body": {"command": "echo hello; echo oops >&2"}},
    "processes_send_signal": {"body": {"signal": "SIGCONT"}},
    "processes_get_output": lambda world: {"path_parameters": {"process": world.process("echo hello; echo oops >&2")}},
    "processes_wait": lambda world: {"path_parameters": {"process": world.process("true")}},
    "terminals_resize": lambda world: {"path_parameters": {"process": world.process("cat", pty={})}, "body": {"rows": 30, "cols": 100}},
    "processes_write_stdin": {"body": b"hello", "media_type": BINARY},
    "packages_install": {"body": {"packages": ["six"]}},
    "code_run": {"body": {"code": "print(6 * 7)\n6 * 7"}},
    "code_get": lambda world: {"path_parameters": {"execution": world.sandbox.run_code("import sys; print(1, file=sys.stderr); 2").id}},
    "contexts_create": {"body": {"language": "python"}},
    "programs_run": {"body": {"language": "bash", "code": "echo 42", "expected_output": "42", **THROWAWAY}},
    "programs_run_batch": {"body": {"items": [{"language": "bash", "code": "exit 1", **THROWAWAY}, {"language": "none"}]}},
    "events_list": {"query": {"after": 0}},
    "sandboxes_get_logs": lambda world: {"path_parameters": {"sandbox": world.spoken().id}},
    "files_read": FILE,
    "files_write": {**FILE, "body": b"hello", "media_type": BINARY},
    "files_list_directory": FOLDER,
    "files_delete": lambda world: {"query": {"path": world.sandbox.files.write("/workspace/doomed", "x").path}},
    "files_exists": FILE,
    "files_realpath": FILE,
    "files_stat": FILE,
    "files_create_directory": {"body": {"path": "/workspace/made"}},
    "files_move": {"body": {"path": "/workspace/folder/file", "to": "/workspace/folder/file", "overwrite": True}},
    "files_download_archive": FOLDER,
    "files_upload_archive": {**FOLDER, "body": archive(), "media_type": "application/x-tar"},
    "files_watch": FOLDER,
    "files_create_watcher": {"body": {"path": "/workspace/folder"}},
    "volumes_create": lambda _world: {"body": volume()},
    "volumes_attach": World.to_attach,
    "volumes_detach": World.to_detach,
    "webhooks_create": {"body": WEBHOOK},
    "webhooks_update": {"body": {"enabled": True}},
    "files_create_signed_url": {"body": {"path": "/workspace/file"}},
    "file_store_upload": {"query": {"filename": "a.txt"}, "body": b"hello", "media_type": BINARY},
    "file_store_import": lambda world: {"body": {"file_ids": [world.stored()]}},
    "file_store_export": {"body": {"path": "/workspace/file"}},
    "templates_build": {"path_parameters": {"template": BUILT}, "body": {"dockerfile": NO_BASE}},
    "templates_list_builds": World.of_build,
    "templates_delete": World.of_build,
    "templates_remove_tag": World.of_build,
    "templates_upload_context": {"body": archive(), "media_type": BINARY},
    "agents_create": {"body": AGENT},
    "agents_update": {"body": {"name": "Other"}},
    "agent_sessions_create": lambda world: {"body": {"agent": world.agent()}},
    "agent_sessions_update": {"body": {"title": "Sales"}},
    "agent_sessions_send_message": {"body": {"content": "Hi"}},
    "keys_create": {"body": {"name": "another"}},
    "keys_update": {"body": {"expires_at": None}},
}
"""Operation -> what a good request of it has beside the names in its path, where that is anything."""

NAMES: Mapping[str, Callable[[World], str]] = {
    "sandbox": lambda world: world.sandbox.id,
    "process": World.process,
    "file": World.stored,
    "execution": World.execution,
    "context": World.context,
    "snapshot": World.snapshot,
    "pool": World.pool,
    "watcher": World.watcher,
    "volume": World.volume,
    "webhook": World.webhook,
    "agent": World.agent,
    "session": World.talk,
    "key": World.new_key,
    "port": lambda _: "8000",
    "template": lambda _: TEMPLATE,
    "build": World.build,
    "archive": lambda _: "app",
    "tag": lambda _: "v1",
}
"""Name in a path -> something that there is."""

REFUSED = {
    "service_stop": 403,
    "terminals_connect": 400,
    "tunnels_connect": 426,
    "files_read_signed": 403,
    "files_write_signed": 403,
    "network_approve": 404,
    "templates_set_tag": 404,
}
"""What cannot be asked well over TCP, or with what is here alone."""


COSTLY = {"sandboxes_hibernate", "forks_create", "sandboxes_promote"}
"""What one good request shows; of many, a hundred forks might be asked for, so those are about a sandbox that says no."""


def good(world: World, operation: str) -> Asked:
    asked = GOOD.get(operation, {})
    return asked(world) if callable(asked) else asked


def real(world: World, operation: str) -> dict[str, str]:
    """Things for the names in an operation's path."""
    path = OPERATIONS[operation].path
    return {name: thing(world) for name, thing in NAMES.items() if f"{{{name}}}" in path}


def well_asked(world: World, operation: str) -> Case[Any]:
    """A good request."""
    asked = dict(good(world, operation))
    path_parameters = real(world, operation) | asked.pop("path_parameters", {})
    return OPERATIONS[operation].Case(path_parameters=path_parameters, **asked)


def failures(names: Iterable[str], check: Callable[[str], None]) -> dict[str, str]:
    """Check operations one after the other.

    Returns:
        Operation -> error, of those that failed.
    """
    found = {}
    for name in names:
        try:
            check(name)
        except (AssertionError, SandlotError, requests.RequestException, BaseExceptionGroup) as error:
            found[name] = str(error)[:2000]
    return found


@pytest.mark.slow
def test_valid_requests_succeed_as_documented(world: World) -> None:
    """A schema is not violated by responses that never come. A new operation that needs a body or a query has it in GOOD."""

    def check(operation: str) -> None:
        response = world.ask(well_asked(world, operation))
        assert 200 <= response.status_code < 300, response.text

    assert failures([name for name in OPERATIONS if name not in REFUSED], check) == {}


def events_of(operation: str) -> dict[str, dict[str, Any]]:
    """The events that an operation answers with, and the schema of each."""
    for status, answer in OPERATIONS[operation].definition.raw["responses"].items():
        for media_type, content in answer.get("content", {}).items():
            if status.startswith("2") and media_type == "text/event-stream":
                kinds = content["itemSchema"]["oneOf"]
                return {kind["properties"]["event"]["const"]: kind["properties"]["data"]["contentSchema"] for kind in kinds}
    return {}


@pytest.mark.slow
def test_streamed_events_are_as_documented(world: World) -> None:
    def check(operation: str) -> None:
        schemas = events_of(operation)
        response = world.ask(well_asked(world, operation), Accept="text/event-stream")
        assert 200 <= response.status_code < 300, response.text
        events = [block.splitlines() for block in response.text.split("\n\n") if block and not block.startswith(":")]
        assert events
        for lines in events:
            named = dict(line.split(": ", 1) for line in lines)
            schema = {**schemas[named["event"]], "components": DOCUMENT["components"]}
            jsonschema_rs.validator_for(schema).validate(json.loads(named["data"]))

    assert failures([name for name in OPERATIONS if events_of(name)], check) == {}


def asked_for(world: World, operation: str, case: Case[Any], *, about_real_things: bool) -> None:
    """Make a request one about things that there are, if that is wanted."""
    if about_real_things and operation in COSTLY:
        case.path_parameters.update(real(world, operation))
    elif about_real_things:
        model = well_asked(world, operation)
        case.path_parameters.update(model.path_parameters)
        case.query.update(model.query)
    if operation.startswith("pools_") and isinstance(case.body, dict):
        # What makes sense would be made, hundreds of them.
        case.body = {name: 0 if name in {"warm", "max", "prepared"} and type(size) is int and size > 0 else size for name, size in case.body.items()}
    answer = world.ask(case)
    if not about_real_things and not operation.startswith("pools_"):  # neither was changed, so that an invalid request is still invalid
        case.validate_response(answer, checks=[checks.negative_data_rejection])
    if operation == "sandboxes_create" and answer.status_code == 201:
        world.client.sandboxes.kill(answer.json()["id"])


def fuzz(world: World, operation: str, mode: GenerationMode, examples: int, *, fixed: bool) -> None:
    """Many requests for one operation."""

    @settings(
        max_examples=examples,
        derandomize=fixed,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[operation].as_strategy(generation_mode=mode), about_real_things=st.booleans())
    def ask(case: Case[Any], *, about_real_things: bool) -> None:
        asked_for(world, operation, case, about_real_things=about_real_things)

    ask()


def can_be_invalid(operation: str) -> bool:
    """Return True if the document excludes some values of the operation's input. Names in a path may be any text, and a body of bytes any bytes."""
    raw = OPERATIONS[operation].definition.raw
    has_schema = bool(set(raw.get("requestBody", {}).get("content", ())) - {BINARY})
    return has_schema or any(each["in"] == "query" or "pattern" in each["schema"] for each in raw.get("parameters", ()))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "examples, is_fixed", [pytest.param(1, True, id="few"), pytest.param(150, False, id="many", marks=[pytest.mark.soak, pytest.mark.timeout(7200)])]
)
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=lambda mode: mode.name.lower())
def test_generated_requests_are_answered_as_documented(world: World, mode: GenerationMode, examples: int, is_fixed: bool) -> None:  # noqa: FBT001
    names = [name for name in OPERATIONS if mode is GenerationMode.POSITIVE or can_be_invalid(name)]
    assert failures(names, lambda name: fuzz(world, name, mode, examples, fixed=is_fixed)) == {}


PRODUCERS: Mapping[str, tuple[str, str, str]] = {
    "sandboxes_create": ("201", "sandbox", "/id"),
    "forks_create": ("201", "sandbox", "/sandboxes/0/id"),
    "processes_create": ("201", "process", "/id"),
    "processes_restart": ("201", "process", "/id"),
    "code_run": ("202", "execution", "/id"),
    "contexts_create": ("201", "context", "/id"),
    "files_create_watcher": ("201", "watcher", "/id"),
    "file_store_upload": ("201", "file", "/id"),
    "file_store_export": ("201", "file", "/id"),
    "snapshots_create": ("201", "snapshot", "/id"),
    "volumes_create": ("201", "volume", "/id"),
    "pools_create": ("201", "pool", "/id"),
    "webhooks_create": ("201", "webhook", "/id"),
    "templates_build": ("201", "build", "/id"),
    "agents_create": ("201", "agent", "/id"),
    "agent_sessions_create": ("201", "session", "/id"),
    "keys_create": ("201", "key", "/id"),
}
"""Operation that creates a resource -> status of success, path parameter that names the resource, JSON pointer to its id in the response."""


def parameters_of(path: str) -> list[str]:
    return re.findall(r"{(\w+)}", path)


def with_links(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of an OpenAPI document in which each response with a new resource links to all operations on the resource."""
    linked = copy.deepcopy(dict(document))
    # schemathesis takes `file_ids` for ids of a resource that nothing creates, and would never create a sandbox.
    del linked["components"]["schemas"]["CreateSandboxRequest"]["properties"]["file_ids"]
    operations = {each["operationId"]: (path, each) for path, methods in linked["paths"].items() for each in methods.values()}
    for producer, (status, resource, pointer) in PRODUCERS.items():
        path, operation = operations[producer]
        for consumer, (target, _) in operations.items():
            needed = parameters_of(target)
            if consumer not in REFUSED and needed and needed[-1] == resource and set(needed[:-1]) <= set(parameters_of(path)):
                values = {f"path.{name}": f"$request.path.{name}" for name in needed[:-1]} | {f"path.{resource}": f"$response.body#{pointer}"}
                operation["responses"][status].setdefault("links", {})[consumer] = {"operationId": consumer, "parameters": values}
    return linked


LINKED = schemathesis.openapi.from_dict(with_links(DOCUMENT), config=CONFIG)
OF_ENDED_SANDBOXES = {"sandboxes_get", "sandboxes_get_logs", "forks_get_tree", "executions_get"}
"""Operations on records that outlive their sandbox."""


def sequence_checks(operation: str, response: schemathesis.Response) -> list[CheckFunction]:
    """Return the checks of a response: deleted resources are gone, and created ones are there."""
    found = list(CHECKS)
    if operation not in OF_ENDED_SANDBOXES:
        found.append(checks.use_after_free)
    # A file, a volume and so on that the request names besides may be missing.
    named = parameters_of(OPERATIONS[operation].path)[-1:]
    if response.status_code == 404 and response.json()["code"] in {f"{name}_not_found" for name in named}:
        found.append(checks.ensure_resource_availability)
    return found


IN_ANY_SANDBOX: Mapping[str, Callable[[], Asked]] = {
    "sandboxes_create": lambda: {"body": {"template": TEMPLATE, "isolation": RequestSequence.isolation, "timeout": 60, "network": "none"}},
    "processes_create": lambda: {"body": {"command": "cat", "background": True, "stdin_open": True}},
    "processes_wait": lambda: {"query": {"timeout": 0.1}},
    "processes_get_output": lambda: {"query": {"follow": "false"}},
    "code_run": lambda: {"body": {"code": "6 * 7", "background": True}},
    "code_get": lambda: {"query": {"wait": 0}},
    "forks_create": lambda: {"body": {"count": 1, "timeout": 60}},
    "files_create_watcher": lambda: {"body": {"path": "/workspace"}},
    "files_move": lambda: {"body": {"path": "/workspace/made", "to": "/workspace/moved"}},
    "volumes_create": lambda: {"body": volume()},
    "volumes_attach": lambda: {"body": {"volume": "none", "path": "/mounted"}},
    "pools_create": lambda: {"body": {**EMPTY_POOL, "limits": {"pids": 100 + secrets.randbelow(1000)}}},
    "keys_create": lambda: {"body": {"name": secrets.token_hex(8)}},
    "templates_list_builds": dict,
    "templates_delete": dict,
    "templates_remove_tag": dict,
}
"""Operation -> a good request of it, where GOOD has none or one that takes too much for a step of a sequence."""


SLOW = {*COSTLY, "files_download_archive", "processes_wait", "processes_get_output", "code_get"}
"""Operations whose made-up requests take long: a hundred forks, an archive of all files, or the end of a process that waits for its input."""


def in_any_sandbox(operation: str) -> Asked:
    if operation in IN_ANY_SANDBOX:
        return IN_ANY_SANDBOX[operation]()
    request = GOOD.get(operation, {})
    return {} if callable(request) else request


class RequestSequence(LINKED.as_state_machine()):  # type: ignore[misc] # a class made at run time
    """Requests of which later ones name resources that earlier ones created."""

    world: ClassVar[World]
    isolation: ClassVar[str]
    found: ClassVar[dict[str, str]]
    statuses: ClassVar[Counter[tuple[str, int]]]

    def setup(self) -> None:
        self.steps: list[str] = []
        """Requests of the sequence and the status of each response, for a failure."""

    def teardown(self) -> None:
        self.world.empty()

    def before_call(self, case: Case[Any]) -> None:
        operation = case.operation.definition.raw["operationId"]
        request = in_any_sandbox(operation)
        is_positive = case.meta is not None and case.meta.generation.mode is GenerationMode.POSITIVE
        if is_positive and (operation in SLOW or operation in PRODUCERS or len(self.steps) % 3):
            case.query = dict(request.get("query", case.query))
            if "body" in request:
                case.body, case.media_type = request["body"], request.get("media_type", case.media_type)

    def call(self, case: Case[Any], **_options: object) -> schemathesis.Response:
        response = self.world.send(case)
        operation = case.operation.definition.raw["operationId"]
        self.statuses[operation, response.status_code] += 1
        self.steps.append(f"{operation} {case.path_parameters} {case.query} {case.body!r:.200} -> {response.status_code}")
        return response

    def validate_response(self, response: schemathesis.Response, case: Case[Any], **_options: object) -> None:
        operation = case.operation.definition.raw["operationId"]
        try:
            case.validate_response(response, checks=sequence_checks(operation, response), recorder=self.recorder)
            assert response.status_code != 500, response.text
        except (AssertionError, BaseExceptionGroup) as error:
            self.found.setdefault(f"{operation} {response.status_code}", f"{error} after {self.steps}"[:4000])


def test_tables_name_operations_that_exist() -> None:
    assert {*GOOD, *REFUSED, *PRODUCERS, *IN_ANY_SANDBOX, *SLOW, *OF_ENDED_SANDBOXES} <= set(OPERATIONS)


MANY = [pytest.mark.soak, pytest.mark.timeout(7200)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "isolation, runs, steps, is_fixed",
    [
        pytest.param("container", 2, 15, True, id="few"),
        pytest.param("container", 60, 40, False, id="many-container", marks=MANY),
        pytest.param("gvisor", 30, 40, False, id="many-gvisor", marks=MANY),
    ],
)
def test_sequences_of_requests_are_answered_as_documented(world: World, isolation: str, runs: int, steps: int, is_fixed: bool) -> None:  # noqa: FBT001
    RequestSequence.world, RequestSequence.isolation, RequestSequence.found, RequestSequence.statuses = world, isolation, {}, Counter()
    how = settings(
        max_examples=6, stateful_step_count=steps, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    for number in range(runs):
        # Hypothesis cannot go on with a sequence that begins like an earlier one and has other responses, such as a name that is taken now.
        with contextlib.suppress(Flaky):
            seed(number if is_fixed else secrets.randbits(64))(RequestSequence).run(settings=how)
    assert RequestSequence.found == {}, "\n\n".join(f"{name}: {text}" for name, text in RequestSequence.found.items())
    assert is_fixed or RequestSequence.statuses["sandboxes_create", 201] > 0
