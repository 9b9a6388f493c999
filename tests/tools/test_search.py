"""The search programs against a real HTTP server, directly and through a forwarder on a Unix socket."""

from __future__ import annotations

import json
import select
import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.tools.conftest import Box

Answer = tuple[int, bytes, dict[str, str]]


@dataclass
class Server:
    """A retrieval server. `script` holds answers that are given before the ordinary ones."""

    url: str = ""
    requests: list[tuple[str, str, Any]] = field(default_factory=list[tuple[str, str, Any]])
    script: list[Answer | Callable[[socket.socket], None]] = field(default_factory=list[Any])
    reply: Callable[[str, Any], Any] = lambda path, body: {}

    def answer(self, path: str, body: Any) -> Answer:
        made = self.reply(path, body)
        return 200, made if isinstance(made, bytes) else json.dumps(made).encode(), {}


def wiki(path: str, body: Any) -> Any:
    """LocalWiki."""
    if path == "/crawl":
        return {"results": [{"url": url, "result": "Found 1", "texts": [f"page {url}"]} for url in body["urls"]]}
    documents = [
        [
            {"document": {"title": f"T{n}", "url": f"http://w/{n}", "contents": f"{query} {n}"}, "score": 1 / (n + 1)}
            for n in range(body["topk"])
        ]
        for query in body["queries"]
    ]
    return {"result": documents}


@contextmanager
def serving(reply: Callable[[str, Any], Any], tls: ssl.SSLContext | None = None) -> Generator[Server]:
    state = Server(reply=reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            state.requests.append((self.command, self.path, body))
            planned = state.script.pop(0) if state.script else state.answer(self.path, body)
            if callable(planned):
                planned(self.connection)
                self.close_connection = True
                return
            status, data, headers = planned
            self.send_response(status)
            for key, value in headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    state.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def forwarding(route: Callable[[str], tuple[str, int] | None]) -> Generator[tuple[str, list[str]]]:
    """An HTTP proxy on a Unix socket: absolute-form requests, and CONNECT. `route` None refuses."""
    seen: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        rbufsize = 0  # what follows the head is pumped from the socket

        def handle(self) -> None:
            line = self.rfile.readline().decode()
            method, target, _ = line.split()
            seen.append(f"{method} {target}")
            head = b""
            while (row := self.rfile.readline()) not in (b"\r\n", b""):
                head += row
            netloc = target if method == "CONNECT" else urlsplit(target).netloc
            where = route(netloc)
            if where is None:
                self.wfile.write(
                    b"HTTP/1.1 403 Forbidden\r\nContent-Length: 11\r\nConnection: close\r\n\r\nnot allowed"
                )
                return
            with socket.create_connection(where) as upstream:
                if method == "CONNECT":
                    self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                else:
                    path = target.split(netloc, 1)[1]
                    upstream.sendall(f"{method} {path} HTTP/1.1\r\n".encode() + head + b"\r\n")
                self.pump(upstream)

        def pump(self, upstream: socket.socket) -> None:
            ends = {self.connection: upstream, upstream: self.connection}
            while True:
                for end in select.select(list(ends), [], [], 10)[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    ends[end].sendall(data)

    with TemporaryDirectory() as folder:
        path = f"{folder}/net.sock"
        server = socketserver.ThreadingUnixStreamServer(path, Handler)
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield path, seen
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.fixture
def server() -> Generator[Server]:
    with serving(wiki) as running:
        yield running


def hang(connection: socket.socket) -> None:
    select.select([connection], [], [], 20)
    connection.recv(1)


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    for _ in range(200):
        try:
            connection.sendall(b" ")
        except OSError:
            return
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------ search


def test_search_asks_for_every_query_and_prints_the_documents(server: Server, make_box: Callable[..., Box]) -> None:
    queries = ['it\'s $(x) `y` "é" 中', "two"]
    ran = make_box(base_url=server.url).call("search", query_list=queries, topk=2)
    assert ran.code == 0, ran.err
    assert server.requests == [("POST", "/retrieve", {"queries": queries, "topk": 2, "return_scores": True})]
    found = json.loads(ran.out)["result"]
    assert [[item["contents"] for item in group] for group in found] == [
        [f"{q} {n}" for n in range(2)] for q in queries
    ]
    assert found[0][0] == {"title": "T0", "url": "http://w/0", "contents": f"{queries[0]} 0", "score": 1.0}


def test_crawl_gives_the_passages_of_each_page(server: Server, make_box: Callable[..., Box]) -> None:
    ran = make_box(base_url=server.url).call("search", command="crawl", url_list=["http://w/1", "http://w/2"])
    assert json.loads(ran.out)["result"] == [[{"contents": "page http://w/1"}], [{"contents": "page http://w/2"}]]


def test_text_is_there_to_read(server: Server, make_box: Callable[..., Box]) -> None:
    ran = make_box(base_url=server.url + "/", format="text").call("search", query="who", topk=2)
    assert ran.out == "# who\n[1] T0 http://w/0\nwho 0\n[2] T1 http://w/1\nwho 1\n"


@pytest.mark.parametrize(
    ("item", "document"),
    [
        ("just text", {"contents": "just text"}),
        ({"text": "t", "title": "T"}, {"title": "T", "contents": "t"}),
        ({"document": "t", "score": 0.123456}, {"contents": "t", "score": 0.1235}),
        ({"document": {"id": 3}}, {"contents": '{"id": 3}'}),
        (None, {"contents": "null"}),
    ],
)
def test_every_shape_of_document_is_understood(make_box: Callable[..., Box], item: Any, document: Any) -> None:
    with serving(lambda path, body: {"result": [[item]]}) as server:
        ran = make_box(base_url=server.url).call("search", query="q")
        assert json.loads(ran.out) == {"result": [[document]]}


@pytest.mark.parametrize("form", ["json", "text"])
def test_output_is_bounded(make_box: Callable[..., Box], form: str) -> None:
    with serving(lambda path, body: {"result": [[{"contents": "x" * 10_000}] * 50] * len(body["queries"])}) as server:
        box = make_box(base_url=server.url, format=form, max_chars=20_000)
        for queries, topk in ((["q"], 3), (["q"] * 20, 50)):
            ran = box.call("search", query_list=queries, topk=topk)
            assert ran.code == 0
            assert 3_000 < len(ran.out) < 60_000
            assert "more characters" in ran.out
            assert ("more passages" in ran.out or '"omitted"' in ran.out) == (topk == 50)


@pytest.mark.parametrize(
    "body", [b"not json", b"[]", b"{}", b'{"result": []}', b'{"result": 3}', b"\xff", b'{"result": "x"}']
)
def test_an_answer_of_the_wrong_kind_is_an_error(make_box: Callable[..., Box], body: bytes) -> None:
    with serving(lambda path, request: body) as server:
        ran = make_box(base_url=server.url, tries=1).call("search", query="q")
        assert ran.code == 1
        assert ran.err.startswith(f"ERROR: {server.url}/retrieve")
        assert "Traceback" not in ran.err


# ------------------------------------------------------------------------------------------------ failures


def test_server_errors_and_broken_connections_are_tried_again(server: Server, make_box: Callable[..., Box]) -> None:
    server.script = [(503, b"busy", {}), lambda connection: connection.close(), (429, b"", {"Retry-After": "0.1"})]
    ran = make_box(base_url=server.url).call("search", query="q")
    assert ran.code == 0, ran.err
    assert len(server.requests) == 4


def test_tries_run_out_with_the_last_problem(server: Server, make_box: Callable[..., Box]) -> None:
    server.script = [(500, b"index <b>lost</b>", {})] * 3
    ran = make_box(base_url=server.url, tries=2).call("search", query="q")
    assert ran.code == 1
    assert "in 2 tries: HTTP status 500: index" in ran.err
    assert len(server.requests) == 2


def test_a_refusal_is_not_tried_again(server: Server, make_box: Callable[..., Box]) -> None:
    server.script = [(422, b"topk is too large", {})]
    ran = make_box(base_url=server.url).call("search", query="q")
    assert ran.code == 1
    assert "422: topk is too large" in ran.err
    assert len(server.requests) == 1


@pytest.mark.parametrize("stall", [hang, drip])
def test_the_deadline_ends_a_server_that_hangs_or_drips(
    server: Server, make_box: Callable[..., Box], stall: Callable[[socket.socket], None]
) -> None:
    server.script = [stall] * 5
    started = time.monotonic()
    ran = make_box(base_url=server.url, timeout=5, deadline=1).call("search", query="q")
    assert ran.code == 1
    assert "within 1 seconds" in ran.err
    assert time.monotonic() - started < 5


def test_a_server_that_is_not_there_is_an_error(make_box: Callable[..., Box]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        ran = make_box(base_url=f"http://127.0.0.1:{unused.getsockname()[1]}", tries=2).call("search", query="q")
    assert ran.code == 1
    assert "could not be reached in 2 tries" in ran.err


# ------------------------------------------------------------------------------------------------ forwarder


def test_http_goes_through_the_forwarder_in_absolute_form(server: Server, make_box: Callable[..., Box]) -> None:
    port = urlsplit(server.url).port
    assert port
    with forwarding(lambda netloc: ("127.0.0.1", port) if netloc == "wiki.internal:8000" else None) as (path, seen):
        box = make_box(base_url="http://wiki.internal:8000")
        box.env = {"UNI_AGENT_NET_SOCKET": path}
        ran = box.call("search", query="q " * 60_000, topk=1)
        assert ran.code == 0, ran.err
        assert seen == ["POST http://wiki.internal:8000/retrieve"]
        assert server.requests[0][2]["queries"] == ["q " * 60_000]


def test_https_is_tunnelled_and_verified(make_box: Callable[..., Box], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=wiki.internal"]
    names = ["-addext", "subjectAltName=DNS:wiki.internal", "-out", certificate, "-keyout", key]
    subprocess.run([*command, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with serving(wiki, context) as server:
        port = urlsplit(server.url).port
        assert port
        with forwarding(lambda netloc: ("127.0.0.1", port)) as (path, seen):
            box = make_box(base_url="https://wiki.internal", tries=1)
            box.env = {"UNI_AGENT_NET_SOCKET": path}
            distrusted = box.call("search", query="q")
            assert distrusted.code == 1
            assert "certificate" in distrusted.err
            box.env["SSL_CERT_FILE"] = str(certificate)
            trusted = box.call("search", query="q")
            assert trusted.code == 0, trusted.err
            assert set(seen) == {"CONNECT wiki.internal:443"}


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_the_forwarder_refuses_is_an_error(make_box: Callable[..., Box], scheme: str) -> None:
    with forwarding(lambda netloc: None) as (path, _):
        box = make_box(base_url=f"{scheme}://elsewhere")
        box.env = {"UNI_AGENT_NET_SOCKET": path}
        ran = box.call("search", query="q")
        assert ran.code == 1
        assert "403" in ran.err


def test_a_forwarder_that_is_gone_is_named(make_box: Callable[..., Box]) -> None:
    box = make_box(tries=1)
    for path in ("/nonexistent/net.sock", "/" + "x" * 200):
        box.env = {"UNI_AGENT_NET_SOCKET": path}
        ran = box.call("search", query="q")
        assert ran.code == 1
        assert "forwarder" in ran.err
        assert "Traceback" not in ran.err


# ------------------------------------------------------------------------------------------------ arXiv


def feed(*ages: int) -> bytes:
    now = datetime.now(UTC)
    entries = "".join(
        f"<entry><id>http://arxiv.org/abs/{n}</id><title>Title\n  {n} &amp; &lt;more&gt;</title>"
        f"<published>{(now - timedelta(days=age)).strftime('%Y-%m-%dT%H:%M:%SZ')}</published>"
        f"<author><name>Ann {n}</name></author><author><name>Bob</name></author><category term='cs.CL'/>"
        f"<summary>About {n}.</summary></entry>"
        for n, age in enumerate(ages)
    )
    return f"<?xml version='1.0'?><feed xmlns='http://www.w3.org/2005/Atom'>{entries}</feed>".encode()


def test_arxiv_prints_recent_papers(make_box: Callable[..., Box]) -> None:
    with serving(lambda path, body: feed(1, 20, 400)) as server:
        ran = make_box(base_url=server.url, format="text").call("search_arxiv", query="token exact  training", days=30)
        assert ran.code == 0, ran.err
        assert "[1] Title 0 & <more>\n" in ran.out
        assert "Ann 0, Bob | cs.CL\nhttp://arxiv.org/abs/0\nAbout 0.\n" in ran.out
        assert "About 1." in ran.out
        assert "About 2." not in ran.out
        method, path, _ = server.requests[0]
        asked = parse_qs(urlsplit(path).query)
        assert (method, urlsplit(path).path) == ("GET", "/api/query")
        assert asked["search_query"][0].startswith("(all:token AND all:exact AND all:training) AND submittedDate:[")
        assert asked["max_results"] == ["8"]


def test_arxiv_passes_its_own_syntax_and_any_age(make_box: Callable[..., Box]) -> None:
    with serving(lambda path, body: feed(4000)) as server:
        query = 'ti:"speculative decoding" AND cat:cs.CL'
        ran = make_box(base_url=server.url).call("search_arxiv", query=query, days=0, max_results=1)
        assert json.loads(ran.out)["result"][0]["authors"] == ["Ann 0", "Bob"]
        assert parse_qs(urlsplit(server.requests[0][1]).query)["search_query"] == [query]


def test_arxiv_without_results_says_so(make_box: Callable[..., Box]) -> None:
    with serving(lambda path, body: feed()) as server:
        ran = make_box(base_url=server.url, format="text").call("search_arxiv", query="nothing")
        assert ran.code == 0
        assert "No paper was found" in ran.out


def test_arxiv_follows_a_redirect(make_box: Callable[..., Box]) -> None:
    with serving(lambda path, body: feed(1)) as server:
        server.script = [(301, b"", {"Location": "/elsewhere?x=1"})]
        assert make_box(base_url=server.url).call("search_arxiv", query="q").code == 0
        assert server.requests[1][1] == "/elsewhere?x=1"


@pytest.mark.parametrize(
    "body",
    [
        b"<html>busy</html>",
        b"busy",
        b"<!DOCTYPE x [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;'>]><feed>&b;</feed>",
        b"<feed xmlns='http://www.w3.org/2005/Atom'><entry><id>http://arxiv.org/api/errors#x</id>"
        b"<summary>bad query</summary></entry></feed>",
    ],
)
def test_arxiv_answers_of_the_wrong_kind_are_errors(make_box: Callable[..., Box], body: bytes) -> None:
    with serving(lambda path, request: body) as server:
        ran = make_box(base_url=server.url, tries=1).call("search_arxiv", query="q")
        assert ran.code == 1
        assert ran.err.startswith("ERROR: ")
        assert "Traceback" not in ran.err
