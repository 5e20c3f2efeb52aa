"""The report as a whole: files, self-contained HTML, Markdown, published figures, exit codes."""

import base64
import csv
import io
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image
from reports_cases import DENSE, HOROVOD, LSH, RUNS, SHARED, copied
from typer.testing import CliRunner

from reports.__main__ import app
from reports.beside import beside_table
from reports.figures import draw
from reports.grouping import TITLES
from reports.published import PUBLISHED
from reports.reading import read_runs
from reports.style import looks
from reports.views import cell

OURS = "D-SLIDE, LSH per sample · 2 processes"


class Page(HTMLParser):
    """Collects what a page refers to, and the cells of its tables."""

    def __init__(self, text):
        super().__init__()
        self.sources, self.links, self.ids, self.tags, self.rows = [], [], set(), [], []
        self.alternatives, self._cell = [], False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.tags.append(tag)
        self.sources += [found[name] for name in ("src", "srcset", "data") if name in found]
        self.links += [found["href"]] if "href" in found else []
        self.ids |= {found["id"]} if "id" in found else set()
        if tag == "img":
            self.alternatives.append(found.get("alt"))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._cell = True

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self._cell = False

    def handle_data(self, data):
        if self._cell:
            self.rows[-1][-1] = " ".join(f"{self.rows[-1][-1]} {data}".split())


def make(out, *runs):
    result = CliRunner().invoke(app, [*map(str, runs), "-o", str(out)])
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    make(folder, RUNS)
    return folder


@pytest.fixture(scope="module")
def page(out):
    return Page((out / "report.html").read_text())


def test_the_page_needs_nothing_outside_itself(out, page):
    assert page.sources
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    outside = {link for link in page.links if not link.startswith("#")}
    assert outside == {"https://arxiv.org/abs/2201.12667"}
    assert not {"script", "link", "iframe", "object", "video"} & set(page.tags)
    style = re.search(r"<style>(.*?)</style>", (out / "report.html").read_text(), re.DOTALL)
    assert not re.search(r"url\(|@import", style.group(1))


def test_links_within_the_page_lead_somewhere(page):
    inside = {link[1:] for link in page.links if link.startswith("#")}
    assert inside <= page.ids
    assert len([name for name in inside if name.startswith("run-")]) == 10


def test_images_are_whole_and_described_and_the_same_as_the_files(out, page):
    inlined = {base64.b64decode(source.split(",")[1]) for source in page.sources}
    files = {path.read_bytes() for path in (out / "figures").glob("*.png")}
    assert inlined == files
    for content in files:
        assert Image.open(io.BytesIO(content)).size[0] == 800
    assert all(page.alternatives)


def test_the_page_says_what_happened_to_each_run(page):
    rows = {row[-1]: row for row in page.rows if len(row) == 8}
    assert rows[SHARED][3] == "… incomplete"
    assert rows["made-up.horovod-sampled.1gbit-0.2ms.2.jsonl"][3:5] == [
        "✗ failed",
        "made up: rank 1 raised ValueError",
    ]
    assert rows["made-up.tf-sampled.local.1.jsonl"][3] == "✗ out of memory"
    assert rows[LSH][3] == "✓ ok"


def test_the_page_has_numbers_beside_their_run_files(page):
    row = next(row for row in page.rows if row[:2] == [OURS, "Horovod dense · 2 processes"])
    assert row[2:] == ["100", "1gbit,0.2ms", "1,000", "10", "-", f"{LSH}:5 {HOROVOD}:4"]
    missing = next(row for row in page.rows if row[:2] == [OURS, "Horovod sampled"])
    assert "Horovod sampled: failed" in missing[-2]


def test_an_unknown_method_is_shown_by_its_title(out, page):
    assert any(row[0] == "Random forest · 1 process" for row in page.rows if row)
    assert "Random forest · 1 process" in (out / "report.md").read_text()


def test_markdown_tables_are_rectangular_and_say_the_same_as_the_page(out, page):
    text = (out / "report.md").read_text()
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) >= 10
    rows = []
    for block in blocks:
        lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in block.splitlines()]
        assert len({len(line) for line in lines}) == 1
        assert all(re.fullmatch(r" (---|---:) ", mark) for mark in lines[1])
        cells = [[re.sub(r"\\(.)", r"\1", c.strip()) for c in line] for line in lines]
        rows += [cells[0], *cells[2:]]
    on_page = [[text.replace("; ", " ") for text in row] for row in page.rows]
    assert [[text.replace("; ", " ") for text in row] for row in rows] == on_page


def test_markdown_images_are_files_beside_it(out):
    names = re.findall(r"!\[[^\n]*\]\(([^)]+)\)", (out / "report.md").read_text())
    assert names
    assert all((out / name).is_file() for name in names)
    assert {Path(name).name for name in names} == {p.name for p in (out / "figures").iterdir()}


@pytest.mark.slow
def test_markdown_alone(out, tmp_path):
    result = CliRunner().invoke(app, [str(RUNS), "-o", str(tmp_path), "--markdown"])
    assert result.exit_code == 0, result.output
    text = (tmp_path / "report.md").read_text()
    whole = (out / "report.md").read_text()
    assert text + whole[whole.index("- All numbers:") :] == whole
    figures = {path.name for path in (out / "figures").iterdir()}
    assert {path.name for path in (tmp_path / "figures").iterdir()} == figures
    assert {path.name for path in tmp_path.iterdir()} == {"report.md", "figures"}


def test_csv_tables_hold_unrounded_numbers_with_their_sources(out):
    names = {path.stem for path in (out / "tables").glob("*.csv")}
    assert names == {
        "runs",
        "speed",
        "accuracy",
        "curves",
        "ranks",
        "speedups",
        "traffic",
        "time_to_accuracy",
        "same_time",
        "published",
    }
    with (out / "tables" / "traffic.csv").open() as file:
        row = next(row for row in csv.DictReader(file) if row["label"] == OURS)
    assert float(row["saved_percent"]) == pytest.approx(99.9)
    assert row["source"] == f"{LSH}:5; {HOROVOD}:4"
    with (out / "tables" / "curves.csv").open() as file:
        assert sum(1 for _ in csv.DictReader(file)) == 13


def test_headlines_begin_the_report(out):
    text = (out / "report.md").read_text()
    short = text[text.index("## In short") : text.index("## made-up")]
    assert (
        "D-SLIDE, shared LSH · 2 processes trains 200 times as many samples a second as "
        "Horovod dense · 2 processes (this run: incomplete)." in short
    )
    assert "sends 99.9200 % fewer bytes" in short
    assert "reached dense training's best P@1, 50.00 %, after 2 s; " in short
    assert "dense training took 50 s (2 epochs)." in short


def test_a_headline_says_if_no_run_reached_the_accuracy_of_dense_training(tmp_path):
    dense = (RUNS / DENSE).read_text().replace('"p1": 0.5', '"p1": 0.9')
    (tmp_path / "dense.jsonl").write_text(dense)
    make(tmp_path / "out", RUNS / LSH, tmp_path / "dense.jsonl")
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert {link[1:] for link in page.links if link.startswith("#")} <= page.ids
    text = (tmp_path / "out" / "report.md").read_text()
    assert "- No D-SLIDE run reached dense training's best P@1, 90.00 %; dense" in text


def test_a_run_without_accuracy_makes_no_headline(tmp_path):
    (tmp_path / "ours.jsonl").write_text((RUNS / LSH).read_text().splitlines()[0])
    make(tmp_path / "out", tmp_path / "ours.jsonl", RUNS / DENSE)
    text = (tmp_path / "out" / "report.md").read_text()
    assert "These runs hold no two that can be compared on equal terms." in text


def test_two_reports_of_the_same_runs_are_the_same(out, tmp_path):
    make(tmp_path, RUNS)
    for path in sorted(out.rglob("*.*")):
        assert path.read_bytes() == (tmp_path / path.relative_to(out)).read_bytes(), path.name


@pytest.mark.parametrize(
    "name",
    [
        name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.slow)
        for number, name in enumerate(sorted(path.name for path in RUNS.glob("*.jsonl")))
    ],
)
def test_any_single_run_gives_a_report(name, tmp_path):
    make(tmp_path, RUNS / name)
    page = Page((tmp_path / "report.html").read_text())
    assert any(row[-1] == name for row in page.rows)


def test_text_from_run_files_is_not_markup(tmp_path):
    copied(LSH, tmp_path / "a.jsonl", title="x", method="<script>alert(1)</script>|*b*")
    make(tmp_path / "out", tmp_path / "a.jsonl")
    assert "script" not in Page((tmp_path / "out" / "report.html").read_text()).tags
    copied(LSH, tmp_path / "b.jsonl", {"data": {"name": "a|b<i>"}})
    make(tmp_path / "out", tmp_path / "b.jsonl")
    assert "i" not in Page((tmp_path / "out" / "report.html").read_text()).tags
    assert "## a\\|b\\<i\\>" in (tmp_path / "out" / "report.md").read_text()


def test_data_sets_of_one_name_have_sections_and_figures_of_their_own(tmp_path):
    copied(LSH, tmp_path / "a.jsonl")
    copied(LSH, tmp_path / "b.jsonl", {"data": {"num_train": 2000}})
    copied(LSH, tmp_path / "c.jsonl", {"data": {"name": "made-up-1-000 samples"}})
    make(tmp_path / "out", tmp_path)
    page = Page((tmp_path / "out" / "report.html").read_text())
    assert {"made-up-1-000-samples", "made-up-2-000-samples", "made-up-1-000-samples-2"} <= page.ids
    assert len(list((tmp_path / "out" / "figures").glob("*.accuracy.png"))) == 3


def test_a_gpu_has_a_column_in_the_page_only_if_there_is_one(page, tmp_path):
    assert not any("GPU" in row for row in page.rows)
    copied(DENSE, tmp_path / "gpu.jsonl", environment={"gpu": "made-up GPU"})
    make(tmp_path / "out", RUNS / LSH, tmp_path / "gpu.jsonl")
    rows = Page((tmp_path / "out" / "report.html").read_text()).rows
    assert sum("GPU" in row for row in rows) == 2  # of the speed and of all runs
    assert any("made-up GPU" in row for row in rows)


def test_published_figures_stand_beside_measured_ones_of_their_kind(tmp_path):
    table = beside_table(read_runs([RUNS])[0])
    assert set(table["published"]) == {published.figure for published in PUBLISHED}
    speed = table[table["claim"] == "D-SLIDE over Horovod"]
    assert list(speed["measured"]) == ["100 times as fast", "200 times as fast"]
    assert speed["source"].iloc[0] == f"{LSH}:5; {HOROVOD}:4"
    assert speed["differs"].iloc[0].startswith("1 thread a process, not 16 cores a node; ")
    epoch = table[table["claim"].str.startswith("Seconds an epoch")].iloc[0]
    assert epoch["measured"] == "not measured"
    assert epoch["differs"] == "no pair of a D-SLIDE and a dense Horovod run with 8 processes"
    size = table[table["claim"] == "Largest network trained"].iloc[0]
    assert size["measured"].startswith("0.0049 million parameters, at most ")


def test_a_gpu_figure_is_compared_with_runs_on_that_gpu_alone(tmp_path):
    data = {"data": {"name": "text8"}}
    copied(LSH, tmp_path / "ours.jsonl", data)
    copied(DENSE, tmp_path / "gpu.jsonl", data, environment={"gpu": "made-up A100"})
    table = beside_table(read_runs([tmp_path])[0]).set_index("claim")
    assert table.loc["Text8, over one A100", "measured"] == (
        "50 times as fast as TensorFlow dense on made-up A100"
    )
    assert table.loc["Text8, over one V100", "measured"] == "not measured"
    assert table.loc["Amazon-670K, over one A100", "measured"] == "not measured"


def test_methods_look_different_and_the_same_in_every_figure():
    records = read_runs([RUNS])[0]
    style = looks(records)
    assert len({(look.colour, look.marker) for look in style.values()}) == len(style)
    assert len({(look.colour, look.hatch) for look in style.values()}) == len(style)
    # Those that are usually beside each other differ in each respect.
    usual = [style[method] for method in list(TITLES)[:10]]
    for alike in zip(*usual, strict=True):
        assert len(set(alike)) == len(usual)
    assert looks(records[:1])["tf-dense"] == style["tf-dense"]


def test_figures_say_in_words_what_they_show_or_lack():
    records = read_runs([RUNS])[0]
    ours = [record for record in records if record.file in (LSH, HOROVOD)]
    drawn = {figure.name: figure for figure in draw(ours, records)}
    assert drawn["accuracy"].text.startswith(f"{OURS}: 60.0 % after 4 s")
    assert f"{OURS}: 100 bytes" in drawn["bytes"].text
    assert f"{OURS}: computing 80 ms, waiting 20 ms" in drawn["time_split"].text
    assert drawn["scaling"].png == b""
    assert drawn["scaling"].text == "No method was measured with different numbers of processes."
    failed = [record for record in records if record.status in ("failed", "out of memory")]
    drawn = {figure.name: figure for figure in draw(failed, records)}
    assert {figure.png for figure in drawn.values()} == {b""}
    assert "Horovod sampled · 2 processes: failed" in drawn["epoch_time"].text


def test_scaling_is_drawn_from_runs_with_different_numbers_of_processes(tmp_path):
    copied(LSH, tmp_path / "two.jsonl")
    text = (
        (RUNS / LSH)
        .read_text()
        .replace('"samples_per_second": 1000.0', '"samples_per_second": 1800.0')
    )
    (tmp_path / "four.jsonl").write_text(text.replace('"ranks": 2,', '"ranks": 4,'))
    records = read_runs([tmp_path])[0]
    drawn = {figure.name: figure for figure in draw(records, records)}
    assert drawn["scaling"].text == "D-SLIDE, LSH per sample: 1,000 with 2, 1,800 with 4"
    assert drawn["scaling"].png


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("seconds", 0.0000123, "12.3 µs"),
        ("seconds", 0.052, "52 ms"),
        ("seconds", 31.25, "31.2 s"),
        ("seconds", 11444.0, "11,444 s"),
        ("bytes_per_step", 0, "0 bytes"),
        ("bytes_per_step", 415_000_000, "415 MB"),
        ("peak_mb", 2300.0, "2.3 GB"),
        ("best_p1", 0.3149, "31.49 %"),
        ("saved_percent", 99.9512, "99.9512 %"),
        ("points", 0.5, "+0.50"),
        ("speedup", 0.75, "0.75"),
        ("started", "2026-11-30T06:00:00+00:00", "2026-11-30 06:00"),
        ("samples_per_second", float("nan"), "-"),
    ],
)
def test_numbers_are_written_for_people(column, value, text):
    assert cell(column, value).text == text


def test_no_run_is_an_error_of_one_line_and_exit_code_1(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    result = CliRunner().invoke(app, [str(tmp_path), "-o", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "reports: notes.jsonl: not a run file" in result.stderr
    assert "no run in these files and folders; nothing to report" in result.stderr
    assert not (tmp_path / "out").exists()


def test_foreign_files_are_named_on_stderr_and_in_the_report(tmp_path):
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "run.jsonl").write_text((RUNS / LSH).read_text())
    result = make(tmp_path / "out", tmp_path)
    assert "reports: notes.jsonl: not a run file" in result.stderr
    for name in ("report.html", "report.md"):
        text = (tmp_path / "out" / name).read_text()
        assert "Not everything could be read" in text
        assert "notes.jsonl" in text


def test_mistakes_in_the_options_have_exit_code_2(tmp_path):
    assert CliRunner().invoke(app, [str(RUNS)]).exit_code == 2
    assert CliRunner().invoke(app, ["-o", str(tmp_path)]).exit_code == 2


def test_a_folder_that_cannot_be_written_is_an_error_and_exit_code_1(tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, [str(RUNS / LSH), "-o", str(tmp_path / "file" / "out")])
    assert result.exit_code == 1
    assert "cannot write to" in result.stderr


def test_help_needs_neither_pandas_nor_matplotlib():
    code = (
        "import sys, runpy; sys.argv = ['reports', '--help']\n"
        "try: runpy.run_module('reports', run_name='__main__')\n"
        "except SystemExit: print('loaded', {'pandas', 'matplotlib', 'numpy'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert "--out" in result.stdout
    assert "loaded set()" in result.stdout
