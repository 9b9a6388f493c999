"""Files go in and out byte for byte, whatever their names."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest
from swerex.deployment.local import LocalDeployment
from swerex.runtime.abstract import ReadFileRequest, UploadRequest, WriteFileRequest

from tests.deployment.conftest import Start
from uni_agent.deployment import DummyConfig, Sandbox, SandboxSpec
from uni_agent.deployment.files import BinaryFiles

CONTENTS = [b"", b"no newline at end \xc3\xa9\r\n", bytes(range(256)) * 3, os.urandom(700_000), b"x" * 180_000 + b"\n"]


@pytest.fixture(params=["bwrap", "none", "dummy", "foreign"])
async def place(request: pytest.FixtureRequest, start: Start, tmp_path: Path):
    """A sandbox of each kind; `foreign` is SWE-ReX's own runtime, which knows text files only."""
    if request.param == "dummy":
        deployment = DummyConfig().build(SandboxSpec(name="dummy"))
        await deployment.start()
        yield Sandbox(deployment)
        await deployment.stop()
    elif request.param == "foreign":
        local = LocalDeployment()
        await local.start()
        assert not isinstance(local.runtime, BinaryFiles)
        yield Sandbox(local, workdir=str(tmp_path))
        await local.stop()
    else:
        yield await start(request.param)


@pytest.mark.parametrize("content", CONTENTS, ids=["empty", "text", "bytes", "large", "ends-in-newline"])
async def test_sbx_18_written_bytes_are_equal_parents_made(place: Sandbox, content: bytes) -> None:
    path = f"{place.workdir}/a b/'q'.txt"
    await place.write_bytes(path, content)
    assert await place.read_bytes(path) == content
    await place.write_bytes(
        "a b/'q'.txt", content[::-1]
    )  # relative to the working directory, and shorter files replace
    assert await place.read_bytes("a b/'q'.txt") == content[::-1]


@pytest.mark.parametrize("name", ["-n", 'quo"te', "new\nline", "$HOME `id` *", "ünï", "~"])
async def test_names_are_only_names(place: Sandbox, name: str) -> None:
    await place.write_bytes(f"names/{name}", b"1")
    assert await place.read_bytes(f"names/{name}") == b"1"


async def test_errors_are_those_of_python(place: Sandbox) -> None:
    await place.write_bytes("folder/file", b"1")
    with pytest.raises(FileNotFoundError):
        await place.read_bytes("missing")
    with pytest.raises(IsADirectoryError):
        await place.read_bytes("folder")


async def test_modes_and_trees(place: Sandbox, request: pytest.FixtureRequest) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("bin/tool")
        info.size, info.mode = 24, 0o755
        tar.addfile(info, io.BytesIO(b"#!/bin/sh\necho from-tool"))
        link = tarfile.TarInfo("bin/link")
        link.type, link.linkname = tarfile.SYMTYPE, "tool"
        tar.addfile(link)
    await place.write_tree("tree here", buffer.getvalue())
    assert await place.read_bytes("tree here/bin/tool") == b"#!/bin/sh\necho from-tool"
    if "dummy" in request.node.name:
        return
    await place.write_bytes("alone", b"#!/bin/sh\necho alone", mode=0o700)
    result = await place.execute("'tree here/bin/link' && ./alone && stat -c %a alone", timeout=60, cwd=place.workdir)
    assert result.output == "from-tool\nalone\n700\n"


async def test_a_fifo_or_device_in_the_way_does_not_block(sandbox: Sandbox) -> None:
    await sandbox.run("mkfifo pipe; ln -s /dev/zero zero", timeout=30)
    for path in ("pipe", "zero"):
        with pytest.raises(OSError, match="Not a regular file"):
            await sandbox.read_bytes(path)
    with pytest.raises(OSError, match=r"Not a regular file|No such device"):
        await sandbox.write_bytes("pipe", b"1")


async def test_files_that_may_not_be_read(start: Start) -> None:
    sandbox = await start("bwrap")
    with pytest.raises((PermissionError, FileNotFoundError)):
        await sandbox.read_bytes("/etc/shadow")
    with pytest.raises(OSError, match="Read-only"):
        await sandbox.write_bytes("/usr/bin/new", b"")
    await sandbox.run("ln -s /etc/shadow link", timeout=30)
    with pytest.raises(FileNotFoundError):  # a link is followed inside, never on the host
        await sandbox.read_bytes("link")


async def test_swerex_calls_keep_permissions_and_line_ends(sandbox: Sandbox, tmp_path: Path) -> None:
    runtime = sandbox.deployment.runtime
    await runtime.write_file(WriteFileRequest(path="crlf", content="a\r\né"))
    assert (await runtime.read_file(ReadFileRequest(path="crlf"))).content == "a\r\né"
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
    (source / "deep" / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep/run.sh")
    await runtime.upload(UploadRequest(source_path=str(source), target_path="up"))
    await runtime.upload(UploadRequest(source_path=str(source), target_path="up"))  # the target may exist
    await runtime.upload(UploadRequest(source_path=str(source / "deep/run.sh"), target_path="one/run.sh"))
    result = await sandbox.run("up/link; one/run.sh; readlink up/link", timeout=30)
    assert result.output == "ran\nran\ndeep/run.sh\n"
