"""What the gateway itself costs, over HTTP, in front of an engine that answers at once.

    python benchmarks/gateway.py [--quick] [--check] [--protocol all] [--tokenizer FOLDER] [--journal both]
                                 [--peer agentcore=PYTHON] [--peer rllm=PYTHON]

The gateway runs as `uni-agent gateway --engine scripted` in a process of its own; this process is the client. Parts:

one_long   One tool loop of 60 turns that grows to some 90,000 tokens. For each turn the CPU time of the gateway (all
           threads, from /proc) and the wall time that the client sees, the fastest of several passes. `reading` is what
           decoding the JSON and reading the messages of that request costs, measured here on the same bytes: no
           server can do without it. `late` are the last turns, `early` those at a sixth of the session (15k tokens).
many       200 sessions of 20 turns at once, as fast as they are answered; `processes: 2` the same over two shards.
streaming  Turns that are streamed token by token: CPU for 1,000 tokens and deltas per second.

`loop_delay_ms` is seen from outside: a process asks for /healthz every 5 ms while the load runs and notes how long the
answer takes, so it holds the request's own cost, and the scheduler's where cores are few. `timer_delay_ms` is the
gateway's own metric, the upper bounds of its histogram's buckets.

A peer is driven by the same client with the same bytes when `--peer` names a Python that has it installed:
`agentcore` (agentcore-rl-toolkit[gateway] and boto3) samples in its process and does the work that ours does. `rllm`
(rllm-model-gateway, tokenizers and jinja2) is a proxy that leaves rendering, tokenising and reading to a server whose
CPU is not counted; its wall time holds that server's. Their numbers and ours are then those of one run on one machine.

Prints one JSON object on stdout and a table on stderr. `--check` exits 1 when a target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from gateway_wires import WIRES, Chat, Wire, chat_from_chunks

import uni_agent

HERE = Path(__file__).parent
POLICY = Path(uni_agent.__file__).parent / "assets/quickstart_policy"
CALL = '<tool_call>\n{"name": "execute_bash", "arguments": {"command": "sed -n %d,40p src/main.py"}}\n</tool_call>'
WORDS = [
    "error",
    "value",
    "return",
    "import",
    "config",
    "loader",
    "token",
    "batch",
    "queue",
    "index",
    "self",
    "data",
    "parse",
    "write",
    "test",
    "index",
    "node",
]
ADMIN = "bench-admin"
LATE, PROBE_SECONDS = 5, 0.005


# ------------------------------------------------------------------------------------------ servers


def children(pid: int) -> list[int]:
    """`pid` and all processes below it."""
    out = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                out += children(int(child))
    return out


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of `pids` in seconds: to the nanosecond where the kernel tells, else in ticks."""
    total = 0.0
    for pid in pids:
        try:
            tasks = list(Path(f"/proc/{pid}/task").iterdir())
            total += sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9
        except OSError:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def memory_mib(pids: list[int]) -> float:
    """Resident memory of `pids`."""
    pattern = re.compile(r"VmRSS:\s+(\d+)")
    found = (pattern.search(Path(f"/proc/{pid}/status").read_text()) for pid in pids)
    return sum(int(match[1]) for match in found if match) / 1024


@dataclass
class Server:
    """A gateway that runs: ours or a peer's. `open` gives a new session's base URL and headers."""

    url: str
    process: subprocess.Popen[str]
    peer: str = ""
    pids: list[int] = field(default_factory=list)
    count: int = 0

    async def open(self, client: aiohttp.ClientSession) -> tuple[str, dict[str, str]]:
        self.count += 1
        if self.peer:
            return self.url.replace("{session}", f"s{self.count}"), {"Authorization": f"Bearer s{self.count}"}
        async with client.post(f"{self.url}/sessions", headers={"Authorization": f"Bearer {ADMIN}"}) as answer:
            opened = await answer.json()
        return opened["base_url"], {"Authorization": f"Bearer {opened['api_key']}"}

    def cpu(self) -> float:
        """Its CPU seconds so far."""
        return cpu_seconds(self.pids)


@contextlib.contextmanager
def serving(command: list[str], peer: str = "") -> Iterator[Server]:
    """The server that `command` starts, once it says where it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"listening on (http\S+)", line):
                server = Server(found[1], process, peer)
                server.pids = children(process.pid)
                if rest := re.search(r"gateway pid (\d+)", line):
                    server.pids = [int(rest[1])]
                break
        else:
            raise SystemExit(f"{command[0]} ended before it listened")
        yield server
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Setup:
    """What is served. `tokens` is the length of a tool's result, `plan` that of the text before a call."""

    tokenizer: Path
    folder: Path
    plan: int
    piece: int = 1

    def command(self, *, journal: bool = False, processes: int = 1) -> list[str]:
        """The command that starts our gateway."""
        script = self.folder / f"script-{self.plan}.jsonl"
        text = "I look at the next lines. " + " ".join(WORDS[i % len(WORDS)] for i in range(self.plan)) + "\n"
        lines = [json.dumps({"text": text + CALL % i, "piece": self.piece}) for i in range(50)]
        script.write_text("\n".join(lines))
        command = [sys.executable, "-m", "uni_agent", "gateway", "--engine", "scripted", "--script", str(script)]
        command += ["--tokenizer", str(self.tokenizer), "--port", "0", "--admin-token", ADMIN]
        command += ["-o", "engine.repeat=true", "--processes", str(processes)]
        return [*command, "--journal", tempfile.mkdtemp(dir=self.folder)] if journal else command

    def peer_command(self, name: str, python: str) -> list[str]:
        """The command that starts a peer with the same script."""
        self.command()
        script = self.folder / f"script-{self.plan}.jsonl"
        return [python, str(HERE / "gateway_peers.py"), name, str(self.tokenizer), str(script)]


def results(tokenizer: Path, tokens: int, count: int) -> list[str]:
    """`count` texts of `tokens` tokens that look like the output of tools."""
    from uni_agent.tokens.tokenizer import ChatTokenizer

    encode, rng = ChatTokenizer.from_folder(tokenizer).encode_plain, random.Random(7)

    def line() -> str:
        return f"{rng.randrange(1000)}: {' '.join(rng.choices(WORDS, k=9))} = {rng.random():.4f};\n"

    sample = "".join(line() for _ in range(100))
    lines = max(1, round(100 * tokens / len(encode(sample))))
    return ["".join(line() for _ in range(lines)) for _ in range(count)]


# ------------------------------------------------------------------------------------------ the client


@dataclass
class Turn:
    """One turn as the client saw it: `wall` and `cpu` of the gateway in seconds."""

    wall: float
    cpu: float
    prompt: int
    body: bytes


def prompt_tokens(answer: dict[str, Any]) -> int:
    """The prompt's tokens as the answer states them."""
    usage = answer.get("usage") or {}
    return usage.get("prompt_tokens") or usage.get("input_tokens") or 0


async def conversation(
    server: Server, wire: Wire, texts: list[str], client: aiohttp.ClientSession, *, cpu: bool = True
) -> list[Turn]:
    """The turns of one tool loop. A failed request ends the benchmark."""
    base, headers = await server.open(client)
    headers = {**headers, "Content-Type": "application/json"}
    clock: Callable[[], float] = server.cpu if cpu else lambda: 0.0
    turns: list[Turn] = []
    before = clock()
    for text in texts:
        body = wire.body()
        started = time.perf_counter()
        async with client.post(base + wire.path, data=body, headers=headers) as response:
            raw = await response.read()
        wall = time.perf_counter() - started
        if response.status != 200:
            raise SystemExit(f"HTTP {response.status}: {raw[:400]!r}")
        answer = json.loads(raw)
        call = wire.take(answer)
        wire.give(call, text)
        after = clock()
        turns.append(Turn(wall, after - before, prompt_tokens(answer), body))
        before = after
    return turns


def http_client() -> aiohttp.ClientSession:
    """A client without limits of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120), auto_decompress=False
    )


def reading_seconds(protocol: str, bodies: list[bytes]) -> float:
    """CPU seconds to decode and read a request, the fastest of five, the median over `bodies`."""
    from uni_agent.gateway.canonical import Wire as Carried
    from uni_agent.gateway.http.bodies import decoded
    from uni_agent.gateway.protocols import adapters

    adapter = next(one for name, one in adapters().items() if name == protocol)

    def once(body: bytes) -> float:
        started = time.thread_time()
        adapter.read(Carried(adapter.name, "/", {}, decoded(body)))
        return time.thread_time() - started

    return median(min(once(body) for _ in range(5)) for body in bodies)


# ------------------------------------------------------------------------------------------ delay


def _probe(host: str, port: int, stop: Any, out: Any) -> None:
    """Ask for /healthz every few milliseconds and note how long it takes."""
    connection = http.client.HTTPConnection(host, port, timeout=60)
    delays: list[float] = []
    while not stop.is_set():
        started = time.perf_counter()
        connection.request("GET", "/healthz")
        connection.getresponse().read()
        taken = time.perf_counter() - started
        delays.append(taken)
        time.sleep(max(0.0, PROBE_SECONDS - taken))
    out.put(delays)


@contextlib.contextmanager
def probing(server: Server) -> Iterator[list[float]]:
    """Delays of the event loop while the block runs; the list is filled at its end."""
    context = multiprocessing.get_context("fork")
    stop, out = context.Event(), context.Queue()
    address = urlsplit(server.url)
    process = context.Process(target=_probe, args=(address.hostname, address.port, stop, out))
    process.start()
    found: list[float] = []
    try:
        yield found
    finally:
        stop.set()
        found += out.get(timeout=60)
        process.join()


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of `values` lie; 0.0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def ms(seconds: float, digits: int = 2) -> float:
    """Milliseconds, rounded."""
    return round(1000 * seconds, digits)


def delays(values: list[float]) -> dict[str, float]:
    """p50, p99 and the largest, in milliseconds."""
    return {"p50": ms(percentile(values, 0.5)), "p99": ms(percentile(values, 0.99)), "max": ms(max(values, default=0))}


async def metric(client: aiohttp.ClientSession, server: Server, name: str) -> dict[str, float]:
    """The samples of one metric family, by the rest of their names."""
    async with client.get(f"{server.url}/metrics") as answer:
        text = await answer.text()
    found = re.findall(rf"^uni_agent_gateway_{name}(\S*) (\S+)$", text, re.MULTILINE)
    return {rest: float(value) for rest, value in found}


def bucket_p99(before: dict[str, float], after: dict[str, float]) -> float:
    """The upper bound of the histogram's bucket that holds the 99th percentile, in milliseconds."""
    grown = {k: v - before.get(k, 0.0) for k, v in after.items() if k.startswith("_bucket")}
    bounds = sorted((float(key.split('"')[1]), count) for key, count in grown.items())
    total = bounds[-1][1] if bounds else 0
    return ms(next((bound for bound, count in bounds if count >= 0.99 * total), 0.0))


# ------------------------------------------------------------------------------------------ parts


def windows(turns: int) -> tuple[slice, slice]:
    """The early and the late turns."""
    early = max(turns // 6, 2)
    return slice(max(early - 2, 1), early + 3), slice(turns - min(LATE, turns // 3), turns)


async def one_long(server: Server, protocol: str, texts: list[str], passes: int) -> dict[str, Any]:
    """One growing session, several times: the fastest of the passes for each turn."""
    best: list[Turn] = []
    whole: list[float] = []
    wire = WIRES[protocol]
    async with http_client() as client:
        await conversation(server, wire("Warm up."), texts[:3], client)
        for _ in range(passes):
            turns = await conversation(server, wire("Find the bug and fix it."), texts, client)
            whole.append(sum(turn.cpu for turn in turns))
            best = [
                Turn(min(a.wall, b.wall), min(a.cpu, b.cpu), a.prompt, a.body)
                for a, b in zip(best or turns, turns, strict=True)
            ]
        out = _long_numbers(best, protocol, bool(server.peer))
        out["session_cpu_s"] = round(min(whole), 3)
        out["session_cpu_s_median"] = round(median(whole), 3)
        if not server.peer:
            before = await metric(client, server, "event_loop_lag_seconds")
            own = await metric(client, server, "own_seconds")
            with probing(server) as seen:
                for _ in range(passes):
                    await conversation(server, wire("Find the bug and fix it."), texts, client, cpu=False)
            after = await metric(client, server, "own_seconds")
            out["loop_delay_ms"] = delays(seen)
            out["timer_delay_ms_p99"] = bucket_p99(before, await metric(client, server, "event_loop_lag_seconds"))
            out["own_ms_mean"] = ms((after["_sum"] - own["_sum"]) / (after["_count"] - own["_count"]))
    return out


def _long_numbers(best: list[Turn], protocol: str, peer: bool) -> dict[str, Any]:
    early, late = (best[part] for part in windows(len(best)))
    out: dict[str, Any] = {
        "turns": len(best),
        "final_prompt_tokens": best[-1].prompt,
        "body_kb": len(best[-1].body) // 1000,
    }
    for what, read in (("cpu", lambda turn: turn.cpu), ("wall", lambda turn: turn.wall)):
        first, last = median(map(read, early)), median(map(read, late))
        out[f"{what}_ms_early"], out[f"{what}_ms_late"] = ms(first), ms(last)
        if peer:
            out[f"{what}_late_over_early"] = round(last / first, 2)
            continue
        small, large = (reading_seconds(protocol, [turn.body for turn in part]) for part in (early, late))
        out["reading_ms_early"], out["reading_ms_late"] = ms(small), ms(large)
        # The target: late within twice early, plus the cost of reading the late request.
        out[f"{what}_of_target"] = round(last / (2 * first + large), 3)
        out[f"{what}_late_over_early_without_reading"] = round((last - large) / max(first - small, 1e-4), 2)
    return out


async def many(server: Server, sessions: int, texts: list[str], protocol: str) -> dict[str, Any]:
    """All sessions at once, first alone and then with the probe."""
    wire, turns = WIRES[protocol], len(texts)

    async def all_of(client: aiohttp.ClientSession) -> list[float]:
        runs = (conversation(server, wire("Fix it."), texts, client, cpu=False) for _ in range(sessions))
        return [turn.wall for run in await asyncio.gather(*runs) for turn in run]

    async with http_client() as client:
        await conversation(server, wire("Warm up."), texts[:3], client)
        empty = memory_mib(server.pids)
        wall, cpu, mine = time.perf_counter(), server.cpu(), time.process_time()
        walls = await all_of(client)
        wall, cpu = time.perf_counter() - wall, server.cpu() - cpu
        mine = time.process_time() - mine
        out: dict[str, Any] = {
            "sessions": sessions,
            "turns_each": turns,
            "turns_per_second": round(sessions * turns / wall, 1),
            "cpu_ms_per_turn": ms(cpu / sessions / turns, 3),
            "client_cpu_ms_per_turn": ms(mine / sessions / turns, 3),
            "latency_ms_p50": ms(percentile(walls, 0.5)),
            "latency_ms_p95": ms(percentile(walls, 0.95)),
            "memory_mib": round(memory_mib(server.pids), 1),
            "memory_mib_before": round(empty, 1),
        }
        if server.peer:
            return out
        before = await metric(client, server, "event_loop_lag_seconds")
        with probing(server) as seen:
            await all_of(client)
        out["loop_delay_ms"] = delays(seen)
        out["timer_delay_ms_p99"] = bucket_p99(before, await metric(client, server, "event_loop_lag_seconds"))
    return out


async def streaming(server: Server, texts: list[str]) -> dict[str, Any]:
    """One session whose turns are streamed token by token, over Chat."""
    async with http_client() as client:
        base, headers = await server.open(client)
        wire, deltas, tokens = Chat("Find the bug.", stream=True), 0, 0
        before = await metric(client, server, "sampled_tokens")
        wall, cpu = time.perf_counter(), server.cpu()
        for text in texts:
            async with client.post(base + wire.path, data=wire.body(), headers=headers) as response:
                answer, count = chat_from_chunks((await response.read()).split(b"\n"))
            if response.status != 200:
                raise SystemExit(f"HTTP {response.status}")
            deltas += count
            wire.give(wire.take(answer), text)
        wall, cpu = time.perf_counter() - wall, server.cpu() - cpu
        after = await metric(client, server, "sampled_tokens")
        tokens = int(after["_total"] - before.get("_total", 0))
    return {
        "turns": len(texts),
        "tokens": tokens,
        "deltas": deltas,
        "deltas_per_second": round(deltas / wall),
        "cpu_ms_per_1000_tokens": ms(cpu / tokens * 1000),
    }


# ------------------------------------------------------------------------------------------ all of it


def run_parts(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All parts that were asked for."""
    setup = Setup(args.tokenizer, folder, plan=24)
    texts = results(args.tokenizer, 1500, args.turns)
    short = results(args.tokenizer, 300, args.many_turns)
    protocols = list(WIRES) if args.protocol == "all" else [args.protocol]
    out: dict[str, Any] = {
        "tokenizer": args.tokenizer.name,
        "load_before": os.getloadavg()[0],
        "one_long": {},
        "many": {},
    }
    for journal in {"off": [False], "on": [True], "both": [False, True]}[args.journal]:
        kind = "journal" if journal else "memory"
        with serving(setup.command(journal=journal)) as server:
            for protocol in protocols:
                out["one_long"][f"{protocol}/{kind}"] = asyncio.run(one_long(server, protocol, texts, args.passes))
        for count in (1, 2) if not args.quick else (1,):
            with serving(setup.command(journal=journal, processes=count)) as server:
                name = f"{protocols[0]}/{kind}/{count} process{'es' * (count > 1)}"
                out["many"][name] = asyncio.run(many(server, args.sessions, short, protocols[0]))
    with serving(Setup(args.tokenizer, folder, plan=400).command()) as server:
        out["streaming"] = asyncio.run(streaming(server, short))
    for name, python in (pair.split("=", 1) for pair in args.peer):
        out.setdefault("peers", {})[name] = _peer(setup, name, python, texts, short, args)
    out["load_after"] = os.getloadavg()[0]
    return out


def _peer(
    setup: Setup, name: str, python: str, texts: list[str], short: list[str], args: argparse.Namespace
) -> dict[str, Any]:
    with serving(setup.peer_command(name, python), name) as server:
        long = asyncio.run(one_long(server, "openai_chat", texts, args.passes))
    with serving(setup.peer_command(name, python), name) as server:
        return {"one_long": long, "many": asyncio.run(many(server, args.sessions, short, "openai_chat"))}


def misses(out: dict[str, Any]) -> list[str]:
    """The targets that were missed."""
    found: list[str] = []
    for name, part in out["one_long"].items():
        if part["cpu_of_target"] > 1:
            found.append(f"{name}: late turns cost {part['cpu_of_target']} of their target")
        if part["session_cpu_s"] > 1:
            found.append(f"{name}: the session took {part['session_cpu_s']} s of CPU")
    for name, part in [*out["one_long"].items(), *out["many"].items()]:
        if part["timer_delay_ms_p99"] > 50:
            found.append(f"{name}: the event loop was late by up to {part['timer_delay_ms_p99']} ms")
    return found


def table(out: dict[str, Any]) -> str:
    """The numbers for people."""
    lines = [f"tokenizer {out['tokenizer']}, load {out['load_before']:.1f} to {out['load_after']:.1f}"]
    peers = out.get("peers", {})
    for title, names in (("one_long", list(out["one_long"])), ("many", list(out["many"]))):
        parts = {name: out[title][name] for name in names} | {name: peer[title] for name, peer in peers.items()}
        for key in dict.fromkeys(key for part in parts.values() for key in part):
            values = [_shown(part.get(key, "-")) for part in parts.values()]
            if key in {"turns", "sessions"}:
                lines.append(f"\n{title:38}" + "".join(f"{name:>36}" for name in parts))
            lines.append(f"  {key:36}" + "".join(f"{value:>36}" for value in values))
    lines += ["\nstreaming", *(f"  {key:36}{value:>36}" for key, value in out["streaming"].items())]
    return "\n".join([*lines, *(f"MISSED: {miss}" for miss in out["missed"])])


def _shown(value: Any) -> str:
    return " ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)


def main() -> int:
    """Run everything and print the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="a small run: 20 turns, 40 sessions of 5 turns")
    parser.add_argument("--check", action="store_true", help="exit 1 when a target is missed")
    parser.add_argument("--protocol", choices=[*WIRES, "all"], default="openai_chat")
    parser.add_argument("--journal", choices=["on", "off", "both"], default="off")
    parser.add_argument("--tokenizer", type=Path, default=POLICY, help="folder with tokenizer.json and chat template")
    parser.add_argument("--turns", type=int, help="of the long session (60)")
    parser.add_argument("--sessions", type=int, help="at once (200)")
    parser.add_argument("--many-turns", type=int, help="of each of them (20)")
    parser.add_argument("--passes", type=int, help="of the long session (3)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON", help="agentcore, rllm")
    args = parser.parse_args()
    usual = {"turns": 20, "sessions": 40, "many_turns": 5, "passes": 1} if args.quick else {}
    for name, value in {"turns": 60, "sessions": 200, "many_turns": 20, "passes": 3, **usual}.items():
        setattr(args, name, getattr(args, name) or value)
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as folder:
        out = run_parts(args, Path(folder))
    out["missed"] = misses(out)
    print(table(out), file=sys.stderr)
    print(json.dumps(out, indent=2))
    return int(args.check and bool(out["missed"]))


if __name__ == "__main__":
    sys.exit(main())
