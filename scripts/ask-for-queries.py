"""Queries for documents that nobody has searched yet, asked of a language model: clicks for `rehang bench --models` and `rehang upgrade pairs`.

    python3 scripts/ask-for-queries.py --items items.jsonl --url https://api.openai.com/v1 --model NAME --out clicks.csv \
        [--sample 300] [--seed 0] [--key-env OPENAI_API_KEY] [--instead "PROMPT"] [--at-once 4]

A random part of the documents with a source (one JSON object a line, as `rehang gallery import` takes them) goes to a service that answers `POST URL/chat/completions`, one
document a request, and the answer is the query that is clicked for it. The first document is asked for alone. A document that the service gives no query for is left out
and counted (exit code 1); a service that refuses ends the work, and nothing is written (exit code 2). Such queries resemble the words of their documents more than people's
do, so models that go by words look better by them: clicks of people are worth more. It needs nothing but Python.
"""

import argparse
import concurrent.futures
import csv
import json
import os
import pathlib
import random
import sys
import time
import urllib.error
import urllib.request

PROMPT = (
    "Write the one search query for which somebody who has never seen this document would want to find it. Use other words than the document where"
    " people would. Answer with the query alone."
)
CHARACTERS = 6000
TRIES = 5


def ask(asked, document):
    """The query for a document; None where the answer has none."""
    body = {"model": asked.model, "messages": [{"role": "system", "content": asked.instead}, {"role": "user", "content": document["source"][:CHARACTERS]}]}
    headers = {"content-type": "application/json"}
    if key := os.environ.get(asked.key_env):
        headers["authorization"] = f"Bearer {key}"
    request = urllib.request.Request(f"{asked.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers)
    for attempt in range(TRIES):
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                said = json.load(answer)
            break
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")[:300]
            if error.code not in (408, 429) and error.code < 500 or attempt + 1 == TRIES:
                raise Refused(f"{asked.url} answers {error.code}: {said}") from None
            wait = error.headers.get("retry-after", "")
            time.sleep(float(wait) if wait.isdigit() else 2**attempt)
        except (urllib.error.URLError, TimeoutError, ConnectionError, json.JSONDecodeError) as error:
            if attempt + 1 == TRIES:
                raise Refused(f"{asked.url} does not answer: {error}") from None
            time.sleep(2**attempt)
    try:
        query = said["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError):
        raise Refused(f"{asked.url} answers without choices: {json.dumps(said)[:300]}") from None
    query = " ".join((query or "").strip().strip('"').split())
    return query or None


class Refused(Exception):
    """What ends the work, in words."""


def documents(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip():
            continue
        try:
            document = json.loads(line)
        except json.JSONDecodeError as error:
            raise Refused(f"{path}, line {number}: {error}") from None
        if isinstance(document.get("source"), str) and document["source"].strip() and "id" in document:
            yield document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ["--items", "--out"]:
        parser.add_argument(name, type=pathlib.Path, required=True)
    for name in ["--url", "--model"]:
        parser.add_argument(name, required=True)
    for name, value in [("--sample", 300), ("--seed", 0), ("--at-once", 4)]:
        parser.add_argument(name, type=int, default=value)
    parser.add_argument("--key-env", default="OPENAI_API_KEY")
    parser.add_argument("--instead", default=PROMPT, help="the instruction, instead of the one that stands in this script")
    asked = parser.parse_args()
    all_of_them = list(documents(asked.items))
    if not all_of_them:
        raise Refused(f"{asked.items} has no document with an id and a source")
    some = random.Random(asked.seed).sample(all_of_them, min(asked.sample, len(all_of_them)))
    began, queries = time.time(), [ask(asked, some[0])]
    with concurrent.futures.ThreadPoolExecutor(asked.at_once) as pool:
        for done, query in enumerate(pool.map(lambda one: ask(asked, one), some[1:]), 2):
            queries.append(query)
            spent = time.time() - began
            if spent > 2 and sys.stderr.isatty():
                print(f"\r{done} of {len(some)} queries, {done / spent:.1f} a second, {(len(some) - done) * spent / done:.0f} s left ", end="", file=sys.stderr)
    with open(asked.out, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["query", "item", "position"])
        rows.writerows([query, document["id"], 1] for query, document in zip(queries, some) if query)
    none = queries.count(None)
    print(f"{len(some) - none} queries of {len(some)} documents are in {asked.out}.")
    if none:
        print(f"For {none} documents the service gave none.")
    raise SystemExit(1 if none else 0)


if __name__ == "__main__":
    try:
        main()
    except Refused as error:
        print(f"Error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
