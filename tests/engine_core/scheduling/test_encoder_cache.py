"""Pictures: which step encodes them, what their rows wait for, what is forgotten, and what a cut must leave whole."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine_core.config import CacheConfig, SchedulerConfig, encoder_cache_tokens
from engine_core.errors import ConfigError
from engine_core.media import VisionShape

from .checked_executor import make_picture
from .harness import Harness

CAT, DOG, OWL, FOX = (make_picture(number, 6) for number in range(4))
SEES, BOTH_WAYS = VisionShape(6), VisionShape(6, attends_both_ways=True)
PROMPT = tuple(range(2, 24))  # 22 tokens: five full blocks and a half


def encoded(engine):
    """The pictures that the last plan encodes, and how many it forgets."""
    plan = engine.plan.encoder
    return ([], 0) if plan is None else ([picture for _, picture in plan.encoded], len(plan.forgotten))


def test_a_picture_is_encoded_in_the_step_that_computes_its_first_row():
    engine = Harness(vision=SEES, max_num_batched_tokens=8)
    engine.add("a", PROMPT, media=[(CAT, 8), (DOG, 15)])
    assert (engine.next_batch(), encoded(engine)) == ([("a", 0, 8)], ([], 0))
    assert (engine.next_batch(), encoded(engine)) == ([("a", 0, 7)], ([CAT], 0)), "there is no room for both"
    assert (engine.next_batch(), encoded(engine)) == ([("a", 0, 7)], ([DOG], 1))
    engine.finish()
    stats = engine.scheduler.stats()
    assert (stats.encoded_pictures, stats.encoded_picture_tokens) == (2, 12)
    assert (stats.encoder_cache_uses, stats.encoder_cache_hits) == (2, 0)
    assert (stats.encoder_cache_tokens, stats.encoder_cache_tokens_held) == (8, 0)


def test_a_step_encodes_as_many_tokens_as_it_computes_or_one_large_picture():
    engine = Harness(vision=SEES, max_num_batched_tokens=4, encoder_tokens=100)
    engine.add("a", 20, media=[(CAT, 0), (DOG, 6)])
    sizes = []
    for _ in range(6):
        engine.step()
        sizes.append((engine.batch[0][2], encoded(engine)[0]))
    assert sizes == [(4, [CAT]), (4, [DOG]), (4, []), (4, []), (4, []), (1, [])]


def test_a_step_encodes_a_portion_while_others_wait_for_tokens():
    engine = Harness(vision=SEES, max_num_batched_tokens=40, encoder_tokens=40)
    engine.add("alone", 20, media=[(CAT, 0), (DOG, 6)], max_tokens=9)
    engine.step()
    assert encoded(engine)[0] == [CAT, DOG]
    engine.add("beside", 20, media=[(OWL, 0), (FOX, 6)], max_tokens=9)
    for picture in (OWL, FOX):
        engine.step()
        assert encoded(engine)[0] == [picture]
    engine.finish()


def portions(engine):
    """The picture of which the last plan encodes a portion, and the share that is done; and what it forgets."""
    plan = engine.plan.encoder
    if plan is None:
        return None, []
    portion = plan.portion and (engine.checked.known_pictures[plan.portion.key], round(plan.portion.share, 2))
    return portion, [engine.checked.known_pictures[key] for key in plan.forgotten]


def beside_decoding(encoder_tokens=6, **options):
    """An engine that generates text, with portions of two tokens."""
    engine = Harness(vision=SEES, encoder_tokens=encoder_tokens, max_num_batched_tokens=8, **options)
    engine.add("x", 2, max_tokens=40)
    engine.step()
    return engine


def test_a_larger_picture_is_encoded_over_several_steps_while_others_get_tokens():
    engine = beside_decoding()
    engine.add("a", 12, media=[(CAT, 2)], max_tokens=1)
    seen = []
    for _ in range(4):
        assert ("x", 0) in engine.step()
        seen.append((sum(count for name, _, count in engine.batch if name == "a"), *portions(engine), encoded(engine)))
    nothing = ([], ([], 0))
    assert seen == [
        (2, (CAT, 0.33), *nothing),
        (0, (CAT, 0.67), *nothing),
        (0, (CAT, 1.0), *nothing),
        (7, None, *nothing),
    ]
    stats = engine.scheduler.stats()
    assert (stats.encoded_pictures, stats.encoded_picture_tokens) == (1, 6)
    engine.finish()


def test_the_rest_is_encoded_at_once_if_nobody_waits_any_longer():
    engine = beside_decoding()
    engine.add("a", 12, media=[(CAT, 2)], max_tokens=1)
    engine.step()
    engine.cancel("x")
    engine.step()
    assert (encoded(engine), portions(engine)[0]) == (([CAT], 0), None)
    engine.finish()
    assert engine.scheduler.stats().encoded_pictures == 1


def test_a_picture_whose_request_ends_is_given_up_and_the_next_one_begun():
    engine = beside_decoding()
    engine.add("a", 12, media=[(CAT, 0)], max_tokens=1)
    engine.add("b", 12, media=[(DOG, 0)], max_tokens=1)
    engine.add("c", 12, media=[(CAT, 0)], max_tokens=1)
    engine.step(2)
    assert portions(engine) == ((CAT, 0.67), [])
    engine.cancel("a")
    engine.step()
    assert portions(engine) == ((DOG, 0.33), [CAT])
    engine.cancel("b")
    engine.step()
    assert portions(engine) == ((CAT, 0.33), [DOG])
    engine.finish()


def test_who_holds_embeddings_takes_the_room_of_a_picture_that_is_being_encoded():
    engine = beside_decoding(encoder_tokens=7)
    small = make_picture(9, 2)
    engine.add("a", 12, media=[(CAT, 0)], max_tokens=1)
    engine.step()
    engine.add("b", 12, media=[(small, 0)], max_tokens=1, priority=-1)
    engine.step()
    assert (encoded(engine)[0], portions(engine)) == ([small], (None, [CAT]))
    engine.finish()


def test_prompts_that_wait_for_pictures_keep_no_blocks_from_those_that_could_go_on():
    """The last one that gets tokens is preempted for its block; then nobody waits, and the picture is encoded."""
    engine = Harness(vision=VisionShape(16), max_num_batched_tokens=4, blocks=7, max_model_len=24)
    engine.add("x", 2, max_tokens=20, priority=1)
    engine.step()
    engine.add("a", 20, media=[(make_picture(1, 16), 2)], max_tokens=2)
    engine.step_until_preemption()
    assert (engine.planned, len(encoded(engine)[0])) == ([("a", 0)], 1)
    engine.finish()


def test_embeddings_are_found_again_until_their_room_is_needed():
    engine = Harness(vision=SEES, encoder_tokens=13, max_num_batched_tokens=12)
    found = []
    for name, pictures in [("a", [CAT, DOG]), ("b", [CAT]), ("c", [OWL]), ("d", [CAT]), ("e", [DOG])]:
        engine.add(name, 12, media=[(picture, 6 * place) for place, picture in enumerate(pictures)], max_tokens=1)
        engine.step()
        found.append(encoded(engine))
    assert found == [([CAT, DOG], 0), ([], 0), ([OWL], 1), ([], 0), ([DOG], 1)], "the dog was unused the longest"
    stats = engine.scheduler.stats()
    assert (stats.encoder_cache_uses, stats.encoder_cache_hits) == (6, 2)


def test_embeddings_are_shared_by_choices_and_equal_pictures_but_not_across_salts():
    engine = Harness(vision=SEES, prefix_caching=True)
    engine.add("a", PROMPT, media=[(CAT, 0), (CAT, 16)], n=3)
    engine.add("b", PROMPT[::-1], media=[(CAT, 3)])
    engine.add("c", PROMPT[::-1], media=[(CAT, 3)], salt=b"s")
    engine.finish()
    assert engine.scheduler.stats().encoded_pictures == 2


def test_pictures_inside_a_hit_are_not_encoded():
    engine = Harness(vision=SEES, prefix_caching=True, encoder_tokens=6, max_num_batched_tokens=6)
    media = [(CAT, 0), (DOG, 8), (OWL, 15)]
    for name, encodes in [("a", 3), ("b", 4), ("c", 5)]:
        assert engine.cached(name, PROMPT, media=media) == (0 if name == "a" else 20)
        # The hit ends inside of the last picture.
        assert engine.scheduler.stats().encoded_pictures == encodes - (name != "a") * (encodes - 3)


def test_a_picture_that_must_stay_whole_shortens_the_hit():
    engine = Harness(vision=BOTH_WAYS, prefix_caching=True, max_num_batched_tokens=8)
    assert engine.cached("a", PROMPT, media=[(CAT, 2), (DOG, 15)]) == 0
    assert engine.cached("b", PROMPT, media=[(CAT, 2), (DOG, 15)]) == 12
    assert engine.cached("c", PROMPT[:12], media=[(CAT, 2)]) == 8
    assert engine.cached("d", PROMPT[:9], media=[(CAT, 3)]) == 0
    engine = Harness(vision=BOTH_WAYS, prefix_caching=True, windows=(4, None), states=12)
    assert engine.cached("a", PROMPT, media=[(CAT, 2), (DOG, 15)]) == 0
    assert engine.cached("b", PROMPT, media=[(CAT, 2), (DOG, 15)]) in (0, 12)


def test_choices_of_a_prompt_whose_picture_must_stay_whole():
    for states in (0, 20):
        engine = Harness(vision=BOTH_WAYS, prefix_caching=states > 0, states=states)
        engine.add("a", PROMPT, media=[(DOG, 15)], n=3)
        engine.finish()
        assert engine.scheduler.stats().encoded_pictures == 1
        assert all(
            new.num_computed_tokens % 4 == 0 and new.num_computed_tokens <= 12
            for plan in engine.executor.plans
            for new in plan.new
        )


def test_a_chunk_ends_before_a_picture_that_must_stay_whole():
    engine = Harness(vision=BOTH_WAYS, max_num_batched_tokens=8)
    engine.add("a", PROMPT, media=[(CAT, 4), (DOG, 10), (OWL, 16)])
    sizes = []
    for _ in range(4):
        engine.step()
        sizes.append(engine.batch[0][2])
    assert sizes == [4, 6, 6, 6]


def test_a_whole_picture_may_take_what_others_would_leave():
    """Of its step a tenant's prompts may take a quarter: of a picture, that would never be enough."""
    engine = Harness(vision=BOTH_WAYS, max_num_batched_tokens=8)
    engine.add("x", 4, tenant="x", max_tokens=30)
    engine.step()
    engine.add("a", PROMPT, media=[(CAT, 4), (DOG, 10)], tenant="a", max_tokens=1)
    engine.add("b", PROMPT, media=[(CAT, 4), (DOG, 10)], tenant="b", max_tokens=1)
    engine.step_until(lambda: not {"a", "b"} & {stream for stream, s in engine.streams.items() if not s.done})
    assert not engine.streams["x"].done


def test_whoever_needs_a_whole_step_gets_it_before_newcomers():
    engine = Harness(vision=BOTH_WAYS, max_num_batched_tokens=6)
    engine.add("x", 4, tenant="x", max_tokens=12)
    engine.step()
    engine.add("a", 10, media=[(CAT, 0)], tenant="a", max_tokens=1)
    for number in range(40):
        engine.add(f"{number}", 3, tenant=f"{number % 3}", max_tokens=8)
        engine.step()
        if engine.streams["a"].done:
            break
    assert engine.streams["a"].done
    assert number < 20


def test_nothing_that_a_step_in_flight_reads_is_forgotten():
    engine = Harness(vision=SEES, encoder_tokens=6, max_num_batched_tokens=12, max_concurrent_steps=3)
    engine.add("a", 12, media=[(CAT, 6)], max_tokens=1)
    engine.add("b", 12, media=[(DOG, 0)], max_tokens=1)
    engine.plan_ahead()
    assert encoded(engine) == ([CAT], 0)
    engine.plan_ahead()
    assert engine.plan is None
    engine.take_result()
    engine.plan_ahead()
    assert encoded(engine) == ([DOG], 1)
    engine.take_results()
    engine.finish()


def test_whoever_runs_gets_room_for_its_picture_before_newcomers():
    engine = Harness(vision=SEES, encoder_tokens=6, max_num_batched_tokens=8, max_concurrent_steps=2)
    engine.add("first", 4, media=[(make_picture(50, 3), 0)], max_tokens=1)
    engine.add("a", 12, media=[(CAT, 4)], max_tokens=1)
    for number in range(40):
        engine.add(f"{number}", 4, media=[(make_picture(100 + number, 3), 0)], max_tokens=1)
        engine.plan_ahead()
        if number:
            engine.take_result()
        if engine.streams["a"].done:
            break
    assert number < 8


def test_a_part_of_a_picture_keeps_its_embeddings_and_a_preempted_sequence_does_not():
    engine = Harness(vision=SEES, encoder_tokens=6, max_num_batched_tokens=4)
    engine.add("a", 12, media=[(CAT, 0)], priority=1, max_tokens=2)
    engine.step()
    engine.add("b", 12, media=[(DOG, 2)], max_tokens=2)
    engine.step(2)
    assert engine.scheduler.stats().encoded_pictures == 1, "b waits for the rest of a's picture"
    engine.finish()
    assert engine.scheduler.stats().encoded_pictures == 2
    counts = []
    for blocks in (64, 16):
        engine = Harness(vision=SEES, encoder_tokens=6, max_num_batched_tokens=8, blocks=blocks)
        for name, picture in [("a", CAT), ("b", DOG)]:
            engine.add(name, 22, media=[(picture, 4), (OWL, 16)], max_tokens=30)
        engine.finish()
        stats = engine.scheduler.stats()
        assert (stats.preemptions > 0) == (blocks == 16)
        counts.append(stats.encoded_pictures)
    assert counts[0] < counts[1]


def test_what_needs_no_encoder_passes_those_that_wait_for_it():
    engine = Harness(vision=SEES, encoder_tokens=6, max_num_batched_tokens=16)
    for name, media in [("a", [(CAT, 0)]), ("b", [(DOG, 0)]), ("c", []), ("d", [(CAT, 0)])]:
        engine.add(name, 12, media=media, tenant=name)
    # What the last one needs is there, but it comes after the second.
    assert engine.next_batch() == [("a", 0, 4), ("c", 0, 4)]
    engine.finish()
    assert engine.scheduler.stats().encoded_pictures == 3


def test_without_chunks_a_prompt_waits_for_all_its_pictures():
    engine = Harness(vision=SEES, enable_chunked_prefill=False, max_model_len=32, max_num_batched_tokens=32, blocks=32)
    engine.add("a", 20, media=[(CAT, 0), (DOG, 8), (OWL, 14)])
    engine.add("b", 12, media=[(FOX, 0)])
    engine.add("c", 12, media=[(make_picture(9, 6), 0), (make_picture(10, 6), 6)])
    engine.finish()


@pytest.mark.parametrize(
    ("scheduler", "cache", "vision", "option"),
    [
        ({"max_num_batched_tokens": 5}, {}, BOTH_WAYS, "max_num_batched_tokens"),
        ({}, {"encoder_cache_tokens": 5}, SEES, "encoder_cache_tokens"),
        ({"enable_chunked_prefill": False}, {"encoder_cache_tokens": 63}, SEES, "encoder_cache_tokens"),
    ],
)
def test_options_that_no_picture_could_pass_are_refused(scheduler, cache, vision, option):
    with pytest.raises(ConfigError, match="expected at least") as caught:
        Harness(vision=vision, encoder_tokens=cache.get("encoder_cache_tokens"), **scheduler)
    assert caught.value.option == option


def test_the_default_size_of_the_cache():
    for batched, largest, expected in [(4, 6, 6), (2048, 6, 2048)]:
        config = SchedulerConfig(max_num_batched_tokens=batched)
        assert encoder_cache_tokens(CacheConfig(), config, replace(SEES, max_tokens=largest)) == expected
        assert encoder_cache_tokens(CacheConfig(encoder_cache_tokens=7), config, SEES) == 7
