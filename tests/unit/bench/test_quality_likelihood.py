import numpy as np
import numpy.typing as npt
import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from bench.quality_likelihood import Likelihood, Prompt, encode, likelihoods, pool_pages, tree_step
from bench.windows import ROWS
from paceline.contracts.hashing import PAGE_TOKENS, pages_for
from paceline.engine.fake import FakeEngine
from paceline.engine.step import Float32, Step
from paceline.model.config import Window
from paceline.model.tokenizer import Tokenizer

VOCAB = 512
RNG = np.random.default_rng(0)


def bound(prompts: list[Prompt], engine: FakeEngine) -> FakeEngine:
    pages = pool_pages(prompts) * len(engine.layout.groups)
    engine.bind(np.zeros((pages, engine.layout.page_bytes), dtype=np.uint8))
    return engine


def tokens(count: int) -> tuple[int, ...]:
    return tuple(RNG.integers(1, VOCAB, count).tolist())


def plain(text: tuple[int, ...], engine: FakeEngine) -> Float32:
    """Logits of every row of a prompt that has no tree."""
    count, groups = len(text), len(engine.layout.groups)
    pages = pages_for(count)
    engine.bind(np.zeros((groups * pages, engine.layout.page_bytes), dtype=np.uint8))
    table = np.arange(groups * pages, dtype=np.int32).reshape(groups, 1, pages)
    return engine.execute(
        Step(
            tokens=np.array(text, dtype=np.int32),
            positions=np.arange(count, dtype=np.int32),
            slots=table[:, :, :1].reshape(groups, 1).astype(np.int64) * PAGE_TOKENS + np.arange(count),
            parents=np.full(count, -1, dtype=np.int32),
            query_starts=np.array([0, count], dtype=np.int32),
            contexts=np.array([count], dtype=np.int32),
            page_table=table,
            logit_rows=np.arange(count, dtype=np.int32),
            moves=np.empty((groups, 0, 2), dtype=np.int64),
        )
    )


def expected(prompt: Prompt, continuation: tuple[int, ...], engine: FakeEngine) -> Likelihood:
    first = len(prompt.context) - 1
    logits = plain(prompt.context + continuation, engine)[first:-1].astype(np.float64)
    chances: npt.NDArray[np.float64] = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    sums = np.log(chances[np.arange(len(continuation)), continuation]).sum()
    return Likelihood(float(sums), logits.argmax(1).tolist() == list(continuation))


@pytest.mark.parametrize("span", [None, Window(70)])
def test_a_tree_of_continuations_is_each_of_them_alone(span: Window | None) -> None:
    prompts = [
        Prompt(tokens(context), tuple(tokens(length) for length in lengths))
        for context, lengths in [(1, (1,)), (63, (1, 2, 5)), (64, (3, 1)), (65, (70, 2, 90)), (130, (4, 4))]
    ]
    found = likelihoods(bound(prompts, FakeEngine(vocab=VOCAB, span=span)), prompts)
    for prompt, likely in zip(prompts, found, strict=True):
        for continuation, likelihood in zip(prompt.continuations, likely, strict=True):
            alone = expected(prompt, continuation, FakeEngine(vocab=VOCAB, span=span))
            assert likelihood.log_probability == pytest.approx(alone.log_probability, rel=1e-6)
            assert likelihood.greedy == alone.greedy


def test_greedy_is_every_token_of_a_continuation() -> None:
    context = tokens(20)
    best = tuple(FakeEngine(vocab=VOCAB).greedy(context, 4))
    prompts = [Prompt(context, (best, (*best[:3], best[3] ^ 1), (best[0] ^ 1, *best[1:]), best[:1]))]
    (found,) = likelihoods(bound(prompts, FakeEngine(vocab=VOCAB)), prompts)
    assert [likelihood.greedy for likelihood in found] == [True, False, False, True]


def test_prompts_are_split_into_steps() -> None:
    prompts = [Prompt(tokens(200), (tokens(2),)) for _ in range(6)] + [Prompt(tokens(ROWS + 1), (tokens(1),))]
    together = likelihoods(bound(prompts, FakeEngine(vocab=VOCAB)), prompts)
    alone = [likelihoods(bound([p], FakeEngine(vocab=VOCAB)), [p])[0] for p in prompts]
    assert together == alone


def test_rows_of_a_tree() -> None:
    step = tree_step([Prompt((1, 2, 3), ((4, 5, 6), (7,), (8, 9)))], 1)
    assert step.tokens.tolist() == [1, 2, 3, 4, 5, 8]
    assert step.positions.tolist() == [0, 1, 2, 3, 4, 3]
    assert step.parents.tolist() == [-1, -1, -1, 2, 3, 2]
    assert step.logit_rows.tolist() == [2, 3, 4, 5]


@pytest.fixture
def tokenizer() -> Tokenizer:
    """Of letters, spaces and the pairs "ab" and "bc", wherever these stand."""
    vocab = {token: i for i, token in enumerate(["a", "b", "c", "Ġ", "ab", "bc"])}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[("a", "b"), ("b", "c")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return Tokenizer(made, frozenset())


def test_a_continuation_follows_the_tokens_of_its_context(tokenizer: Tokenizer) -> None:
    assert encode(tokenizer, "ab", [" c", " ab"]) == Prompt((4,), ((3, 2), (3, 4)))


def test_a_token_over_the_boundary_belongs_to_the_continuation(tokenizer: Tokenizer) -> None:
    # "ca" and "b" are c, ab: what follows "c" is compared, and for "c" that is a, c.
    assert encode(tokenizer, "ca", ["b", "c"]) == Prompt((2,), ((4,), (0, 2)))


def test_a_context_without_a_token_of_its_own_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="no token of 'a'"):
        encode(tokenizer, "a", ["b", "c"])
