"""The agent of the demo: a script in place of a model, its task, and the same results computed without a sandbox.

The agent works like a model with a tool: it returns code, gets the output, and returns the next code. The code is prepared, but the agent reads the
output: it finds the right column in the output of its failed attempt.
"""

from __future__ import annotations

import csv
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TASK = "wine.csv has chemical measurements of 178 wines from three cultivars. Which one separates the cultivars best? Draw a chart."
DATA = "/workspace/wine.csv"
CHART = "/output/wine.png"

RAW_DATA = "sklearn/datasets/data/wine_data.csv"
"""UCI's wine data in scikit-learn: a line with counts and class names, then measurements and classes, without names of columns."""
COLUMNS = (
    "alcohol",
    "malic_acid",
    "ash",
    "alcalinity_of_ash",
    "magnesium",
    "total_phenols",
    "flavanoids",
    "nonflavanoid_phenols",
    "proanthocyanins",
    "color_intensity",
    "hue",
    "od280_od315",
    "proline",
    "cultivar",
)
"""Names of the columns, from sklearn.datasets.load_wine."""

LOCATE = """\
from importlib.util import find_spec
from pathlib import Path

print(Path(find_spec("sklearn").origin).parent.parent)
"""

ATTEMPT = """\
import pandas as pd

wine = pd.read_csv("/workspace/wine.csv")
print(wine.shape, list(wine.columns))

groups = wine.groupby("class")
"""

REPAIR = """\
import json

groups = wine.groupby("{column}")  # wine is still there: nothing is read again
measured = wine.columns.drop("{column}")
total = wine[measured].mean()
between = sum(len(part) * (part[measured].mean() - total) ** 2 for _, part in groups)
within = sum(((part[measured] - part[measured].mean()) ** 2).sum() for _, part in groups)
ratio = (between / (groups.ngroups - 1)) / (within / (len(wine) - groups.ngroups))
separation = ratio.sort_values()  # the F ratios of an analysis of variance
best = separation.index[-1]
figures = {{"wines": len(wine), "best": best, "F ratio": float(separation[best])}}
for name, values in groups[best]:
    figures[f"mean of cultivar {{name}}"] = float(values.mean())
    figures[f"deviation of cultivar {{name}}"] = float(values.std())
print(json.dumps(figures))
"""

DRAW = """\
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
bars = left.barh(separation.index, separation, color="#b8c4d6")
bars[-1].set_color("#8c1c3a")
left.set(title="How well each one separates the cultivars", xlabel="F ratio")
span = wine[best].min(), wine[best].max()
for (name, part), colour in zip(groups, ("#8c1c3a", "#d08a2e", "#3f6c8f")):
    right.hist(part[best], bins=18, range=span, alpha=0.75, color=colour, label=f"cultivar {name}")
right.set(title=f"{best} by cultivar", xlabel=best, ylabel="wines")
right.legend(frameon=False)
figure.savefig("/output/wine.png", dpi=120)
"""


@dataclass(frozen=True, slots=True)
class Reply:
    """A message of the agent: a sentence, and code to run; None if the agent has finished."""

    text: str
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of code: its output, and its traceback if it raised."""

    stdout: str
    traceback: str = ""


def next_reply(history: Sequence[Outcome]) -> Reply:
    """Return the agent's next message.

    Args:
        history: Outcomes of its code so far.

    Raises:
        ValueError: The script has no reply to the last outcome.
    """
    if not history:
        return Reply("I read the file and group the wines by class.", ATTEMPT)
    last = history[-1]
    if missing := re.search(r"KeyError: '([^']+)'", last.traceback):
        column = _column_of_the_task(last.stdout)
        return Reply(f"There is no column {missing[1]!r}; the cultivar is in {column!r}. The table is still in memory.", REPAIR.format(column=column))
    if last.traceback:
        raise ValueError(last.traceback.splitlines()[-1])
    if last.stdout.startswith("{"):
        best = json.loads(last.stdout)["best"]
        return Reply(f"It is {best}. I draw a chart.", DRAW)
    return Reply("Done: the chart is in /output.")


def table_of(raw: str) -> list[list[str]]:
    """Return scikit-learn's file as a table with names of columns."""
    return [list(COLUMNS), *csv.reader(raw.splitlines()[1:])]


def expected_results(path: Path) -> dict[str, Any]:
    """Return the results that the agent should print, computed with the standard library from the same file."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    cultivars = sorted({row["cultivar"] for row in rows})
    measured = [name for name in rows[0] if name != "cultivar"]
    values = {name: {cultivar: [float(row[name]) for row in rows if row["cultivar"] == cultivar] for cultivar in cultivars} for name in measured}
    separation = {name: _f_ratio(list(values[name].values())) for name in measured}
    best = max(separation, key=separation.__getitem__)
    return {
        "wines": len(rows),
        "best": best,
        "F ratio": separation[best],
        **{
            f"{word} of cultivar {cultivar}": figure(values[best][cultivar])
            for cultivar in cultivars
            for word, figure in (("mean", statistics.fmean), ("deviation", statistics.stdev))
        },
    }


def agree(one: object, other: object) -> bool:
    """Return True if two values are equal, or floats that differ only by rounding."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def differences(one: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the names of values that do not agree, or that only one side has."""
    return [name for name in dict.fromkeys([*one, *other]) if name not in one or name not in other or not agree(one[name], other[name])]


def png_size(content: bytes) -> tuple[int, int]:
    """Return width and height of a PNG in pixels (PNG specification, 5.2 and 11.2.2).

    Raises:
        ValueError: The content is not a PNG.
    """
    if not content.startswith(b"\x89PNG\r\n\x1a\n") or content[12:16] != b"IHDR" or not content.rstrip().endswith(b"IEND\xaeB`\x82"):
        raise ValueError("The chart is not a complete PNG.")
    return int.from_bytes(content[16:20], "big"), int.from_bytes(content[20:24], "big")


def _column_of_the_task(stdout: str) -> str:
    """Return the printed column that occurs in the task."""
    columns: list[str] = re.findall(r"'([^']+)'", stdout)
    for column in columns:
        if column in TASK:
            return column
    raise ValueError("No column occurs in the task.")


def _f_ratio(groups: Iterable[Sequence[float]]) -> float:
    """Return F of a one-way analysis of variance: the variance between the groups divided by the variance within them."""
    parts = list(groups)
    count = sum(len(part) for part in parts)
    total = math.fsum(value for part in parts for value in part) / count
    between = math.fsum(len(part) * (statistics.fmean(part) - total) ** 2 for part in parts) / (len(parts) - 1)
    within = math.fsum((value - statistics.fmean(part)) ** 2 for part in parts for value in part) / (count - len(parts))
    return between / within
