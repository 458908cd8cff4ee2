"""Short talks on different subjects, written for this project: text that programmes are joined of.

``TUNED`` may be looked at while chapters are worked on; ``REPORTED`` may not.
"""

from __future__ import annotations

TUNED: dict[str, str] = {
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

REPORTED: dict[str, str] = {
    "bees": """\
A hive in summer can hold fifty thousand bees, and nearly all of them are workers. The queen lays
up to two thousand eggs a day. Young workers clean the cells and feed the larvae. When they are
about three weeks old they begin to fly out and collect nectar. Back in the hive they pass the
nectar on, and it is dried until it becomes honey. The beekeeper adds a second box when the first
one is full. You should open the hive only on a warm day without wind. A little smoke keeps the
workers calm. Look for the queen, but if you see fresh eggs you know she is there. In autumn the
honey is taken out and the bees get sugar instead. Mites are the greatest danger to a colony
today. Check the hive for mites every month.""",
    "sailing": """\
We left the harbour at first light with a steady wind from the west. The skipper wanted to reach
the island before the tide turned. Once we were past the breakwater we raised the main sail and
then the jib. The boat leaned over and picked up speed. Out there the waves were two metres high
and the deck was wet all the time. I was at the helm for the first watch, and you have to feel the
boat rather than look at the compass. Around noon the wind grew stronger, so we put a reef into
the main sail. Nobody was seasick except the cook. We saw a lighthouse at about four and knew the
island was close. The anchor held on the second try. After that long day on the water everybody
slept below deck.""",
    "vaccine": """\
The study followed thirty thousand adults over two years. Half of them were given the vaccine and
the other half a placebo. Neither the patients nor the doctors knew who had received which. In the
vaccine group eleven people fell ill, in the placebo group one hundred and eighty five. That is an
efficacy of about ninety four percent. Side effects were mild, mostly a sore arm and some fever on
the second day. The antibodies went down after six months but did not disappear. A booster brought
them back to the first level. The doctors now want to know whether children respond in the same
way. A trial with children has started in four hospitals. The results of that trial are expected
next spring.""",
    "guitar": """\
Hold the guitar close to your body and keep your left thumb behind the neck. We start with three
chords, G, C and D. Press the strings right behind the fret, otherwise they buzz. Strum slowly
from the thickest string to the thinnest. Now change from the first chord to the second without
looking. It will hurt your fingertips for a week or two. Practise with a metronome, because rhythm
matters more than speed. When the chords are clean we can try to pick single strings. Hundreds of
songs need nothing but these three chords. Tune your guitar each time before you play. New strings
go out of tune quickly, so stretch them a little. In the next lesson we will learn a chord with
the first finger across all the strings.""",
    "railway": """\
The line through the valley was opened in eighteen fifty four. Engineers had to dig fourteen
tunnels and build sixteen viaducts. Twenty thousand workers lived in huts beside the track. Before
the railway came the journey over the pass took two days by coach. The first locomotives could
hardly climb the slope. So the state held a contest, and four engines were built for it. None of
them was good enough for daily service, but a later locomotive was. Today the line carries two
hundred trains a day. Heavy freight trains need a second locomotive at the back. A new tunnel
under the pass will replace the old track. It is twenty seven kilometres long and should open in a
few years. The old viaducts will stay, as they are protected monuments.""",
    "garden": """\
Tomatoes need sun, so give them the warmest wall in your garden. I sow the seeds indoors at the
end of February. When the seedlings have four leaves, plant each one in its own pot. Do not put
them outside before the last frost. Dig some compost into the soil first. Water the plants at the
roots and keep the leaves dry, or they will catch blight. Break off the side shoots that grow
between stem and leaf. Tie the plants to a stake when they get taller. In July I give them a
little fertiliser every week. The first tomatoes should be ripe by the end of the month. Save the
seeds of the best plants for next year. Basil likes the same soil and grows well beside them.""",
    "software": """\
Every change goes into its own branch and is reviewed before it is merged. The reviewer reads the
code and runs the tests. We have about two thousand tests, and they take six minutes. If a test
fails the merge is blocked. Once the code is on the main branch, the server builds a release. The
release goes to one percent of the users first. We watch the error rate for an hour and then roll
it out to everybody. If something breaks we go back to the release before. Nobody deploys on a
Friday afternoon. Logs from every server end up in one place, so you can search them by user. The
hardest bugs are those that appear only under load. For these we replay recorded traffic against a
test server.""",
    "election": """\
Polling stations opened at seven this morning, and there were queues in most cities. The president
hopes for a second term, but the polls are close. Her opponent has promised lower taxes and more
police. In the last debate they argued about pensions for nearly an hour. Turnout was higher at
noon than four years ago. Young voters in particular seem to have turned out. The votes are
counted by hand in front of witnesses. First results are expected about an hour after the polls
close. If no candidate has more than half of the votes, there will be a second round in two weeks.
The opposition has already asked for observers. Parliament is elected on the same day in three
provinces. Both candidates voted in their home towns this morning.""",
}
