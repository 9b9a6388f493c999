"""Runs the unittest tests that are named on the command line and exits with 0 when each of them ran and passed.

Started as `python3 -I -S -B run_tests.py ID...` in the repository. Tests are found in this file's folder first, then in
the current folder, both after the standard library: a `unittest.py` in the repository replaces nothing. The tests run in
a child process that reports over a pipe, so code that ends the process, or prints what looks like a result, passes
nothing.
"""

import json
import os
import subprocess
import sys

TIMEOUT = 90
CHILD_FLAGS = ["-I", "-S", "-B"]


def main(ids):
    """Exit status of a run of `ids`."""
    reader, writer = os.pipe()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("UNI_AGENT_")}
    child = subprocess.Popen(
        [sys.executable, *CHILD_FLAGS, __file__, "--child", str(writer), *ids],
        pass_fds=[writer],
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    os.close(writer)
    try:
        child.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        print("the tests ran past %d seconds" % TIMEOUT)
        child.kill()
        child.wait()
    os.set_blocking(reader, False)  # a process that the tests left behind may still hold the other end
    passed = reported(reader)
    for name in ids:
        print("%s %s" % ("PASSED" if passed.get(name) is True else "FAILED", name))
    return 0 if ids and all(passed.get(name) is True for name in ids) else 1


def reported(reader):
    """Test id -> whether it passed, as the child wrote it; a test that failed once stays failed."""
    text = b""
    while True:
        try:
            piece = os.read(reader, 65536)
        except BlockingIOError:
            break
        if not piece:
            break
        text += piece
    found = {}
    for line in text.decode("utf-8", "replace").splitlines():
        try:
            name, ok = json.loads(line)
        except (ValueError, TypeError):
            continue
        found[name] = ok is True and found.get(name, True)
    return found


def child(writer, ids):
    """Run each test and write its outcome."""
    import unittest

    sys.path += [os.path.dirname(os.path.abspath(__file__)), os.getcwd()]
    for name in ids:
        suite = unittest.defaultTestLoader.loadTestsFromName(name)
        result = unittest.TextTestRunner(stream=sys.stdout, verbosity=0).run(suite)
        ok = result.testsRun == 1 and result.wasSuccessful() and not result.skipped and not result.expectedFailures
        os.write(writer, (json.dumps([name, ok]) + "\n").encode())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]), sys.argv[3:])
    else:
        sys.exit(main(sys.argv[1:]))
