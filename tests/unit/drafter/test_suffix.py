from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.contracts.errors import InvalidRequest
from paceline.drafter.suffix import MAX_CHAIN, MAX_MATCH, MIN_MATCH, Corpora, Corpus, Document


def tokens(text: str) -> list[int]:
    return [ord(c) for c in text]


def text(proposal: list[int]) -> str:
    return "".join(map(chr, proposal))


def corpus_of(*texts: str, budget: int = 10_000) -> Corpus:
    corpus = Corpus(budget)
    for one in texts:
        corpus.close(corpus.open(tokens(one)))
    return corpus


def proposal(corpus: Corpus, sequence: str, max_tokens: int = 100) -> str:
    return text(corpus.propose(corpus.open(tokens(sequence)), max_tokens))


def test_it_proposes_what_followed_in_another_request_as_far_as_tokens_matched() -> None:
    corpus = corpus_of("the quick brown fox jumps")
    assert proposal(corpus, "a quick") == " brown"
    assert proposal(corpus, "quick", max_tokens=2) == " b"


def test_it_proposes_what_followed_earlier_in_the_same_request() -> None:
    assert proposal(Corpus(100), "abcdefgh abcd") == "efgh"


def test_too_short_a_match_proposes_nothing() -> None:
    corpus = corpus_of("abcdef")
    assert proposal(corpus, "bc") == ""
    assert proposal(corpus, "xbc") == ""
    assert proposal(corpus, "xabc") == "def"
    assert proposal(corpus, "") == ""
    assert proposal(corpus, "xabc", max_tokens=0) == ""


def test_nothing_follows_the_end_of_a_request() -> None:
    assert proposal(corpus_of("abcdef"), "cdef") == ""


def test_the_longest_match_wins_over_the_most_recent() -> None:
    corpus = corpus_of("12345-old", "2345-mid", "345-new")
    assert proposal(corpus, "x12345") == "-old"
    assert proposal(corpus, "x2345") == "-mid"


def test_the_most_recent_of_equal_matches_wins() -> None:
    corpus = corpus_of("value=1;", "value=2;", "value=3;")
    assert proposal(corpus, "value=") == "3;"


def test_of_equal_matches_one_that_goes_on_wins_over_one_that_ends() -> None:
    corpus = corpus_of("abcd, and so on", "abcd.")
    assert proposal(corpus, "abcd") == ", an"


def test_a_loop_is_continued_for_more_than_one_turn() -> None:
    assert proposal(Corpus(1000), "xyz" * 12, max_tokens=12) == "xyz" * 4


def test_matches_are_counted_up_to_a_limit() -> None:
    body = "".join(chr(1000 + i) for i in range(100))
    corpus = corpus_of(body)
    assert len(proposal(corpus, body[:60])) == MAX_MATCH


def test_tokens_that_are_appended_are_indexed_and_matched() -> None:
    corpus = Corpus(1000)
    document = corpus.open(tokens("one two"))
    for piece in (" three", "", " o", "ne"):
        corpus.append(document, tokens(piece))
    assert text(corpus.propose(document, 4)) == " tw"
    assert proposal(corpus, "three", max_tokens=4) == " one"


def test_appending_token_by_token_equals_opening_with_all() -> None:
    whole, grown = Corpus(1000), Corpus(1000)
    document = grown.open([])
    for token in tokens("abcabdabcabc"):
        grown.append(document, [token])
    assert grown.propose(document, 9) == whole.propose(whole.open(tokens("abcabdabcabc")), 9)


def test_the_oldest_request_is_forgotten_first() -> None:
    corpus = corpus_of("first-1", "second2", budget=20)
    assert proposal(corpus, "fir") == "st-"
    corpus = corpus_of("first-1", "second2", "third-3", budget=20)
    assert corpus.tokens == 14
    assert proposal(corpus, "fir") == ""
    corpus = corpus_of("first-1", "second2", "third-3", budget=24)
    assert proposal(corpus, "sec") == "ond"
    assert corpus.tokens == 24


def test_requests_that_ended_are_forgotten_before_those_that_grow() -> None:
    corpus = Corpus(20)
    growing = corpus.open(tokens("growing"))
    corpus.close(corpus.open(tokens("ended..")))
    corpus.append(growing, tokens("grows..."))
    assert corpus.tokens == 15
    assert growing.corpus is corpus


def test_forgetting_keeps_the_places_that_others_share() -> None:
    corpus = corpus_of("abcd1", "abcd2", "abcd3", budget=16)
    assert proposal(corpus, "abcd") == "3"
    # The request itself took the room of the first; what the second says can still be found.
    corpus = corpus_of("abcd2", "abcd", budget=100)
    assert proposal(corpus, "xabcd") == "2"


def test_a_request_alone_over_the_budget_is_forgotten() -> None:
    corpus = Corpus(10)
    document = corpus.open(tokens("01234"))
    corpus.append(document, tokens("567890"))
    assert document.corpus is None
    assert corpus.tokens == 0
    assert corpus.propose(document, 5) == []


def test_of_a_prompt_over_half_the_budget_the_end_is_kept() -> None:
    corpus = Corpus(20)
    document = corpus.open(tokens("a very long prompt: 1234"))
    assert text(document.tokens.tolist()) == "ompt: 1234"
    corpus.append(document, tokens(" ompt:"))
    assert text(corpus.propose(document, 5)) == " 1234"


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**70])
def test_ids_beyond_int32_are_refused_and_change_nothing(token: int) -> None:
    corpus = Corpus(100)
    with pytest.raises(InvalidRequest):
        corpus.open([1, token])
    document = corpus.open([1, 2, 3, 4])
    with pytest.raises(InvalidRequest):
        corpus.append(document, [5, token])
    assert corpus.tokens == 4
    assert document.tokens.tolist() == [1, 2, 3, 4]


def test_ids_that_share_a_key_are_not_taken_for_each_other() -> None:
    corpus = Corpus(100)
    corpus.open([1, 2, 3, 4])
    assert corpus.propose(corpus.open([1, 2, 3 + 2**21]), 4) == []


def test_tenants_hear_nothing_of_each_other() -> None:
    corpora = Corpora(tenants=4, tenant_tokens=100)
    corpora.open("one", tokens("the secret word is swordfish"))
    document = corpora.open("two", tokens("the secret word is "))
    assert document.corpus is not None
    assert document.corpus.propose(document, 9) == []
    document = corpora.open("one", tokens("the secret word is "))
    assert document.corpus is not None
    assert text(document.corpus.propose(document, 9)) == "swordfish"


def test_the_tenant_that_began_nothing_for_longest_is_forgotten() -> None:
    corpora = Corpora(tenants=2, tenant_tokens=100)
    one, two = corpora.open("one", tokens("abcd")), corpora.open("two", tokens("abcd"))
    corpora.open("one", tokens("abcd"))
    corpora.open("three", tokens("abcd"))
    assert two.corpus is None
    assert one.corpus is not None


LETTERS = st.lists(st.integers(0, 2), max_size=30)


def longest_match(history: list[list[int]], sequence: Sequence[int]) -> int:
    """By definition, without an index."""
    longest = 0
    for other in history:
        for place in range(MIN_MATCH, len(other)):
            for length in range(MIN_MATCH, min(place, len(sequence), MAX_MATCH) + 1):
                if list(other[place - length : place]) == list(sequence[-length:]):
                    longest = max(longest, length)
    return longest


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), LETTERS, LETTERS), min_size=1, max_size=6), st.integers(0, 8)
)
def test_a_proposal_followed_the_longest_suffix_in_the_same_tenants_history(
    requests: list[tuple[str, list[int], list[int]]], max_tokens: int
) -> None:
    corpora = Corpora(tenants=2, tenant_tokens=10_000)
    history: dict[str, list[list[int]]] = {"a": [], "b": []}
    documents: list[tuple[str, Document]] = []
    for tenant, prompt, output in requests:
        document = corpora.open(tenant, prompt)
        assert document.corpus is not None
        document.corpus.append(document, output)
        documents.append((tenant, document))
        history[tenant].append(prompt + output)

    for tenant, document in documents:
        assert document.corpus is not None
        sequence = document.tokens.tolist()
        proposal = document.corpus.propose(document, max_tokens)
        matched = longest_match(history[tenant], sequence)
        places = sum(len(other) for other in history[tenant])
        assert len(proposal) <= min(max_tokens, matched)
        if places <= MAX_CHAIN:
            assert bool(proposal) == (matched >= MIN_MATCH and max_tokens > 0)
        if proposal:
            # Where fewer places were compared than there are, a shorter match may have been the best.
            lengths = [matched] if places <= MAX_CHAIN else range(MIN_MATCH, matched + 1)
            assert any(
                other[i : i + n + len(proposal)] == sequence[-n:] + proposal
                for n in lengths
                for other in history[tenant]
                for i in range(len(other))
            )


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), LETTERS), max_size=12), st.integers(2, 40))
def test_memory_is_bounded_and_the_table_names_only_what_is_held(
    steps: list[tuple[bool, list[int]]], budget: int
) -> None:
    corpus = Corpus(budget)
    documents: list[Document] = []
    for opens, added in steps:
        if opens or not documents or documents[-1].corpus is None:
            documents.append(corpus.open(added))
        else:
            corpus.append(documents[-1], added)
        held = [document for document in documents if document.corpus is not None]
        assert corpus.tokens == sum(len(document.tokens) for document in held) <= budget
        assert {place >> 32 for place in corpus._newest.values()} <= {document.number for document in held}
