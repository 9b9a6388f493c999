"""The little world of the quickstart policy: short shell tasks whose answers a program can check.

Names are words of two syllables. The words of the `test` split appear in no `train` task, so a policy trained on
`train` has to copy names it has never seen. Everything is a pure function of the split and a seed.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Literal

Split = Literal["train", "test"]

KINDS = ("create", "delete", "copy", "move", "mkdir", "append", "read", "count")
SYLLABLES = tuple(c + v for c in "bdfghjklmnprstvz" for v in "aeiou")
SUFFIXES = ("txt", "log", "csv", "md", "dat")
SYSTEM = "You are a shell agent."
TEST_WORDS = 800

# Pairs of syllables that mean something: words of the prompts, program names, and what nobody wants to read.
_MEANINGFUL = """
code date dire done file fini gaza have here hile hobo homo kike lete like limi line made make mode
more move name nazi node note nude pedo puta puto rape rename same save some sudo take time
"""
_EXCLUDED = frozenset(_MEANINGFUL.split())


def _split_words() -> dict[Split, tuple[str, ...]]:
    words = [a + b for a in SYLLABLES for b in SYLLABLES if a != b and a + b not in _EXCLUDED]
    random.Random(20).shuffle(words)
    return {"test": tuple(words[:TEST_WORDS]), "train": tuple(words[TEST_WORDS:])}


WORDS: Mapping[Split, tuple[str, ...]] = _split_words()


@dataclass(frozen=True, slots=True)
class ShellTask:
    """One task. Which of the file names `source` and `target` and the `word` matter depends on `kind`.

    `files` maps a name to its text before the agent starts, `answer` is what `finish` must be given ("" where only the
    files count).
    """

    kind: str
    question: str
    source: str
    target: str
    word: str
    files: dict[str, str]
    answer: str = ""

    @property
    def reference(self) -> str:
        """A command that solves the task (for read and count: that shows the answer)."""
        return REFERENCES[self.kind].format(source=self.source, target=self.target, word=self.word)


REFERENCES = {
    "create": "echo {word} > {source}",
    "delete": "rm {source}",
    "copy": "cp {source} {target}",
    "move": "mv {source} {target}",
    "mkdir": "mkdir {word}",
    "append": "echo {word} >> {source}",
    "read": "cat {source}",
    "count": "wc -l {source}",
}

_QUESTIONS = {
    "create": ("Create a file named {source} containing {word}.", "Write the word {word} to a new file {source}."),
    "delete": ("Delete the file {source}.", "Remove {source}."),
    "copy": ("Copy {source} to {target}.", "Make a copy of {source} named {target}."),
    "move": ("Rename {source} to {target}.", "Move {source} to {target}."),
    "mkdir": ("Make a directory called {word}.", "Create a folder named {word}."),
    "append": ("Append the word {word} to {source} as a new line.", "Add a last line {word} to {source}."),
    "read": ("Which word is in {source}?", "Tell me the word in {source}."),
    "count": ("How many lines does {source} have?", "Count the lines of {source}."),
}


def make_task(rng: random.Random, kind: str, split: Split, avoid: Set[str] = frozenset()) -> ShellTask:
    """A random task of `kind` with names from the words of `split` but `avoid`; all names of one task differ."""
    words = [word for word in WORDS[split] if word not in avoid]
    names = rng.sample(words, 8)
    source, target, *others = (f"{name}.{rng.choice(SUFFIXES)}" for name in names[:4])
    word, old, *contents = names[4:]
    files = {name: f"{content}\n" for name, content in zip(others, contents, strict=True)}
    lines = rng.randint(2, 9)
    match kind:
        case "create" | "mkdir":
            pass
        case "append":
            files[source] = f"{old}\n"
        case "count":
            files[source] = "".join(f"{rng.choice(words)}\n" for _ in range(lines))
        case _:
            files[source] = f"{word}\n"
    answer = {"read": word, "count": str(lines)}.get(kind, "")
    question = rng.choice(_QUESTIONS[kind]).format(source=source, target=target, word=word)
    return ShellTask(kind, question, source, target, word, dict(sorted(files.items())), answer)


def expected_files(task: ShellTask) -> dict[str, str | None]:
    """Name → text of everything that must be there afterwards; None for an (empty) directory."""
    after: dict[str, str | None] = dict(task.files)
    match task.kind:
        case "create":
            after[task.source] = f"{task.word}\n"
        case "delete":
            del after[task.source]
        case "copy":
            after[task.target] = after[task.source]
        case "move":
            after[task.target] = after.pop(task.source)
        case "mkdir":
            after[task.word] = None
        case "append":
            after[task.source] = f"{task.files[task.source]}{task.word}\n"
        case _:
            pass
    return dict(sorted(after.items()))


def check_command(task: ShellTask) -> str:
    """A shell command, run in the working directory, that exits with 0 exactly when the task is solved.

    Every path below the directory is compared, with its type and its bytes. A last newline may be missing in the one
    file that the agent had to write. The answer is read from `UNI_AGENT_ANSWER`, surrounding space ignored.
    """
    after = expected_files(task)
    listing = "\n".join(f"./{name}" for name in after)
    tests = [f'test "$(find . -mindepth 1 | LC_ALL=C sort)" = {shlex.quote(listing)}']
    for name, text in after.items():
        if text is None:
            tests.append(f"test -d {name} && test ! -L {name}")
            continue
        tests.append(f"test -f {name} && test ! -L {name} && {_same_bytes(name, text, task)}")
    if task.answer:
        tests.append(
            f'test "$(printf %s "$UNI_AGENT_ANSWER" | sed "s/^[[:space:]]*//;s/[[:space:]]*$//")" = {task.answer}'
        )
    return " && ".join(tests)


def _same_bytes(name: str, text: str, task: ShellTask) -> str:
    exact = f"printf {shlex.quote(_printf(text))} | cmp -s - {name}"
    if task.kind in ("create", "append") and name == task.source:
        return f"{{ {exact} || printf {shlex.quote(_printf(text[:-1]))} | cmp -s - {name}; }}"
    return exact


def _printf(text: str) -> str:
    return text.replace("\n", "\\n")  # words hold neither % nor backslashes
