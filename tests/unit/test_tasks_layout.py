"""Parameters in one vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from elps.contracts.errors import ProtocolError, TaskError
from elps.tasks.layout import Layout


def packed(arrays: dict[str, Any], dtype: str = "float32") -> tuple[Layout, Any]:
    layout = Layout.of(arrays, dtype)
    flat = np.full(layout.size, np.nan, dtype)
    layout.pack(arrays, flat)
    return layout, flat


def test_parameters_follow_each_other_in_the_order_of_init_without_gaps() -> None:
    layout, flat = packed({"b": np.arange(6.0).reshape(2, 3), "a": np.array([6.0])})
    assert [(p.name, p.offset, p.size) for p in layout.parameters] == [("b", 0, 6), ("a", 6, 1)]
    assert flat.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert layout.size == 7
    assert layout.size_bytes == 28


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_any_memory_layout_width_and_byte_order_comes_back_the_same(dtype: str) -> None:
    base = np.arange(24.0).reshape(4, 6)
    arrays = {
        "transposed": base.T,
        "strided": base[::2, ::3],
        "backwards": base[::-1],
        "fortran": np.asfortranarray(base),
        "big endian": base.astype(">f4"),
        "half": base.astype(np.float16),
        "long": base.astype(np.longdouble),
        "scalar": np.float64(3.5),
        "plain": 2.5,
        "0-d": np.array(1.5),
        "empty": np.zeros((0, 5)),
        "list": [[1.0, 2.0]],
    }
    layout, flat = packed(arrays, dtype)
    for name, view in layout.views(flat).items():
        expected = np.asarray(arrays[name])
        assert view.shape == expected.shape
        assert view.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(view, expected.astype(dtype))


def test_views_share_memory_and_are_read_only_unless_asked_for() -> None:
    layout, flat = packed({"w": np.zeros((2, 2)), "s": np.array(0.0)})
    with pytest.raises(ValueError, match="read-only"):
        layout.views(flat)["w"][0, 0] = 1
    layout.views(flat, writable=True)["w"][1, 1] = 7
    layout.views(flat, writable=True)["s"][...] = 8
    assert flat.tolist() == [0, 0, 0, 7, 8]


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "nothing to train"),
        ({"w": np.zeros((0, 3))}, "nothing to train"),
        ([1.0], "expected a dict"),
        ({3: np.zeros(1)}, "is a int, not a string"),
        ({"": np.zeros(1)}, "is empty"),
        ({"x" * 257: np.zeros(1)}, "257 characters, at most 256"),
        ({"\ud800": np.zeros(1)}, "UTF-8"),
        ({"__metadata__": np.zeros(1)}, "reserved"),
        ({"w": np.zeros(3, int)}, "'w' is of int64.*float array"),
        ({"w": np.array([True])}, "'w' is of bool"),
        ({"w": np.zeros(2, complex)}, "'w' is of complex128"),
        ({"w": "text"}, "'w' is of <U4"),
        ({"w": None}, "'w' is of object"),
        ({"w": [[1.0], [1.0, 2.0]]}, "'w' cannot be made a numpy array"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_name(arrays: Any, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        Layout.of(arrays, "float32")


def test_odd_names_are_taken_and_kept_apart() -> None:
    names = [
        "a.b",
        "a/b",
        "a b",
        "A.B",
        "重み",
        "caf\u00e9",
        "cafe\u0301",
        "../x",
        "x" * 256,
        "\n",
        "0",
    ]
    layout, flat = packed({name: np.full(2, k, float) for k, name in enumerate(names)})
    assert [v.tolist() for v in layout.views(flat).values()] == [[k, k] for k in range(len(names))]
    assert Layout.from_wire(orjson.loads(orjson.dumps(layout.to_wire()))) == layout


def test_packing_other_parameters_than_laid_out_is_refused() -> None:
    layout, flat = packed({"w": np.zeros((2, 3)), "b": np.zeros(2)})
    with pytest.raises(TaskError, match="parameters 'w' given, expected 'w', 'b'"):
        layout.pack({"w": np.zeros((2, 3))}, flat)
    with pytest.raises(TaskError, match=r"'w' has shape \(3, 2\), expected \(2, 3\)"):
        layout.pack({"w": np.zeros((3, 2)), "b": np.zeros(2)}, flat)
    with pytest.raises(
        TaskError, match=r"'b' has shape \(1,\), expected \(2,\)"
    ):  # no broadcasting
        layout.pack({"w": np.zeros((2, 3)), "b": np.zeros(1)}, flat)


def test_a_vector_that_does_not_fit_is_refused() -> None:
    layout, flat = packed({"w": np.zeros(4)})
    for wrong in (flat[:3], flat.astype(float), np.zeros(8, "f")[::2], flat.reshape(2, 2)):
        with pytest.raises(ValueError, match="contiguous vector of 4 float32"):
            layout.views(wrong)


def test_one_array_under_two_names_becomes_two_parameters() -> None:
    shared = np.ones(2)
    layout, flat = packed({"a": shared, "b": shared})
    layout.views(flat, writable=True)["a"][0] = 5
    assert flat.tolist() == [5, 1, 1, 1]


@given(
    st.dictionaries(
        st.text(min_size=1, max_size=20),
        hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
        max_size=6,
    )
)
def test_packing_and_viewing_and_the_wire_lose_nothing(arrays: dict[str, Any]) -> None:
    try:
        layout, flat = packed(arrays)
    except TaskError:
        assert sum(a.size for a in arrays.values()) == 0
        return
    for name, view in layout.views(flat).items():
        np.testing.assert_array_equal(view, arrays[name])
    assert Layout.from_wire(orjson.loads(orjson.dumps(layout.to_wire()))) == layout


@pytest.mark.parametrize(
    "wire",
    [
        None,
        {"dtype": "float32"},
        {"dtype": "object", "parameters": [["w", [1]]]},
        {"dtype": "float32", "parameters": []},
        {"dtype": "float32", "parameters": "w"},
        {"dtype": "float32", "parameters": [["w", 3]]},
        {"dtype": "float32", "parameters": [["w", [-1]]]},
        {"dtype": "float32", "parameters": [["w", [True]]]},
        {"dtype": "float32", "parameters": [["w", [1.0]]]},
        {"dtype": "float32", "parameters": [["w", [2**40, 2**40]]]},
        {"dtype": "float32", "parameters": [["w", [1] * 33]]},
        {"dtype": "float32", "parameters": [["w", [1]], ["w", [1]]]},
        {"dtype": "float32", "parameters": [[7, [1]]]},
        {"dtype": ["float32"], "parameters": [["w", [1]]]},
    ],
)
def test_a_layout_from_a_peer_is_not_trusted(wire: Any) -> None:
    with pytest.raises(ProtocolError):
        Layout.from_wire(wire)
