"""A synthetic search log as Parquet: columns user_id, query, day and country.

Run `python make_log.py --events 2000000 --output log.parquet`; the same seed gives the same log.

A few users search a lot, most only a little. A few queries have many users, most have one: there is a long tail of
rare combinations, typing errors, and queries with a name and an address. Users repeat their own queries, so a
query has fewer users than events.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import Generator
from numpy.typing import NDArray

Whole = NDArray[np.int64]

DAYS = 90
FIRST_DAY = "2026-01-01"
EVENTS_PER_USER = 25
FAVOURITES = 12
# Shares of events: repeated queries, typing errors, and queries of a single user.
RETURNING, MISTYPED, PERSONAL = 0.40, 0.03, 0.01

HEAD = """weather tomorrow|weather|news|translate|maps|calculator|football results|weather today
cinema tonight|lottery numbers|pizza near me|train times|world cup table|currency converter|horoscope
pharmacy open now|jobs near me|recipes|restaurants near me|cheap flights|video calls|tv guide tonight
petrol prices|time in new york|weather weekend|sudoku|crossword|online banking login|parcel tracking
hotel deals|used cars|song lyrics|flights to london|exchange rate|dictionary|bus timetable
stock market today|supermarket opening hours|water bill|dentist near me|tax calculator|pregnancy calculator
unit converter|traffic now|earthquake today|public holidays|hairdresser near me|second hand bikes
mortgage calculator|speed test|pollen forecast|moon phase tonight|chess online|vaccination appointment"""
THINGS = """pizza|bicycle|laptop|washing machine|mortgage|sofa|running shoes|guitar|tomato|dog|cat|passport
chess|marathon|curtains|headphones|printer|coffee machine|bread|sourdough|camera|tent|yoga|insurance|visa
hotel|camping|violin|piano|garden|lawn mower|paint|wallpaper|knitting|novel|tax return|pension|salary
interview|cv|flu|back pain|migraine|allergy|vitamin d|insomnia|diabetes|knee pain|cough|pregnancy|baby names
pram|school|university|exam|maths|spanish|french|python|spreadsheet|router|phone|tablet|charger|battery
electric car|winter tyres|driving licence|train|flight|ferry|museum|concert|theatre|film|series|podcast
birthday cake|wedding|gift|perfume|jacket|jeans|watch|ring|lasagne|curry|risotto|pancakes|soup|salad|chicken
salmon|tofu|lentils|chocolate|wine|beer|tea|espresso|kettle|fridge|oven|dishwasher|vacuum cleaner|heat pump
solar panels|roof|boiler|carpet|desk|chair|mattress|pillow|lamp|drill|ladder|aquarium|hamster|parrot|rabbit
horse riding|swimming|football|tennis|handball|skiing|snowboard|climbing|hiking|kayak"""
ASPECTS = """price|review|near me|second hand|repair|recipe|for beginners|test|online|cheap|best|how to
meaning|size|opening hours|rental|delivery|course|video|pictures|ideas|2026|manual|symptoms|treatment
for children|download|free|vegan|gluten free|quick|easy|compared|problems|not working|warranty|insurance
history|rules|club|tickets|calendar|statistics|definition|alternatives|subscription|spare parts|colours
black|small|large|used|for sale|cost|grant|law"""
PLACES = """london|paris|berlin|madrid|rome|vienna|copenhagen|oslo|stockholm|helsinki|lisbon|dublin
amsterdam|brussels|prague|warsaw|budapest|athens|zurich|geneva|milan|naples|barcelona|seville|porto|lyon
marseille|hamburg|munich|cologne|leeds|bristol|glasgow|cardiff|york|aarhus|odense|bergen|malmo|gothenburg
tampere|turku|gdansk|krakow|brno|graz|basel|antwerp|ghent|utrecht|rotterdam|cork|galway|new york|boston
chicago|seattle|toronto|montreal|sydney|tokyo|lima"""
FIRST = """john|mary|peter|anna|lucas|emma|david|sofia|james|laura|paul|julia|mark|clara|simon|nina|oscar
ida|henry|alice|victor|ella|martin|rosa|felix|maria|thomas|sarah|george|helen|leo|ruth|adam|irene|noah|eva
max|karen|ben|lisa"""
LAST = """smith|jones|garcia|muller|rossi|hansen|novak|silva|martin|dubois|kowalski|nielsen|berg|costa
fischer|weber|moreau|ferrari|larsen|horvat|murphy|walsh|taylor|brown|wilson|evans|king|wright|green|baker
hill|cooper|ward|morris"""
STREETS = """elm street|oak avenue|mill lane|station road|church street|park avenue|high street|rose court
lake drive|north road|bridge street|cedar close|maple drive|school lane|harbour road|victoria street
garden row|hillside avenue"""
COUNTRIES = ("GB", "DE", "FR", "US", "ES", "IT", "NL", "DK", "SE", "PL", "IE", "AT", "PT", "CH", "FI", "NO")


def words(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


def zipf(rng: Generator, ranks: int, size: int, power: float = 1.0, shift: float = 2.0) -> Whole:
    """Random ranks from 0, the lowest being the most frequent."""
    weights = np.cumsum((np.arange(ranks) + shift) ** -power)
    return np.asarray(np.searchsorted(weights, rng.random(size) * weights[-1]), dtype=np.int64)


def catalogue(rng: Generator, size: int) -> list[str]:
    """Queries that several users may share, the most popular first."""
    things, aspects, places = words(THINGS), words(ASPECTS), words(PLACES)
    kind = rng.choice(4, size, p=[0.25, 0.25, 0.35, 0.15])
    columns = [zipf(rng, len(table), size, 0.6).tolist() for table in (things, aspects, places, aspects)]
    composed = []
    for form, thing, aspect, place, other in zip(kind.tolist(), *columns, strict=True):
        if form == 0:
            composed.append(f"{things[thing]} {aspects[aspect]}")
        elif form == 1:
            composed.append(f"{things[thing]} {places[place]}")
        elif form == 2:
            composed.append(f"{things[thing]} {aspects[aspect]} {places[place]}")
        else:
            composed.append(f"{aspects[other]} {things[thing]} {aspects[aspect]} {places[place]}")
    return list(dict.fromkeys([*words(HEAD), *composed]))


def mistyped(rng: Generator, texts: Sequence[str]) -> list[str]:
    """Swap two neighbouring letters of each text, or drop or double one."""
    results = []
    for text, place, form in zip(texts, rng.random(len(texts)), rng.integers(3, size=len(texts)), strict=True):
        at = int(place * (len(text) - 1))
        if form == 0:
            results.append(text[:at] + text[at + 1] + text[at] + text[at + 2 :])
        elif form == 1:
            results.append(text[:at] + text[at + 1 :])
        else:
            results.append(text[: at + 1] + text[at:])
    return results


def personal(rng: Generator, size: int) -> list[str]:
    """Distinct queries such as "john q smith 4711 elm street"."""
    first, last, streets = words(FIRST), words(LAST), words(STREETS)
    queries: dict[str, None] = {}
    while len(queries) < size:
        a, b, c, d = (int(rng.integers(len(table))) for table in (first, range(26), last, streets))
        number = int(rng.integers(1, 9999))
        queries[f"{first[a]} {chr(97 + b)} {last[c]} {number} {streets[d]}"] = None
    return list(queries)


def search_log(events: int, seed: int) -> Any:
    """The log as an Arrow table, sorted by day."""
    rng = np.random.default_rng(seed)
    users = max(1, events // EVENTS_PER_USER)
    # Pareto-distributed activity, truncated at what a person can type.
    activity = np.cumsum(np.minimum((1.0 - rng.random(users)) ** (-1 / 1.3), 400.0))
    user = np.searchsorted(activity, rng.random(events) * activity[-1])

    texts = catalogue(rng, max(2000, events // 4))
    favourites = zipf(rng, len(texts), users * FAVOURITES, 0.8).reshape(users, FAVOURITES)
    liked = np.minimum(rng.geometric(0.3, events), FAVOURITES) - 1
    query = np.where(rng.random(events) < RETURNING, favourites[user, liked], zipf(rng, len(texts), events))

    lot = rng.random(events)
    typed = np.flatnonzero(lot < MISTYPED)
    wrong = mistyped(rng, [texts[i] for i in query[typed]])
    query[typed] = len(texts) + np.arange(typed.size)
    # One address per user, searched by that user only, perhaps several times.
    alone = np.flatnonzero(lot >= 1.0 - PERSONAL)
    owners, owner = np.unique(user[alone], return_inverse=True)
    query[alone] = len(texts) + typed.size + owner
    texts += wrong + personal(rng, owners.size)

    day = rng.choice(DAYS, events, p=day_shares())
    order = np.argsort(day, kind="stable")
    # An odd factor keeps the ids of different users distinct.
    names = [f"{(k * 2_654_435_761 + 97) % 2**32:08x}" for k in range(users)]
    country = np.minimum(rng.geometric(0.18, users), len(COUNTRIES)) - 1
    return pa.table(
        {
            "user_id": pa.array(names).take(pa.array(user[order])),
            "query": pa.array(texts).take(query[order]),
            "day": pa.array(np.datetime64(FIRST_DAY, "D") + day[order]),
            "country": pa.array(COUNTRIES).take(pa.array(country[user[order]])),
        }
    )


def day_shares() -> NDArray[np.float64]:
    """Weekends are quieter, and activity grows slightly."""
    days = np.arange(DAYS)
    weekday = (np.datetime64(FIRST_DAY, "D").astype(np.int64) + 3 + days) % 7
    shares = np.where(weekday >= 5, 0.7, 1.0) * (1.0 + days / (4.0 * DAYS))
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate a synthetic search log as Parquet.")
    parser.add_argument("--events", type=int, default=2_000_000, metavar="N", help="Number of searches.")
    parser.add_argument("--output", type=Path, default=Path("log.parquet"), metavar="FILE")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="The same seed gives the same log.")
    given = parser.parse_args()
    if given.events < 1:
        parser.error("--events must be at least 1")
    start = time.perf_counter()
    log = search_log(given.events, given.seed)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(log, given.output, compression="zstd")
    users, queries = (len(log.column(name).unique()) for name in ("user_id", "query"))
    sys.stdout.write(
        f"{given.output}: {given.events:,} searches by {users:,} users, {queries:,} distinct queries "
        f"({time.perf_counter() - start:.1f} s)\n"
    )


if __name__ == "__main__":
    main()
