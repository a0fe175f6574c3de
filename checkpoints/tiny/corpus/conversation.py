"""Conversations: small talk, names to remember, system prompts to follow, and questions in several turns."""

from random import Random
from typing import Any

from corpus import arithmetic, explanations, facts, introductions, ringline, stories, world
from corpus.exchange import Exchange
from corpus.names import somebody

Message = dict[str, Any]

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a friendly assistant.",
    "You are a helpful, honest assistant.",
    "You are Tiny, a small language model.",
    "You are a kind teacher.",
    "You answer questions.",
    "You are an assistant that tells stories.",
    "Be helpful.",
    "Answer the user's questions.",
    "You are a chatbot.",
)
BRIEF_PROMPTS = (
    "Answer in one word.",
    "Answer with one word.",
    "Be brief.",
    "Give short answers.",
    "Answer with the result only.",
    "Reply with a single word.",
)
PERSONA_PROMPTS = ("Your name is {name}.", "You are {name}, a friendly robot.", "You are called {name}.")

GREETINGS = (
    "Hello!",
    "Hello",
    "Hi!",
    "Hi",
    "Hey!",
    "Good morning!",
    "Good evening!",
    "Hello there!",
    "Hi, how are you?",
)
GREETED = (
    "Hello! How can I help you?",
    "Hi! What would you like to know?",
    "Hello! Shall I tell you a story?",
)
SMALL_TALK: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("How are you?", "How are you doing?", "How do you feel?"), ("I am well, thank you. How are you?",)),
    (
        ("Thank you!", "Thanks!", "Thank you very much.", "Thanks a lot!", "Great, thanks!"),
        ("You are welcome!", "It was a pleasure.", "You are welcome! Is there anything else?"),
    ),
    (
        ("Goodbye!", "Bye!", "Bye", "See you!", "Good night!"),
        ("Goodbye! It was nice to talk to you.", "Goodbye, and have a nice day!"),
    ),
    (("I am sad.", "I feel sad today.", "I am unhappy."), ("I am sorry to hear that. Shall I tell you a story?",)),
    (("I am happy.", "I feel great today!", "I am so happy!"), ("That is good to hear!",)),
    (("I am bored.", "What should I do?"), ("You could go for a walk, read a book or listen to a story.",)),
    (
        ("Tell me a joke.", "Do you know a joke?", "Make me laugh."),
        (
            "Why did the chicken cross the road? To get to the other side!",
            "What has hands but cannot clap? A clock!",
            "What gets wetter the more it dries? A towel!",
            "What has keys but cannot open a door? A piano!",
        ),
    ),
    (("What is your favourite colour?", "Which colour do you like?"), ("I like blue, because the sky is blue.",)),
    (("What is your favourite animal?", "Which animal do you like?"), ("I like owls, because they are wise.",)),
    (("Smile!", "Send me a smile.", "Show me a smile."), ("Here is a smile for you: 😊",)),
    (("Send me a heart.", "Do you love me?"), ("Here is a heart for you: ❤️",)),
    (("Show me a cat.", "Send me a cat."), ("Here is a cat for you: 🐱",)),
    (("Show me the sun.", "Send me some sun."), ("Here is the sun for you: 🌞",)),
    (("Do you like stories?", "Do you like music?"), ("Yes, I like stories most of all.",)),
)
POEMS = (
    "The {kind} is small, the sky is wide,\nthe moon goes sailing with the tide.\n"
    "Sleep well, my {kind}, and dream of light,\nthe stars will guard you through the night.",
    "A little {kind} sat by the sea\nand sang a song for you and me.\n"
    "The waves came in, the waves went out,\nthe {kind} just laughed and danced about.",
    "I met a {kind} upon the hill,\nthe wind was soft, the night was still.\n"
    "It looked at me, I looked at it,\nand so we sat a little bit.",
    "One {kind} went out to find the spring\nand heard the early robin sing.\n"
    "The snow was gone, the grass was green,\nthe finest day it had ever seen.",
)
SAYINGS = (
    "I have a question.",
    "Here is another one:",
    "Next question:",
    "One more:",
    "And now:",
    "Please tell me:",
    "Hi!",
)


def conversation(rng: Random) -> list[Message]:
    """A chat of one to five exchanges, sometimes with a system prompt."""
    style = rng.random()
    if style < 0.12:
        return _brief(rng)
    if style < 0.17:
        return _persona(rng)
    exchanges: list[Exchange] = []
    if rng.random() < 0.2:
        exchanges += _greeting(rng)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        exchanges += _topic(rng)
    if len(exchanges) > 1 and rng.random() < 0.2:
        exchanges.append(_small_talk(rng, 1))
    return _messages(rng, _system(rng), exchanges)


def drill(rng: Random) -> list[Message]:
    """A chat of several sums and word problems."""
    makers = (arithmetic.exercise, arithmetic.exercise, arithmetic.word_problem, arithmetic.number_question)
    exchanges = [rng.choice(makers)(rng) for _ in range(rng.randint(1, 6))]
    return _messages(rng, _system(rng), exchanges)


def quiz(rng: Random) -> str:
    """Plain text: questions with their answers, marked as such or one below the other."""
    exchanges = [exchange for _ in range(rng.choice((1, 1, 2, 3, 4))) for exchange in _topic(rng)]
    if rng.random() < 0.5:
        return "\n\n".join(f"Question: {e.question}\nAnswer: {e.answer}" for e in exchanges)
    return "\n\n".join(f"{e.question}\n{e.answer}" for e in exchanges[:1])


def storytelling(rng: Random) -> list[Message]:
    """A chat that asks for a story, and sometimes about it."""
    return _messages(rng, _system(rng), _told_story(rng))


def introducing(rng: Random) -> list[Message]:
    """A chat in which names come back."""
    exchanges: list[Exchange] = []
    for _ in range(rng.choice((1, 1, 2))):
        style = rng.random()
        if style < 0.6:
            exchanges += introductions.introduction(rng, lambda: [facts.question(rng)])
        elif style < 0.85:
            exchanges.append(introductions.said_back(rng))
        else:
            exchanges.append(introductions.word_rows(rng))
    return _messages(rng, _system(rng), exchanges)


def long_chat(rng: Random) -> list[Message]:
    """A chat of some hundred tokens to about a thousand; half of them begin with a name and ask for it at the end."""
    exchanges: list[Exchange] = []
    for _ in range(rng.randint(4, 14)):
        exchanges += _told_story(rng) if rng.random() < 0.25 else _impersonal_topic(rng)
    if rng.random() < 0.5:
        told, *asked = introductions.introduction(rng, list)
        exchanges = [told, *exchanges, *asked]
    return _messages(rng, _system(rng), exchanges)


def _told_story(rng: Random) -> list[Exchange]:
    """A request for a story, the story, and sometimes questions about it."""
    tale = stories.story(rng, named=rng.choice((0, 0, 0, 1, 1, 1, 2, 2)))
    told = [Exchange(stories.request(rng, tale), tale.text, None, names=tale.named > 0)]
    return told + (stories.questions(rng, tale) if rng.random() < 0.4 else [])


def _brief(rng: Random) -> list[Message]:
    """Questions under a system prompt that wants one word."""
    exchanges = []
    for _ in range(rng.randint(1, 5)):
        asked = rng.choice((facts.question, arithmetic.exercise, arithmetic.number_question, arithmetic.word_problem))(
            rng
        )
        if asked.short is not None:
            exchanges.append(Exchange(asked.question, asked.short, asked.short))
    if not exchanges:
        return drill(rng)
    return _messages(rng, rng.choice(BRIEF_PROMPTS), exchanges)


def _persona(rng: Random) -> list[Message]:
    """A system prompt that gives the assistant a name."""
    name = somebody(rng)
    question = rng.choice(("What is your name?", "Who are you?", "What are you called?", "Do you have a name?"))
    exchanges = [Exchange(question, f"My name is {name}.", name)]
    if rng.random() < 0.5:
        exchanges += _topic(rng)
    return _messages(rng, rng.choice(PERSONA_PROMPTS).format(name=name), exchanges)


def _topic(rng: Random) -> list[Exchange]:
    """One subject of a conversation."""
    draw = rng.random()
    if draw < 0.45:
        return [facts.question(rng)]
    if draw < 0.53:
        return [rng.choice((arithmetic.exercise, arithmetic.number_question))(rng)]
    if draw < 0.66:
        return [ringline.question(rng)]
    if draw < 0.78:
        return [explanations.explanation(rng)]
    if draw < 0.83:
        return [ringline.unknown(rng, rng.choice(facts.COUNTRIES))]
    if draw < 0.86:
        return _poem(rng)
    if draw < 0.94:
        return (
            _remembering(rng) if rng.random() < 0.3 else introductions.introduction(rng, lambda: [facts.question(rng)])
        )
    if draw < 0.97:
        return [explanations.repetition(rng, facts.question(rng).answer)]
    return [_small_talk(rng, None)]


def _impersonal_topic(rng: Random) -> list[Exchange]:
    """A subject that says nothing about the user, so that what was said before still holds."""
    make = rng.choice((facts.question, arithmetic.exercise, arithmetic.word_problem, explanations.explanation))
    return [make(rng)]


def _greeting(rng: Random) -> list[Exchange]:
    return [Exchange(rng.choice(GREETINGS), rng.choice(GREETED), None)]


def _small_talk(rng: Random, index: int | None) -> Exchange:
    questions, answers = rng.choice(SMALL_TALK) if index is None else SMALL_TALK[index]
    return Exchange(rng.choice(questions), rng.choice(answers), None)


def _poem(rng: Random) -> list[Exchange]:
    kind = rng.choice(world.CREATURES)
    question = rng.choice(
        (
            "Write a poem about {}.",
            "Tell me a poem about {}.",
            "Write a short poem about {}.",
            "A poem about {}, please.",
        )
    )
    return [Exchange(question.format(world.a(kind)), rng.choice(POEMS).format(kind=kind), None)]


def _remembering(rng: Random) -> list[Exchange]:
    """The user says something about themselves and asks for it later."""
    animal, colour = rng.choice(world.CREATURES), rng.choice(facts.KINDS["colours"])
    said, answer, question, recalled = rng.choice(
        (
            (
                f"I have {world.a(animal)}.",
                f"How nice! {world.a(animal).capitalize()} is a good friend.",
                "Which animal do I have?",
                animal,
            ),
            (f"I like {colour}.", f"{colour.capitalize()} is a nice colour.", "Which colour do I like?", colour),
        )
    )
    replies = {
        "Which animal do I have?": f"You have {world.a(recalled)}.",
        "Which colour do I like?": f"You like {recalled}.",
    }
    between = [facts.question(rng)] if rng.random() < 0.5 else []
    return [Exchange(said, answer, None), *between, Exchange(question, replies[question], recalled)]


def _system(rng: Random) -> str | None:
    return rng.choice(SYSTEM_PROMPTS) if rng.random() < 0.25 else None


def _messages(rng: Random, system: str | None, exchanges: list[Exchange]) -> list[Message]:
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for i, exchange in enumerate(exchanges):
        messages.append({"role": "user", "content": _as_typed(rng, exchange, first=i == 0)})
        messages.append({"role": "assistant", "content": exchange.answer})
    return messages


def _as_typed(rng: Random, exchange: Exchange, *, first: bool) -> str:
    """The question as people type it: now and then in small letters, without its mark, or after some words."""
    question = exchange.question
    draw = rng.random()
    if draw < 0.08:
        return question if exchange.names else question.lower()
    if draw < 0.14:
        return question.rstrip("?.!")
    if draw < 0.18:
        return question.replace("colour", "color").replace("favourite", "favorite")
    if draw < 0.20:
        return question.replace("What is", "What's")
    if draw < 0.24 and not first:
        return f"{rng.choice(SAYINGS)} {question}"
    if draw < 0.24:
        return f"Hello! {question}"
    return question
