"""Pictures are fetched from allowed hosts alone, at the addresses that were checked, within limits."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from services.common.security.certificate_authority import CertificateAuthority
from services.gateway.http.api_error import ApiError
from services.gateway.media import fetch, hosts
from services.gateway.media.fetch import PictureFetcher
from services.gateway.media.pictures import RemotePicture
from text_core.pictures.limits import MAX_PICTURE_BYTES

PATH = "messages[0].content[1].image_url.url"
PICTURE = b"\x89PNG and more"


def answer(body: bytes = PICTURE, status: str = "200 OK", **headers: str) -> bytes:
    """The bytes of an answer; ``_`` in a header's name is a hyphen."""
    given = {"content_type": "image/png", "content_length": str(len(body)), **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in given.items() if value)
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode() + body


Serve = Callable[[bytes, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Web:
    """A server on this machine, at whose address a resolver of the test's puts all names."""

    port: int = 0
    heads: list[bytes] = field(default_factory=list)
    answers: list[bytes | Serve] = field(default_factory=list)
    """One for each request; the last is repeated."""
    addresses: list[Sequence[str]] = field(default_factory=lambda: [["127.0.0.1"]])
    """The resolver's, in the same way."""
    resolved: list[str] = field(default_factory=list)
    open: int = 0
    most_open: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.heads.append(head)
            given = self.answers[min(len(self.heads), len(self.answers)) - 1]
            if isinstance(given, bytes):
                writer.write(given)
                await writer.drain()
            else:
                await given(head, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def resolve(self, host: str, _port: int) -> Sequence[str]:
        self.resolved.append(host)
        return self.addresses[min(len(self.resolved), len(self.addresses)) - 1]

    def fetcher(self, **options: Any) -> PictureFetcher:
        allowed = [f"*.test:{self.port}"]
        return PictureFetcher(options.pop("allowed", allowed), resolve=self.resolve, **options)

    def url(self, path: str = "/a.png", host: str = "pictures.test") -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def serving(*answers: bytes | Serve, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    web = Web(answers=list(answers))
    server = await asyncio.start_server(web.serve, "127.0.0.1", 0, ssl=tls)
    web.port = server.sockets[0].getsockname()[1]
    try:
        yield web
    finally:
        server.close()


@pytest.fixture
def local(monkeypatch: pytest.MonkeyPatch) -> None:
    """127.0.0.1 counts as public: the server of a test is there."""
    monkeypatch.setattr(hosts, "is_public", lambda address: str(address) == "127.0.0.1")


async def fetched(fetcher: PictureFetcher, *urls: str, hold: Callable[[int], None] = lambda size: None) -> list[Any]:
    messages: Any = [{"role": "user", "content": ["See", *(RemotePicture(url, PATH) for url in urls)]}]
    await fetcher.fill(messages, "client", hold)
    return [part["image"] for part in messages[0]["content"][1:]]


async def refused(fetcher: PictureFetcher, *urls: str, **options: Any) -> str:
    with pytest.raises(ApiError) as failed:
        await fetched(fetcher, *urls, **options)
    assert failed.value.status == 400
    assert failed.value.param == PATH
    assert failed.value.message.startswith(f"{PATH}: ")
    return failed.value.message.removeprefix(f"{PATH}: ")


def test_a_picture_that_is_fetched_has_the_limit_of_others() -> None:
    assert fetch.MAX_BYTES == MAX_PICTURE_BYTES


@pytest.mark.usefixtures("local")
async def test_a_picture_is_fetched_without_anything_of_the_callers() -> None:
    async with serving(answer()) as web:
        sizes: list[int] = []
        assert await fetched(web.fetcher(), web.url("/a.png?b=c"), hold=sizes.append) == [PICTURE]
        assert sum(sizes) == len(PICTURE)
    (head,) = web.heads
    lines = head.decode().split("\r\n")
    assert lines[0] == "GET /a.png?b=c HTTP/1.1"
    names = {line.partition(":")[0].lower() for line in lines[1:] if line}
    assert names == {"host", "user-agent", "accept", "accept-encoding", "connection"}
    assert f"host: pictures.test:{web.port}" in [line.lower() for line in lines]


async def test_without_allowed_hosts_the_refusal_says_how() -> None:
    message = await refused(PictureFetcher(), "https://example.com/a.png")
    assert message.startswith("the URL leads to example.com, from where pictures are not fetched (no host is allowed)")
    assert message.endswith("name its host in the gateway's --allowed-media-hosts")
    message = await refused(PictureFetcher(["a.com", "b.com"]), "https://example.com/a.png")
    assert "(allowed are a.com, b.com)" in message


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.1.2.3"],
        ["::1"],
        ["fd00::1"],
        ["169.254.169.254"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%eth0"],
        ["8.8.8.8", "127.0.0.1"],
        ["0.0.0.0"],
    ],
)
async def test_a_name_that_leads_into_a_private_network_is_refused(addresses: list[str]) -> None:
    async with serving(answer()) as web:
        web.addresses = [addresses]
        message = await refused(web.fetcher(), web.url())
        assert message == "the URL has an address within a private network, or of this machine"
        assert web.heads == []


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f000001", "127.1", "localhost", "127.0.0.1", "[::1]"])
async def test_this_machine_by_other_names_is_refused_where_every_host_is_allowed(host: str) -> None:
    """With the system's own resolver, which knows the old forms of addresses."""
    async with serving(answer()) as web:
        fetcher = PictureFetcher([f"*:{web.port}"])
        message = await refused(fetcher, web.url(host=host))
        assert "private network" in message or "is not found" in message
        assert web.heads == []


async def test_an_address_in_the_list_may_be_private() -> None:
    async with serving(answer()) as web:
        fetcher = PictureFetcher([f"127.0.0.1:{web.port}"])
        assert await fetched(fetcher, web.url(host="127.0.0.1")) == [PICTURE]
        assert "from where pictures are not fetched" in await refused(fetcher, web.url(host="127.1"))


@pytest.mark.usefixtures("local")
async def test_the_connection_goes_to_the_address_that_was_checked() -> None:
    """A resolver that answers otherwise the next time is not asked a second time."""
    async with serving(answer()) as web:
        web.addresses = [["127.0.0.1"], ["10.0.0.1"]]
        assert await fetched(web.fetcher(), web.url()) == [PICTURE]
        assert web.resolved == ["pictures.test"]
        assert "private network" in await refused(web.fetcher(), web.url())


@pytest.mark.usefixtures("local")
async def test_another_address_is_tried_where_one_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts, "is_public", lambda address: True)
    async with serving(answer()) as web:
        web.addresses = [["127.9.9.9", "127.0.0.1"]]
        assert await fetched(web.fetcher(), web.url()) == [PICTURE]


@pytest.mark.usefixtures("local")
async def test_redirects_are_checked_like_urls() -> None:
    async with serving() as web:
        away = answer(b"", "302 Found", location="/b.png")
        web.answers = [away, answer(b"", "301 Moved", location=web.url("/c.png", "other.test")), answer()]
        assert await fetched(web.fetcher(), web.url()) == [PICTURE]
        assert [head.split()[1] for head in web.heads] == [b"/a.png", b"/b.png", b"/c.png"]
        assert web.resolved == ["pictures.test", "pictures.test", "other.test"]


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("location", "problem"),
    [
        ("http://elsewhere.org/a.png", "the URL leads to elsewhere.org, from where"),
        ("http://127.0.0.1/a.png", "the URL leads to 127.0.0.1, from where"),
        ("file:///etc/passwd", "the URL is no http or https URL"),
        ("http://[elsewhere/a.png", "the URL leads to what is no URL: Invalid IPv6 URL"),
        ("//elsewhere.org/a.png", "the URL leads to elsewhere.org, from where"),
        ("/a.png", "the URL leads through more than 3 redirects"),
    ],
)
async def test_redirects_that_are_refused(location: str, problem: str) -> None:
    async with serving(answer(b"", "307 Temporary", location=location)) as web:
        assert (await refused(web.fetcher(), web.url())).startswith(problem)


@pytest.mark.usefixtures("local")
async def test_a_redirect_to_a_name_with_a_private_address() -> None:
    async with serving() as web:
        web.answers = [answer(b"", "302 Found", location=web.url(host="inner.test"))]
        web.addresses = [["127.0.0.1"], ["169.254.169.254"]]
        assert "private network" in await refused(web.fetcher(), web.url())
        assert len(web.heads) == 1


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (answer(status="404 Not Found"), "the URL was answered with the status 404"),
        (answer(status="206 Partial"), "the URL was answered with the status 206"),
        (answer(content_type="text/html; charset=x"), "the URL leads to text/html, which is no picture"),
        (answer(content_encoding="gzip"), "the URL leads to a compressed answer"),
        (answer(b""), "the URL leads to an empty answer"),
        (answer(content_length=str(1 << 40)), "the URL leads to more than 20971520 bytes, the limit"),
        (answer(content_length="99"), "the picture cannot be fetched: no whole answer in HTTP: peer closed"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "the picture cannot be fetched: no whole answer in HTTP: illegal status line"),
        (b"", "the picture cannot be fetched: no whole answer in HTTP"),
        (
            b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20000,
            "the picture cannot be fetched: no whole answer in HTTP: Receiv",
        ),
    ],
)
async def test_answers_that_are_no_picture(given: bytes, problem: str) -> None:
    async with serving(given) as web:
        assert (await refused(web.fetcher(), web.url())).startswith(problem)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("kind", ["image/jpeg", "application/octet-stream", ""])
async def test_types_that_may_be_pictures(kind: str) -> None:
    async with serving(answer(content_type=kind, content_length="")) as web:
        assert await fetched(web.fetcher(), web.url()) == [PICTURE]


@pytest.mark.usefixtures("local")
async def test_an_endless_answer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "MAX_BYTES", 1 << 20)
    sent = 0

    async def endless(_head: bytes, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(answer(b"", content_length="", transfer_encoding="chunked"))
        while True:
            writer.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
            sent += 1 << 16
            await writer.drain()

    async with serving(endless) as web:
        assert "more than 1048576 bytes" in await refused(web.fetcher(), web.url())
        assert web.open <= 1
    assert sent < 64 << 20


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n"])
async def test_an_answer_that_does_not_come_is_given_up(head: bytes) -> None:
    async def slow(_head: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        while True:
            writer.write(b"x" if head else b"HTTP/1.1 100 Continue\r\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with serving(slow) as web:
        began = time.monotonic()
        message = await refused(web.fetcher(seconds=0.3), web.url())
        assert message == "the picture was not there within 0.3 s: send it as a data: URL"
        assert time.monotonic() - began < 10


async def test_a_resolver_that_hangs_is_given_up() -> None:
    async def hang(_host: str, _port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        raise AssertionError

    fetcher = PictureFetcher(["*"], resolve=hang, seconds=0.1)
    assert "was not there within 0.1 s" in await refused(fetcher, "http://pictures.test/a.png")


@pytest.mark.usefixtures("local")
async def test_a_picture_without_room_ends_the_request() -> None:
    def hold(_size: int) -> None:
        raise ApiError(429, "no room")  # type: ignore[arg-type]

    async with serving(answer()) as web:
        with pytest.raises(ApiError, match="no room") as failed:
            await fetched(web.fetcher(), web.url(), hold=hold)
        assert failed.value.status == 429


@pytest.mark.usefixtures("local")
async def test_one_client_fetches_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def late(_head: bytes, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05)
        writer.write(answer())
        await writer.drain()

    async with serving(late) as web:
        fetcher = web.fetcher()
        assert await fetched(fetcher, *[web.url()] * 20) == [PICTURE] * 20
        assert 1 < web.most_open <= 8
        assert not fetcher._of_client
    monkeypatch.setattr(fetch, "_WAIT_SECONDS", 0.05)
    async with serving(late) as web:
        with pytest.raises(ApiError, match="too many pictures are being fetched") as failed:
            await fetched(web.fetcher(), *[web.url()] * 64)
        assert failed.value.status == 429
        assert failed.value.retry_after
    assert "65 pictures are to be fetched: expected at most 64" in await refused(web.fetcher(), *[web.url()] * 65)


@pytest.mark.usefixtures("local")
async def test_a_failed_picture_ends_the_others() -> None:
    async def never(head: bytes, writer: asyncio.StreamWriter) -> None:
        if b"/bad" in head:
            writer.write(answer(status="500 Oops"))
        else:
            await asyncio.sleep(60)

    async with serving(never) as web:
        assert "status 500" in await refused(web.fetcher(), web.url(), web.url("/bad"))


@pytest.mark.usefixtures("local")
async def test_a_certificate_must_be_the_names(tmp_path: Path) -> None:
    authority = CertificateAuthority.make("test", valid=timedelta(days=1))
    begin = datetime.now(UTC) - timedelta(hours=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    end, name = begin + timedelta(days=1), "pictures.test"
    made = authority.issue(name, hosts=[name], uri=f"urn:{name}", begin=begin, end=end)
    (tmp_path / "pem").write_bytes(made.certificate + made.key)
    context.load_cert_chain(tmp_path / "pem")
    async with serving(answer(), tls=context) as web:
        fetcher = web.fetcher()
        url = web.url().replace("http:", "https:")
        assert "certificate verify failed" in await refused(fetcher, url)
        vars(fetcher)["_tls"] = ssl.create_default_context(cadata=authority.certificate.decode())
        assert await fetched(fetcher, url) == [PICTURE]
        assert "not valid for 'other.test'" in await refused(fetcher, url.replace("pictures", "other"))
        assert len(web.heads) == 1
