"""How wide text is on screen."""

import unicodedata


def char_width(char):
    """Columns of one character: 2 for wide ones, 0 for marks that sit on the one before."""
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def text_width(text):
    """Columns of a line of text."""
    return sum(char_width(char) for char in text)


def pad(text, width, align="l"):
    """`text` with spaces up to `width` columns; `align` is l, r or c."""
    missing = max(0, width - text_width(text))
    if align == "r":
        return " " * missing + text
    if align == "c":
        left = missing // 2
        return " " * left + text + " " * (missing - left)
    return text + " " * missing
