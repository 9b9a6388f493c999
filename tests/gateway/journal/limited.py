"""A process whose files may not grow past a limit, which is lifted later: what a full disk looks like."""

import resource
import sys
from pathlib import Path

from uni_agent.errors import StoreError
from uni_agent.gateway.journal import Journal, read_journal

path = Path(sys.argv[1])
fsync = sys.argv[2] == "fsync"
journal = Journal(path, fsync=fsync)
journal.append("turn", "s", {"n": 0})
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))

for n in (1, 2):
    try:
        journal.append("turn", "s", {"n": n, "pad": "x" * 200})
    except StoreError as error:
        assert str(path) in str(error) and f"{n} entries wait" in str(error), error
    else:
        raise AssertionError("the disk is full")
assert not journal.healthy and journal.pending == 2 and journal.error is not None
assert [e.data["n"] for e in read_journal(path)] == [0]
try:
    journal.compact(set())
except StoreError:
    assert [e.data["n"] for e in read_journal(path)] == [0]
else:
    raise AssertionError("nothing may be left out while entries wait")

resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
assert journal.append("turn", "s", {"n": 3}) == 3
assert journal.healthy and journal.pending == 0 and journal.error is None
assert [(e.seq, e.data["n"]) for e in read_journal(path)] == [(n, n) for n in range(4)]
journal.close()
print("ok")
