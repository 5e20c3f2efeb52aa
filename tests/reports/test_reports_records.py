"""The run record: what is written is read back, bad events are refused, damage is survived."""

import dataclasses
import json
import re
import string
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reports_cases import LSH, RUNS, SHARED, run_values

from reports.records import RecordError, RunWriter, append_end, read_run, read_runs
from reports.schema import EVENTS, Data, Model, RankFigures, as_json, schema_of


def write_whole(path):
    with RunWriter(path) as writer:
        writer.run(**run_values())
        writer.measure(epoch=1, step=10, samples=1000, train_seconds=1.5, loss=2.0, p1=0.25)
        writer.steps(steps=10, median_step_seconds=0.1, ranks=[{"rank": 0, "peak_mb": 20.0}])
        writer.end("ok", seconds=2.0)


def test_what_is_written_is_read_back(tmp_path):
    write_whole(tmp_path / "a.jsonl")
    record = read_run(tmp_path / "a.jsonl")
    assert record.status == "ok"
    assert record.notices == ()
    assert record.run.model.units == 500
    assert record.run.settings["decay"] is None
    assert len(record.run.run_id) == 32
    assert record.run.time.endswith("+00:00")
    (measure,) = record.measures
    assert (measure.train_seconds, measure.p1, measure.p3, measure.line) == (1.5, 0.25, None, 2)
    assert record.steps.ranks[0].peak_mb == 20.0
    assert record.steps.ranks[0].host is None
    assert (record.end.seconds, record.end.line) == (2.0, 4)


def test_every_line_is_a_json_object_with_its_event_and_the_first_has_the_schema(tmp_path):
    write_whole(tmp_path / "a.jsonl")
    events = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["run", "measure", "steps", "end"]
    assert events[0]["schema"] == 1
    assert "line" not in events[1]


def test_each_event_is_in_the_file_before_the_next(tmp_path):
    with RunWriter(tmp_path / "sub" / "a.jsonl") as writer:
        writer.run(**run_values())
        assert read_run(writer.path).status == "incomplete"
        writer.measure(step=1, samples=100, train_seconds=0.1)
        assert len(read_run(writer.path).measures) == 1


def test_numpy_numbers_are_written_as_numbers(tmp_path):
    with RunWriter(tmp_path / "a.jsonl") as writer:
        writer.run(**run_values(seed=np.int64(3), settings={"rate": np.float32(0.5)}))
        writer.measure(step=np.int32(1), samples=100, train_seconds=np.float64(1), p1=np.float32(1))
    record = read_run(tmp_path / "a.jsonl")
    assert record.run.seed == 3
    assert record.run.settings == {"rate": 0.5}
    assert record.measures[0].p1 == 1.0


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_diverged_becomes_null(tmp_path, loss):
    with RunWriter(tmp_path / "a.jsonl") as writer:
        writer.run(**run_values())
        writer.measure(step=1, samples=100, train_seconds=0.1, loss=loss)
    assert read_run(tmp_path / "a.jsonl").measures[0].loss is None


BAD_RUNS = [
    ({"ranks": "2"}, r"run\.ranks: expected a whole number, received str '2'"),
    ({"ranks": 0}, r"run\.ranks: expected at least 1, received 0"),
    ({"ranks": True}, r"run\.ranks: expected a whole number, received bool True"),
    ({"hosts": "host0"}, r"run\.hosts: expected a list, received str 'host0'"),
    ({"hosts": [1]}, r"run\.hosts\[0\]: expected a text, received int 1"),
    ({"model": {"hidden": 8}}, r"run\.model: missing 'units'; received 'hidden'"),
    ({"model": 5}, r"run\.model: expected an object, received int 5"),
    ({"data": {**run_values()["data"], "rows": 1}}, r"run\.data: unknown 'rows'; known are 'name'"),
    ({"settings": {"sizes": [1, 2]}}, r"run\.settings\.sizes: expected a text, a number"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_RUNS)
def test_a_run_that_does_not_fit_is_refused_by_field_and_value(tmp_path, changes, message):
    with RunWriter(tmp_path / "a.jsonl") as writer, pytest.raises(RecordError, match=message):
        writer.run(**run_values(**changes))
    assert (tmp_path / "a.jsonl").read_text() == ""


def test_bad_measures_steps_and_ends_are_refused(tmp_path):
    with RunWriter(tmp_path / "a.jsonl") as writer:
        writer.run(**run_values())
        with pytest.raises(RecordError, match=r"measure\.p1: expected 0 to 1, received 31"):
            writer.measure(step=1, samples=1, train_seconds=1, p1=31)
        with pytest.raises(RecordError, match=r"measure\.train_seconds: expected a finite number"):
            writer.measure(step=1, samples=1, train_seconds=float("inf"))
        with pytest.raises(RecordError, match=r"steps\.ranks\[0\]\.bytes_source: 'guess' is none"):
            writer.steps(ranks=[{"rank": 0, "bytes_source": "guess"}])
        with pytest.raises(RecordError, match=r"end\.status: 'fine' is none of 'ok', 'failed'"):
            writer.end("fine")
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1


def test_events_out_of_order_are_refused(tmp_path):
    with RunWriter(tmp_path / "a.jsonl") as writer:
        with pytest.raises(RecordError, match="measure: out of order; the event run comes first"):
            writer.measure(step=1, samples=1, train_seconds=1)
        writer.run(**run_values())
        with pytest.raises(RecordError, match="the event run comes once"):
            writer.run(**run_values())
        writer.steps()
        with pytest.raises(RecordError, match="steps is written already"):
            writer.steps()
        writer.end("ok")
        with pytest.raises(RecordError, match="end is written already"):
            writer.measure(step=1, samples=1, train_seconds=1)


def test_an_exception_leaves_no_end_and_append_end_adds_it_once(tmp_path):
    path = tmp_path / "a.jsonl"
    with pytest.raises(KeyError), RunWriter(path) as writer:
        writer.run(**run_values())
        raise KeyError
    assert read_run(path).end is None
    assert append_end(path, "failed", "KeyError", 1.0)
    assert not append_end(path, "ok")
    assert read_run(path).end.message == "KeyError"


def test_append_end_starts_a_new_line_after_a_line_that_was_cut(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text((RUNS / SHARED).read_text())
    assert append_end(path, "timed out", "after 5 s")
    record = read_run(path)
    assert record.status == "timed out"
    assert record.notices == ("line 4: not JSON; left out",)


def test_append_end_refuses_other_files_and_other_statuses(tmp_path):
    (tmp_path / "a.jsonl").write_text("hello\n")
    with pytest.raises(RecordError, match="not a run file"):
        append_end(tmp_path / "a.jsonl", "failed")
    with pytest.raises(RecordError, match="cannot be read: No such file"):
        append_end(tmp_path / "b.jsonl", "failed")
    (tmp_path / "c.jsonl").write_text((RUNS / SHARED).read_text())
    with pytest.raises(RecordError, match=r"end\.status: 'dead'"):
        append_end(tmp_path / "c.jsonl", "dead")


@given(length=st.integers(0, len((RUNS / LSH).read_bytes())))
def test_a_file_cut_anywhere_is_read_as_far_as_it_goes(length, tmp_path_factory):
    whole = (RUNS / LSH).read_bytes()
    path = tmp_path_factory.mktemp("cut") / "a.jsonl"
    path.write_bytes(whole[:length])
    first = whole.index(b"\n")
    if length < first:
        with pytest.raises(RecordError, match="the file is empty|not a run file"):
            read_run(path)
        return
    record = read_run(path)
    # An event counts once its closing brace is there, with or without the end of its line.
    complete = sum(length >= place for place in places_of_line_ends(whole))
    assert len(record.measures) == min(complete - 1, 3)
    assert (record.steps is not None) == (complete >= 5)
    assert record.status == ("ok" if complete == 6 else "incomplete")
    in_line = length not in {0, *places_of_line_ends(whole)} and whole[length - 1 : length] != b"\n"
    assert record.notices == ((f"line {complete + 1}: cut short",) if in_line else ())


def places_of_line_ends(content):
    return [match.start() for match in re.finditer(rb"\n", content)]


@given(lines=st.lists(st.text(string.printable, max_size=30), max_size=6))
def test_any_lines_after_the_first_are_notices_and_no_crash(lines, tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "a.jsonl"
    first = (RUNS / LSH).read_text().splitlines()[0]
    path.write_text("\n".join([first, *lines]))
    record = read_run(path)
    assert record.status == "incomplete"
    assert all(re.match(r"line \d+: ", notice) for notice in record.notices)


def test_lines_that_do_not_fit_are_left_out_with_a_notice(tmp_path):
    path = tmp_path / "a.jsonl"
    lines = (RUNS / LSH).read_text().splitlines()
    lines[1:2] = ["[1]", '{"event": "measure", "step": "one"}', '{"event": "weather"}']
    lines += [lines[-1], '{"event": "run"}']
    path.write_text("\n".join(lines))
    record = read_run(path)
    assert [notice.split(":")[0] for notice in record.notices] == [
        "line 2",
        "line 3",
        "line 4",
        "line 9",
        "line 10",
    ]
    assert "measure: missing 'samples', 'train_seconds'" in record.notices[1]
    assert "a second event end" in record.notices[3]
    assert [measure.line for measure in record.measures] == [5, 6]


def test_keys_of_a_later_version_are_left_out_and_a_later_schema_is_refused(tmp_path):
    first = json.loads((RUNS / LSH).read_text().splitlines()[0])
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(first | {"weather": "rain"}))
    assert read_run(path).run.method == "dslide-lsh"
    path.write_text(json.dumps(first | {"schema": 2}))
    with pytest.raises(RecordError, match="schema 2; this program reads schema 1 only"):
        read_run(path)


def test_files_are_found_in_folders_and_named_from_the_folder_that_they_share(tmp_path):
    for name in ("one/x.jsonl", "two/deep/x.jsonl", "two/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((RUNS / LSH).read_text())
    records, problems = read_runs([tmp_path, tmp_path / "one" / "x.jsonl"])
    assert [record.file for record in records] == ["one/x.jsonl", "two/deep/x.jsonl"]
    assert problems == []


def test_what_cannot_be_read_is_a_problem_with_its_file(tmp_path):
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "foreign.jsonl").write_bytes(b"\xff\xfe{}\n")
    (tmp_path / "good.jsonl").write_text((RUNS / LSH).read_text())
    (tmp_path / "none").mkdir()
    records, problems = read_runs([tmp_path, tmp_path / "missing", tmp_path / "none"])
    assert [record.file for record in records] == ["good.jsonl"]
    found = {Path(file).name: message for file, message in problems}
    assert found["empty.jsonl"] == "the file is empty"
    assert found["foreign.jsonl"].startswith("not a run file")
    assert found["missing"] == "no such file or folder"
    assert found["none"] == "no *.jsonl file in this folder"


def test_training_processes_do_not_import_pandas_or_matplotlib():
    code = "import sys, reports.records; print(sorted(sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    assert not {"pandas", "matplotlib", "numpy", "jinja2"} & set(eval(result.stdout))


def test_readme_documents_every_field_with_its_type_and_unit():
    readme = (RUNS.parents[2] / "reports" / "README.md").read_text()
    rows = dict(re.findall(r"^\| `([\w.\[\]]+)` \| ([^\n]+)$", readme, flags=re.MULTILINE))
    for event, shape in EVENTS.items():
        for name, (kind, about, _) in schema_of(shape).items():
            row = rows[f"{event}.{name}"]
            assert about.unit in row, f"{event}.{name}"
            assert ("null" in row) == ("None" in str(kind) and "dict" not in str(kind)), name
    for prefix, part in (
        ("run.model", Model),
        ("run.data", Data),
        ("steps.ranks[]", RankFigures),
    ):
        for field in schema_of(part):
            assert f"{prefix}.{field}" in rows


def test_the_example_of_readme_is_a_run_file(tmp_path):
    readme = (RUNS.parents[2] / "reports" / "README.md").read_text()
    (example,) = re.findall(r"```jsonl\n(.*?)```", readme, flags=re.DOTALL)
    (tmp_path / "a.jsonl").write_text(example)
    record = read_run(tmp_path / "a.jsonl")
    assert record.notices == ()
    assert record.status == "ok"
    assert record.steps is not None
    assert record.measures


def test_as_json_gives_back_what_was_read():
    first = json.loads((RUNS / LSH).read_text().splitlines()[0])
    run = read_run(RUNS / LSH).run
    assert {"event": "run", **as_json(run)} == first
    assert dataclasses.replace(run, line=7).line == 7
