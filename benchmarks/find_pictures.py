"""Finding stills by words, and their tags, with SigLIP 2's real weights; they are in no package.

    vas models pull --task embed_pictures --to FOLDER
    .venv/bin/python -m benchmarks.find_pictures FOLDER [--tags] [--part tuning]

The stills and classes are those of ``things.toml`` (shared media, COCO's classes by eye). Each one
that is clearly visible in some still is a query of one word. Recall@5: the share of its stills (of
five at most) that are among the five nearest; precision: of the stills that a search finds (cosine
above the service's lower bound), those in which the class is. ``--tags`` prints each still's tags,
to be judged by eye. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.descriptions import labelled_things
from models.provider import LocalModels
from models.tasks import EMBED_PHRASES, EMBED_PICTURES
from pipelines.vision.tags import load_tag_bank, open_tagger
from serve_app.search.service import LEAST_PROBABILITY

_NEAREST = 5


def main() -> None:
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models_dir", type=Path)
    parser.add_argument("--part", choices=["tuning", "reported"], default="reported")
    parser.add_argument("--tags", action="store_true")
    options = parser.parse_args()
    models = LocalModels("packaged", options.models_dir)
    things = labelled_things(options.part)
    pictures, phrases = models.get(EMBED_PICTURES), models.get(EMBED_PHRASES)
    began = time.process_time()
    stills = pictures.embed_pictures([each.picture for each in things])
    picture_seconds = (time.process_time() - began) / len(things)

    classes = sorted({name for each in things for name in each.things})
    began = time.process_time()
    sought = phrases.embed_phrases(classes)
    phrase_seconds = (time.process_time() - began) / len(classes)
    recalls, found, right = list[float](), 0, 0
    for name, phrase in zip(classes, sought, strict=True):
        cosines = stills @ phrase.vector
        nearest = np.argsort(-cosines)[:_NEAREST]
        visible = [n for n, each in enumerate(things) if name in each.things]
        recalls.append(len({*visible} & {*nearest.tolist()}) / min(_NEAREST, len(visible)))
        near = np.flatnonzero(cosines >= max(0.0, phrase.least_cosine(LEAST_PROBABILITY)))
        found += len(near)
        right += sum(name in {*things[n].things, *things[n].also} for n in near)

    if options.tags:
        tagger = open_tagger(phrases, load_tag_bank())
        tags = tagger.tags(pictures, [each.picture for each in things])
        for each, own in zip(things, tags, strict=True):
            print(each.name, ", ".join(f"{tag.label} {tag.score:.2f}" for tag in own))
    figures = {
        "stills": len(things),
        "queries": len(classes),
        "recall_at_5": round(float(np.mean(recalls)), 3),
        "found": found,
        "precision": round(right / found, 3) if found else None,
        "processor_seconds_a_still": round(picture_seconds, 3),
        "processor_seconds_a_query": round(phrase_seconds, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
