"""A CodeAgent of smolagents with `executor_type="e2b"`. A scripted model writes the code. Prints what it saw as JSON."""

import json
import sys

from smolagents import CodeAgent, LogLevel, Tool
from smolagents.models import ChatMessage, MessageRole, Model

STEPS = [
    "import numpy\nnumbers = double([1, 2, 3])\nprint('doubled', numbers)",
    "numbers.missing",
    "final_answer({'sum': int(numpy.sum(numbers)), 'given': given})",
]


class Double(Tool):
    name = "double"
    description = "Doubles numbers."
    inputs = {"numbers": {"type": "array", "description": "Numbers."}}
    output_type = "array"

    def forward(self, numbers: list) -> list:
        return [2 * number for number in numbers]


class ScriptedModel(Model):
    """Returns the steps in turn."""

    def __init__(self):
        super().__init__(model_id="scripted")
        self.seen = []

    def generate(self, messages, **kwargs):
        step = len(self.seen)
        self.seen.append(str(messages[-1].content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: next\n<code>\n{STEPS[step]}\n</code>")


model = ScriptedModel()
with CodeAgent([Double()], model, executor_type="e2b", additional_authorized_imports=["numpy"], verbosity_level=LogLevel.OFF) as agent:
    answer = agent.run("Double the numbers.", additional_args={"given": [1, "two"]})
json.dump({"answer": answer, "printed": "doubled [2, 4, 6]" in model.seen[1], "error": "AttributeError" in model.seen[2]}, sys.stdout)
