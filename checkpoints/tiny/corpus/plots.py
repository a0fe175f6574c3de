"""The plots of the stories, read from `plots.txt`, and the sentences with which every story opens and closes."""

from dataclasses import dataclass
from pathlib import Path

Step = tuple[str, ...]


@dataclass(frozen=True)
class Plot:
    """One plot: a title, how a reader may ask for it, what it teaches, and its steps (ways to tell each)."""

    title: str
    request: str
    lesson: str
    steps: tuple[Step, ...]


def _read(path: Path) -> tuple[Plot, ...]:
    """Every plot of the file; what stands before the first one explains the format."""
    _, *plots = path.read_text(encoding="utf-8").split("\n# ")
    return tuple(_parse(plot) for plot in plots)


def _parse(plot: str) -> Plot:
    head, *steps = plot.strip().split("\n\n")
    title, request, lesson = head.split("\n")
    return Plot(
        title=title,
        request=request.removeprefix("? "),
        lesson=lesson.removeprefix("! "),
        steps=tuple(tuple(step.split("\n")) for step in steps),
    )


PLOTS = _read(Path(__file__).with_name("plots.txt"))

OPENINGS: Step = (
    "Once upon a time, there was {a_trait} {kind} named {hero}. {He} lived {home}.",
    "Once upon a time, {a_trait} {kind} named {hero} lived {home}.",
    "{hero} was {a_trait} {kind} who lived {home}.",
    "There once was {a_trait} {kind} called {hero}. {hero} lived {home}.",
    "Long ago, {a_trait} {kind} named {hero} lived {home}. Everybody knew {him}.",
    "In a land far away, there lived {a_trait} {kind} named {hero}. {He} lived {home}.",
)
CLOSINGS: Step = (
    "That night, {hero} went to bed with a smile.",
    "{hero} and {friend} were friends for the rest of their lives.",
    "From that day on, {hero} and {friend} played together every day.",
    "They laughed all the way home.",
    "It was the best day of the year.",
    "And {hero} never forgot that day.",
    "They lived happily ever after.",
    "{hero} was very happy, and so was {friend}.",
)
LESSONS: Step = (
    "{hero} learned that {lesson}.",
    "Now {hero} knew that {lesson}.",
    "That is how {hero} found out that {lesson}.",
    "And so everybody saw that {lesson}.",
)
