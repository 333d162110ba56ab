"""A session of EmbedFlow for beside-others.py, in an interpreter that has it: it answers lines of JSON on standard input with lines of JSON.

    PYTHON scripts/embedflow-session.py ADDRESS SERVICE QUERIES.npz FOLDER [still]

The old and the new model are given vectors of queries (QUERIES.npz: texts, old, new); documents are embedded by SERVICE, 128 a request, as everybody's are.
`still`: nothing is embedded in the background, so that searches can be measured on a copy of a cache; each still embeds up to four documents that it lacks, as it does by default.
"""

import json
import sys
import urllib.request

import numpy as np
from embedflow.migration.facade import migrate
from embedflow.models.base import EmbeddingModel


class Model(EmbeddingModel):
    def __init__(self, name, queries, service):
        self.model_id = self.fingerprint = name
        self.dimension = 384
        self.queries, self.service = queries, service

    def encode_queries(self, texts):
        return np.stack([self.queries[text] for text in texts])

    def encode_documents(self, texts, batch_size=None):
        rows = []
        for first in range(0, len(texts), 128):
            body = json.dumps({"model": "m", "input": texts[first : first + 128]}).encode()
            request = urllib.request.Request(self.service + "/v1/embeddings", body, {"content-type": "application/json"})
            rows += [one["embedding"] for one in json.load(urllib.request.urlopen(request))["data"]]
        return np.array(rows, "float32")

    def close(self):
        pass


def main():
    address, service, file, folder = sys.argv[1:5]
    held = np.load(file)
    old, new = (dict(zip(map(str, held["texts"]), held[name])) for name in ["old", "new"])
    session = migrate(
        index=address, backend="pgvector", old_model=Model("l3", old, service), new_model=Model("l6", new, service), table="docs", text_column="body",
        cache_path=folder + "/cache", state_path=folder + "/state.json", background_batch_size=128,
        start_worker=sys.argv[5:] != ["still"],
    )
    print("{}", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "query" in asked:
                told = {"ids": [int(one["id"]) for one in session.search(asked["query"], 10)["results"]]}
            elif "warm" in asked:
                told = session.prewarm([str(one) for one in asked["warm"]], asynchronous=True)
            elif "vectors" in asked:
                cached = session.engine.cache.get([str(one) for one in asked["vectors"]])
                told = {"vectors": {one: np.asarray(vector).tolist() for one, vector in cached.items()}}
            else:
                told = {"cached": session.engine.cache.stats()["cached_target_vectors"]}
        except Exception as error:
            told = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
