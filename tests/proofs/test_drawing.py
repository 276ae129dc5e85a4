"""The picture shows what the counterexample's numbers say, cell by cell."""

import dataclasses
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samples import FOUND, READ

from invariants import INVARIANTS, Runner, release
from proofs.decide import decide
from proofs.drawing import row_lines, row_svg
from proofs.verdicts import Obligation, RowPicture

SVG = "{http://www.w3.org/2000/svg}"


def drawn(width, wanted, kind="entries", encoding="utf-8"):
    return row_lines(dataclasses.replace(FOUND, row=RowPicture(width, wanted, kind)), encoding)


def test_the_entry_too_many_is_the_first_of_the_next_row():
    assert row_lines(FOUND) == [
        "│■■■■■■■■■■■■■■■■│×···············│",
        "■ row of 16, full  × 1 entry in the next request's row",
    ]


def test_a_column_outside_the_row_is_marked_where_it_lies():
    assert row_lines(READ)[0] == "│□□□□□□□□□□□□□□□□│◆···············│"
    assert drawn(4, 6, "column")[0] == "│□□□□│··◆·│"
    assert drawn(4, -1, "column")[0] == "│···◆│□□□□│"


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "no such encoding"])
def test_a_console_without_the_signs_gets_plain_letters(encoding):
    picture, legend = row_lines(FOUND, encoding)
    assert picture == "|################|X---------------|"
    assert legend == "# row of 16, full  X 1 entry in the next request's row"


def test_a_long_row_is_cut_in_the_middle_and_keeps_its_ends_and_the_border():
    picture, legend = drawn(4096, 4099)
    own, following = picture.strip("│").split("│")
    assert own.startswith("■…")
    assert own.endswith("■" * 20)
    assert following.startswith("×××·")
    assert following.endswith("…·")
    assert max(len(own), len(following)) <= 25
    assert "3 entries in the next request's row" in legend


def test_an_overflow_of_many_rows_shows_the_last_row_it_reaches():
    picture, legend = drawn(2, 11)
    assert picture == "│■■│××│…│×·│"
    assert "9 entries in the rows of the next 5 requests" in legend
    assert drawn(2, 11, "column")[1].endswith("5 rows behind its own")


def test_a_row_without_entries_has_no_cells_of_its_own():
    assert drawn(0, 2)[0] == "││××·│"
    assert "outside a row that has no entries" in drawn(0, 2)[1]


@given(st.integers(1, 24), st.integers(1, 24))
def test_what_is_not_cut_shows_every_cell(width, over):
    wanted = width + min(over, width)
    picture = drawn(width, wanted)[0]
    assert [picture.count(sign) for sign in "■×·"] == [width, wanted - width, 2 * width - wanted]


@given(st.integers(0, 10**12), st.integers(1, 10**12), st.booleans(), st.booleans())
def test_rows_of_any_size_are_drawn_small_with_their_mark(width, beyond, is_read, is_before):
    if is_read:
        column = -beyond if is_before and width else width + beyond - 1
        picture, sign = drawn(width, column, "column")[0], "◆"
        assert picture.count(sign) == 1
    else:
        picture, sign = drawn(width, width + beyond)[0], "×"
        assert sign in picture
    assert len(picture) <= 3 * 27 + 4
    if width:
        assert ("■" in picture) or ("□" in picture)


def test_the_checker_fills_in_the_numbers_of_the_picture():
    pins = {"max_model_len": 512, "block_size": 16, "decode_context_parallel_size": 2}
    known = release("vllm-0.28")
    rows = [
        decide(Obligation("mamba-align", invariant, Runner.V2, known), pins).counterexample.row
        for invariant in INVARIANTS[:2]
    ]
    assert rows == [RowPicture(16, 17, "entries"), RowPicture(16, 16, "column")]


def test_a_counterexample_without_a_row_has_no_picture():
    rowless = dataclasses.replace(FOUND, row=None)
    assert row_lines(rowless) == []
    assert not row_svg(rowless)


def test_the_image_has_the_same_cells_and_nothing_active():
    image = ET.fromstring(row_svg(dataclasses.replace(FOUND, summary='<b> & "it\'s"')))
    classes = [cell.get("class") for cell in image.iter(f"{SVG}rect")]
    assert {name: classes.count(name) for name in set(classes)} == {"held": 16, "overflow": 1, "foreign": 15}
    assert image.get("aria-label") == '<b> & "it\'s"'
    assert image.get("role") == "img"
    assert not {"script", "image", "use", "a"} & {element.tag.removeprefix(SVG) for element in image.iter()}
    assert "prefers-color-scheme:dark" in image.find(f"{SVG}style").text


def test_texts_of_the_image_stay_inside_it():
    for row in (RowPicture(16, 17, "entries"), RowPicture(1, 2, "entries"), RowPicture(3, 900, "column")):
        image = ET.fromstring(row_svg(dataclasses.replace(FOUND, row=row)))
        width, height = (float(image.get(side)) for side in ("width", "height"))
        for cell in image.iter(f"{SVG}rect"):
            assert float(cell.get("x")) + float(cell.get("width")) <= width
        for text in image.iter(f"{SVG}text"):
            assert float(text.get("y")) <= height
            assert float(text.get("x")) + 6.5 * len(text.text) <= width
