"""The small world that stories and word problems share: names, creatures, places and things."""

from dataclasses import dataclass
from random import Random


def words(text: str) -> tuple[str, ...]:
    """The words of a text."""
    return tuple(text.split())


GIRLS = words(
    "Ada Alice Amy Anna Bella Betty Clara Daisy Diana Ella Emily Emma Eva Fiona Flora Grace Hanna Helen Ida Ivy "
    "Jane Julia Kate Laura Lena Lily Lola Lucy Luna Maria Maya Mia Nina Nora Olive Olivia Pearl Polly Rosa Ruby "
    "Sara Sofia Susan Tina Vera Zoe"
)
BOYS = words(
    "Adam Alan Alex Arthur Ben Bob Bruno Charlie Dan David Edgar Emil Eric Felix Finn Frank Fred George Henry "
    "Hugo Ivan Jack Jake Jim Joe John Karl Leo Louis Luke Mark Max Nico Noah Oscar Otto Paul Peter Robin Sam "
    "Simon Theo Tim Tom Victor Walter"
)

CREATURES = words(
    "bear beaver bee bird boy bunny butterfly cat cow crow deer dog donkey dragon duck elephant fox frog giraffe "
    "girl goat goose hedgehog hen horse kitten lamb lion mole monkey mouse otter owl panda penguin pig puppy rabbit "
    "robot sheep snail spider squirrel tiger turtle whale wolf"
)
TRAITS = words(
    "brave careful cheerful clever curious friendly funny gentle happy honest hungry kind little lonely lucky merry "
    "old patient playful polite proud quick quiet shy silly sleepy slow small smart tiny wise young"
)
HOMES = (
    "at the edge of a green forest",
    "by a quiet river",
    "in a big old tree",
    "in a cosy house on a hill",
    "in a little red house",
    "in a small village by the sea",
    "in a sunny valley",
    "in a tiny house with a blue door",
    "near a deep blue lake",
    "next to an old stone bridge",
    "on a busy farm",
    "on a quiet street",
    "on a small island",
    "under a tall oak tree",
    "behind the old mill",
)
PLACES = (
    "the beach",
    "the bridge",
    "the forest",
    "the garden",
    "the hill",
    "the lake",
    "the market",
    "the meadow",
    "the old barn",
    "the park",
    "the pond",
    "the river",
    "the village",
    "the woods",
)
TREASURES = words(
    "ball bell blanket book boat button cup doll drum feather flute hat kite lamp lantern map mitten necklace ring "
    "scarf shell shoe spoon teapot toy whistle"
)
COLOURS = words("blue brown green golden orange pink purple red silver white yellow")
FOODS = (
    "an apple pie",
    "a basket of berries",
    "a bowl of soup",
    "a bag of nuts",
    "a big sandwich",
    "a jar of honey",
    "a loaf of warm bread",
    "a plate of cookies",
    "a pot of stew",
    "a sweet red apple",
    "a chocolate cake",
    "a slice of cheese",
)
WEATHERS = ("a bright", "a cloudy", "a cold", "a foggy", "a rainy", "a sunny", "a warm", "a windy", "a quiet")
TIMES = ("afternoon", "day", "morning", "spring day", "summer day", "autumn day", "evening")
COUNTABLES = words(
    "apples balls balloons bananas berries books bottles boxes buttons candles cards carrots coins cookies cups eggs "
    "fish flowers grapes hats keys leaves lemons marbles nuts oranges pears pencils plums ribbons sandwiches shells "
    "spoons stamps stars stickers stones sweets toys"
)

_MALE = ("he", "him", "his")
_FEMALE = ("she", "her", "her")


@dataclass(frozen=True)
class Character:
    """Somebody in a story: a name, what they are, and their pronouns (he, him, his)."""

    name: str
    kind: str
    pronouns: tuple[str, str, str]


def person(rng: Random) -> Character:
    """A girl or a boy."""
    if rng.random() < 0.5:
        return Character(rng.choice(GIRLS), "girl", _FEMALE)
    return Character(rng.choice(BOYS), "boy", _MALE)


def character(rng: Random, kind: str | None = None) -> Character:
    """A character of the given kind, or of any kind."""
    kind = kind or rng.choice(CREATURES)
    female = kind in ("girl", "hen", "cow") or (kind != "boy" and rng.random() < 0.5)
    return Character(rng.choice(GIRLS if female else BOYS), kind, _FEMALE if female else _MALE)


def a(noun: str) -> str:
    """The noun with its indefinite article."""
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
