"""Names of adapters and their generations: what stays known, for whom, and what peers are told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.engine.adapters import registry as module
from services.engine.adapters.registry import AdapterNews, AdapterRegistry
from services.ring.errors import Code, Reason, Refused
from services.ring.limits import MAX_ADAPTERS
from tests.services.engine.adapters.adapter_files import adapter_file

NAMES, CONTENTS = st.sampled_from("abc"), st.sampled_from("xyz")
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES, CONTENTS),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("use"), NAMES),
        st.tuples(st.just("release"), st.integers(0, 30)),
        st.tuples(st.just("load"), CONTENTS, st.booleans()),
        st.tuples(st.just("read"), st.integers(0, 1)),
        st.tuples(st.just("complete")),
    ),
    max_size=40,
)


class Peer:
    """Believes what it is told."""

    def __init__(self, registry: AdapterRegistry) -> None:
        self._registry = registry
        self.news = registry.listen()
        self.known: dict[tuple[str, str], tuple[bool, bool]] = {}
        self.is_complete = False

    def read(self) -> None:
        known, gone, self.is_complete = self.news.take()
        for generation in known:
            self.known[generation.key] = generation.is_current, self._registry.is_loaded(generation)
        for key in gone:
            assert key not in {generation.key for generation in known}
            self.known.pop(key, None)


def truth(registry: AdapterRegistry) -> dict[tuple[str, str], tuple[bool, bool]]:
    return {each.key: (each.is_current, registry.is_loaded(each)) for each in registry.known()}


@given(CHANGES)
def test_requests_keep_their_generation_and_peers_know_what_there_is(changes: list[tuple]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_RETIRED", 1)
        patch.setattr(module, "NEWS_PER_FRAME", 2)
        follow(changes)


def follow(changes: list[tuple]) -> None:
    registry = AdapterRegistry("base")
    peers = [Peer(registry), Peer(registry)]
    names: dict[str, str] = {}
    requests: dict[str, tuple[str, str]] = {}
    for number, (change, *given_) in enumerate(changes):
        match change, *given_:
            case "put", name, contents:
                registry.put(name, adapter_file(contents), f"/{name}")
                names[name] = adapter_file(contents).digest
            case "remove", name:
                removed = registry.remove(name)
                assert (removed and removed.file.digest) == names.pop(name, None)
            case "use", name if (generation := registry.find(name)) is not None:
                registry.use(f"r{number}", generation)
                requests[f"r{number}"] = generation.key
            case "release", which:
                registry.release(f"r{which}")
                requests.pop(f"r{which}", None)
            case "load", contents, loaded:
                registry.set_loaded(adapter_file(contents).digest, loaded=loaded)
            case "read", which:
                peers[which].read()
            case ("complete",):
                registry.complete()
        assert {each.name: each.file.digest for each in registry.current()} == names
        assert all(registry.get(*key) is registry.used_by(core_id) for core_id, key in requests.items())
        unused = [each for each in registry.known() if not each.is_current and not each.users]
        assert len(unused) <= 1
    for peer in [*peers, Peer(registry)]:
        while peer.news:
            peer.read()
        assert peer.known == truth(registry)
        assert peer.is_complete == registry.is_complete


def read_all(news: AdapterNews) -> list[tuple[str, str, bool]]:
    told = []
    while news:
        known, _, _ = news.take()
        told += [(each.name, each.file.digest, each.is_current) for each in known]
    return told


def test_a_name_is_told_with_its_new_adapter_before_the_old_one_leaves() -> None:
    registry = AdapterRegistry("base")
    registry.put("a", adapter_file("x"), "/a")
    news = registry.listen()
    read_all(news)
    registry.put("a", adapter_file("y"), "/a")
    assert read_all(news) == [("a", adapter_file("y").digest, True), ("a", adapter_file("x").digest, False)]


def test_news_of_thousands_come_in_frames_of_bounded_size() -> None:
    registry = AdapterRegistry("base")
    for number in range(1000):
        registry.put(f"a{number}", adapter_file(str(number)), "/a")
    registry.complete()
    news, sizes, complete = registry.listen(), [], []
    while news:
        known, _, is_complete = news.take()
        sizes.append(len(known))
        complete.append(is_complete)
    assert sizes == [256, 256, 256, 232]
    assert complete == [False, False, False, True]


def test_pages_go_through_all_names_once() -> None:
    registry = AdapterRegistry("base")
    for number in range(25):
        registry.put(f"a{number}", adapter_file(str(number)), "/a")
    registry.put("a7", adapter_file("new"), "/a")
    names, after, more = [], "", True
    while more:
        page, more = registry.page(after, 10)
        names += [(each.name, each.is_current) for each in page]
        after = page[-1].name
    assert [name for name, is_current in names if is_current] == sorted(f"a{number}" for number in range(25))
    assert [name for name, is_current in names if not is_current] == ["a7"]
    assert names[names.index(("a7", True)) + 1] == ("a7", False)


@pytest.mark.parametrize(
    ("name", "digest", "code", "reason"),
    [
        ("a", adapter_file("other").digest, Code.FAILED_PRECONDITION, Reason.ADAPTER_GONE),
        ("b", adapter_file("x").digest, Code.FAILED_PRECONDITION, Reason.ADAPTER_GONE),
        ("a\n", adapter_file("x").digest, Code.INVALID_ARGUMENT, Reason.INVALID_FIELD),
        ("a", adapter_file("x").digest.upper(), Code.INVALID_ARGUMENT, Reason.INVALID_FIELD),
        ("a", "", Code.INVALID_ARGUMENT, Reason.INVALID_FIELD),
    ],
)
def test_a_request_gets_the_digest_that_it_names_or_none(name: str, digest: str, code: Code, reason: Reason) -> None:
    registry = AdapterRegistry("base")
    registry.put("a", adapter_file("x"), "/a")
    assert registry.wanted("a", adapter_file("x").digest) is registry.find("a")
    with pytest.raises(Refused) as refusal:
        registry.wanted(name, digest)
    assert (refusal.value.status.code, refusal.value.status.reason) == (code, reason)


def test_what_was_unloaded_serves_no_new_request_but_those_that_began() -> None:
    registry = AdapterRegistry("base")
    registry.put("a", adapter_file("x"), "/a")
    registry.put("a", adapter_file("y"), "/a")
    assert registry.wanted("a", adapter_file("x").digest).path == "/a", "it was admitted before the replacement"
    registry.remove("a")
    for contents in "xy":
        with pytest.raises(Refused, match="this engine has no adapter of that name"):
            registry.wanted("a", adapter_file(contents).digest)
        assert registry.wanted("a", adapter_file(contents).digest, is_new=False)


def test_what_began_goes_on_with_its_digest_under_any_name() -> None:
    """That of a call, say, of which an engine that was started since knows nothing; current ones come first."""
    registry, digest = AdapterRegistry("base"), adapter_file("x").digest
    registry.put("a", adapter_file("x"), "/a")
    assert registry.wanted("called", digest, is_new=False) is registry.find("a")
    registry.put("c", adapter_file("x"), "/c")
    registry.remove("a")
    assert registry.wanted("called", digest, is_new=False) is registry.find("c")
    with pytest.raises(Refused, match="this engine has no adapter of that name"):
        registry.wanted("called", digest)


def test_names_are_bounded() -> None:
    registry = AdapterRegistry("base")
    for number in range(MAX_ADAPTERS):
        registry.put(f"a{number}", adapter_file("x"), "/a")
    with pytest.raises(Refused, match="limit of 10000 known adapters is reached") as refusal:
        registry.put("more", adapter_file("x"), "/a")
    assert refusal.value.status.code == Code.RESOURCE_EXHAUSTED
    registry.put("a7", adapter_file("y"), "/a")
    registry.remove("a7")
    registry.put("more", adapter_file("x"), "/a")
    assert len(registry) == MAX_ADAPTERS


@pytest.mark.parametrize("name", ["base", "", ".hidden", "a b", "a\0", "ä", "a" * 129, "a:b"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Refused) as refusal:
        AdapterRegistry("base").put(name, adapter_file("x"), "/a")
    assert refusal.value.status.code == Code.INVALID_ARGUMENT
