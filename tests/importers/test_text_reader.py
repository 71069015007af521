"""The stream of numbered lines under every importer."""

from __future__ import annotations

import gzip
import random

import pytest

from badput_ledger.sources import text
from badput_ledger.sources.text import TextLog, Wanted, excerpt, is_binary


def found(path, *strings):
    return list(TextLog(path).select(Wanted(strings)))


@pytest.mark.parametrize("packed", [False, True])
def test_lines_and_numbers_equal_a_plain_split_for_any_block_size(tmp_path, monkeypatch, packed):
    chance = random.Random(3)
    lines = [
        b"x" * chance.randrange(40) + (b"KEY" if chance.random() < 0.3 else b"") for _ in range(900)
    ]
    data = b"\n".join(lines) + b"\n"
    path = tmp_path / "a.log"
    path.write_bytes(gzip.compress(data) if packed else data)
    expected = [(n, raw.decode()) for n, raw in enumerate(lines, 1) if b"KEY" in raw]
    for block in (7, 64, 1000, 1 << 20):
        monkeypatch.setattr(text, "BLOCK", block)
        log = TextLog(path)
        assert list(log.select(Wanted((b"KEY", b"EY")))) == expected
        assert log.lines == len(lines)


def test_only_newlines_end_a_line(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes("one\x0btwo\x0cthree\u2028four\x85\nKEY\r\n".encode())
    assert found(path, b"KEY") == [(2, "KEY")]


def test_a_string_with_a_newline_is_found_only_at_the_begin_of_a_line(tmp_path):
    path = tmp_path / "a.log"
    path.write_bytes(b"[a\nx[a\n[a\n")
    assert [n for n, _ in found(path, b"\n[a")] == [1, 3]


def test_strings_after_a_trigger_cost_nothing_before_it(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK", 64)
    path = tmp_path / "a.log"
    noise = b"noise noise\n" * 30
    path.write_bytes(b"detail\n" + noise + b"boom\ndetail\n" + noise + b"detail\n")
    hits = list(TextLog(path).select(Wanted((b"boom",), {b"boom": (b"detail",)})))
    assert [n for n, _ in hits] == [32, 33]


def test_a_line_of_many_bars_is_read_in_bounded_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MAX_LINE", 1000)
    monkeypatch.setattr(text, "BLOCK", 256)
    path = tmp_path / "a.log"
    path.write_bytes(b"first\n" + b"\r".join([b" 5%|##" * 10] * 100) + b"\rKEY here\nlast KEY\n")
    log = TextLog(path)
    assert list(log.select(Wanted((b"KEY",)))) == [(2, "KEY here"), (3, "last KEY")]
    assert log.long_lines == 0
    assert max(len(block) for _, block in log.blocks()) < 2000


def test_a_line_without_end_is_cut_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "MAX_LINE", 1000)
    monkeypatch.setattr(text, "BLOCK", 256)
    path = tmp_path / "a.log"
    path.write_bytes(b"KEY" + b"y" * 50_000 + b"KEY\nKEY next\n")
    log = TextLog(path)
    hits = list(log.select(Wanted((b"KEY",))))
    assert [n for n, _ in hits] == [1, 2]
    assert len(hits[0][1]) <= 1000
    assert log.long_lines >= 1
    assert log.lines == 2


def test_the_end_of_a_damaged_gzip_is_told(tmp_path):
    path = tmp_path / "a.gz"
    data = bytearray(gzip.compress(random.Random(1).randbytes(200_000)))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    log = TextLog(path)
    list(log.blocks())
    assert log.truncated is not None


def test_a_small_gzip_that_unpacks_to_much_is_read_block_by_block(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"0" * 99 + b"\n" * 1) * 1 + gzip.compress(b"a\n" * 8_000_000))
    log = TextLog(path)
    assert max(len(block) for _, block in log.blocks()) <= 2 * text.BLOCK
    assert log.lines == 8_000_001
    assert log.truncated is None


def test_escapes_go_and_control_characters_are_shown():
    log = TextLog(path=None, name="x")  # type: ignore[arg-type]
    assert log.clean(b"\x1b[38;2;1;2;3mred\x1b[0m \x1b]0;title\x07text\x1b[2K") == "red text"
    assert excerpt("a\x1b\nb") == "a\\x1b\\nb"
    assert len(excerpt("z" * 1000)) == 300


def test_utf16_and_object_code_are_no_text():
    assert is_binary("hello".encode("utf-16"))
    assert is_binary(bytes(range(256)))
    assert not is_binary("step: 1 │██│ \x1b[31m\r\n".encode())
