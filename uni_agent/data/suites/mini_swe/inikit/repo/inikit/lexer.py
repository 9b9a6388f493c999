"""Lines of an INI file, sorted by kind."""

from inikit.quoting import COMMENT_MARKS, read_quoted


class IniError(ValueError):
    """A line that cannot be read; `line` counts from 1."""

    def __init__(self, message, line):
        super().__init__("line %d: %s" % (line, message))
        self.line = line


def strip_comment(text):
    """`text` without a comment: a mark at the start, or after white space, outside of quotes."""
    for position, char in enumerate(text):
        if char in COMMENT_MARKS and (position == 0 or text[position - 1].isspace()):
            return text[:position].rstrip()
    return text.rstrip()


def tokens(text):
    """(kind, payload, line) for each line that says something: `section`, `pair` or `more`."""
    for number, raw in enumerate(text.split("\n"), start=1):
        line = strip_comment(raw)
        if not line.strip():
            continue
        if line[0].isspace():
            yield "more", line.strip(), number
        elif line.startswith("["):
            yield "section", _section(line, number), number
        else:
            yield "pair", _pair(line, number), number


def _section(line, number):
    if not line.endswith("]") or not line[1:-1].strip():
        raise IniError("not a section: %s" % line, number)
    return line[1:-1].strip()


def _pair(line, number):
    key, equals, value = line.partition("=")
    if not equals or not key.strip():
        raise IniError("not `key = value`: %s" % line, number)
    return key.strip(), _value(value.strip(), number)


def _value(text, number):
    if not text.startswith('"'):
        return text
    try:
        value, rest = read_quoted(text)
    except ValueError as error:
        raise IniError(str(error), number) from None
    if rest.strip():
        raise IniError("text after a quoted value: %s" % rest.strip(), number)
    return value
