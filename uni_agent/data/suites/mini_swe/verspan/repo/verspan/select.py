"""Choosing among versions."""

from verspan.ranges import Range
from verspan.version import Version, VersionError


def sort_versions(texts):
    """The texts in order of their versions; what is no version is left out."""
    pairs = []
    for text in texts:
        try:
            pairs.append((Version(text), text))
        except VersionError:
            continue
    return [text for _, text in sorted(pairs, key=lambda pair: pair[0])]


def best(texts, wanted, prereleases=False):
    """The highest text that the range `wanted` allows, or None."""
    allowed = Range(wanted)
    for text in reversed(sort_versions(texts)):
        if allowed.allows(text, prereleases):
            return text
    return None
