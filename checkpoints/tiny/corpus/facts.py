"""A small world of facts: tables of pairs, each with the questions that ask for it and the sentence that answers."""

from dataclasses import dataclass
from itertools import pairwise
from random import Random

from corpus.exchange import Exchange
from corpus.world import words


@dataclass(frozen=True)
class Relation:
    """Pairs (x, y), questions about x, and sentences that state y. `{X}`, `{Y}`: with a capital letter."""

    pairs: dict[str, str]
    questions: tuple[str, ...]
    answers: tuple[str, ...]


def _pairs(text: str) -> dict[str, str]:
    """`x: y; x: y` as a dictionary."""
    return {x.strip(): y.strip() for x, y in (item.split(":") for item in text.split(";"))}


_DAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
_MONTHS = words("January February March April May June July August September October November December")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_ORDINALS = words("first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth")

RELATIONS: tuple[Relation, ...] = (
    Relation(
        _pairs(
            "the sky: blue; the sea: blue; grass: green; snow: white; coal: black; a banana: yellow; a tomato: "
            "red; a carrot: orange; a lemon: yellow; a strawberry: red; a leaf: green; the sun: yellow; a "
            "cloud: white; milk: white; chocolate: brown; a frog: green; a pig: pink; a flamingo: pink; an "
            "elephant: grey; a crow: black; a swan: white; a plum: purple; a cucumber: green; a polar bear: "
            "white; a fire engine: red; gold: yellow; a cherry: red; an orange: orange; blood: red; a pumpkin: "
            "orange; honey: golden; sand: yellow; lavender: purple"
        ),
        ("What colour is {x}?", "What is the colour of {x}?", "Which colour does {x} have?"),
        ("{X} is {y}.",),
    ),
    Relation(
        _pairs(
            "cat: meows; dog: barks; cow: moos; sheep: bleats; horse: neighs; pig: oinks; duck: quacks; lion: "
            "roars; owl: hoots; snake: hisses; bee: buzzes; wolf: howls; frog: croaks; rooster: crows; mouse: "
            "squeaks; bird: sings; donkey: brays; hen: clucks"
        ),
        ("What does {a_x} say?", "What sound does {a_x} make?", "Which noise does {a_x} make?"),
        ("{A_x} {y}.",),
    ),
    Relation(
        _pairs(
            "cat: kitten; dog: puppy; cow: calf; sheep: lamb; horse: foal; pig: piglet; duck: duckling; hen: "
            "chick; lion: cub; bear: cub; goose: gosling; goat: kid; kangaroo: joey; frog: tadpole; swan: "
            "cygnet; deer: fawn"
        ),
        ("What is a baby {x} called?", "What do you call a young {x}?", "What is the name for a baby {x}?"),
        ("A baby {x} is called a {y}.",),
    ),
    Relation(
        _pairs(
            "bee: in a hive; bird: in a nest; spider: in a web; fish: in the water; bear: in a den; rabbit: in "
            "a burrow; horse: in a stable; cow: in a barn; dog: in a kennel; ant: in an anthill; whale: in the "
            "sea; camel: in the desert; penguin: on the ice; monkey: in the trees; pig: in a sty; beaver: in a "
            "lodge; mole: under the ground"
        ),
        ("Where does {a_x} live?", "Where do you find {a_x}?", "Where is the home of {a_x}?"),
        ("{A_x} lives {y}.",),
    ),
    Relation(
        _pairs(
            "cat: four; dog: four; cow: four; horse: four; spider: eight; bird: two; hen: two; duck: two; ant: "
            "six; bee: six; butterfly: six; snake: no; fish: no; octopus: no; elephant: four; lion: four; crab: "
            "ten; worm: no; frog: four; chair: four; person: two"
        ),
        ("How many legs does {a_x} have?", "How many legs has {a_x}?"),
        ("{A_x} has {y} legs.",),
    ),
    Relation(
        _pairs(
            "cat: a mammal; dog: a mammal; whale: a mammal; elephant: a mammal; bat: a mammal; dolphin: a "
            "mammal; mouse: a mammal; eagle: a bird; penguin: a bird; owl: a bird; duck: a bird; parrot: a "
            "bird; swan: a bird; ant: an insect; bee: an insect; butterfly: an insect; beetle: an insect; frog: "
            "an amphibian; snake: a reptile; crocodile: a reptile; turtle: a reptile; lizard: a reptile; shark: "
            "a fish; salmon: a fish; trout: a fish"
        ),
        ("What kind of animal is {a_x}?", "What sort of animal is {a_x}?", "What is {a_x}?"),
        ("{A_x} is {y}.",),
    ),
    Relation(
        _pairs(
            "France: Paris; Germany: Berlin; Italy: Rome; Spain: Madrid; Portugal: Lisbon; England: London; "
            "Ireland: Dublin; Scotland: Edinburgh; Austria: Vienna; Switzerland: Bern; Poland: Warsaw; Greece: "
            "Athens; Sweden: Stockholm; Norway: Oslo; Denmark: Copenhagen; Finland: Helsinki; Hungary: "
            "Budapest; Belgium: Brussels; Russia: Moscow; Turkey: Ankara; Egypt: Cairo; Kenya: Nairobi; Japan: "
            "Tokyo; China: Beijing; India: New Delhi; Canada: Ottawa; Mexico: Mexico City; Brazil: Brasília; "
            "Argentina: Buenos Aires; Peru: Lima; Chile: Santiago; Cuba: Havana; Australia: Canberra; New "
            "Zealand: Wellington; the United States: Washington; the Netherlands: Amsterdam; Iceland: "
            "Reykjavik; Thailand: Bangkok; Vietnam: Hanoi; South Korea: Seoul"
        ),
        ("What is the capital of {x}?", "What is the capital city of {x}?", "Which city is the capital of {x}?"),
        ("The capital of {x} is {y}.",),
    ),
    Relation(
        _pairs(
            "Paris: France; Berlin: Germany; Rome: Italy; Madrid: Spain; Lisbon: Portugal; London: England; "
            "Dublin: Ireland; Vienna: Austria; Warsaw: Poland; Athens: Greece; Oslo: Norway; Cairo: Egypt; "
            "Tokyo: Japan; Beijing: China; Ottawa: Canada; Lima: Peru; Havana: Cuba; Hanoi: Vietnam; Seoul: "
            "South Korea; Helsinki: Finland"
        ),
        ("Where is {x}?", "In which country is {x}?", "What country is {x} in?"),
        ("{x} is in {y}.",),
    ),
    Relation(
        _pairs(
            "big: small; hot: cold; up: down; day: night; black: white; fast: slow; happy: sad; old: young; "
            "rich: poor; open: closed; left: right; light: dark; loud: quiet; full: empty; hard: soft; high: "
            "low; long: short; wet: dry; good: bad; clean: dirty; early: late; strong: weak; near: far; thick: "
            "thin; true: false; first: last; win: lose; sweet: sour; easy: difficult; asleep: awake; cheap: "
            "expensive; brave: afraid"
        ),
        (
            "What is the opposite of {x}?",
            "What is the opposite of the word {x}?",
            "Which word means the opposite of {x}?",
        ),
        ("The opposite of {x} is {y}.",),
    ),
    Relation(
        _pairs(
            "bread: a baker; shoes: a shoemaker; furniture: a carpenter; clothes: a tailor; meals: a cook; "
            "paintings: a painter; music: a musician; books: a writer; honey: a bee; milk: a cow; eggs: a hen; "
            "wool: a sheep; songs: a singer; webs: a spider; houses: a builder"
        ),
        ("Who makes {x}?", "Where {do} {x} come from?"),
        ("{X} {come} from {y}.",),
    ),
    Relation(
        _pairs(
            "cut paper: scissors; write a letter: a pen; eat soup: a spoon; brush your teeth: a toothbrush; hit "
            "a nail: a hammer; see in the dark: a lamp; stay dry in the rain: an umbrella; open a door: a key; "
            "tell the time: a clock; wash your hands: soap; sweep the floor: a broom; catch a fish: a net; dig "
            "a hole: a spade; cut bread: a knife; sleep: a bed; cross a river: a bridge; see far away: a "
            "telescope; sew a shirt: a needle"
        ),
        ("What do you use to {x}?", "What do I need to {x}?", "What can I use to {x}?"),
        ("To {x}, you use {y}.",),
    ),
    Relation(
        _pairs(
            "days are in a week: seven; months are in a year: twelve; hours are in a day: twenty-four; minutes "
            "are in an hour: sixty; seconds are in a minute: sixty; letters are in the alphabet: twenty-six; "
            "seasons are in a year: four; wheels are on a bicycle: two; wheels are on a car: four; sides are on "
            "a triangle: three; sides are on a square: four; fingers are on a hand: five; toes are on two feet: "
            "ten; eggs are in a dozen: twelve; planets are in the solar system: eight; colours are in a "
            "rainbow: seven; years are in a century: one hundred; weeks are in a year: fifty-two; strings are "
            "on a violin: four; players are on a football team: eleven; continents are on Earth: seven"
        ),
        ("How many {x}?",),
        ("There are {y} {noun_x}.",),
    ),
    Relation(
        {day: _DAYS[(i + 1) % 7] for i, day in enumerate(_DAYS)},
        ("What day comes after {x}?", "Which day is after {x}?", "Today is {x}. What day is tomorrow?"),
        ("The day after {x} is {y}.",),
    ),
    Relation(
        {day: _DAYS[(i - 1) % 7] for i, day in enumerate(_DAYS)},
        ("What day comes before {x}?", "Which day is before {x}?", "Today is {x}. What day was yesterday?"),
        ("The day before {x} is {y}.",),
    ),
    Relation(
        {month: _MONTHS[(i + 1) % 12] for i, month in enumerate(_MONTHS)},
        ("What month comes after {x}?", "Which month is after {x}?", "Which month follows {x}?"),
        ("The month after {x} is {y}.",),
    ),
    Relation(
        {_ORDINALS[i]: month for i, month in enumerate(_MONTHS)},
        ("What is the {x} month of the year?", "Which month is the {x} month?"),
        ("The {x} month of the year is {y}.",),
    ),
    Relation(
        dict(pairwise(_LETTERS)),
        ("What letter comes after {x}?", "Which letter is after {x} in the alphabet?"),
        ("The letter after {x} is {y}.",),
    ),
    Relation(
        _pairs(
            "planet: Jupiter; animal: the blue whale; land animal: the elephant; ocean: the Pacific Ocean; "
            "country: Russia; continent: Asia; bird: the ostrich; desert on Earth: Antarctica; cat: the tiger"
        ),
        ("What is the largest {x}?", "Which is the largest {x}?", "What is the biggest {x}?"),
        ("The largest {x} is {y}.",),
    ),
    Relation(
        _pairs(
            "tallest animal: the giraffe; fastest land animal: the cheetah; highest mountain: Mount Everest; "
            "closest star: the Sun; smallest planet: Mercury; hottest season: summer; coldest season: winter; "
            "red planet: Mars; king of the animals: the lion; planet we live on: the Earth; longest river: the "
            "Nile"
        ),
        ("What is the {x}?", "Which is the {x}?"),
        ("The {x} is {y}.",),
    ),
    Relation(
        _pairs(
            "hello in French: bonjour; hello in German: hallo; hello in Spanish: hola; hello in Italian: ciao; "
            "thank you in French: merci; thank you in German: danke; thank you in Spanish: gracias; thank you "
            "in Italian: grazie; yes in French: oui; yes in German: ja; no in German: nein; no in French: non; "
            "cat in German: Katze; dog in German: Hund; cat in French: chat; dog in French: chien; good day in "
            "German: guten Tag"
        ),
        ("How do you say {x}?", "What is {x}?", "How can I say {x}?"),
        ("In {language_x}, “{word_x}” is “{y}”.",),
    ),
)

KINDS: dict[str, tuple[str, ...]] = {
    "animals": words("cat dog cow horse lion rabbit bear fox mouse elephant tiger sheep duck owl frog"),
    "colours": words("red blue green yellow black white orange purple pink brown"),
    "fruits": words("apple banana cherry lemon orange pear plum grape strawberry peach"),
    "days": _DAYS,
    "months": _MONTHS,
    "vegetables": words("carrot potato tomato onion cucumber pea bean cabbage"),
    "countries": words("France Germany Italy Spain Japan China India Canada Brazil Egypt"),
    "cities": words("Paris Berlin Rome Madrid London Tokyo Vienna Cairo Lima Oslo"),
    "birds": words("owl eagle duck swan crow parrot penguin robin"),
}
COUNTS = ("two", "three", "four", "five")
FACTS = tuple((relation, x) for relation in RELATIONS for x in relation.pairs)
COUNTRIES = tuple(RELATIONS[6].pairs)
ARTICLES = {"octopus": "an octopus", "ant": "an ant", "elephant": "an elephant", "owl": "an owl", "eagle": "an eagle"}
MASS_NOUNS = ("bread", "furniture", "music", "honey", "milk", "wool")


def question(rng: Random) -> Exchange:
    """A question about one fact."""
    if rng.random() < 0.08:
        return name_some(rng)
    relation, x = rng.choice(FACTS)
    return ask(rng, relation, x)


def ask(rng: Random, relation: Relation, x: str) -> Exchange:
    """One of the ways to ask what goes with x."""
    y = relation.pairs[x]
    slots = {"x": x, "X": x[0].upper() + x[1:], "y": y, "a_x": ARTICLES.get(x, f"a {x}")}
    slots["A_x"] = slots["a_x"].capitalize()
    slots["noun_x"] = x.replace(" are ", " ", 1)
    slots["do"], slots["come"] = ("does", "comes") if x in MASS_NOUNS else ("do", "come")
    slots["word_x"], _, slots["language_x"] = x.partition(" in ")
    answer = rng.choice(relation.answers).format_map(slots)
    return Exchange(rng.choice(relation.questions).format_map(slots), answer, y[0].upper() + y[1:])


def name_some(rng: Random) -> Exchange:
    """A request to name a few of a kind."""
    kind, count = rng.choice(list(KINDS)), rng.randint(2, 5)
    *names, last = rng.sample(KINDS[kind], count)
    listed = f"{', '.join(names)} and {last}"
    question = rng.choice(("Name {n} {k}.", "Tell me {n} {k}.", "Can you name {n} {k}?", "List {n} {k}."))
    return Exchange(
        question.format(n=COUNTS[count - 2], k=kind),
        f"Here are {COUNTS[count - 2]} {kind}: {listed}.",
        listed[0].upper() + listed[1:],
    )


def reader(rng: Random) -> str:
    """Plain text: a paragraph that states facts of one kind."""
    relation = rng.choice(RELATIONS)
    some = rng.sample(list(relation.pairs), min(len(relation.pairs), rng.randint(3, 7)))
    return " ".join(ask(rng, relation, x).answer for x in some)
