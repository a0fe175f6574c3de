"""Small arithmetic: sums, differences and products, as questions, as worksheets and as word problems.

Numbers go up to 50 (factors to 10). One pair in twenty is held out of training, so that the accuracy on held-out pairs
says whether the model adds or remembers.
"""

import zlib
from dataclasses import dataclass
from random import Random

from corpus import world
from corpus.exchange import Exchange
from corpus.names import any_name, somebody

LARGEST = 50
LARGEST_FACTOR = 10
HELD_OUT_ONE_IN = 20
WORDS = {"+": "plus", "-": "minus", "*": "times"}

QUESTIONS = (
    "What is {sum}?",
    "What is {sum}?",
    "What is {words}?",
    "What is {words}?",
    "How much is {sum}?",
    "How much is {words}?",
    "{sum} = ?",
    "{sum} =",
    "{sum}",
    "Calculate {sum}.",
    "Please calculate {sum}.",
    "Compute {sum}.",
    "Can you tell me what {sum} is?",
    "What does {words} make?",
    "What do you get for {sum}?",
)
OPERATION_QUESTIONS = {
    "+": ("Add {a} and {b}.", "Please add {a} and {b}.", "What is the sum of {a} and {b}?"),
    "-": (
        "Take {b} from {a}.",
        "Subtract {b} from {a}.",
        "What is the difference between {a} and {b}?",
        "What is {a} take away {b}?",
    ),
    "*": ("Multiply {a} by {b}.", "What is the product of {a} and {b}?", "What is {a} multiplied by {b}?"),
}

# Each a question and its answer, in which {sum} is the sum with its result.
GAINS = (
    (
        "{Name} has {a} {things} and {gets} {b} more. How many {things} does {Name} have now?",
        "{Name} has {sum} {things}.",
    ),
    (
        "{Name} has {a} {things}. {He} {gets} {b} more {things}. How many {things} does {he} have?",
        "{He} has {sum} {things}.",
    ),
    (
        "{Name} had {a} {things}. {Other} gave {him} {b} more. How many does {Name} have now?",
        "{Name} has {sum} {things}.",
    ),
    ("There are {a} {things} on the table. {Name} adds {b} more. How many are there?", "There are {sum} {things}."),
    (
        "{Name} has {a} {things} and {Other} has {b}. How many {things} do they have together?",
        "{Name} and {Other} have {sum} {things}.",
    ),
)
LOSSES = (
    (
        "{Name} has {a} {things} and gives {b} to {Other}. How many {things} does {Name} have left?",
        "{Name} has {sum} {things} left.",
    ),
    ("{Name} has {a} {things}. {He} loses {b} of them. How many {things} are left?", "{Name} has {sum} {things} left."),
    ("{Name} had {a} {things} and gave away {b}. How many does {he} have now?", "{He} has {sum} {things}."),
    ("There are {a} {things} in a basket. {Name} takes {b} out. How many are left?", "There are {sum} {things} left."),
    (
        "{Name} has {a} {things} and {Other} has {b}. How many more {things} does {Name} have?",
        "{Name} has {sum} more {things} than {Other}.",
    ),
)
GETTING = ("gets", "finds", "buys", "picks")


@dataclass(frozen=True)
class Sum:
    """`a op b`, with op one of +, - and *."""

    a: int
    op: str
    b: int

    @property
    def value(self) -> int:
        if self.op == "+":
            return self.a + self.b
        return self.a - self.b if self.op == "-" else self.a * self.b

    @property
    def held_out(self) -> bool:
        """True for the pairs that training never sees; the times table is learnt whole."""
        return self.op != "*" and zlib.crc32(f"{self.a}{self.op}{self.b}".encode()) % HELD_OUT_ONE_IN == 0

    def __str__(self) -> str:
        return f"{self.a} {self.op} {self.b}"


def every_sum() -> list[Sum]:
    """All sums and differences in range, held-out ones included."""
    sums = [Sum(a, "+", b) for a in range(LARGEST + 1) for b in range(LARGEST + 1 - a)]
    return sums + [Sum(a, "-", b) for a in range(LARGEST + 1) for b in range(a + 1)]


def draw(rng: Random, ops: str = "++--*") -> Sum:
    """A sum that is not held out; half of them have small numbers, which people ask about most."""
    while True:
        op = rng.choice(ops)
        largest = 20 if rng.random() < 0.4 else LARGEST
        if op == "*":
            drawn = Sum(rng.randint(0, LARGEST_FACTOR), op, rng.randint(0, LARGEST_FACTOR))
        else:
            whole = rng.randint(0, largest)
            part = rng.randint(0, whole)
            drawn = Sum(whole - part, op, part) if op == "+" else Sum(whole, op, part)
        if not drawn.held_out:
            return drawn


def exercise(rng: Random) -> Exchange:
    """A bare sum as a question; the answer repeats it."""
    return phrase(rng, draw(rng))


def phrase(rng: Random, drawn: Sum) -> Exchange:
    """One of the ways to ask for this sum."""
    templates = OPERATION_QUESTIONS[drawn.op] if rng.random() < 0.25 else QUESTIONS
    shown = str(drawn).replace("*", rng.choice("*x×")) if drawn.op == "*" else str(drawn)
    if rng.random() < 0.15:
        shown = shown.replace(" ", "")
    question = rng.choice(templates).format(
        sum=shown, words=f"{drawn.a} {WORDS[drawn.op]} {drawn.b}", a=drawn.a, b=drawn.b
    )
    return Exchange(question, f"{drawn} = {drawn.value}.", str(drawn.value))


def word_problem(rng: Random) -> Exchange:
    """A sum or a difference dressed as a small story."""
    drawn = draw(rng, "+-")
    while min(drawn.a, drawn.b) < 2:
        drawn = draw(rng, "+-")
    female = rng.random() < 0.5
    name, other = any_name(rng, female=female), somebody(rng)
    while other == name:
        other = somebody(rng)
    he, him = ("she", "her") if female else ("he", "him")
    things = rng.choice(world.COUNTABLES)
    slots = {
        "Name": name,
        "Other": other,
        "he": he,
        "He": he.capitalize(),
        "him": him,
        "a": drawn.a,
        "b": drawn.b,
        "things": things,
        "gets": rng.choice(GETTING),
        "sum": f"{drawn} = {drawn.value}",
    }
    question, answer = rng.choice(GAINS if drawn.op == "+" else LOSSES)
    return Exchange(question.format_map(slots), answer.format_map(slots), str(drawn.value), names=True)


def number_question(rng: Random) -> Exchange:
    """Order, counting, doubles and halves."""
    n = rng.randint(0, LARGEST - 1)
    m = rng.randint(0, LARGEST - 1)
    while m == n:
        m = rng.randint(0, LARGEST - 1)
    start = rng.randint(0, 30)
    end = start + rng.randint(2, 10)
    half = rng.randint(0, LARGEST // 2)
    count = ", ".join(str(i) for i in range(start, end + 1))
    parity = "even" if n % 2 == 0 else "odd"
    return rng.choice(
        (
            Exchange(f"What number comes after {n}?", f"The number after {n} is {n + 1}.", str(n + 1)),
            Exchange(f"What number comes before {n + 1}?", f"The number before {n + 1} is {n}.", str(n)),
            Exchange(f"Which is larger, {n} or {m}?", f"{max(n, m)} is larger than {min(n, m)}.", str(max(n, m))),
            Exchange(f"Which is smaller, {n} or {m}?", f"{min(n, m)} is smaller than {max(n, m)}.", str(min(n, m))),
            Exchange(f"Count from {start} to {end}.", f"{count}.", None),
            Exchange(f"Is {n} even or odd?", f"{n} is {parity}.", parity.capitalize()),
            Exchange(f"What is twice {half}?", f"Twice {half} is {2 * half}.", str(2 * half)),
            Exchange(f"What is half of {2 * half}?", f"Half of {2 * half} is {half}.", str(half)),
        )
    )


def worksheet(rng: Random) -> str:
    """Plain text: a column of sums with their results."""
    ops = rng.choice(("+", "-", "+-", "*", "++--*"))
    drawn = [draw(rng, ops) for _ in range(rng.choice((1, 1, 2, 4, 8, 16)))]
    return "\n".join(f"{s} = {s.value}" for s in drawn)
