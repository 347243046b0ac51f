"""The namespace package `elps` lies over several folders; a stray file in one of them hides the others."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PORTIONS = [
    ROOT / "shared",
    *sorted(path for path in (ROOT / "services").iterdir() if path.is_dir()),
]


@pytest.mark.parametrize("portion", PORTIONS, ids=lambda path: path.name)
def test_no_module_lies_in_a_namespace_folder_or_beside_it(portion: Path) -> None:
    stray = [
        *portion.glob("*.py"),
        *(portion / "elps").glob("*.py"),
        *(portion / "elps").glob("*.pyi"),
    ]
    assert stray == []


@pytest.mark.parametrize("portion", PORTIONS, ids=lambda path: path.name)
def test_each_portion_holds_nothing_but_the_package_elps(portion: Path) -> None:
    assert [path.name for path in portion.iterdir() if path.name != "__pycache__"] == ["elps"]


@pytest.mark.parametrize(
    "package",
    [
        path
        for portion in PORTIONS
        for path in sorted((portion / "elps").iterdir())
        if path.is_dir()
    ],
    ids=lambda path: path.name,
)
def test_each_package_says_that_it_is_typed_and_what_it_is(package: Path) -> None:
    if not any(package.glob("*.py")):
        return
    assert (package / "py.typed").is_file()
    assert (package / "__init__.py").read_text(encoding="utf-8").startswith('"""')


def test_no_package_comes_from_two_portions() -> None:
    names = [
        path.name
        for portion in PORTIONS
        for path in (portion / "elps").iterdir()
        if path.name != "__pycache__"
    ]
    assert len(names) == len(set(names))


def test_no_folder_with_code_lacks_its_init_file() -> None:
    lacking = [
        folder
        for portion in PORTIONS
        for folder in (portion / "elps").rglob("*")
        if folder.is_dir() and any(folder.glob("*.py")) and not (folder / "__init__.py").is_file()
    ]
    assert lacking == []


def test_tests_are_not_packages() -> None:
    assert list((ROOT / "tests").rglob("__init__.py")) == []
