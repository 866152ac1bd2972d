"""Prefix trees: what is shared stands once, every row reads back whole, and pieces stay within the budget."""

import random

from embedded_training import forked_rows

from practicum.engines.embedded.batches import pairs_of
from practicum.engines.embedded.layout import layout_of, micro_batches
from practicum.types.training import Datum


def read_back(layout, pairs):
    """The rows without their last tokens, read from the layout by walking up from where the last token is predicted."""
    found, start = [], 0
    for prompt, completion in pairs:
        place = int(layout.keep_N[start + len(completion) - 1])
        start += len(completion)
        index = next(i for i, each in enumerate(layout.segments) if each.start <= place < each.end)
        chain = [*layout.path(index), index]
        ids = [
            token for each in chain for token in layout.ids_L[layout.segments[each].start : layout.segments[each].end]
        ]
        found.append(tuple(int(token) for token in ids[: len(prompt) + len(completion) - 1]))
    return found


def rows_of(pairs):
    return [(*prompt, *completion)[:-1] for prompt, completion in pairs]


def test_a_group_has_its_prompt_once():
    prompt = tuple(range(1, 101))
    layout = layout_of([(prompt, (200 + index, 7, 8)) for index in range(8)])
    assert len(layout) == 100 + 8 * 2
    assert layout.keep_N[:3].tolist() == [99, 100, 101] and layout.keep_N[3:6].tolist() == [99, 102, 103]
    assert layout.positions_L[100:104].tolist() == [100, 101, 100, 101]


def test_forks_share_stems_at_any_depth_and_rows_read_back_whole():
    pairs = pairs_of(forked_rows())
    layout = layout_of(pairs)
    assert read_back(layout, pairs) == rows_of(pairs)
    assert max(len(layout.path(index)) for index in range(len(layout.segments))) >= 3
    distinct = {row[: place + 1] for row in rows_of(pairs) for place in range(len(row))}
    assert len(layout) < 1.25 * len(distinct) < 0.6 * sum(map(len, rows_of(pairs)))


def test_random_rows_read_back_whole():
    for seed in range(50):
        chance = random.Random(seed)
        texts = [tuple(chance.randrange(2) for _ in range(chance.randrange(2, 60))) for _ in range(12)]
        cuts = [chance.randrange(1, len(text)) for text in texts]
        pairs = [(text[:cut], text[cut:]) for text, cut in zip(texts, cuts, strict=True)]
        for shared in (True, False):
            layout = layout_of(pairs, shared=shared)
            assert read_back(layout, pairs) == rows_of(pairs)
            for segment in layout.segments:
                assert layout.positions_L[segment.start : segment.end].tolist() == list(
                    range(segment.depth, segment.depth + segment.end - segment.start)
                )


def test_a_long_continuation_is_a_chain():
    prompt = tuple(range(20))
    long = tuple(index % 250 for index in range(1500))
    pairs = [(prompt, (251, *long)), (prompt, (252, 1))]
    layout = layout_of(pairs)
    assert max(each.end - each.start for each in layout.segments if each.depth) <= 512
    assert read_back(layout, pairs) == rows_of(pairs)


def test_nothing_to_predict_is_an_empty_layout():
    assert len(layout_of([((1, 2), ())])) == 0 and len(layout_of([])) == 0


def _row(name, prompt, completion):
    return Datum(row_id=name, prompt_ids=prompt, completion_ids=completion, weights=(1.0,) * len(completion))


def test_pieces_count_what_is_shared_once():
    prompt = tuple(range(100))
    rows = [_row(f"{index}", prompt, (200, index, *range(8))) for index in range(30)]
    pieces = micro_batches(rows, 200)
    assert [len(piece) for piece in pieces] == [14, 14, 2]  # 109 tokens, then 8 more a row, up to twice a row's length
    assert sorted(row.row_id for piece in pieces for row in piece) == sorted(row.row_id for row in rows)


def test_a_long_prompt_is_not_computed_for_every_row():
    """However small the budget, a piece holds twice its longest row."""
    prompt = tuple(index % 250 for index in range(1000))
    rows = [_row(f"{index}", prompt, (251, index, *range(48))) for index in range(8)]
    (piece,) = micro_batches(rows, 64)
    assert len(layout_of(pairs_of(piece))) == 1000 + 1 + 8 * 48
