"""INI files."""

from inikit.config import Config, MissingKey
from inikit.lexer import IniError
from inikit.parser import load, loads
from inikit.writer import dump, dumps

__all__ = ["Config", "IniError", "MissingKey", "dump", "dumps", "load", "loads"]
