#!/bin/sh
# Readers per country and page, a release a day under one budget for a year, and the series of them.
#
#   examples/pageviews/run.sh [FOLDER [DAYS [USERS]]]
#
# Needs `dphist` and its `python` on PATH. Everything is written to FOLDER (demo-output/pageviews). Run it again after a
# crash: days that are released are left alone.
set -eu

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
folder=${1:-demo-output/pageviews}
days=${2:-28}
users=${3:-60000}
mkdir -p "$folder/releases"

echo "== A log of $days days"
python "$here/make_log.py" --days "$days" --users "$users" --output "$folder/log.parquet"

echo
echo "== One budget for a year of days, and what each day can cost"
if [ ! -e "$folder/pageviews.ledger" ]; then
    dphist ledger init "$folder/pageviews.ledger" --dataset readers --epsilon 3 --delta 1e-6
fi
dphist ledger plan "$folder/pageviews.ledger" --dataset readers --days 365

# A scheduler runs this line every night, with `--id yesterday` in place of the day.
release() {
    dphist release "$folder/log.parquet" --where "day = DATE '{start}'" --user user_id --item country --item page \
        --epsilon 0.16 --delta 2.4e-9 --ledger "$folder/pageviews.ledger" --dataset readers --id "$1" \
        --output "$folder/releases/{period}.parquet" --quiet
}

echo
echo "== A release for each day"
day=1
while [ "$day" -le "$days" ]; do
    release "2026-03-$(printf %02d "$day")"
    day=$((day + 1))
done

echo
echo "== The series"
dphist series "$folder/releases" -o "$folder/series.parquet" --report "$folder/series.html" --force
dphist ledger show "$folder/pageviews.ledger" --dataset readers
