"""The page: complete in itself, readable by more than eyes, and every number and command on it works."""

import dataclasses
import html
import re
import shlex
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import pytest

pytest.importorskip("jinja2")
pytest.importorskip("matplotlib")

from samples import ASKED, FOUND, GATHER, HOSTILE, OUTCOMES, READ, RUN, claim

from invariants import INVARIANTS, Runner, release
from proofs.command import main
from proofs.decide import decide
from proofs.files import Run
from proofs.page import page_text, replay_command
from proofs.plots import describe, plot_svg, sweep
from proofs.verdicts import Obligation, Outcome, RowPicture, TraceStep, Verdict

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Remembers tags with their attributes, texts by tag, and complains about tags that do not nest."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.open, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.texts.append((tuple(self.open), data))

    def text(self, tag):
        return "".join(data for way, data in self.texts if tag in way)


PAGE_TEXT = page_text(RUN, OUTCOMES, 5)
PAGE = Page(PAGE_TEXT)


def test_it_is_one_page_without_scripts_or_anything_from_elsewhere():
    assert {tag for tag, _ in PAGE.tags}.isdisjoint({"script", "link", "img", "iframe", "object", "base"})
    for tag, attributes in PAGE.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("src", "href", "xlink:href", "action"):
                assert value.startswith("#"), (tag, value)
    assert "@import" not in PAGE_TEXT
    assert all(target.startswith("#") for target in re.findall(r"url\(([^)]*)", PAGE_TEXT))


def test_identifiers_are_unique_and_every_link_arrives():
    names = [attributes["id"] for _, attributes in PAGE.tags if "id" in attributes]
    assert len(names) == len(set(names))
    linked = {
        value.removeprefix("#")
        for _, attributes in PAGE.tags
        for name, value in attributes.items()
        if name in ("href", "xlink:href")
    }
    labels = {attributes["aria-labelledby"] for _, attributes in PAGE.tags if "aria-labelledby" in attributes}
    used = set(re.findall(r"url\(#([^)]*)\)", PAGE_TEXT))
    assert {"claim-1", "claim-6"} <= linked
    assert linked | labels | used <= set(names)


def test_it_has_a_language_a_title_and_an_alternative_for_each_picture():
    tags = dict(PAGE.tags)
    assert tags["html"] == {"lang": "en"}
    assert "2 of 7 claims are refuted" in PAGE.text("title")
    pictures = [attributes for tag, attributes in PAGE.tags if tag == "svg"]
    assert len(pictures) == 4
    assert all(p["role"] == "img" and len(p["aria-label"]) > 30 for p in pictures)
    assert sum(tag == "h1" for tag, _ in PAGE.tags) == 1
    headers = [attributes.get("scope") for tag, attributes in PAGE.tags if tag == "th"]
    assert set(headers) == {"row", "col"}


def test_what_comes_from_outside_is_text_and_nothing_else():
    assert HOSTILE not in PAGE_TEXT
    assert "<script>alert('x')</script> & \"quotes\"" in PAGE.text("td")
    assert "<script>alert('x')</script> & \"quotes\"" in PAGE.text("li")
    hostile = dataclasses.replace(FOUND, summary=HOSTILE, chain=((HOSTILE, HOSTILE, HOSTILE),))
    read = Page(page_text(RUN, {0: Outcome(Verdict.REFUTED, counterexample=hostile)}, 1))
    assert all(tag != "script" for tag, _ in read.tags)


def test_the_matrix_has_each_verdict_in_its_place():
    table = PAGE_TEXT[PAGE_TEXT.index('<table class="matrix">') : PAGE_TEXT.index("</table>")]
    rows = [re.findall(r'<td class="(\w+)"', row) for row in table.split("<tr>")[2:]]
    assert rows == [["PROVED", "REFUTED", "REFUTED"], ["UNKNOWN", "VACUOUS", "SKIPPED", "ERROR"]]
    assert re.findall(r"([a-z-]+-fits)<br>(V\d)", table) == [
        ("row-fits", "V1"), ("row-fits", "V2"), ("column-fits", "V1"), ("column-fits", "V2"),
    ]  # fmt: skip


def test_an_incomplete_run_says_so_first():
    proved = {index: Outcome(Verdict.PROVED) for index in range(len(ASKED))}
    for outcomes, line in (({}, "Incomplete: 0 of 7"), (proved, "Incomplete: 7 of 7")):
        read = Page(page_text(RUN, outcomes, None))
        assert line in read.text("h1")
        assert "This run did not end" in read.text("strong")
        assert dict(read.tags)["h1"]["class"] == "UNKNOWN"
    assert "All 7 claims are proved" in Page(page_text(RUN, proved, 0)).text("h1")


@pytest.mark.parametrize(
    ("verdicts", "headline"),
    [
        (["PROVED"], "The one claim is proved"),
        (["PROVED", "SKIPPED"], "1 claim proved, 1 skipped"),
        (["PROVED", "UNKNOWN"], "1 of 2 claims is not decided"),
        (["REFUTED", "UNKNOWN"], "1 of 2 claims is refuted"),
    ],
)
def test_the_headline_never_sounds_better_than_the_run(verdicts, headline):
    outcomes = dict(enumerate(Outcome(Verdict(name), "why") for name in verdicts))
    assert headline in page_text(Run(RUN.release, {}, ASKED[: len(verdicts)]), outcomes, 0)


def test_the_same_run_gives_the_same_page():
    assert page_text(RUN, OUTCOMES, 5) == PAGE_TEXT


def test_plots_cross_where_the_row_is_left():
    rows = sweep(ASKED[0], FOUND)
    assert (rows.crossing, rows.points[0], rows.points[-1]) == ((257, 17), (1, 1), (511, 32))
    columns = sweep(ASKED[1], READ)
    assert (columns.crossing, columns.points[0]) == ((256, 16), (0, 0))
    assert describe(rows).endswith("The row is left at 257, with 17 entries.")


def test_a_crossing_between_the_points_of_a_plot_is_found_exactly():
    large = dataclasses.replace(
        FOUND,
        values={**FOUND.values, "max_model_len": 2_000_000, "num_tokens": 1_999_999},
        row=RowPicture(62_500, 125_000, "entries"),
    )
    drawn = sweep(ASKED[0], large)
    assert drawn.crossing == (1_000_001, 62_501)
    assert len(drawn.points) < 450
    assert len(plot_svg(drawn, "p")) < 100_000


def test_a_plot_is_an_image_in_the_pages_own_colours():
    text = plot_svg(sweep(ASKED[0], FOUND), "here")
    ET.fromstring(text)
    assert not re.findall(r"#0[1-6]0[1-6]0[1-6]", text)
    assert "var(--bad)" in text
    assert ">at 257: 17 entries<" in text
    assert ">row width 16<" in text
    assert "DejaVu" not in text
    assert all(name.startswith("here-") for name in re.findall(r'\bid="([^"]*)"', text))


def test_a_claim_about_no_row_has_no_plot():
    assert sweep(ASKED[0], dataclasses.replace(FOUND, row=None)) is None
    assert sweep(ASKED[0], dataclasses.replace(FOUND, shown=("block_size",))) is None


@pytest.mark.parametrize(
    ("kind", "invariant"),
    [("mamba-align", 0), ("mamba-align", 1), ("uniform-mamba-none", 0), ("uniform-mamba-none", 1)],
)
def test_the_replay_command_finds_the_same_case(kind, invariant, capsys):
    asked = Obligation(kind, INVARIANTS[invariant], Runner.V2, release("vllm-0.28"))
    found = decide(asked, {}).counterexample
    command = replay_command(Run(asked.release, {}, [asked]), asked, found)
    python, *module = shlex.split(command.replace("\\\n", ""))
    assert (python, module[:2]) == ("python", ["-m", "proofs.check"])
    assert main(module[2:]) == 1
    printed = capsys.readouterr().out
    assert found.summary in printed
    assert "REFUTED  " in printed


def test_the_pytest_case_on_the_page_fails_for_the_fault():
    (code,) = re.findall(r"<code>(&#34;&#34;&#34;Cases.*?)</code>", PAGE_TEXT, re.DOTALL)[:1]
    namespace = {}
    exec(compile(html.unescape(code), "<page>", "exec"), namespace)
    (test,) = (value for name, value in namespace.items() if name.startswith("test_"))
    with pytest.raises(AssertionError, match="17 entries for a row of 16"):
        test()


def test_a_function_of_the_users_own_is_replayed_with_it():
    run = Run(RUN.release, {}, ASKED, width="my engine.py:row_width")
    assert "--width 'my engine.py:row_width'" in replay_command(run, ASKED[0], FOUND)
    own = dataclasses.replace(ASKED[0].release, name="my engine.py:row_width")
    asked = claim(known=own)
    text = page_text(Run(own, {}, [asked], width=own.name), {0: OUTCOMES[0]}, 1)
    assert "--width &#39;my engine.py:row_width&#39;" in text
    assert "pytest case" not in text


def test_a_finer_claim_and_its_steps_are_shown():
    finer = GATHER
    step = TraceStep("admit", {}, {"held": 0, "kept": 1}, {"held": 3, "kept": 1})
    found = dataclasses.replace(FOUND, row=None, chain=(), trace=(step,), reached="reached in 1 step")
    text = page_text(Run(RUN.release, {}, [finer]), {0: Outcome(Verdict.REFUTED, counterexample=found)}, 1)
    assert "column-fits/gather" in text
    assert "1. admit" in text
    assert "<td>held 0 → 3</td>" in text
