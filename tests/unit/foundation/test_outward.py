"""Which configured addresses are called: none that leads to the platform's secrets, by whatever way it is written."""

import asyncio
import gzip
import ipaddress
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from aiohttp import web

from devstack.servers.http import served
from tidemark.foundation.errors import UnavailableError
from tidemark.foundation.http.outward import AddressError, Outward, check_address, is_local, trusted_hosts

TOKEN = "c2VjcmV0"


@pytest.mark.parametrize(
    ("url", "trusted", "host"),
    [
        ("https://hooks.example.com/a?sig=b", "", "hooks.example.com"),
        ("https://HOOKS.example.com:8443/", "", "hooks.example.com"),
        ("https://10.0.0.4/hook", "", "10.0.0.4"),
        ("https://[2001:db8::1]/", "", "2001:db8::1"),
        ("http://localhost:7071/hook", "localhost:7071", "localhost"),
        ("http://127.0.0.1/", " a.example , 127.0.0.1 ", "127.0.0.1"),
    ],
)
def test_an_address_is_accepted_and_its_host_may_be_shown(url, trusted, host):
    assert check_address(url, "HOOK", trusted_hosts({"TIDEMARK_TRUSTED_HOSTS": trusted})) == host


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (f"http://hooks.example.com/{TOKEN}", "'hooks.example.com' is not asked over TLS"),
        (f"http://localhost:7072/{TOKEN}", "is not asked over TLS"),  # 7071 is trusted
        (f"ftp://localhost:7071/{TOKEN}", "is not asked over TLS"),
        (f"https://me:{TOKEN}@hooks.example.com/", "is no address"),
        (f"https:///{TOKEN}", "is no address"),
        (f"https://[/{TOKEN}", "is no address"),
        (f"https://a:70000/{TOKEN}", "is no address"),
        (f"https://a.example/ {TOKEN}", "is no address"),
        (f"https://a.example/\n{TOKEN}", "is no address"),
        (f"https://\uff11\uff16\uff19.254.169.254/{TOKEN}", "is no address"),
        (f"https://169.254.169.254/{TOKEN}", "this machine or its link"),
        (f"https://[::ffff:169.254.169.254]/{TOKEN}", "this machine or its link"),
        (f"https://[fe80::1%25eth0]/{TOKEN}", "this machine or its link"),
        (f"https://2852039166/{TOKEN}", "is no name of a host"),
        (f"https://0xa9fea9fe/{TOKEN}", "is no name of a host"),
        (f"https://2852039166./{TOKEN}", "is no name of a host"),
        (f"https://169.254.169.254./{TOKEN}", "is no name of a host"),
        (f"https://0251.0376.0251.0376/{TOKEN}", "is no name of a host"),
        (f"https://a_b^c/{TOKEN}", "is no name of a host"),
        (TOKEN, "is no address"),
        ("", "is no address"),
    ],
)
def test_another_is_refused_and_nothing_but_its_host_is_told(url, told):
    with pytest.raises(AddressError) as caught:
        check_address(url, "HOOK", trusted_hosts({"TIDEMARK_TRUSTED_HOSTS": "localhost:7071"}))

    assert told in str(caught.value)
    assert str(caught.value).startswith("HOOK")
    assert TOKEN not in str(caught.value)


LOCAL = "127.8.8.8 ::1 0.0.0.0 :: 169.254.129.2 fe80::1 168.63.129.16 fd00:ec2::254 224.0.0.1"
DISGUISED = (
    "::ffff:127.0.0.1 64:ff9b::a9fe:a9fe 2002:a9fe:a9fe::1 ::127.0.0.1 fe80::5efe:127.0.0.1 2001:db8::5efe:7f00:1"
    " 64:ff9b:1:7f00:0:100:: 64:ff9b:1:7f:0:1:: 64:ff9b:1::7f:0:100:0 64:ff9b:1::127.0.0.1 64:ff9b:1:: ::ffff:0:127.0.0.1 fd00:ec2::254%eth0 ::1%1 ::ffff:127.0.0.1%x"
    " 2001:0:4136:e378:8000:63bf:80ff:fffe 2001:0:7f00:1:8000:63bf:3fff:fdd2"  # Teredo: of the client, and of the server
)


@pytest.mark.parametrize("address", [*LOCAL.split(), *DISGUISED.split()])
def test_addresses_of_the_machine_its_link_and_the_platform_below(address):
    assert is_local(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    [
        "10.1.2.3",
        "192.168.0.1",
        "20.50.2.1",
        "2603:1030::1",
        "fd12::1",
        "64:ff9b::a01:203",
        "64:ff9b:1::a01:203",
    ],
)
def test_addresses_of_a_network_of_ones_own_are_others(address):
    assert not is_local(ipaddress.ip_address(address))


async def answering(request):
    name = request.path.strip("/")
    if name == "slow":
        await asyncio.sleep(30)
    if name == "away":
        return web.Response(status=302, headers={"Location": "/landed"})
    if name == "packed":
        return web.Response(body=gzip.compress(b"0" * 100_000), headers={"Content-Encoding": "gzip"})
    if name == "throttled":
        return web.Response(status=429, body=gzip.compress(b"{}"), headers={"Content-Encoding": "gzip"})
    if name == "cut":
        request.transport.close()
    if name == "half":
        begun = web.StreamResponse(headers={"Content-Length": "500"})
        await begun.prepare(request)
        await begun.write(b"x" * 20)
        request.transport.close()
        return begun
    return web.Response(body=b"x" * int(name) if name.isdigit() else name.encode())


async def asking(path, *, trusted=True, host="localhost", **options):
    """What is asked of a server on this machine, by a name."""
    application = web.Application()
    application.router.add_route("*", "/{tail:.*}", answering)
    async with served(application, patience=0.1) as port:
        settings = {"TIDEMARK_TRUSTED_HOSTS": f"{host}:{port}"} if trusted else {}
        scheme = "http" if trusted else "https"
        async with Outward(settings) as outward:
            return await outward.ask("GET", f"{scheme}://{host}:{port}/{path}", setting="HOOK", **options)


@pytest.mark.wire
@pytest.mark.parametrize(
    ("path", "options", "status", "body"),
    [
        ("100", {"limit": 100}, 200, b"x" * 100),
        ("100", {"limit": 0}, 200, b""),
        ("away", {}, 302, b""),
        ("throttled", {}, 429, b""),
    ],
)
def test_an_answer_is_handed_over_and_a_redirect_is_one(path, options, status, body):
    answer = asyncio.run(asking(path, **options))

    assert (answer.status, answer.body) == (status, body)


@pytest.mark.wire
@pytest.mark.parametrize(
    ("path", "options", "told"),
    [
        ("101", {"limit": 100}, "localhost: the answer is larger than 100 bytes"),
        ("packed", {}, "localhost: the answer has the encoding 'gzip', which was not requested"),
        ("slow", {"timeout": 0.05}, "localhost: no answer within 0.05 s"),
        ("cut", {}, "localhost: ServerDisconnectedError"),
        ("half", {}, "localhost: the answer broke off before its end"),
    ],
)
def test_no_whole_answer_is_none(path, options, told):
    with pytest.raises(UnavailableError, match=told):
        asyncio.run(asking(path, **options))


@pytest.mark.wire
def test_a_name_that_stands_for_this_machine_is_refused_when_it_is_called():
    with pytest.raises(
        AddressError, match=r"HOOK: localhost \((127.0.0.1|::1)\) is an address of this machine"
    ):
        asyncio.run(asking("x", trusted=False))


async def test_name_servers_that_do_not_answer_take_no_threads_from_others(monkeypatch):
    """The SDKs look up Azure's names in the loop's own threads, of which a small instance has five."""
    loop, begun, released = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))

    def hang(*_, **__):
        loop.call_soon_threadsafe(begun.set)
        released.wait(30)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    async with Outward({}) as outward:
        asking = asyncio.create_task(outward.ask("GET", "https://dead.example/", setting="HOOK"))
        await begun.wait()
        try:
            async with asyncio.timeout(2):
                assert await asyncio.to_thread(lambda: "answered") == "answered"
        finally:
            released.set()
        with pytest.raises(UnavailableError, match=r"dead\.example"):
            await asking
