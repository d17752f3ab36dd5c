"""Page tables that are kept from step to step are those that would be made anew."""

import random

import numpy as np

from paceline.engine.holdings import Holdings
from paceline.engine.pages import NO_TAG
from paceline.engine.tables import PageTables
from tests.builders import make_pool


def test_rows_hold_the_pages_of_each_group_and_nothing_elsewhere() -> None:
    tracker = make_pool(16).tags
    long, short = Holdings(2, 5), Holdings(2, 3)
    long.take(0, [3, 4, 5], tracker)
    long.begin(1, 1)
    long.take(1, [6, 7], tracker)
    short.take(0, [8], tracker)
    short.take(1, [9], tracker)
    pages, tags = PageTables(2).of([short, long])
    assert pages.tolist() == [[[8, 0, 0], [3, 4, 5]], [[9, 0, 0], [0, 6, 7]]]
    expected = [[[tracker.tag(p) if p else NO_TAG for p in row] for row in group] for group in pages.tolist()]
    assert tags.tolist() == expected


def test_no_sequences_have_an_empty_table() -> None:
    pages, tags = PageTables(2).of([])
    assert pages.shape == tags.shape == (2, 0, 0)


def test_tables_follow_every_change_of_the_batch_and_of_what_is_held() -> None:
    """Sequences come, go, change places, grow, shrink and start again; nothing of before is left in a row."""
    chance = random.Random(0)
    tracker = make_pool(64).tags
    kept, batch = PageTables(2), [Holdings(2, 12) for _ in range(4)]
    for _ in range(500):
        for held in batch:
            group = chance.randrange(2)
            room = 12 - held.ends[group]
            match chance.randrange(8):
                case 0 | 1 if room:
                    held.take(group, chance.choices(range(64), k=chance.randint(1, min(room, 3))), tracker)
                case 2 if held.ends[group] > held.starts[group]:
                    held.drop(group, chance.randint(held.starts[group], held.ends[group]))
                case 3:
                    held.clear()
                    held.begin(group, chance.randrange(3))
                case _:
                    pass  # as in most steps
        if chance.random() < 0.2:
            batch.append(Holdings(2, 12))
        if chance.random() < 0.2 and batch:
            batch.pop(chance.randrange(len(batch)))
        if chance.random() < 0.1:
            chance.shuffle(batch)
        tracker.change(chance.randrange(64))
        pages, tags = kept.of(batch)
        new_pages, new_tags = PageTables(2).of(batch)
        assert np.array_equal(pages, new_pages)
        assert np.array_equal(tags, new_tags)


def test_a_table_that_was_given_away_does_not_change() -> None:
    tracker = make_pool(16).tags
    held = Holdings(1, 4)
    held.take(0, [3], tracker)
    tables = PageTables(1)
    pages, _ = tables.of([held])
    held.clear()
    tables.of([held])
    assert pages.tolist() == [[[3]]]
