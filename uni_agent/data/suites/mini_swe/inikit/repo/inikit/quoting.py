"""Quoted values."""

_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_NAMES = {value: name for name, value in _ESCAPES.items()}

COMMENT_MARKS = "#;"


def quote(text):
    """`text` in double quotes."""
    return '"%s"' % "".join("\\" + _NAMES[c] if c in _NAMES else c for c in text)


def needs_quotes(text):
    """Whether `text` would be read as something else when it is written without quotes."""
    if text != text.strip() or text.startswith('"') or any(c in text for c in "\n\t\r"):
        return True
    return False


def read_quoted(text):
    """(value, rest) of text that starts with a double quote. Raises ValueError when the quote is not closed."""
    out = []
    position = 1
    while position < len(text):
        char = text[position]
        if char == '"':
            return "".join(out), text[position + 1 :]
        if char == "\\":
            position += 1
            if position == len(text):
                break
            name = text[position]
            if name not in _ESCAPES:
                raise ValueError("unknown escape \\%s" % name)
            char = _ESCAPES[name]
        out.append(char)
        position += 1
    raise ValueError("a quote is not closed")
