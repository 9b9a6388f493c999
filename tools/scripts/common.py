"""What every program of the tools begins with: a fitting Python, the call, the exit status.

The programs run inside the sandbox on any Python from 3.6. Each is installed as one file, in which the parts it is
written in follow each other; a line that ends in `# bundled` imports an earlier part and is left out there.
"""

import sys

if sys.version_info < (3, 6):
    sys.exit(97)  # the launcher tries the next Python
try:
    import base64
    import json
    import re
    import signal
except ImportError:
    sys.exit(97)


class Failure(Exception):
    """Anything the model has to be told about a call that did not work."""


def main(run):
    """Run one call and give the exit status: 0 done, 1 refused or failed, 2 wrong usage.

    The only argument is the base64 of the call's JSON; `-` when it stands on standard input.
    """
    if len(sys.argv) != 2:
        sys.stderr.write("This program is run by the agent's tool call, with one argument: base64 of JSON.\n")
        return 2
    try:
        raw = sys.stdin.buffer.read() if sys.argv[1] == "-" else sys.argv[1].encode("ascii")
        call = json.loads(base64.b64decode(b"".join(raw.split()), validate=True).decode("utf-8"))
    except ValueError as error:
        sys.stderr.write("The argument is not base64 of JSON: %s\n" % error)
        return 2
    # Ended from outside, the program still tidies up behind itself.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        text, stream, status = run(call), sys.stdout, 0
    except Failure as failure:
        text, stream, status = "ERROR: %s\n" % failure, sys.stderr, 1
    stream.buffer.write(escaped(text).encode("utf-8", "backslashreplace"))
    stream.flush()
    return status


def escaped(text):
    """`text` with undecodable bytes (surrogate escapes) as `\\xNN`."""
    return re.sub("[\udc80-\udcff]", lambda found: "\\x%02x" % (ord(found.group()) - 0xDC00), text)
