from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from elps.client.documents import assign, load, read
from elps.contracts.errors import InvalidDocument

DOCUMENT = {"task": "mlp", "optimizer": {"lr": 0.001}, "passes": 3}

TOML = b'task = "mlp"\npasses = 3\n[optimizer]\nlr = 1e-3\n'
YAML = b"task: mlp\npasses: 3\noptimizer:\n  lr: 1e-3\n"
JSON = b'{"task": "mlp", "passes": 3, "optimizer": {"lr": 1e-3}}'


@pytest.mark.parametrize(
    ("name", "body"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("A.JSON", JSON)]
)
def test_the_three_formats_give_the_same_document(tmp_path: Path, name: str, body: bytes) -> None:
    (tmp_path / name).write_bytes(body)
    assert load(tmp_path / name) == DOCUMENT


@pytest.mark.parametrize("body", [TOML, YAML, JSON])
def test_standard_input_may_have_any_of_the_formats(
    monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert load("-") == DOCUMENT


@pytest.mark.parametrize(
    ("suffix", "body", "where"),
    [
        (".toml", b'task = "mlp"\npasses = = 3\n', "job:2: not TOML"),
        (".toml", b'task = "mlp"\ntask = "mlp"\n', "job:2: task is given twice"),
        (".toml", b'task = "mlp"\nx = [1,\n', "job:3: not TOML"),
        (".yaml", b"task: mlp\n  bad: [\n", "job:2: not YAML"),
        (".yaml", b"task: mlp\nseed: 1\ntask: svm\n", "job:3: task is given twice"),
        (".yaml", b"data:\n  source: a\n  source: b\n", "job:3: source is given twice"),
        (".toml", b"[data]\nsource = 1\nsource = 2\n", "job:3: source is given twice"),
        (".yaml", b"task: !!python/object/apply:os.system ['true']\n", "job:1: not YAML"),
        (".json", b'{"task": "mlp",\n "passes": }', "job:2: not JSON"),
        (".json", b'{"task": "mlp", "task": "svm"}', "job: task is given twice"),
        (".json", b'{"optimizer": {"lr": NaN}}', "NaN is not a number"),
        (".json", b'{"a": 1}\n\xff', "job:2: not UTF-8"),
    ],
)
def test_a_syntax_error_names_file_and_line(suffix: str, body: bytes, where: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        read(body, "job", suffix)
    assert len(caught.value.problems) == 1
    assert where in caught.value.problems[0]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"seed: .nan\n", "seed: nan is not a finite number"),
        (b"when: 2024-05-01\n", "when: a value of type date cannot be sent"),
        (b"task_args: {1: a}\n", "task_args: key 1 is a value of type int; write it in quotes"),
        (b"seed: 99999999999999999999999\n", "seed: 99999999999999999999999 does not fit 64 bits"),
        (b"- 1\n- 2\n", "expected a table of fields such as task and data, got a list"),
        (b"", "expected a table of fields such as task and data, got nothing"),
    ],
)
def test_values_that_no_message_can_carry_are_refused_by_path(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidDocument) as caught:
        read(body, "job", ".yaml")
    assert problem in caught.value.problems[0]


def test_deep_nesting_is_refused_and_not_a_crash() -> None:
    for suffix, body in ((".json", b'{"a":' + b"[" * 100_000), (".yaml", b"a: " + b"[" * 5_000)):
        with pytest.raises(InvalidDocument):
            read(body, "job", suffix)
    with pytest.raises(InvalidDocument, match="nested more than 64 deep"):
        read(b'{"a":' + b"[" * 80 + b"]" * 80 + b"}", "job", ".json")


def test_an_unknown_suffix_and_a_missing_file_say_what_is_expected(tmp_path: Path) -> None:
    with pytest.raises(InvalidDocument, match=r"expected a name that ends in \.toml"):
        load("job.txt")
    with pytest.raises(InvalidDocument, match="No such file"):
        load(tmp_path / "job.toml")


def test_what_is_neither_toml_nor_yaml_names_both() -> None:
    with pytest.raises(InvalidDocument) as caught:
        read(b"a = [\nb: ]", "standard input", None)
    assert [p.split(":")[0] for p in caught.value.problems] == ["standard input"] * 2


@pytest.mark.parametrize(
    ("setting", "path", "value"),
    [
        ("optimizer.lr=0.5", ("optimizer", "lr"), 0.5),
        ("workers.max=4", ("workers", "max"), 4),
        ("task=softmax", ("task",), "softmax"),
        ("deterministic=true", ("deterministic",), True),
        ('data={"source": "digits"}', ("data", "source"), "digits"),
        ("data.path=a=b.npz", ("data", "path"), "a=b.npz"),
        ("group=", ("group",), ""),
    ],
)
def test_a_setting_changes_one_field(setting: str, path: tuple[str, ...], value: object) -> None:
    document: dict[str, object] = {"task": "mlp", "optimizer": {"lr": 0.001, "name": "adam"}}
    assign(document, setting)
    found: object = document
    for key in path:
        assert isinstance(found, dict)
        found = found[key]
    assert found == value


@pytest.mark.parametrize("setting", ["lr", "=3", "a..b=1", "task.x=1", "seed=NaN1.e"])
def test_a_bad_setting_is_refused_or_text(setting: str) -> None:
    document: dict[str, object] = {"task": "mlp"}
    if setting.startswith("seed"):
        assign(document, setting)
        assert document["seed"] == "NaN1.e"
        return
    with pytest.raises(InvalidDocument) as caught:
        assign(document, setting)
    assert caught.value.what == "setting"
    assert document == {"task": "mlp"}
