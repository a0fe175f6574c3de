"""Names that a user may bring: known ones, and ones put together from sounds, which can only be copied.

One made-up name in twenty is held out of training, so that the figures for names say whether the model copies.
"""

import zlib
from random import Random

from corpus.world import BOYS, GIRLS, words

HELD_OUT_ONE_IN = 20
_ONSETS = words(
    "b br bl c ch cl cr d dr f fl fr g gl gr h j k kr l m n p ph pl pr qu r s sh sk sl sm sn sp st t th tr tw v w y z"
)
_VOWELS = words("a a e e i i o o u ai au ea ee ei ie io oa oo ou y")
_CODAS = ("", "", "", "", *words("b ck d g k l ll lm m n n nd ng nn nt p r r rd rn s sh ss st t th v x z"))
_ENDINGS = {
    True: words("a a a ah anna bel ella elle essa etta ia ie ina ine ira ita ora une y"),
    False: words("o o o us us an ard bert bo den ek er ert ian in ito ix mir old or ric son ton"),
}


def any_name(rng: Random, *, female: bool) -> str:
    """A name that training may use, known or made up."""
    if rng.random() < 0.4:
        return rng.choice(GIRLS if female else BOYS)
    while held_out(name := made_up(rng, female=female)):
        pass
    return name


def somebody(rng: Random) -> str:
    """A name of either sort and gender."""
    return any_name(rng, female=rng.random() < 0.5)


def made_up(rng: Random, *, female: bool) -> str:
    """A name of two or three syllables whose ending tells the gender."""
    syllables = [
        rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS) for _ in range(rng.choice((1, 1, 1, 2)))
    ]
    stem = "".join(syllables)
    ending = rng.choice(_ENDINGS[female])
    if stem[-1] in "aeiouy" and ending[0] in "aeiouy":
        stem += rng.choice("bdklmnrstvz")
    return (stem + ending).capitalize()


def held_out(name: str) -> bool:
    """True for the made-up names that training never sees."""
    return zlib.crc32(name.encode()) % HELD_OUT_ONE_IN == 0
