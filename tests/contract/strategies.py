"""Hypothesis strategies for wire types, built from their annotations."""

import types
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

# What JSON numbers of the codec can hold.
_INTEGERS = st.integers(-(2**63), 2**64 - 1)
_PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: _INTEGERS,
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: st.text(max_size=8),
    bytes: st.binary(max_size=40),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def values(kind: Any) -> st.SearchStrategy[Any]:
    """Any value of a type that messages use."""
    origin, args = get_origin(kind), get_args(kind)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if origin in (Union, types.UnionType):
        return st.one_of([values(a) for a in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is list:
        return st.lists(values(args[0]), max_size=3)
    if origin is tuple and args[-1] is ...:
        return st.lists(values(args[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*map(values, args))
    if origin is dict:
        return st.dictionaries(values(args[0]), values(args[1]), max_size=3)
    return st.builds(kind, **{f.name: values(f.type) for f in msgspec.structs.fields(kind) if f.name != "v"})
