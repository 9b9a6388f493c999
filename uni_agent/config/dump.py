"""Plain data as YAML that reads back as the same data, here and in YAML 1.1 readers."""

from __future__ import annotations

import re
from typing import Any

import yaml

from uni_agent.config.scalars import plain


class _Dumper(yaml.SafeDumper):
    """Quotes what either kind of reader would take for something other than a string."""

    def ignore_aliases(self, data: Any) -> bool:
        """Never write `&id001`: the same list twice is shown twice."""
        del data
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        """Indents list items below their key, as people write them."""
        del indentless
        super().increase_indent(flow, False)


def _represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = None
    if not text.replace("\n", "").isprintable():
        style = '"'
    elif "\n" in text and not re.search(r"[^\S\n]\n|^\s|\s\Z(?<!\n)", text):
        style = "|"
    elif not isinstance(plain(text), str):
        style = "'"
    return dumper.represent_scalar(  # pyright: ignore[reportUnknownMemberType]  (stub without types)
        "tag:yaml.org,2002:str", text, style=style
    )


_Dumper.add_representer(str, _represent_str)


def dump_yaml(data: Any) -> str:
    """`data` as YAML, keys in their order. `load_config` reads the same data from it."""
    return yaml.dump(  # pyright: ignore[reportUnknownMemberType]  (stub without types)
        data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110
    )
