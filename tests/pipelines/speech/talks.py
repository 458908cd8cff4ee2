"""Short talks on different subjects, written for this project, and programmes joined of them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from pipelines.speech.words import SegmentLimits, build_segments
from pipelines.types import TranscriptSegment, TranscriptWord

WRONG_VOICES = 0.1
TALKS: dict[str, str] = {
    "bread": """\
So the first thing you want is a good starter. I feed mine every morning with flour and warm
water. When it has doubled you can mix it into the dough. Do not add the salt yet, because it
slows the yeast down. Knead the dough until it feels smooth and comes away from the bowl. Then
cover it and let it rise for about three hours. After that we shape the loaf and put it into a
basket. The oven has to be really hot, and a pan of water inside gives you steam. Steam keeps the
crust soft while the loaf still grows. Bake it for forty minutes, until the crust is dark. If you
knock on the bottom and it sounds hollow, the bread is done. Let the loaf cool before you cut it.
Fresh bread with butter is all you need.""",
    "telescope": """\
Tonight we are looking at Saturn, which stands low in the south. You do not need a large telescope
to see the rings. Even a small mirror shows them clearly if the air is calm. Let the telescope
cool down outside for half an hour first. Start with the lowest power and find the planet, then
change the eyepiece. Around Saturn you may notice a faint star, and that is Titan, its largest
moon. The rings are tilted towards us this year, so it is a good time. Later in the night Jupiter
rises in the east. Its four bright moons change places from one evening to the next. Keep a
notebook and draw what you see at the eyepiece. Astronomers did that for centuries before there
were cameras. Clouds are coming next week, so use the clear sky while it lasts.""",
    "football": """\
The home side kicked off in bright sunshine and went ahead after ten minutes. A long pass found
the striker behind the defence and he lifted it over the goalkeeper. The visitors never looked
comfortable in the first half. Their midfield lost the ball again and again. Just before the break
the referee gave a penalty for a handball. The captain sent it into the corner for two nil. In the
second half the coach brought on two fresh players. One of them hit the post from twenty metres.
With a quarter of an hour to go the visitors pulled one back from a corner. It was a nervous
finish, but the defence held. The win takes the team to third place in the league. Next Saturday
they play away against the champions.""",
    "mortgage": """\
Before you sign anything, look at the interest rate and how long it is fixed. A fixed rate gives
you the same payment every month. With a variable rate the bank can raise it when the market
moves. Most lenders want a deposit of at least ten percent. The more you put down, the lower your
rate will be. Remember that there are fees for the notary and for the valuation of the house. You
can ask the bank to let you make extra payments each year. Those payments go straight against the
loan, so you owe less interest in the end. If your income changes, talk to the lender early. They
would rather change the loan than see you miss a payment. And always compare at least three offers
from different banks.""",
}


def joined_talks(rng: random.Random) -> tuple[Sequence[TranscriptSegment], list[int], int]:
    """Segments, true boundaries and duration in ms, with times as a transcript has them.

    Three to all of the talks in some order, each from some sentence on and with one or two voices
    of its own; some sentences go to a wrong one, as speakers are told apart.
    """
    names = rng.sample(sorted(TALKS), rng.randint(3, len(TALKS)))
    words: list[TranscriptWord] = []
    boundaries: list[int] = []
    time_ms = voices = 0
    for name in names:
        boundaries.append(time_ms)
        own = [f"speaker_{voices + n}" for n in range(rng.randint(1, 2))]
        voices += len(own)
        for sentence in TALKS[name].replace("\n", " ").split(". ")[rng.randint(0, 3) :]:
            voice = rng.choice(own)
            if rng.random() < WRONG_VOICES:
                voice = f"speaker_{rng.randint(0, 9)}"
            for text in f"{sentence.removesuffix('.')}.".split(" "):
                length_ms = 80 + 55 * len(text) + rng.randint(0, 60)
                words.append(TranscriptWord(text, time_ms, time_ms + length_ms, 0.9, voice))
                time_ms += length_ms + rng.randint(10, 60)
            # Pauses between subjects are as those between sentences: they give nothing away.
            time_ms += rng.randint(200, 900)
    return build_segments(words, SegmentLimits()), boundaries[1:], time_ms
