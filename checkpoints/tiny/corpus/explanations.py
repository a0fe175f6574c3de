"""Short explanations: what things are, why things happen and how things are done."""

from random import Random

from corpus.exchange import Exchange
from corpus.world import words

_EXPLANATIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("Why is the sky blue?",), "The air scatters blue light more than red light, so the sky looks blue."),
    (
        ("Why does it rain?", "What is rain?"),
        "Water rises into the sky and makes clouds. When the drops are heavy, they fall.",
    ),
    (("Why is the sea salty?",), "Rivers carry a little salt from the rocks into the sea, and it stays there."),
    (
        ("Why do leaves fall?", "Why do trees lose their leaves?"),
        "In autumn, a tree lets its leaves fall to save water.",
    ),
    (
        ("Why do we sleep?", "Why do people sleep?"),
        "We sleep so that the body can rest and the head can sort the day.",
    ),
    (("Why do birds fly south?",), "Birds fly south in autumn because it is warm there and they find food."),
    (("Why do cats purr?",), "Cats purr when they are happy, and sometimes to calm themselves."),
    (("Why do dogs bark?",), "Dogs bark to say that they are happy, afraid or on guard."),
    (("Why is grass green?",), "Grass has a green dye in it that catches the light of the sun."),
    (("Why do we eat?", "Why do we need food?"), "Food gives us the energy to move, to grow and to think."),
    (("Why do we have seasons?",), "The Earth is tilted, so each half gets more sun in one part of the year."),
    (("Why is there day and night?",), "The Earth turns once a day. It is day on the side that looks at the sun."),
    (("Why does ice float?", "Why does ice swim on water?"), "Ice is lighter than water, so it floats."),
    (("Why do we brush our teeth?",), "We brush our teeth to keep them clean and healthy."),
    (
        ("What is a rainbow?", "How does a rainbow form?"),
        "A rainbow is sunlight that drops of rain split into its colours.",
    ),
    (("What is the moon?",), "The moon is a ball of rock that goes round the Earth once a month."),
    (("What is the sun?",), "The sun is a star. It gives us light and warmth."),
    (("What is a star?", "What are stars?"), "A star is a big ball of hot gas, far away. It shines like our sun."),
    (("What is snow?", "How does snow form?"), "Snow is frozen water that falls from the clouds in small crystals."),
    (("What is wind?", "Where does wind come from?"), "Wind is air that moves from one place to another."),
    (("What is a cloud?", "What are clouds?"), "A cloud is made of many tiny drops of water in the air."),
    (("What is thunder?",), "Thunder is the loud noise that lightning makes."),
    (("What is lightning?",), "Lightning is a big spark between the clouds and the ground."),
    (("What is fire?",), "Fire is what we see and feel when something burns. It is hot and bright."),
    (("What is a volcano?",), "A volcano is a mountain from which hot melted rock can come out."),
    (("What is a desert?",), "A desert is a place where it almost never rains."),
    (("What is a forest?",), "A forest is a large place with many trees."),
    (("What is an island?",), "An island is land with water all around it."),
    (("What is a river?",), "A river is water that flows from the hills to the sea."),
    (("What is a friend?",), "A friend is somebody who likes you and helps you."),
    (("What is a book?",), "A book is many pages with words, so that a story can travel."),
    (("What is a computer?",), "A computer is a machine that follows instructions very fast."),
    (("What is music?",), "Music is sound that people put in order because it is beautiful."),
    (
        ("How do plants grow?", "What does a plant need?"),
        "A plant needs water, light and earth. Then it grows from a seed.",
    ),
    (("How do bees make honey?",), "Bees collect sweet juice from flowers and turn it into honey in the hive."),
    (("How do birds fly?",), "A bird pushes the air down with its wings, and the air carries it."),
    (("How do fish breathe?",), "Fish breathe with gills, which take the air out of the water."),
    (
        ("How do I make tea?", "How do you make tea?"),
        "Boil water, pour it over the tea, wait three minutes, and enjoy it.",
    ),
    (("How do I make a sandwich?",), "Take two slices of bread and put cheese and tomato between them."),
    (("How do I plant a tree?",), "Dig a hole, put the tree in, fill it with earth, and water it well."),
    (
        ("How do I make a friend?", "How can I find friends?"),
        "Say hello, be kind, and listen. The rest comes by itself.",
    ),
    (("How can I sleep better?",), "Go to bed at the same time each day, and read a quiet story before."),
)
_WORDS = words("hello banana moon ring tiger sunshine rain star apple river yes please good morning night friend")
_REPEATS = ("Say “{}”.", "Please say “{}”.", "Repeat after me: {}", "Repeat: {}", "Say: {}")


def explanation(rng: Random) -> Exchange:
    """A question that wants a sentence or two."""
    questions, answer = rng.choice(_EXPLANATIONS)
    return Exchange(rng.choice(questions), answer, None)


def repetition(rng: Random, sentence: str) -> Exchange:
    """A request to say something back, word for word."""
    said = sentence if rng.random() < 0.5 else " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, 4)))
    return Exchange(rng.choice(_REPEATS).format(said), said, None)
