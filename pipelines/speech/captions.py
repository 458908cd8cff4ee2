"""Transcripts as files: SubRip, WebVTT, TTML, Markdown, plain text. Pure."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from pysubs2 import SSAEvent, SSAFile

from models.contracts import SoundKind
from pipelines.speech.caption_rules import USUAL, CaptionLimits, Cue, HouseRules, cues_of, plain
from pipelines.speech.words import RIGHT_TO_LEFT, isolated, joined, runs_right_to_left
from pipelines.types import Speaker, TimedSound, TranscriptSegment, TranscriptWord

_XML_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_END_MS = 10**10
"""After the end of every medium."""
_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#+!|~-])")

_SHORTEST_SOUND_MS = 1_500
"""A shorter sound, or what words leave of it, is no caption."""


def with_sounds(
    segments: Sequence[TranscriptSegment], sounds: Sequence[TimedSound], template: str = "[{sound}]"
) -> list[TranscriptSegment]:
    """Return the segments, and between them ``[music]`` and ``[singing]`` where nothing is spoken.

    ``template`` has ``{sound}`` or, in capitals, ``{SOUND}``.
    """
    starts = [0, *(each.end_ms for each in segments)]
    ends = [*(each.start_ms for each in segments), _END_MS]
    found = [*segments]
    for sound in sounds:
        pause = bisect.bisect_right(ends, sound.start_ms)
        while sound.kind is not SoundKind.SPEECH and starts[pause] < sound.end_ms:
            span = max(starts[pause], sound.start_ms), min(ends[pause], sound.end_ms)
            if span[1] - span[0] >= _SHORTEST_SOUND_MS:
                name = template.format(sound=sound.kind, SOUND=sound.kind.upper())
                word = TranscriptWord(name, *span, sound.confidence, None)
                found.append(TranscriptSegment(0, *span, name, None, sound.confidence, (word,)))
            pause += 1
            if pause == len(starts):
                break
    return sorted(found, key=lambda each: (each.start_ms, each.end_ms))


_SRT_TAG = re.compile(r"<(?=[/a-zA-Z])|\{(?=\\)")
"""What begins a tag, of SubRip or of ASS."""


def to_srt(
    segments: Sequence[TranscriptSegment], limits: CaptionLimits | HouseRules = USUAL
) -> str:
    """SubRip (index from 1, comma before the milliseconds); empty without segments."""
    blocks = []
    for number, cue in enumerate(cues_of(segments, limits), start=1):
        times = f"{vtt_time(cue.start_ms)} --> {vtt_time(cue.end_ms)}".replace(".", ",")
        # SubRip has no escapes; an arrow in the text would read as a timing line, and players take
        # tags out unless something stands in them.
        text = _SRT_TAG.sub("\\g<0>\u2060", "\n".join(cue.lines).replace("-->", "—>"))
        blocks.append(f"{number}\n{times}\n{text}\n")
    return "\n".join(blocks)


def to_vtt(
    segments: Sequence[TranscriptSegment],
    speakers: Sequence[Speaker],
    limits: CaptionLimits | HouseRules = USUAL,
) -> str:
    """WebVTT (https://www.w3.org/TR/webvtt1/) with ``<v Speaker 1>`` voice spans."""
    labels = {speaker.id: speaker.label for speaker in speakers}
    blocks = [
        f"{vtt_time(cue.start_ms)} --> {vtt_time(cue.end_ms)}\n{_vtt_text(cue, labels)}\n"
        for cue in cues_of(segments, limits)
    ]
    return "WEBVTT\n\n" + "\n".join(blocks)


def to_ttml(
    segments: Sequence[TranscriptSegment],
    speakers: Sequence[Speaker],
    language: str | None,
    limits: CaptionLimits | HouseRules = USUAL,
) -> str:
    """TTML (IMSC 1.1 Text, https://www.w3.org/TR/ttml-imsc1.1/); speakers as agents."""
    agents = "".join(
        f'      <ttm:agent xml:id="{_xml(speaker.id)}" type="person">'
        f'<ttm:name type="full">{_xml(speaker.label)}</ttm:name></ttm:agent>\n'
        for speaker in speakers
    )
    known = {speaker.id for speaker in speakers}
    cues = "".join(
        f'      <p begin="{vtt_time(cue.start_ms)}" end="{vtt_time(cue.end_ms)}"'
        + (f' ttm:agent="{_xml(cue.speaker or "")}"' if cue.speaker in known else "")
        + f">{'<br/>'.join(escaped(_XML_FORBIDDEN.sub('', line)) for line in cue.lines)}</p>\n"
        for cue in cues_of(segments, limits)
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        '<tt xmlns="http://www.w3.org/ns/ttml" xmlns:ttm="http://www.w3.org/ns/ttml#metadata"'
        ' xmlns:ttp="http://www.w3.org/ns/ttml#parameter" ttp:timeBase="media"'
        ' ttp:contentProfiles="http://www.w3.org/ns/ttml/profile/imsc1.1/text"'
        f' xml:lang="{_xml(language or "")}">\n'
        f"  <head>\n    <metadata>\n{agents}    </metadata>\n  </head>\n"
        f"  <body>\n    <div>\n{cues}    </div>\n  </body>\n</tt>\n"
    )


def to_ebu_tt_d(
    segments: Sequence[TranscriptSegment],
    language: str | None,
    limits: CaptionLimits | HouseRules = USUAL,
) -> str:
    """EBU-TT-D (EBU Tech 3380, version 1.0.1): white on black, centred at the bottom."""
    cues = "".join(
        f'      <tt:p xml:id="cue{number}" region="bottom" begin="{vtt_time(cue.start_ms)}"'
        f' end="{vtt_time(cue.end_ms)}"><tt:span style="text">'
        f"{'<tt:br/>'.join(escaped(_XML_FORBIDDEN.sub('', line)) for line in cue.lines)}"
        "</tt:span></tt:p>\n"
        for number, cue in enumerate(cues_of(segments, limits), start=1)
    )
    return _EBU_TT_D.format(language=_xml(language or ""), cues=cues)


_EBU_TT_D = """\
<?xml version="1.0" encoding="UTF-8"?>
<tt:tt xmlns:tt="http://www.w3.org/ns/ttml" xmlns:ttp="http://www.w3.org/ns/ttml#parameter"
 xmlns:tts="http://www.w3.org/ns/ttml#styling" xmlns:ebuttm="urn:ebu:tt:metadata"
 xmlns:ebutts="urn:ebu:tt:style" ttp:timeBase="media" ttp:cellResolution="50 30"
 xml:lang="{language}" xml:space="default">
  <tt:head>
    <tt:metadata>
      <ebuttm:documentMetadata>
        <ebuttm:conformsToStandard>urn:ebu:tt:distribution:2018-04</ebuttm:conformsToStandard>
      </ebuttm:documentMetadata>
    </tt:metadata>
    <tt:styling>
      <tt:style xml:id="place" tts:textAlign="center" tts:fontFamily="default" tts:fontSize="100%"
 tts:lineHeight="125%" ebutts:linePadding="0.5c"/>
      <tt:style xml:id="text" tts:color="#ffffff" tts:backgroundColor="#000000"/>
    </tt:styling>
    <tt:layout>
      <tt:region xml:id="bottom" tts:origin="10% 10%" tts:extent="80% 80%"
 tts:displayAlign="after" style="place"/>
    </tt:layout>
  </tt:head>
  <tt:body>
    <tt:div>
{cues}    </tt:div>
  </tt:body>
</tt:tt>
"""


def to_ass(
    segments: Sequence[TranscriptSegment], limits: CaptionLimits | HouseRules = USUAL
) -> str:
    """Advanced SubStation Alpha; its times are in hundredths of a second."""
    written = SSAFile()
    for cue in cues_of(segments, limits):
        # Braces hold commands, a backslash begins one; there are no escapes for them.
        text = "\n".join(cue.lines).translate(_ASS_COMMANDS)
        event = SSAEvent(start=cue.start_ms, end=cue.end_ms)
        event.plaintext = text
        written.append(event)
    return written.to_string("ass")


_ASS_COMMANDS = str.maketrans({"{": "(", "}": ")", "\\": "/"})


def to_markdown(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """Return a paragraph a speaker turn with the time at which it begins, as Markdown."""
    paragraphs = []
    for start_ms, *names in _turns(segments, speakers):
        label, text = (_MARKDOWN.sub(r"\\\1", name) for name in names)
        who = f"**{label}** " if label else ""
        paragraphs.append(f"{who}`{vtt_time(start_ms)[:8]}` {text}\n")
    return "\n".join(paragraphs)


def to_txt(segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]) -> str:
    """Return a paragraph a speaker turn, with the speaker's label where there are several."""
    turns = _turns(segments, speakers)
    return "\n".join(f"{label}: {text}\n" if label else f"{text}\n" for _, label, text in turns)


def _turns(
    segments: Sequence[TranscriptSegment], speakers: Sequence[Speaker]
) -> Iterator[tuple[int, str, str]]:
    """Start, label (empty where nobody else speaks) and text of each turn."""
    labels = {speaker.id: plain(speaker.label) for speaker in speakers} if len(speakers) > 1 else {}
    for name, group in groupby(segments, key=lambda segment: segment.speaker):
        turn = list(group)
        label, text = labels.get(name or "", ""), joined(plain(each.text) for each in turn)
        if RIGHT_TO_LEFT.search(text):
            # The label must not set the direction of the paragraph.
            label = f"\u2068{label}\u2069" if label else ""
            text = isolated(text, right_to_left=runs_right_to_left(text))
        yield turn[0].start_ms, label, text


def _vtt_text(cue: Cue, labels: dict[str, str]) -> str:
    text = escaped("\n".join(cue.lines))
    label = plain(labels.get(cue.speaker or "", ""))
    # A space, lest "--" of the label and the end of the tag make an arrow.
    return f"<v {escaped(label)}{' ' * label.endswith('--')}>{text}" if label else text


def xml_text(text: str) -> str:
    """``text`` in one line, without what XML cannot hold; not yet escaped."""
    return _XML_FORBIDDEN.sub("", plain(text))


def _xml(text: str) -> str:
    return escaped(xml_text(text)).replace('"', "&quot;")


def escaped(text: str) -> str:
    """``text`` in a WebVTT cue."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def vtt_time(ms: int) -> str:
    """``HH:MM:SS.mmm``."""
    seconds, millis = divmod(ms, 1000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour:02d}:{minute:02d}:{second:02d}.{millis:03d}"
