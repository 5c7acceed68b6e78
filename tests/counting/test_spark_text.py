"""CSV and JSON lines on Spark: the same rows as the embedded engine, except as `spark_inputs` documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from dphist.counting.duckdb import DuckDBEngine
from engine_cases import Factory, histogram, on_engines, task

pytestmark = on_engines("spark-local")

CSV = [
    b"1", b"2,a", b"3,\xff,z", b"4,a4,\xff", b'5,a"5,z', b'6,"a""6",z', b'7,"a\r\n7",z', b'8,"a\n8",z',
    b"9,a9,z\r", b"", b"  ", b",,", b"10, a ,z", b'11,"",z', b'12,"  ",z', b'13,"a, b",z', b"14,a\\,z", b"15,#a,z",
    b"#16,a16,z", b"17,NULL,z", b"18,\\N,z", b"19,a\0b,z", b'"20","a20","z"', b'21,"x21" ,z', b"22,nan,z",
    b"23,-,z", b'24,a,"z\n"',
]  # fmt: skip
OTHER_CSV = {
    b"1,a,z,more": {}, b"1,'a,b',z": {}, b"1,\xef\xbf\xbd,z": {}, b'1,"a"x,z': {'"a"x': 1},
    b'1, "x",z': {' "x"': 1},
}  # fmt: skip
JSON = [
    b'{"user":1,"item":"a1"} ', b' {"user":2,"item":"a2"}', b'{"user":3,"item":"a3"}\r',
    b'{"user":4,"item":"a"}x', b'{"user":5,"item":"\xff"}', b'{"user":6,"item":"a","z":"\xff"}',
    b'[{"user":7,"item":"a"}]', b"{user:9}",
    b'{"user":8,"item":NaN}', b'{"user":9,"item":"a9","p":NaN}', b'{"user":10,"item":Infinity}', b"null", b"5",
    b"",
    b"{'user':11,'item':'a'}", b'{"user":12,"item":""}', b'{"user":13,"item":" "}', b'{"user":14,"item":null}',
    b'{"user":15,"item":{"b":1,"a":[1, 2]}}', b'{"user":16,"item":true}', b'{"user":17,"item":1.0}', b'"x"',
    b'{"user":18,"item":1e2}', b'{"user":19,"item":"\\u00e9\\n\\t"}', b'{"user":20,"item":"a\tb"}',
    b'{"user":21,"item":01}', b'{"user":22,"item":+1}', b'{"user":23,"item":-0.0}', b'{"user":24,"item":"\\x41"}',
    b'{"user":25,"item":12345678901234567890}', b'{"user":26,"item":["a", {"b" :  null}]}', b"/* c */ {}",
    b'{"user":27,"item":"a\\u0000b"}', b'{"user":28,"item":0.1}', b'{"user":29,"item":"a"} // c',
]  # fmt: skip
OTHER_JSON = {
    b'{"user":1,"item":"a",}': {}, b'{"user":1,"item":"a"}{"user":2,"item":"b"}': {"a": 1},
    b'{"user":1,"item":"a","item":"b"}': {"b": 1}, b'{"user":1,"item":"\\ud800"}': {"?": 1},
    b'{"user":1,"item":15000000.0}': {"1.5E7": 1}, b'{"user":1,"item":1e400}': {"Infinity": 1},
}  # fmt: skip


@pytest.mark.parametrize("end", [pytest.param(b"\n", marks=pytest.mark.slow), b"\r\n"])
def test_csv_rows_match_the_embedded_engine(engine: Factory, tmp_path: Path, end: bytes) -> None:
    path = tmp_path / "x.csv"
    for rest in (b"\n", end):  # line endings may differ from that of the header
        path.write_bytes(b"user,item,more" + end + b"".join(row + rest for row in CSV))
        found = histogram(engine, task(path, null_items=True))
        assert found == histogram(DuckDBEngine, task(path, null_items=True))
        assert len(found) > 12
    assert histogram(engine, task(path, items="more")) == histogram(DuckDBEngine, task(path, items="more"))


def test_json_lines_match_the_embedded_engine(engine: Factory, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in JSON))
    found = histogram(engine, task(path, null_items=True))
    assert found == histogram(DuckDBEngine, task(path, null_items=True))
    assert len(found) > 12


@pytest.mark.slow
def test_documented_differences(engine: Factory, tmp_path: Path) -> None:
    for name, head, cases in (("x.csv", b"user,item,more\n", OTHER_CSV), ("x.jsonl", b"", OTHER_JSON)):
        for row, expected in cases.items():
            (tmp_path / name).write_bytes(head + row + b"\n")
            assert histogram(DuckDBEngine, task(tmp_path / name)) != expected, row
        # On Spark all at once: the rows have different items.
        (tmp_path / name).write_bytes(head + b"".join(row + b"\n" for row in cases))
        together = {item: count for expected in cases.values() for item, count in expected.items()}
        assert histogram(engine, task(tmp_path / name)) == together
