"""Which words do many authors use? Build a frame of (author, word) from texts and release it in two ways.

Run `python words.py` for synthetic posts, or `python words.py FOLDER` for a folder of text files. The author
is the subfolder of a file, or the file itself if there are no subfolders: one author is one user.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

import dphist

WORD = re.compile(r"[^\W\d_]+(?:'[^\W\d_]+)*")
COMMON = """the of and to a in is it that for was on with as be at by this are or from had not but have an
they which one you were all her she there would their we him been has when who will no more if out so said
what up its about than into them can only other time new some could these two may first then do any like my
now over such our man me even most made after also did many off before must well back through years where
much your way down should because long each just state those people too mr how little good world make very
year still see own work men day get here old life both between never same another know while last might us
great go come since against right came take used himself few house american use place during high without
again home around small however found mrs part school thought went say general once upon water war until
always away something fact less public put think almost hand enough far took head yet better"""
SYLLABLES = """ba ce di fo gu ha je ki lo mu na pe qui ro su ta ve wi xo ya zu bra cle dro fli gra ple sto tri"""


def synthetic_posts(authors: int, seed: int = 1) -> Iterator[tuple[str, str]]:
    """Posts of common and rare words, with a signature that is unique to each author."""
    rng = np.random.default_rng(seed)
    syllables = SYLLABLES.split()
    choices = rng.integers(len(syllables), size=(20_000, 4)).tolist()
    lengths = rng.integers(2, 5, size=20_000).tolist()
    rare = ["".join(syllables[i] for i in row[:n]) for row, n in zip(choices, lengths, strict=True)]
    vocabulary = np.array(list(dict.fromkeys([*COMMON.split(), *rare])))
    weights = np.cumsum((np.arange(vocabulary.size) + 3.0) ** -1.05)
    for author in range(authors):
        for length in rng.integers(20, 200, size=min(int(rng.pareto(1.5)) + 1, 50)):
            text = " ".join(vocabulary[np.searchsorted(weights, rng.random(length) * weights[-1])])
            yield f"author {author}", f"{text.capitalize()}. Yours, {signature(author)}"


def signature(author: int) -> str:
    """A word that no other author uses."""
    return "x" + "".join("abcdefghij"[int(digit)] for digit in str(author)) + "x"


def texts_in(folder: Path) -> Iterator[tuple[str, str]]:
    """The text files under a folder, each with its author."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix.lower() in (".txt", ".md", ".rst"):
            inside = path.relative_to(folder)
            author = inside.parts[0] if len(inside.parts) > 1 else inside.name
            yield author, path.read_text(encoding="utf-8", errors="replace")


def words_of(texts: Iterator[tuple[str, str]]) -> pl.DataFrame:
    """One row per occurrence of a word; dphist counts each author once per word."""
    authors: list[str] = []
    words: list[str] = []
    for author, text in texts:
        text_words = WORD.findall(text.lower())
        words += text_words
        authors += [author] * len(text_words)
    return pl.DataFrame({"author": authors, "word": words}, schema={"author": pl.String, "word": pl.String})


def report(title: str, release: dphist.Release, rows: int = 8) -> str:
    frame = release.to_polars()
    lines = [
        f"{title}: {len(frame):,} words, standard error {release.plan.total_noise:.1f}",
        f"  {'word':<12} {'authors':>9}   95 % interval",
    ]
    for word, count, low, high in frame.head(rows).iter_rows():
        lines.append(f"  {word:<12} {count:>9,.0f}   {low:,.0f} to {high:,.0f}")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Release which words many authors use.")
    parser.add_argument("folder", type=Path, nargs="?", help="A folder of .txt, .md and .rst files.")
    parser.add_argument("--authors", type=int, default=5000, metavar="N", help="Number of synthetic authors.")
    parser.add_argument("--top", type=int, default=100, metavar="K", help="The K words with the most authors.")
    parser.add_argument("--cap", type=int, default=50, metavar="M", help="M random words of each author.")
    parser.add_argument(
        "--epsilon", type=float, default=1.0, metavar="E", help="Epsilon of each of the two releases."
    )
    parser.add_argument(
        "--delta", type=float, default=1e-6, metavar="D", help="Delta of each of the two releases."
    )
    parser.add_argument("--output", type=Path, default=None, metavar="FOLDER", help="Write both releases there.")
    given = parser.parse_args()
    if given.folder is not None and not given.folder.is_dir():
        parser.error(f"there is no folder {given.folder}")
    frame = words_of(synthetic_posts(given.authors) if given.folder is None else texts_in(given.folder))
    sys.stdout.write(f"A frame of {len(frame):,} words, columns {', '.join(frame.columns)}\n\n")

    release = partial(
        dphist.release, frame, user="author", item="word", epsilon=given.epsilon, delta=given.delta,
        count_name="authors", interval=0.95,
    )  # fmt: skip
    releases = {
        f"top={given.top}": release(top=given.top),
        f"max_items_per_user={given.cap}": release(max_items_per_user=given.cap),
    }
    for title, result in releases.items():
        sys.stdout.write(report(title, result) + "\n")
    sys.stdout.write(
        f"The first counts all words of each author, and releases those of the {given.top} most common words that "
        f"exceed the next word by enough.\nThe second counts {given.cap} random words of each author: its counts "
        "are lower, but it releases more words.\n"
    )
    if given.output is not None:
        sys.stdout.write("\n")
        given.output.mkdir(parents=True, exist_ok=True)
        for name, result in zip(("top.parquet", "capped.parquet"), releases.values(), strict=True):
            written = result.write(given.output / name, force=True).written
            assert written is not None
            sys.stdout.write(f"{written.address} and its certificate {written.certificate}\n")


if __name__ == "__main__":
    main()
