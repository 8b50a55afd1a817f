"""A CodeAgent of smolagents with a scripted model; run in an environment of tests/environments."""

from __future__ import annotations

import os
from collections.abc import Iterator

import PIL.Image
import pytest
from smolagents import CodeAgent, OpenAIServerModel
from smolagents.utils import AgentError

from sandlot import Sandbox
from sandlot.agents.smolagents import SandboxExecutor
from tests.support.scripted_model.endpoint import scripted_model
from tests.support.scripted_model.steps import Conversation, Say, Step

TEMPLATE = os.environ["SUITE_TEMPLATE"]


@pytest.fixture
def executor() -> Iterator[SandboxExecutor]:
    made = SandboxExecutor(template=TEMPLATE)
    yield made
    made.cleanup()


def test_agent_runs_to_its_final_answer(executor: SandboxExecutor) -> None:
    codes = ["import platform\nx = 6\nprint('kernel', platform.node())", "1 / 0", "final_answer({'value': x * 7})"]

    def script(conversation: Conversation) -> Step:
        return Say(f"Thought: next.\n<code>\n{codes[sum(text.count('Thought: next.') for text in texts(conversation))]}\n</code>")

    with scripted_model(script) as endpoint:
        model = OpenAIServerModel("scripted", api_base=endpoint.openai_url, api_key="k")
        answer = CodeAgent(tools=[], model=model, executor=executor, verbosity_level=0).run("What is six times seven?")
    assert answer == {"value": 42}
    assert any("ZeroDivisionError" in text for text in endpoint.conversations[-1].prompts + tuple(texts(endpoint.conversations[-1])))


def texts(conversation: Conversation) -> list[str]:
    """Return the texts of all messages."""
    return [str(message["content"]) for message in conversation.body["messages"] if message["role"] == "assistant"] + [*conversation.prompts]


def test_state_output_and_values_of_code(executor: SandboxExecutor) -> None:
    executor.send_variables({"numbers": [1, 2, 3]})
    output = executor("print('sum')\nsum(numbers)")
    assert (output.output, output.logs, output.is_final_answer) == ("6", "sum\n", False)
    with pytest.raises(AgentError, match="NameError"):
        executor("no_such_name")


def test_pickle_of_a_sandbox_is_not_loaded(executor: SandboxExecutor) -> None:
    hostile = "class FinalAnswerException(Exception):\n    pass\nraise FinalAnswerException('pickle:gASVFAAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOULg==')"
    with pytest.raises(Exception, match=r"(?i)pickle"):
        executor(hostile)


def test_image_is_the_value_of_code() -> None:
    executor = SandboxExecutor(template="code-interpreter")
    try:
        value = executor("import PIL.Image\nPIL.Image.new('RGB', (3, 2))").output
    finally:
        executor.cleanup()
    assert isinstance(value, PIL.Image.Image)
    assert value.size == (3, 2)


def test_sandbox_of_the_caller_stays() -> None:
    with Sandbox.create(TEMPLATE) as sandbox:
        executor = SandboxExecutor(sandbox=sandbox)
        assert executor("6 * 7").output == "42"
        executor.cleanup()
        assert sandbox.is_running()
