"""A process that writes a journal until it is killed: prints each number that `append` returned."""

import sys

from uni_agent.gateway.journal import Journal

with Journal(sys.argv[1]) as journal:
    print("open", flush=True)
    while True:
        seq = journal.append("turn", f"s{journal.next_seq % 3}", {"n": journal.next_seq, "pad": "x" * 3000})
        print(seq, flush=True)
