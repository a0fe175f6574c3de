"""Short stories for children: a plot, a cast and a scene, told in three or four paragraphs."""

from dataclasses import dataclass, replace
from random import Random

from corpus import world
from corpus.exchange import Exchange
from corpus.names import any_name
from corpus.plots import CLOSINGS, LESSONS, OPENINGS, PLOTS, Plot
from corpus.world import Character, a

SKILLS = (
    "swim",
    "dance",
    "skate",
    "whistle",
    "sing",
    "bake bread",
    "ride a bicycle",
    "climb trees",
    "paint",
    "juggle",
    "read",
    "tell jokes",
)
PLANTS = (
    "a tall sunflower",
    "a big apple tree",
    "a giant pumpkin",
    "a bush full of roses",
    "a cherry tree",
    "a row of red tulips",
)
BUILDINGS = ("a boat", "a bridge", "a tree house", "a tower", "a little hut", "a raft")
GOALS = ("the sea", "the snow", "the big city", "the tall mountain", "the waterfall", "the desert")
INSTRUMENTS = ("drum", "flute", "guitar", "horn", "piano", "violin")
STUCK = (
    "in a deep hole",
    "in the mud",
    "up in a tree",
    "under a heavy branch",
    "between two rocks",
    "in a thorny bush",
)
REQUESTS = (
    "Tell me a story about {about}.",
    "Tell me a short story about {about}.",
    "Write a story about {about}.",
    "Write a short story about {about}.",
    "Please tell me a story about {about}.",
    "Can you tell me a story about {about}?",
    "I would like a story about {about}.",
    "A story about {about}, please.",
)
OPEN_REQUESTS = (
    "Tell me a story.",
    "Tell me a short story.",
    "Please tell me a story.",
    "Write a short story for children.",
    "Can you tell me a bedtime story?",
    "I want to hear a story.",
    "Do you know a story?",
)


@dataclass(frozen=True)
class Story:
    """A finished story with what its questions need; `named` counts the characters whose names the request brings."""

    plot: Plot
    hero: Character
    friend: Character
    title: str
    home: str
    request: str
    text: str
    named: int


def story(rng: Random, named: int = 0) -> Story:
    """Tells a new story. The first `named` of its two characters may have any name, as its request will say them."""
    plot = rng.choice(PLOTS)
    hero = _character(rng, any_sort=named > 0)
    friend = _character(rng, any_sort=named > 1)
    while friend.name == hero.name or friend.kind == hero.kind:
        friend = _character(rng, any_sort=named > 1)
    slots = _slots(rng, hero, friend)

    def tell(options: tuple[str, ...]) -> str:
        return rng.choice(options).format_map(slots)

    slots["lesson"] = plot.lesson
    body = [tell(step) for step in plot.steps]
    ending = [tell(CLOSINGS)] if rng.random() < 0.5 else [tell(LESSONS)]
    if rng.random() < 0.3:
        ending = [tell(LESSONS), tell(CLOSINGS)]
    paragraphs = [f"{tell(OPENINGS)} {body[0]}", f"{body[1]} {body[2]}", f"{body[3]} {body[4]}", " ".join(ending)]
    return Story(
        plot=plot,
        hero=hero,
        friend=friend,
        title=_title(plot.title.format_map(slots)),
        home=slots["home"],
        request=plot.request.format_map(slots),
        text="\n\n".join(paragraphs),
        named=named,
    )


def request(rng: Random, tale: Story) -> str:
    """A way to ask for this story; what it names is in the story."""
    hero, friend = tale.hero, tale.friend
    abouts: tuple[str, ...]
    if tale.named == 0:
        if rng.random() < 0.2:
            return rng.choice(OPEN_REQUESTS)
        abouts = (a(hero.kind), a(hero.kind), f"{a(hero.kind)} {tale.request}")
    elif tale.named == 1:
        abouts = (
            f"{a(hero.kind)} named {hero.name}",
            f"{a(hero.kind)} called {hero.name}",
            f"{a(hero.kind)} named {hero.name} {tale.request}",
            f"{hero.name} the {hero.kind}",
        )
    else:
        abouts = (
            f"{hero.name} the {hero.kind} and {friend.name} the {friend.kind}",
            f"{a(hero.kind)} named {hero.name} and {a(friend.kind)} named {friend.name}",
            f"{a(hero.kind)} named {hero.name} and {hero.pronouns[2]} friend {friend.name} the {friend.kind}",
        )
    return rng.choice(REQUESTS).format(about=rng.choice(abouts))


def _character(rng: Random, *, any_sort: bool) -> Character:
    """A character with a known name, or with a name of any sort."""
    drawn = world.character(rng)
    return replace(drawn, name=any_name(rng, female=drawn.pronouns[0] == "she")) if any_sort else drawn


def questions(rng: Random, tale: Story) -> list[Exchange]:
    """Questions whose answers are in the story."""
    hero, friend = tale.hero, tale.friend
    he = hero.pronouns[0].capitalize()
    known = [
        Exchange(f"What was the {hero.kind}'s name?", f"The {hero.kind}'s name was {hero.name}.", hero.name),
        Exchange(f"Where did {hero.name} live?", f"{hero.name} lived {tale.home}.", None),
        Exchange(f"Who was {friend.name}?", f"{friend.name} was {a(friend.kind)}.", a(friend.kind).capitalize()),
        Exchange(f"What animal was {friend.name}?", f"{friend.name} was {a(friend.kind)}.", friend.kind.capitalize()),
        Exchange(
            f"Who helped {hero.name}?", f"{friend.name} the {friend.kind} was there for {hero.name}.", friend.name
        ),
        Exchange("What does the story teach us?", f"The story teaches us that {tale.plot.lesson}.", None),
        Exchange("Can you give it a title?", f"Yes. The title could be “{tale.title}”.", tale.title),
        Exchange("Who is the story about?", f"It is about {hero.name}. {he} is {a(hero.kind)}.", hero.name),
    ]
    return rng.sample(known, rng.choice((1, 1, 2)))


def _slots(rng: Random, hero: Character, friend: Character) -> dict[str, str]:
    """Every slot that a plot may name, filled for this cast."""
    he, him, his = hero.pronouns
    friend_he, friend_him, friend_his = friend.pronouns
    place, place2 = rng.sample(world.PLACES, 2)
    food, food2 = rng.sample(world.FOODS, 2)
    thing, colour, trait = rng.choice(world.TREASURES), rng.choice(world.COLOURS), rng.choice(world.TRAITS)
    goal, instrument = rng.choice(GOALS), rng.choice(INSTRUMENTS)
    one_day = rng.choice(
        (f"one {rng.choice(world.TIMES)}", f"on {rng.choice(world.WEATHERS)} {rng.choice(world.TIMES)}")
    )
    one_night = rng.choice(("one night", "one dark night", "one winter night", "late one night"))
    return {
        "hero": hero.name,
        "kind": hero.kind,
        "he": he,
        "him": him,
        "his": his,
        "He": he.capitalize(),
        "His": his.capitalize(),
        "friend": friend.name,
        "fkind": friend.kind,
        "fhe": friend_he,
        "fhim": friend_him,
        "fhis": friend_his,
        "fHe": friend_he.capitalize(),
        "a_trait": a(trait),
        "home": rng.choice(world.HOMES),
        "place": place,
        "place2": place2,
        "food": food,
        "food2": food2,
        "thing": thing,
        "Thing": thing.capitalize(),
        "a_thing": a(thing),
        "colour": colour,
        "a_colour": a(colour),
        "skill": rng.choice(SKILLS),
        "plant": rng.choice(PLANTS),
        "building": rng.choice(BUILDINGS),
        "goal": goal,
        "Goal": goal.title(),
        "instrument": instrument,
        "Instrument": instrument.capitalize(),
        "stuck": rng.choice(STUCK),
        "one_day": one_day,
        "One_day": one_day.capitalize(),
        "one_night": one_night,
        "One_night": one_night.capitalize(),
    }


def _title(title: str) -> str:
    """The title with its words capitalized, small words apart."""
    small = {"a", "an", "and", "of", "the", "to", "in"}
    return " ".join(w if w in small and i else w[0].upper() + w[1:] for i, w in enumerate(title.split()))
