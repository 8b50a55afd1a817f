"""Runs of agents beside the same requests to their model, and sessions that wait for a message.

    .venv/bin/python -m benchmarks.agents [--rounds 40] [--sessions 100] [--seconds 30]

The model is scripted and answers at once. A round sends a request to the model with the package `openai`, as the service does, and a message to a
session whose agent has no tools; the order changes with each round. Prints the medians of both, and of the difference in pairs, which is divided by
the four events of a run. Then prints the processor time and the memory of the service while it has idle sessions, beside a window without them.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from openai import OpenAI

from tests.support.localservice import LocalService
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Say

EVENTS = 4
"""Events of a run without calls: `user.message`, `session.status_running`, `agent.message`, `session.status_idle`."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Runs of agents beside raw requests to their model.")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=30.0)
    chosen = parser.parse_args()
    with ExitStack() as opened:
        endpoint = opened.enter_context(scripted_model(lambda _: Say("Hello.")))
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="sandlot-bench-")))
        file = folder / "models.toml"
        file.write_text(f'[models.large]\nkind = "openai-chat"\nbase_url = "{endpoint.openai_url}"\napi_key = "none"\n', encoding="utf-8")
        service = LocalService(folder, {"SANDLOT_AGENT_MODELS": str(file), "SANDLOT_POOLS": "none"})
        service.start()
        opened.callback(service.end)
        model = opened.enter_context(OpenAI(base_url=endpoint.openai_url, api_key="none"))
        agent = service.client.agents.create("Bench", "large", tools=())
        measure_events(service, model, agent.id, chosen.rounds)
        measure_idle(service, agent.id, chosen.sessions, chosen.seconds)


def measure_events(service: LocalService, model: OpenAI, agent: str, rounds: int) -> None:
    """Print the time of a message beside the time of the request to the model."""
    raw_ms: list[float] = []
    run_ms: list[float] = []
    for number in range(rounds + 3):
        session = service.client.agent_sessions.create(agent).id  # as short a conversation as the raw request has
        steps = [lambda: ask(model), lambda: run(service, session)]  # noqa: B023 - called in this round
        taken = [0.0, 0.0]
        for index in (0, 1) if number % 2 else (1, 0):
            began_s = time.perf_counter()
            steps[index]()
            taken[index] = (time.perf_counter() - began_s) * 1000
        if number >= 3:  # the first rounds import packages and open connections
            raw_ms.append(taken[0])
            run_ms.append(taken[1])
    added_ms = [whole - raw for raw, whole in zip(raw_ms, run_ms, strict=True)]
    print(f"request to the model {statistics.median(raw_ms):.1f} ms, message until idle {statistics.median(run_ms):.1f} ms")
    print(f"added {statistics.median(added_ms):.1f} ms a run, {statistics.median(added_ms) / EVENTS:.1f} ms an event (medians of {rounds} pairs)")


def ask(model: OpenAI) -> None:
    """Send the request."""
    model.chat.completions.create(model="large", messages=[{"role": "user", "content": "Hello"}], max_completion_tokens=8192)


def run(service: LocalService, session: str) -> None:
    """Send a message, and read events until the session is idle."""
    service.client.agent_sessions.send(session, "Hello")
    for _ in service.client.agent_sessions.follow(session):
        pass


def measure_idle(service: LocalService, agent: str, count: int, seconds: float) -> None:
    """Print the processor time and memory of a service with idle sessions."""
    before_s, before_kib = cpu_s(service.pid, seconds), anonymous_kib(service.pid)
    for _ in range(count):
        run(service, service.client.agent_sessions.create(agent).id)
    service.client.close()
    after_s, after_kib = cpu_s(service.pid, seconds), anonymous_kib(service.pid)
    for _ in range(count):
        run(service, service.client.agent_sessions.create(agent).id)
    service.client.close()
    last_s, last_kib = cpu_s(service.pid, seconds), anonymous_kib(service.pid)
    for name, used_s, kib in (("no", before_s, before_kib), (f"{count}", after_s, after_kib), (f"{2 * count}", last_s, last_kib)):
        print(f"{name} idle sessions more: {used_s * 1000 / seconds:.1f} ms of CPU a second over {seconds:g} s, {kib / 1024:.1f} MiB of memory")


def cpu_s(pid: int, seconds: float) -> float:
    """Return the processor time that a process takes in a window."""

    def used() -> float:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    began = used()
    time.sleep(seconds)
    return used() - began


def anonymous_kib(pid: int) -> int:
    """Return the anonymous memory of a process."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


if __name__ == "__main__":
    main()
