"""The XMC-repository formats: what is legal, what an error says, and round trips."""

import gzip
import io
import pickle
import re

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import sparse

from tf_dslide.data import (
    DataFormatError,
    Dataset,
    _lines,
    read_names,
    read_split,
    read_xmc,
    read_xmc_pair,
    write_xmc,
    xmc,
)


@pytest.fixture
def file(tmp_path):
    """Write bytes or text to a file and return its path."""

    def write(content, name="data.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("xmc") / "data.txt"


def rows_of(data):
    """The data as Python lists: a list of labels and a dictionary of features for each row."""
    labels, features = data.labels, data.features
    return [
        (
            labels.indices[labels.indptr[i] : labels.indptr[i + 1]].tolist(),
            {
                int(features.indices[k]): float(features.data[k])
                for k in range(features.indptr[i], features.indptr[i + 1])
            },
        )
        for i in range(data.num_samples)
    ]


# Legal lines, each with what it means; D = 6, L = 5.
LEGAL = {
    "ordinary": ("1,3 0:0.5 4:2", ([1, 3], {0: 0.5, 4: 2})),
    "no labels, leading space": (" 0:0.5 4:2", ([], {0: 0.5, 4: 2})),
    "no labels, no space": ("0:0.5 4:2", ([], {0: 0.5, 4: 2})),
    "no features": ("3,4", ([3, 4], {})),
    "no features, trailing space": ("3,4 ", ([3, 4], {})),
    "neither": ("", ([], {})),
    "neither, spaces": ("  ", ([], {})),
    "comment after the row": ("1 0:1 # a remark: 7:7", ([1], {0: 1})),
    "comment at once": ("1 0:1#8", ([1], {0: 1})),
    "trailing spaces": ("1 0:1 \t ", ([1], {0: 1})),
    "tabs": ("1\t0:1\t2:3", ([1], {0: 1, 2: 3})),
    "unsorted features": ("1 4:2 0:0.5", ([1], {0: 0.5, 4: 2})),
    "repeated features add up": ("1 4:2 0:0.5 4:1", ([1], {0: 0.5, 4: 3})),
    "duplicate labels": ("3,1,3 0:1", ([1, 3], {0: 1})),
    "Windows line end": ("1 0:1\r", ([1], {0: 1})),
    "Windows line end, blank": ("\r", ([], {})),
    "exponents and signs": ("1 0:-1e-3 +2:+5E1", ([1], {0: np.float32(-1e-3), 2: 50})),
    "integral label with a point": ("1.0 0:1", ([1], {0: 1})),
    "explicit zero": ("1 0:0", ([1], {0: 0})),
}


@pytest.mark.parametrize("case", LEGAL)
@pytest.mark.parametrize("header", [True, False])
@pytest.mark.parametrize("position", ["first", "last"])
def test_legal_line(file, case, header, position):
    line, row = LEGAL[case]
    other = ("2 5:1", ([2], {5: 1}))
    lines = [(line, row), other] if position == "first" else [other, (line, row)]
    text = "2 6 5\n" * header + "".join(text + "\n" for text, _ in lines)
    sizes = {} if header else {"num_features": 6, "num_labels": 5}
    data = read_xmc(file(text), **sizes)
    assert rows_of(data) == [expected for _, expected in lines]
    assert data.features.shape == (2, 6)
    assert data.labels.shape == (2, 5)


def test_all_legal_lines_together_and_lines_of_comments(file):
    body = "# before the header\n19 6 5 # sizes\n"
    for line, _ in LEGAL.values():
        body += "# not a row\n" + line + "\n  # nor this\n"
    assert len(LEGAL) == 19
    assert rows_of(read_xmc(file(body))) == [row for _, row in LEGAL.values()]


def test_last_line_without_an_end(file):
    assert rows_of(read_xmc(file("1 6 5\n1 0:1"))) == [([1], {0: 1})]


def test_blank_lines_after_the_announced_rows_are_ignored(file):
    assert read_xmc(file("1 6 5\n1 0:1\n\n \n")).num_samples == 1


def test_without_header_a_blank_line_is_a_row(file):
    data = read_xmc(file("\n1 0:1\n\n"), num_features=6, num_labels=5)
    assert rows_of(data) == [([], {}), ([1], {0: 1}), ([], {})]


def test_no_rows_announced(file):
    data = read_xmc(file("0 6 5\n"))
    assert (data.num_samples, data.num_features, data.num_labels) == (0, 6, 5)


def test_no_columns_announced(file):
    data = read_xmc(file("2 0 0\n\n\n"))
    assert (data.num_samples, data.num_features, data.num_labels) == (2, 0, 0)


@pytest.mark.parametrize("name", ["data.txt", "data.gz"])
def test_gzip_is_known_by_content(file, name):
    text = b"1 6 5\n1 0:1\n"
    assert rows_of(read_xmc(file(gzip.compress(text), name))) == [([1], {0: 1})]
    assert rows_of(read_xmc(file(text, name))) == [([1], {0: 1})]


def test_gzip_of_several_members(file):
    parts = gzip.compress(b"2 6 5\n1 0:1\n") + gzip.compress(b"2 1:1\n")
    assert rows_of(read_xmc(file(parts))) == [([1], {0: 1}), ([2], {1: 1})]


def test_header_may_be_given_too(file):
    path = file("1 6 5\n1 0:1\n")
    assert read_xmc(path, num_features=6, num_labels=5).num_features == 6
    assert read_xmc(path, num_labels=5).num_labels == 5


def test_name_and_label_names(file):
    path = file("1 6 2\n1 0:1\n", "pets.train.txt.gz")
    names = file("p1\tcat\np2\tdog\n", "names.txt")
    assert read_xmc(path).name == "pets.train"
    assert read_xmc(path).label_names is None
    assert read_xmc(path, label_names=["cat", "dog"]).label_names == ("cat", "dog")
    assert read_xmc(path, label_names=names).label_names == ("cat", "dog")
    assert read_xmc(path, label_names=str(names)).label_names == ("cat", "dog")


# Malformed rows, each with what the message must say of it; D = 6, L = 5.
MALFORMED = {
    "feature too large": ("1 6:1", "feature 6 in '6:1'", "0 <= index < 6"),
    "feature huge": ("1 99999999999999999999:1", "feature 99999999999999999999", "0 <= index < 6"),
    "feature negative": ("1 -1:1", "feature -1 in '-1:1'", "0 <= index < 6"),
    "label too large": ("5 0:1", "label '5'", "0 <= index < 5"),
    "label negative": ("1,-2 0:1", "label '-2'", "0 <= index < 5"),
    "label fractional": ("1.5 0:1", "label '1.5'", "an integer"),
    "label NaN": ("nan 0:1", "label 'nan'", "an integer"),
    "label infinite": ("1e999 0:1", "label '1e999'", "0 <= index < 5"),
    "label empty": ("1,,2 0:1", "label ''", "an integer"),
    "label with underscore": ("0_1 0:1", "label '0_1'", "an integer"),
    "label text": ("cat 0:1", "label 'cat'", "an integer"),
    "space between labels": ("1, 2 0:1", "label ''", "an integer"),
    "labels twice": ("1 2 0:1", "'2'", "feature:value"),
    "no value": ("1 0:", "'0:'", "feature:value"),
    "no index": ("1 :1", "':1'", "feature:value"),
    "two colons": ("1 0:1:2", "'0:1:2'", "feature:value"),
    "fractional index": ("1 0.0:1", "'0.0:1'", "feature:value"),
    "underscore in index": ("1 0_1:1", "'0_1:1'", "feature:value"),
    "text value": ("1 0:abc", "'0:abc'", "feature:value"),
    "query id": ("1 qid:3 0:1", "'qid:3'", "feature:value"),
    "NaN": ("1 0:nan", "value 'nan' of feature 0", "a finite float32"),
    "infinity": ("1 0:-inf", "value '-inf' of feature 0", "a finite float32"),
    "beyond float32": ("1 0:1e39", "value '1e39' of feature 0", "a finite float32"),
    "long junk": ("1 " + "x" * 500, "'" + "x" * 60 + "...'", "feature:value"),
    "not text": (b"1 \xff\xfe:1", "\ufffd", "feature:value"),
}


@pytest.mark.parametrize("case", MALFORMED)
@pytest.mark.parametrize("header", [True, False])
# With a remark nearby the slow reader has the block anyway; without, the fast one must give it up.
@pytest.mark.parametrize("neighbour", [b"1 0:1", b"# remark", b""])
def test_malformed_line(file, case, header, neighbour):
    line, found, expected = MALFORMED[case]
    line = line if isinstance(line, bytes) else line.encode()
    body = b"1 0:1\n" + neighbour + b"\n" + line + b"\n2 1:1\n"
    num_rows = 3 if neighbour.startswith(b"#") else 4
    path = file((b"%d 6 5\n" % num_rows if header else b"") + body)
    sizes = {} if header else {"num_features": 6, "num_labels": 5}
    with pytest.raises(DataFormatError) as caught:
        read_xmc(path, **sizes)
    error = caught.value
    assert error.path == str(path)
    assert error.line == 3 + header
    assert found in error.found
    assert expected in error.expected
    assert (
        str(error) == f"{path}, line {error.line}: found {error.found}, expected {error.expected}"
    )


def test_line_number_in_a_later_block(file, monkeypatch):
    monkeypatch.setattr(xmc, "_LINES_PER_BLOCK", 7)
    lines = ["1 0:1"] * 40
    lines[33] = "1 0:x"
    with pytest.raises(DataFormatError, match="line 35: found '0:x'"):
        read_xmc(file("40 6 5\n" + "\n".join(lines)))


@pytest.mark.parametrize("block", [1, 3, 100])
def test_blocks_join_in_order(file, monkeypatch, block):
    monkeypatch.setattr(xmc, "_LINES_PER_BLOCK", block)
    text = "10 6 10\n" + "".join(f"{i} {i % 6}:{i + 1}\n" for i in range(10)) + "\n\n"
    assert rows_of(read_xmc(file(text))) == [([i], {i % 6: i + 1}) for i in range(10)]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "found an empty file"),
        ("# only a remark\n", 1, "found an empty file"),
        ("1 0:1\n", 1, "found '1 0:1', expected a header 'N D L'"),
        ("3 6\n1 0:1\n", 1, "found '3 6', expected a header 'N D L'"),
        ("-1 6 5\n", 1, "found -1 in the header"),
        ("1 3000000000 5\n", 1, "found 3000000000 in the header"),
        ("3 6 5\n1 0:1\n2 0:1\n", 3, "end of the file after 2 rows, expected 3 rows"),
        ("1 6 5\n1 0:1\n\n2 0:1\n", 4, "found one more row, expected no more rows than the header"),
        ("0 6 5\n1 0:1\n", 2, "found one more row"),
    ],
)
def test_header_and_body(file, text, line, message):
    with pytest.raises(DataFormatError, match=re.escape(message)) as caught:
        read_xmc(file(text))
    assert caught.value.line == line


@pytest.mark.parametrize("sizes", [{"num_features": 6}, {"num_labels": 5}])
def test_one_size_does_not_replace_the_header(file, sizes):
    with pytest.raises(DataFormatError, match="`num_features=` and `num_labels=`"):
        read_xmc(file("1 0:1\n"), **sizes)


def test_header_disagrees_with_the_sizes_given(file):
    with pytest.raises(
        DataFormatError, match="line 1: found num_labels 5 in the header, expected 9"
    ):
        read_xmc(file("1 6 5\n1 0:1\n"), num_labels=9)


def test_sizes_given_must_make_sense(file):
    with pytest.raises(ValueError, match="num_features is -1"):
        read_xmc(file("1 0:1\n"), num_features=-1, num_labels=5)


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_truncated_gzip(file, kept):
    text = "2000 6 5\n" + "".join(f"1 0:0.{i}\n" for i in range(2000))
    whole = gzip.compress(text.encode())
    with pytest.raises(DataFormatError, match=r"damaged gzip data .* expected a complete gzip"):
        read_xmc(file(whole[: int(len(whole) * kept)]))


def test_corrupt_gzip(file):
    whole = bytearray(gzip.compress(b"1 6 5\n1 0:1\n"))
    whole[-6] ^= 1  # in the checksum
    with pytest.raises(DataFormatError, match="damaged gzip data"):
        read_xmc(file(bytes(whole)))


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        read_xmc(tmp_path / "nowhere.txt")


def test_the_error_survives_pickling():
    error = DataFormatError("f", 3, "a", "b")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.line) == (str(error), 3)


BAD_NUMBERS = st.sampled_from(["12", "-1", "1.5", "1,", ",", "0_1", "1:", ":1", "0x1:1", "1:0x1"])
ODD_TOKENS = BAD_NUMBERS | st.sampled_from(
    ["12:1", "-1:2", "4:1e39", "4:nan", "1:2:3", "1,2:3", "1e0:1", "0_1:1", "2:1_0", "qid:1", "#"]
)
TARGETS = st.sampled_from(["", "1", "1,2", "3,1,3", "2.", "1e0", "+4", "-0", "\t", "11"])
FEATURES = st.sampled_from(["", "0:1", "+1:1", "3:-1e-3", "7:.5", "11:2.", "\t", "4:0", "\r"])
PLAIN = st.tuples(TARGETS, st.lists(FEATURES, max_size=4).map(lambda f: " ".join(sorted(f))))
LINE = PLAIN.map(" ".join) | PLAIN.map(" ".join) | st.lists(ODD_TOKENS | FEATURES).map(" ".join)
LINES = st.lists(LINE, max_size=4).map("\n".join)


@given(LINES.map(str.encode) | st.binary(max_size=60))
@example(b"1,2 0:1\n\n3 0:1 0:2\n")
@settings(max_examples=400)
def test_the_fast_reader_never_disagrees_with_the_slow(text):
    limits = _lines.Limits("f", num_features=12, num_labels=12)
    lines = io.BytesIO(text).readlines()
    fast = _lines._parse_fast(lines, limits)
    if fast is not None:
        slow = _lines._parse_slow(lines, 1, None, limits)
        for field in ("feature_counts", "feature_ids", "values", "label_counts"):
            np.testing.assert_array_equal(getattr(fast, field), getattr(slow, field))
        # scikit-learn sorts the labels of a row.
        rows = np.repeat(np.arange(len(slow)), slow.label_counts)
        order = np.lexsort((slow.label_ids, rows))
        np.testing.assert_array_equal(fast.label_ids, slow.label_ids[order])


def test_plain_lines_take_the_fast_reader():
    limits = _lines.Limits("f", num_features=12, num_labels=12)
    assert _lines._parse_fast([b"1,2 0:1 3:0.5\n", b" 4:1e-3\r\n", b"7\n"], limits) is not None


ROWS = st.lists(
    st.tuples(
        st.lists(st.integers(0, 6), max_size=4),
        st.dictionaries(
            st.integers(0, 8),
            st.floats(width=32, allow_nan=False, allow_infinity=False),
            max_size=5,
        ),
        st.sampled_from(["", " ", "\t ", " # note 3:4", "\r"]),
        st.randoms(use_true_random=False),
    ),
    max_size=12,
)


@given(ROWS)
def test_reads_what_the_rows_say(scratch, rows):
    text = f"{len(rows)} 9 7\n"
    for labels, features, ending, shuffler in rows:
        items = list(features.items())
        shuffler.shuffle(items)
        tokens = [f"{index}:{value!r}" for index, value in items]
        if not labels and not items and ending.endswith("4"):
            ending = ""  # a remark alone would not be a row
        text += ",".join(map(str, labels)) + " " + " ".join(tokens) + ending + "\n"
    scratch.write_text(text, newline="")
    expected = [(sorted(set(labels)), features) for labels, features, _, _ in rows]
    assert rows_of(read_xmc(scratch)) == expected


def dataset_of(rows, width=9, num_labels=7):
    features = sparse.lil_matrix((len(rows), width), dtype=np.float32)
    labels = sparse.lil_matrix((len(rows), num_labels), dtype=np.float32)
    for i, (ids, values, *_) in enumerate(rows):
        labels[i, sorted(set(ids))] = 1
        for index, value in values.items():
            features[i, index] = value
    return Dataset(features, labels)


@given(ROWS, st.booleans())
def test_round_trip(scratch, rows, zipped):
    path = scratch.with_suffix(".gz" if zipped else ".txt")
    data = dataset_of(rows)
    write_xmc(path, data)
    back = read_xmc(path)
    assert (back.num_samples, back.num_features, back.num_labels) == (len(rows), 9, 7)
    assert rows_of(back) == rows_of(data)


@pytest.mark.parametrize(("width", "num_labels"), [(0, 7), (9, 0), (0, 0)])
def test_round_trip_without_columns(scratch, width, num_labels):
    rows = [([2] if num_labels else [], {3: 1.5} if width else {})] * 2
    write_xmc(scratch, dataset_of(rows, width, num_labels))
    back = read_xmc(scratch)
    assert (back.num_features, back.num_labels) == (width, num_labels)
    assert rows_of(back) == rows


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
@example([1e-45, 3.4028234663852886e38, 0.1, 0.0, -0.0])
def test_decimals_identify_the_float32(values):
    values = np.array(values, np.float32)
    decimals = xmc._shortest_decimals(values)
    np.testing.assert_array_equal(decimals.astype(np.float32), values)


def test_short_values_stay_short(scratch):
    row = {0: np.float32(0.5), 1: np.float32(0.662), 2: np.float32(7)}
    write_xmc(scratch, dataset_of([([1, 4], row)]))
    assert scratch.read_text() == "1 9 7\n1,4 0:0.5 1:0.662 2:7\n"


def test_gzip_bytes_depend_on_the_data_alone(tmp_path):
    data = dataset_of([([1], {2: 0.5})])
    write_xmc(tmp_path / "a.gz", data)
    write_xmc(tmp_path / "other.gz", data)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "other.gz").read_bytes()
    assert (tmp_path / "a.gz").read_bytes()[4:8] == b"\0\0\0\0", "a time of writing"
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"1 9 7\n1 2:0.5\n"


@pytest.mark.parametrize("name", ["data.txt", "data.gz"])
def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch, name):
    path = tmp_path / name
    path.write_bytes(b"old")

    def full_disk(features, labels, file, **_):
        file.write(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("sklearn.datasets.dump_svmlight_file", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_xmc(path, dataset_of([([1], {2: 0.5})]))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_into_a_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_xmc(tmp_path / "nowhere" / "data.txt", dataset_of([]))


class TestPair:
    def test_reads_both(self, file):
        features = file("3 6\n0:0.5 4:2\n\n3:1 1:2\n", "x.txt")
        labels = file(gzip.compress(b"3 5\n1:1 3:1\n\n4:1 2:0 4:1\n"), "y.txt")
        data = read_xmc_pair(features, labels)
        assert rows_of(data) == [([1, 3], {0: 0.5, 4: 2}), ([], {}), ([4], {1: 2, 3: 1})]
        assert (data.num_features, data.num_labels, data.name) == (6, 5, "x")

    def test_equals_the_single_file(self, file):
        single = read_xmc(file("2 6 5\n1,3 0:0.5\n2 4:1\n"))
        pair = read_xmc_pair(file("2 6\n0:0.5\n4:1\n", "x"), file("2 5\n1:1 3:1\n2:1\n", "y"))
        assert rows_of(pair) == rows_of(single)

    def test_without_headers(self, file):
        features, labels = file("0:0.5\n", "x.txt"), file("1:1\n", "y.txt")
        data = read_xmc_pair(features, labels, num_features=6, num_labels=5)
        assert rows_of(data) == [([1], {0: 0.5})]
        with pytest.raises(DataFormatError, match="expected a header 'N L', or `num_labels=`"):
            read_xmc_pair(features, labels, num_features=6)

    @pytest.mark.parametrize(
        ("features", "labels", "message"),
        [
            ("1 6\n3,4\n", "1 5\n1:1\n", "x.txt, line 2: found '3,4', expected feature:value"),
            ("1 6\n3 0:1\n", "1 5\n1:1\n", "x.txt, line 2: found '3', expected feature:value"),
            (
                "1 6\n0:1\n",
                "1 5\n5:1\n",
                "y.txt, line 2: found label 5 in '5:1', expected 0 <= ind",
            ),
            ("1 6\n0:1\n", "1 5\n1\n", "y.txt, line 2: found '1', expected label:value"),
            ("1 6\n0:1\n", "2 5\n1:1\n2:1\n", "y.txt, line 1: found 2 rows, expected 1"),
            ("1 6 5\n0:1\n", "1 5\n1:1\n", "x.txt, line 1: found '1 6 5', expected a header 'N D'"),
        ],
    )
    def test_errors(self, file, features, labels, message):
        with pytest.raises(DataFormatError, match=re.escape(message)):
            read_xmc_pair(file(features, "x.txt"), file(labels, "y.txt"))


class TestSplit:
    def test_columns_count_from_one(self, file):
        path = file("1 7\n2 5\n9 1\n")
        assert read_split(path).tolist() == [0, 1, 8]
        assert read_split(path, column=1).tolist() == [6, 4, 0]
        assert read_split(path, first=0).tolist() == [1, 2, 9]

    def test_one_row(self, file):
        assert read_split(file("4\n")).tolist() == [3]

    def test_selects_rows(self, file):
        data = read_xmc(file("3 6 5\n0 0:1\n1 1:1\n2 2:1\n"))
        assert rows_of(data.take(read_split(file("3\n1\n", "split")))) == [
            ([2], {2: 1}),
            ([0], {0: 1}),
        ]

    @pytest.mark.parametrize(
        ("text", "column", "message"),
        [
            ("1\n2\n", 3, "no column 3"),
            ("a\n", 0, "no column 0 of row numbers"),
            ("0\n1\n", 0, "names row 0 in column 0, but its first row is 1"),
        ],
    )
    def test_errors(self, file, text, column, message):
        with pytest.raises(ValueError, match=message):
            read_split(file(text), column)


class TestNames:
    def test_one_a_line(self, file):
        # A line separator of Unicode is part of a name, not the end of a line.
        path = file("Köln\n\u2028odd\n id 7\tname\twith tab \r\n\nlast")
        assert read_names(path) == ("Köln", "\u2028odd", "with tab ", "", "last")

    def test_gzip(self, file):
        assert read_names(file(gzip.compress("東京\n".encode()))) == ("東京",)

    def test_not_utf8(self, file):
        with pytest.raises(DataFormatError, match=r"line 2: found 'caf.*', expected UTF-8"):
            read_names(file(b"tea\ncaf\xe9\n"))
