"""HTTP for the search programs: through the sandbox's forwarder when there is one, with retries and one deadline."""

from common import *  # bundled

try:
    import http.client
    import json
    import os
    import random
    import signal
    import socket
    import time
    from urllib.parse import urljoin, urlsplit
except ImportError:
    sys.exit(97)

RESPONSE_BYTES = 32 << 20
REDIRECTS = 3


class Deadline(Exception):
    """The time for the whole call is over."""


class Passing(Exception):
    """A failure that another try may not meet; `wait` is what the server asked for, in seconds."""

    def __init__(self, message, wait=0.0):
        Exception.__init__(self, message)
        self.wait = wait


def fetch(url, options, payload=None):
    """The body of the response to a POST of `payload` as JSON, or to a GET without one.

    `options`: `timeout` of one try, `deadline` of all tries together, in seconds; `tries`.
    """
    problem = "no try was made"

    def ring(number, frame):
        raise Deadline()

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, options["deadline"])
    try:
        for number in range(options["tries"]):
            try:
                return attempt(url, payload, options["timeout"])
            except Passing as failure:
                problem = str(failure)
                wait = max(failure.wait, 0.5 * 2**number * (0.75 + random.random() / 2))
            if number + 1 < options["tries"]:
                time.sleep(wait)
    except Deadline:
        raise Failure("%s did not answer within %g seconds (%s)." % (bare(url), options["deadline"], problem))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    raise Failure("%s could not be reached in %d tries: %s." % (bare(url), options["tries"], problem))


def attempt(url, payload, timeout):
    body = None if payload is None else json.dumps(payload).encode("ascii")
    try:
        for _ in range(REDIRECTS + 1):
            status, headers, answer = exchange(url, body, timeout)
            if status not in (301, 302, 303, 307, 308) or not headers.get("location") or body is not None:
                break
            url = urljoin(url, headers["location"])
    except (OSError, http.client.HTTPException) as error:
        raise Passing(str(error) or type(error).__name__)
    if status == 429 or status >= 500:
        raise Passing("HTTP status %d%s" % (status, excerpt(answer)), seconds(headers.get("retry-after")))
    if status != 200:
        raise Failure("%s answered with HTTP status %d%s." % (bare(url), status, excerpt(answer)))
    return answer


def exchange(url, body, timeout):
    """One request on a connection of its own: status, headers (lower case), body."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Failure("%s is not an http or https address." % url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    forwarder = os.environ.get("UNI_AGENT_NET_SOCKET")
    authority = parts.netloc.rpartition("@")[2]
    target = (parts.path or "/") + ("?" + parts.query if parts.query else "")
    sock = dial(forwarder, parts.hostname, port, timeout)
    try:
        if parts.scheme == "https":
            sock = secure(sock, forwarder, parts.hostname, port)
        elif forwarder:
            target = "http://" + authority + target  # absolute form: a proxy has to know the origin
        connection = http.client.HTTPConnection(parts.hostname, port, timeout=timeout)
        connection.sock = sock
        headers = {"Host": authority, "Accept": "*/*", "User-Agent": "uni-agent", "Connection": "close"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request("GET" if body is None else "POST", target, body, headers)
        response = connection.getresponse()
        answer = response.read(RESPONSE_BYTES + 1)
        if len(answer) > RESPONSE_BYTES:
            raise Failure("%s sent more than %d bytes." % (url, RESPONSE_BYTES))
        return response.status, {name.lower(): value for name, value in response.getheaders()}, answer
    finally:
        sock.close()


def dial(forwarder, host, port, timeout):
    if not forwarder:
        return socket.create_connection((host, port), timeout)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(timeout)
    try:
        sock.connect(forwarder)
    except OSError as error:
        sock.close()
        raise Passing("the sandbox's forwarder at %s: %s" % (forwarder, error))
    return sock


def secure(sock, forwarder, host, port):
    """TLS over `sock`, after asking the forwarder for a tunnel where there is one."""
    import ssl

    if forwarder:
        name = "[%s]" % host if ":" in host else host
        sock.sendall(("CONNECT %s:%d HTTP/1.1\r\nHost: %s:%d\r\n\r\n" % (name, port, name, port)).encode("ascii"))
        reply = b""
        while not reply.endswith(b"\r\n\r\n"):
            byte = sock.recv(1)  # one by one: what follows belongs to TLS
            if not byte or len(reply) > 16384:
                raise Passing("the sandbox's forwarder broke off while a tunnel to %s was opened" % host)
            reply += byte
        status = reply.split(b" ", 2)[1:2]
        if status != [b"200"]:
            line = reply.split(b"\r\n", 1)[0].decode("latin-1")
            raise Failure("The sandbox's forwarder gives no tunnel to %s:%d: %s." % (host, port, line))
    return ssl.create_default_context().wrap_socket(sock, server_hostname=host)


def bare(url):
    return url.partition("?")[0]


def excerpt(answer):
    text = " ".join(answer[:2000].decode("utf-8", "replace").split())[:300]
    return ": " + text if text else ""


def seconds(value):
    """A Retry-After header in seconds; 0 for none, a date or nonsense."""
    try:
        return min(max(float(value), 0.0), 60.0)
    except (TypeError, ValueError):
        return 0.0


def cut(text, limit):
    """`text` with at most about `limit` characters."""
    return text if len(text) <= limit else "%s [... %d more characters]" % (text[:limit], len(text) - limit)
