"""Which hosts and addresses pictures may be fetched from."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from services.gateway.media.hosts import AllowedHosts, UrlError, is_public, public_address, target_of


@pytest.mark.parametrize("address", ["8.8.8.8", "1.1.1.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_public_addresses(address: str) -> None:
    assert is_public(ip_address(address))
    assert str(public_address(address)) == str(ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1"),
        *("192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1", "203.0.113.5", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "::7f00:1", "fc00::1", "fd00::1", "fe80::1", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "2002:7f00:1::", "2002:a00:1::"),
        *(
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::1",
            "2001:db8::1",
            "2001:0:4136:e378:8000:63bf:80ff:fffe",
        ),
    ],
)
def test_addresses_of_this_machine_and_of_private_networks(address: str) -> None:
    assert not is_public(ip_address(address))
    with pytest.raises(UrlError, match="private network"):
        public_address(address)


@pytest.mark.parametrize("text", ["fe80::1%eth0", "2606:4700::1111%1", "localhost", ""])
def test_what_is_no_plain_address_is_not_public(text: str) -> None:
    with pytest.raises(UrlError):
        public_address(text)


@pytest.mark.parametrize(
    ("url", "host", "port", "path", "authority"),
    [
        ("http://Example.com", "example.com", 80, "/", "example.com"),
        ("HTTPS://example.com./a/b?c=d&e#f", "example.com", 443, "/a/b?c=d&e", "example.com"),
        ("https://example.com:8443?x", "example.com", 8443, "/?x", "example.com:8443"),
        ("http://[2606:4700::1111]:80/", "2606:4700::1111", 80, "/", "[2606:4700::1111]"),
        ("http://example.com/ä", "example.com", 80, "/%C3%A4", "example.com"),
    ],
)
def test_urls(url: str, host: str, port: int, path: str, authority: str) -> None:
    target = target_of(url)
    assert (target.host, target.port, target.path, target.authority) == (host, port, path, authority)


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://example.com/", "http://", "http:///a", "http://a b/", "http://example.com/\r\nx: y", "http://[::1"),
        *("http://user@example.com/", "http://a:b@example.com/", "http://example.com:99999/", "http://exa\\mple.com/"),
        *("http://example.com\\@127.0.0.1/", "http://münchen.de/", "http://-a.com/", "http://a%2eb/", "//example.com/"),
        *("http://a..example.com/", f"http://{'a' * 64}.example.com/", f"http://{'a.' * 126}example.com/"),
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(UrlError):
        target_of(url)


@pytest.mark.parametrize(
    ("entries", "url", "allowed"),
    [
        ((), "https://example.com/", False),
        (("example.com",), "https://example.com/", True),
        (("Example.com",), "http://EXAMPLE.com./", True),
        (("example.com",), "https://www.example.com/", False),
        (("example.com",), "https://example.com.evil.org/", False),
        (("example.com",), "https://example.com:8443/", False),
        (("example.com:8443",), "https://example.com:8443/", True),
        (("example.com:8443",), "https://example.com/", False),
        (("*.example.com",), "https://a.b.example.com/", True),
        (("*.example.com",), "https://example.com/", False),
        (("*.example.com",), "https://notexample.com/", False),
        (("*",), "https://example.com/", True),
        (("*",), "https://example.com:22/", False),
        (("*:8080",), "http://example.com:8080/", True),
        (("a.com", "[::1]:80"), "http://[::1]/", True),
        (("a.com",), "http://2130706433/", False),
        (("a.com",), "http://0177.0.0.1/", False),
        (("127.0.0.1",), "http://127.0.0.1/", True),
        (("127.0.0.1",), "http://127.1/", False),
    ],
)
def test_allowed_hosts(entries: tuple[str, ...], url: str, *, allowed: bool) -> None:
    assert AllowedHosts(entries).allows(target_of(url)) is allowed


def test_only_an_address_that_is_in_the_list_may_be_private() -> None:
    target = target_of("http://127.0.0.1:8080/")
    assert AllowedHosts(("127.0.0.1:8080",)).names_address(target)
    assert not AllowedHosts(("*", "*:8080", "localhost:8080")).names_address(target)
    assert not AllowedHosts(("localhost",)).names_address(target_of("http://localhost/"))
