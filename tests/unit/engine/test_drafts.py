from hypothesis import given
from hypothesis import strategies as st

from paceline.contracts.messages import TokenTree
from paceline.engine.drafts import advance, depths, truncate, verify, well_formed

#            0: 5 ─ 1: 6 ─ 3: 8
#            └──── 2: 7
#            4: 9
TREE = TokenTree(tokens=[5, 6, 7, 8, 9], parents=[-1, 0, 0, 1, -1])


def test_depths() -> None:
    assert depths(TREE) == [1, 2, 2, 3, 1]


def test_a_late_proposal_is_good_for_what_follows_the_tokens_decoded_meanwhile() -> None:
    assert advance(TREE, []) == TREE
    assert advance(TREE, [5]) == TokenTree(tokens=[6, 7, 8], parents=[-1, -1, 0])
    assert advance(TREE, [5, 6]) == TokenTree(tokens=[8], parents=[-1])
    assert advance(TREE, [5, 6, 8]) is None
    assert advance(TREE, [6]) is None


def test_truncation_keeps_a_tree() -> None:
    assert truncate(TREE, 2) == TokenTree(tokens=[5, 6], parents=[-1, 0])
    assert truncate(TREE, 0) is None


def test_verification_walks_the_sampled_path() -> None:
    answers = {-1: 5, 0: 6, 1: 1}
    assert verify(TREE, answers.__getitem__) == ([5, 6, 1], [0, 1])
    assert verify(TREE, {-1: 9, 4: 3}.__getitem__) == ([9, 3], [4])
    assert verify(TREE, {-1: 8}.__getitem__) == ([8], [])
    assert verify(None, {-1: 8}.__getitem__) == ([8], [])


def test_bad_proposals_are_recognized() -> None:
    assert well_formed(TREE, vocab=10)
    assert not well_formed(TREE, vocab=9)
    assert not well_formed(TokenTree(tokens=[1], parents=[0]), vocab=10)
    assert not well_formed(TokenTree(tokens=[1, 2], parents=[-1]), vocab=10)
    assert not well_formed(TokenTree(tokens=[-1], parents=[-1]), vocab=10)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(1, 8))
    return TokenTree(
        tokens=draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)),
        parents=[draw(st.integers(-1, i - 1)) for i in range(size)],
    )


@given(
    trees(), st.lists(st.integers(0, 2), max_size=3), st.lists(st.integers(0, 2), min_size=12, max_size=12)
)
def test_advancing_then_verifying_equals_verifying_the_whole(
    tree: TokenTree, prefix: list[int], rest: list[int]
) -> None:
    """Against a model that says `prefix` and then `rest`, whatever the tree."""
    script = iter(prefix + rest)
    whole, path = verify(tree, lambda _: next(script))
    if len(path) < len(prefix):
        return
    subtree = advance(tree, prefix)
    script = iter(rest)
    tokens, _ = verify(subtree, lambda _: next(script))
    # Where siblings share a token, the walk and the advance take the same one: the first.
    assert prefix + tokens == whole
