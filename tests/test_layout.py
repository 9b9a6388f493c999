"""The walls of the house: links, import names, import direction, import cost, public names, wheel content."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import uni_agent

ROOT = Path(__file__).parent.parent
LINKED = ("tools", "reward", "deployment", "dashboard", "configs")

# A module may import from its own tier and from those before it.
TIERS = (
    ("types", "errors", "optional", "configs", "assets"),
    ("config",),
    ("engine",),
    ("tokens",),
    ("trajectory",),
    ("deployment",),
    ("tools", "reward", "data"),
    ("model", "interaction"),
    ("gateway", "harness"),
    ("training.config",),  # what the pipeline is made of; the rest of training stands above it
    ("pipeline",),
    ("store",),
    ("runtime",),
    ("training", "cli", "dashboard", "__main__"),
)
TIER_OF = {name: tier for tier, names in enumerate(TIERS) for name in names}


def modules() -> list[Path]:
    """Every module of the package by its import path, data files of the suites left out."""
    data = {"suites", "scripts"}
    package = [p for p in (ROOT / "uni_agent").rglob("*.py") if not data & set(p.parts)]
    linked = [
        ROOT / "uni_agent" / name / p.relative_to(ROOT / name)
        for name in LINKED
        for p in (ROOT / name).rglob("*.py")
        if not data & set(p.parts)
    ]
    return sorted(set(package) | set(linked))


def part_of(module: str) -> str:
    """The part that a dotted module belongs to: the first name, or two where a tier names both."""
    names = module.split(".")
    two = ".".join(names[1:3])
    return two if two in TIER_OF else names[1]


def imports_at_run_time(path: Path) -> set[str]:
    """The parts of uni_agent that a module imports, inside functions too, imports for types alone left out."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("uni_agent."):
            found.add(part_of(node.module))
        if isinstance(node, ast.Import):
            found.update(part_of(a.name) for a in node.names if a.name.startswith("uni_agent."))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


@pytest.mark.parametrize("name", LINKED)
def test_top_level_folders_are_reached_through_links(name: str) -> None:
    link = ROOT / "uni_agent" / name
    assert link.is_symlink(), (
        f"uni_agent/{name} must be a symbolic link to ../{name}. A checkout with core.symlinks=false or a .zip "
        "download turns it into a text file: clone with links, or install the wheel"
    )
    assert link.resolve() == ROOT / name


@pytest.mark.parametrize("name", LINKED)
def test_importing_a_folder_by_its_bare_name_is_a_clear_error(name: str) -> None:
    command = [sys.executable, "-c", f"import {name}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"import uni_agent.{name}" in done.stderr


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_in_one_direction(path: Path) -> None:
    part = part_of(".".join(["uni_agent", *path.relative_to(ROOT / "uni_agent").with_suffix("").parts]))
    if part == "__init__":
        allowed = {"types", "errors"}
    elif part == "store":
        allowed = {"store", "types", "errors"}
    elif part == "dashboard":
        allowed = {"dashboard", "store", "types", "errors"}
    else:
        allowed = {name for name, tier in TIER_OF.items() if tier <= TIER_OF[part]}
    assert imports_at_run_time(path) <= allowed


ENGINES = ("torch", "transformers", "ray", "verl", "litestar", "modal", "datasets")
HEAVY = (*ENGINES, "openai", "pydantic_settings", "swerex")


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = f"import uni_agent, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_reading_a_configuration_loads_no_engine() -> None:
    code = f"import uni_agent.pipeline, sys; print([m for m in {ENGINES!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_are_sorted_and_there() -> None:
    assert uni_agent.__all__ == sorted(uni_agent.__all__)
    assert all(hasattr(uni_agent, name) for name in uni_agent.__all__)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_holds_the_package_and_its_data_and_nothing_else(tmp_path: Path) -> None:
    """Built from the sdist, as pip does from an index."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)],
        check=True,
        capture_output=True,
        text=True,
    )
    wheel = next(tmp_path.glob("*.whl"))
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {n.split("/")[0] for n in names} == {"uni_agent", next(n.split("/")[0] for n in names if ".dist-info" in n)}
    for needed in (
        "uni_agent/py.typed",
        "uni_agent/tools/base.py",
        "uni_agent/deployment/sandbox.py",
        "uni_agent/reward/base.py",
        "uni_agent/configs/quickstart.yaml",
        "uni_agent/configs/schema/pipeline.json",
        "uni_agent/data/suites/shell_basics.jsonl",
        "uni_agent/data/suites/shell_basics_heldout.jsonl",
        "uni_agent/data/suites/mini_swe.jsonl",
        "uni_agent/configs/quickstart_train.yaml",
        "uni_agent/assets/quickstart_policy/model.safetensors",
        "uni_agent/assets/quickstart_policy/chat_template.jinja",
    ):
        assert needed in names
    suite = [json.loads(line) for line in (ROOT / "uni_agent/data/suites/mini_swe.jsonl").read_text().splitlines()]
    for task in suite:
        folder = f"uni_agent/data/suites/{task['repo']['path']}/"
        shipped = {n.removeprefix(folder) for n in names if n.startswith(folder)}
        real = ROOT / folder
        files = [p for p in real.rglob("*") if p.is_file() and "__pycache__" not in p.parts]
        assert shipped == {str(p.relative_to(real)) for p in files}
