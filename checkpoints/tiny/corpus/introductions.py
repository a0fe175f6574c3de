"""Exchanges in which names that the user brings come back: at once, after other questions, or said over."""

from collections.abc import Callable
from random import Random

from corpus import world
from corpus.exchange import Exchange
from corpus.names import any_name, made_up, somebody

Between = Callable[[], list[Exchange]]

_GREETED = "Nice to meet you, {name}!"
# What is said, the answer, and ways to ask for it later with their answers.
_ME = (
    (
        ("My name is {name}.", "I am {name}.", "I'm {name}.", "Hi, I am {name}.", "Hello, my name is {name}."),
        _GREETED,
        (
            ("What is my name?", "Your name is {name}."),
            ("Do you remember my name?", "Yes, your name is {name}."),
            ("Who am I?", "You are {name}."),
            ("What am I called?", "You are called {name}."),
        ),
    ),
    (
        ("You can call me {name}.", "Call me {name}.", "My friends call me {name}."),
        "All right, {name}!",
        (("What do you call me?", "I call you {name}."), ("What is my name?", "Your name is {name}.")),
    ),
)
_RELATIVES = {
    True: ("sister", "mother", "aunt", "daughter", "friend", "teacher", "neighbour", "grandmother"),
    False: ("brother", "father", "uncle", "son", "friend", "teacher", "neighbour", "grandfather"),
}
_SAID_BACK = (
    ("Say hello to {name}.", "Hello, {name}!"),
    ("Please greet {name}.", "Hello, {name}!"),
    ("Say goodbye to {name}.", "Goodbye, {name}!"),
    ("Say hello to {name} and {other}.", "Hello, {name} and {other}!"),
    ("Wish {name} a good night.", "Good night, {name}!"),
    ("Thank {name} for me.", "Thank you, {name}!"),
    ("Say the name {name}.", "{name}."),
    ("Say the name {name} three times.", "{name}, {name}, {name}."),
    ("Say these names: {name}, {other}, {third}.", "{name}, {other}, {third}."),
    ("Repeat after me: {name} and {other} are friends.", "{name} and {other} are friends."),
    ("{name} is older than {other}. Who is older?", "{name} is older than {other}."),
    ("{name} is taller than {other}. Who is taller?", "{name} is taller than {other}."),
    ("{name} sits between {other} and {third}. Who sits in the middle?", "{name} sits in the middle."),
    ("{name} likes {other}. Who does {name} like?", "{name} likes {other}."),
)


def introduction(rng: Random, between: Between) -> list[Exchange]:
    """Something with a name is told; it is asked for later, perhaps after what `between` makes."""
    style = rng.random()
    if style < 0.55:
        told, questions = _me(rng)
    elif style < 0.8:
        told, questions = _relative(rng)
    else:
        told, questions = _pet(rng)
    if rng.random() < 0.15:
        return [told]
    return [told, *(between() if rng.random() < 0.6 else ()), *rng.sample(questions, 1)]


def said_back(rng: Random) -> Exchange:
    """A request whose answer is made of the names in it."""
    name, other, third = _different(rng, 3)
    question, answer = rng.choice(_SAID_BACK)
    slots = {"name": name, "other": other, "third": third}
    return _names(question.format_map(slots), answer.format_map(slots), None)


def listing(rng: Random) -> str:
    """Plain text: who is who, stated twice in another order."""
    pairs = [(name, rng.choice(world.CREATURES)) for name in _different(rng, rng.randint(2, 6))]
    again = rng.sample(pairs, len(pairs))
    first = " ".join(f"{name} is {world.a(kind)}." for name, kind in pairs)
    return f"{first}\n\n" + "\n".join(f"{name} the {kind}" for name, kind in (again if rng.random() < 0.5 else pairs))


def word_rows(rng: Random) -> Exchange:
    """A row of made-up words to say over."""
    row = " ".join(made_up(rng, female=rng.random() < 0.5).lower() for _ in range(rng.randint(2, 7)))
    return _names(rng.choice(("Say: {}", "Repeat: {}", "Repeat after me: {}")).format(row), row, None)


def _me(rng: Random) -> tuple[Exchange, list[Exchange]]:
    name = somebody(rng)
    said, answer, questions = rng.choice(_ME)
    told = _names(rng.choice(said).format(name=name), answer.format(name=name), None)
    return told, [Exchange(q, a.format(name=name), name) for q, a in questions]


def _relative(rng: Random) -> tuple[Exchange, list[Exchange]]:
    female = rng.random() < 0.5
    name, who = any_name(rng, female=female), rng.choice(_RELATIVES[female])
    said = rng.choice(("My {who} is called {name}.", "My {who}'s name is {name}.", "{name} is my {who}."))
    told = _names(said.format(who=who, name=name), f"{name} is a nice name for your {who}.", None)
    return told, [
        Exchange(f"What is my {who}'s name?", f"Your {who}'s name is {name}.", name),
        Exchange(f"What is my {who} called?", f"Your {who} is called {name}.", name),
        _names(f"Who is {name}?", f"{name} is your {who}.", None),
    ]


def _pet(rng: Random) -> tuple[Exchange, list[Exchange]]:
    name, kind = somebody(rng), rng.choice(world.CREATURES)
    said = rng.choice(
        ("My {kind} is called {name}.", "I have {a_kind} named {name}.", "This is {name}. {name} is my {kind}.")
    )
    told = _names(
        said.format(kind=kind, a_kind=world.a(kind), name=name), f"{name} is a good name for {world.a(kind)}.", None
    )
    return told, [
        Exchange(f"What is my {kind} called?", f"Your {kind} is called {name}.", name),
        Exchange(f"What is the name of my {kind}?", f"The name of your {kind} is {name}.", name),
        _names(f"Who is {name}?", f"{name} is your {kind}.", None),
    ]


def _names(question: str, answer: str, short: str | None) -> Exchange:
    return Exchange(question, answer, short, names=True)


def _different(rng: Random, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        name = somebody(rng)
        if name not in found:
            found.append(name)
    return found
