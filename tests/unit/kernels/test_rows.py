from tests.unit.kernels.pages import Batch, chunked, windowed, with_drafts


def test_a_window_reaches_back_from_the_token_itself() -> None:
    batch = Batch.make((5, 5), (2, 70))
    rows = windowed(batch.causal(), batch.positions, 3)
    assert rows.first.tolist() == [0, 0, 0, 1, 2, 66, 67]
    assert rows.last.tolist() == [0, 1, 2, 3, 4, 68, 69]


def test_a_chunk_begins_at_its_multiple() -> None:
    batch = Batch.make((5, 5), (2, 9))
    assert chunked(batch.causal(), batch.positions, 4).first.tolist() == [0, 0, 0, 0, 4, 4, 8]


def test_short_sequences_that_look_alike_are_grouped_and_long_ones_are_alone() -> None:
    batch = Batch.make((1, 64), (17, 17), (1, 3), (17, 17), (1, 300), (2, 2))
    rows = batch.causal()
    assert [(g.members.tolist(), g.positions) for g in rows.groups] == [
        ([0, 2], 64),
        ([1], 17),
        ([3], 17),
        ([4], 300),
        ([5], 2),
    ]
    assert rows.groups[0].rows.tolist() == [[0], [18]]
    assert rows.groups[0].seen.sum(2).tolist() == [[64], [3]]
    assert not rows.single


def test_what_drafts_see_in_a_group() -> None:
    rows = with_drafts(Batch.make((4, 6)), [[-1, -1, 1]])
    assert rows.groups[0].seen[0].int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [1, 1, 1, 0, 1, 1],
    ]


def test_sequences_without_rows_are_left_out() -> None:
    batch = Batch.make((0, 5), (1, 5))
    assert [g.members.tolist() for g in batch.causal().groups] == [[1]]
