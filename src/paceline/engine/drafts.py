"""Draft trees as pure data: what of a proposal is still of use, and the walk that verifies it."""

from collections.abc import Callable, Sequence

from paceline.contracts.messages import TokenTree

ROOT = -1
NO_TOKEN = -2
"""Equal to no token of a tree; `verify` stops at it."""


def advance(tree: TokenTree, tokens: Sequence[int]) -> TokenTree | None:
    """The subtree below the path `tokens`, or None when the tree does not continue that path.

    A proposal that arrives late is not lost: the tokens that were decoded meanwhile only have to be its first ones.
    """
    node = ROOT
    for token in tokens:
        node = _child(tree, node, token)
        if node == ROOT:
            return None
    renumbered = {node: ROOT}
    kept: list[int] = []
    for i, parent in enumerate(tree.parents):
        if parent in renumbered and i != node:
            renumbered[i] = len(kept)
            kept.append(i)
    if not kept:
        return None
    return TokenTree(
        tokens=[tree.tokens[i] for i in kept], parents=[renumbered[tree.parents[i]] for i in kept]
    )


def truncate(tree: TokenTree, count: int) -> TokenTree | None:
    """The first `count` nodes, which are a tree because parents come first."""
    if count <= 0:
        return None
    return TokenTree(tokens=tree.tokens[:count], parents=tree.parents[:count])


def depths(tree: TokenTree) -> list[int]:
    """Distance of each node from the last committed token; 1 for its children."""
    result: list[int] = []
    for parent in tree.parents:
        result.append(1 if parent == ROOT else result[parent] + 1)
    return result


def well_formed(tree: TokenTree, vocab: int) -> bool:
    """Whether parents come before their children and every token exists."""
    return len(tree.tokens) == len(tree.parents) and all(
        ROOT <= parent < i and 0 <= token < vocab
        for i, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True))
    )


def verify(tree: TokenTree | None, sample: Callable[[int], int]) -> tuple[list[int], list[int]]:
    """Walk the tree along sampled tokens: (tokens, accepted nodes), with one token more than nodes.

    `sample(node)` gives the target's token after `node` (`ROOT` = after the last committed token) and is called once
    per token, in order, so that it may depend on the tokens before.
    """
    node, tokens, path = ROOT, [sample(ROOT)], []
    while tree is not None and (node := _child(tree, node, tokens[-1])) != ROOT:
        path.append(node)
        tokens.append(sample(node))
    return tokens, path


def _child(tree: TokenTree, parent: int, token: int) -> int:
    """The node with `token` below `parent`, else `ROOT`."""
    for i in range(parent + 1, len(tree.parents)):
        if tree.parents[i] == parent and tree.tokens[i] == token:
            return i
    return ROOT
