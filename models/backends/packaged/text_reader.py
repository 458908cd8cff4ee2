"""Writing on the screen, read by PP-OCRv6: one network finds lines, another reads each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt

from models.backends import Backend
from models.backends.packaged import Network, Tensor, batched
from models.contracts import Box, Picture, TextLine

_LONG_SIDE_PX = 640
"""Of the picture in which lines are found."""
_STRIDE = 32
"""Sides of that picture are multiples of this."""
_TEXT_PIXEL = 0.3
_TEXT_REGION = 0.5
_UNCLIP_RATIO = 1.6
"""Thresholds of differentiable binarization and how far its shrunken regions are grown (Liao et
al., 2020), as PP-OCRv6 is used by RapidOCR 3.10."""
_LEAST_SIDE_PX = 3
_MOST_LINES = 40
"""Of a picture, the largest: a page of print would take seconds."""
_LINE_HEIGHT_PX = 48
_LEAST_WIDTH_PX = 320
"""What the recognition network was trained with; shorter lines are padded."""
_MOST_WIDTH_PX = 3_200
_LEAST_CONFIDENCE, _LEAST_CHARACTER = 0.90, 0.5
"""Mean probability of a line's characters, and that of each: none is less likely than not."""
_UPRIGHT_ASPECT = 1.5
"""Height over width from which a region is taken for a line that runs downwards."""

Quad = npt.NDArray[np.float32]
"""Corners (4, 2) in pixels, clockwise from the top left."""


def open_text_reader(row: Backend, models_dir: Path | None) -> PackagedTextReader:
    """The reader with its verified weights. Raises WeightsError."""
    weights, gpu_bytes = row.packaged().paths(models_dir), row.session_bytes // 2
    return PackagedTextReader(weights, gpu_bytes, row.max_batch)


class PackagedTextReader:
    """TextReader. Deterministic; works on one core, or on a GPU."""

    def __init__(self, weights: Mapping[str, Path], gpu_bytes: int = 0, max_batch: int = 1) -> None:
        """``weights`` are the files of ``models.registry.PP_OCR``."""
        self._finder = Network(weights["PP-OCRv6_det_small.onnx"], gpu_bytes)
        self._reader = Network(weights["PP-OCRv6_rec_small.onnx"], gpu_bytes)
        self._max_batch = max_batch
        characters = self._reader.metadata("character").splitlines()
        self._characters = ["", *characters, " "]

    def read(self, stills: Sequence[Picture]) -> list[tuple[TextLine, ...]]:
        pictures = [cv2.cvtColor(still, cv2.COLOR_RGB2BGR) for still in stills]
        small = [_shrunk(picture) for picture in pictures]
        found = batched(self._finder, [_normalised(each) for each in small], self._max_batch)
        quads = [
            _lines(probability[0], picture.shape)
            for [probability], picture in zip(found, pictures, strict=True)
        ]
        places = [(number, quad) for number, own in enumerate(quads) for quad in own]
        lines = [_sized(_straightened(pictures[number], quad)) for number, quad in places]
        pieces: list[list[_Piece]] = [[] for _ in stills]
        read = batched(self._reader, lines, self._max_batch)
        for (number, quad), [scores] in zip(places, read, strict=True):
            best = scores.argmax(axis=1)
            is_new = np.concatenate([[True], best[1:] != best[:-1]]) & (best != 0)
            text = "".join(self._characters[index] for index in best[is_new])
            if text.strip():
                likely = [float(score) for score in scores.max(axis=1)[is_new]]
                pieces[number].append(_Piece(text.strip(), likely, quad))
        return [
            tuple(piece.line(*still.shape[1::-1]) for piece in _joined(own) if piece.is_sure)
            for still, own in zip(stills, pieces, strict=True)
        ]


def _shrunk(picture: cv2.typing.MatLike) -> cv2.typing.MatLike:
    """The picture in which lines are found."""
    rows, columns = picture.shape[:2]
    scale = min(1.0, _LONG_SIDE_PX / max(rows, columns))
    size = (_to_stride(columns * scale), _to_stride(rows * scale))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def _lines(probability: Tensor, shape: tuple[int, ...]) -> list[Quad]:
    """Regions of lines in a picture of that shape, top to bottom."""
    factors = np.array([shape[1], shape[0]], np.float32) / np.array(probability.shape[::-1])
    # Rectangles around the connected parts of a probability map, grown to the whole lines.
    mask = (probability > _TEXT_PIXEL).astype(np.uint8)
    mask = np.asarray(cv2.dilate(mask, np.ones((2, 2), np.uint8)), np.uint8)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    quads = []
    for contour in contours:
        centre, sides, angle = cv2.minAreaRect(contour)
        if min(sides) < _LEAST_SIDE_PX:
            continue
        if _mean_inside(probability, cv2.boxPoints((centre, sides, angle))) < _TEXT_REGION:
            continue
        growth = sides[0] * sides[1] * _UNCLIP_RATIO / (sides[0] + sides[1])
        grown = (centre, (sides[0] + growth, sides[1] + growth), angle)
        # Clockwise from the top left.
        corners = cv2.boxPoints(grown)
        points = np.asarray(corners, np.float32)
        by_column = points[np.argsort(points[:, 0], kind="stable")]
        left = by_column[:2][np.argsort(by_column[:2, 1], kind="stable")]
        right = by_column[2:][np.argsort(by_column[2:, 1], kind="stable")]
        quads.append(np.stack([left[0], right[0], right[1], left[1]]))
    largest = sorted(quads, key=lambda quad: -cv2.contourArea(quad))[:_MOST_LINES]
    scaled = [quad * factors.astype(np.float32) for quad in largest]
    return sorted(scaled, key=lambda quad: (float(quad[:, 1].min()), float(quad[:, 0].min())))


def _sized(line: Picture) -> Tensor:
    """A line's picture as the network takes it, shape (3, 48, width)."""
    rows, columns = line.shape[:2]
    width = min(_MOST_WIDTH_PX, max(1, round(columns * _LINE_HEIGHT_PX / rows)))
    padded = np.zeros((3, _LINE_HEIGHT_PX, max(width, _LEAST_WIDTH_PX)), np.float32)
    padded[:, :, :width] = _normalised(cv2.resize(line, (width, _LINE_HEIGHT_PX)))
    return padded


@dataclass(frozen=True, slots=True)
class _Piece:
    """What was read in one region."""

    text: str
    scores: list[float]
    """Probability of each character."""
    quad: Quad

    @property
    def left(self) -> float:
        return float(self.quad[:, 0].min())

    @property
    def right(self) -> float:
        return float(self.quad[:, 0].max())

    @property
    def top(self) -> float:
        return float(self.quad[:, 1].min())

    @property
    def height(self) -> float:
        return float(self.quad[:, 1].max()) - self.top

    @property
    def is_sure(self) -> bool:
        """Single characters and marks are left out: specks and window bars look like them."""
        letters = sum(character.isalnum() for character in self.text)
        return (
            letters >= 2
            and float(np.mean(self.scores)) >= _LEAST_CONFIDENCE
            and min(self.scores) >= _LEAST_CHARACTER
        )

    def line(self, width: int, height: int) -> TextLine:
        """In a picture of that size."""
        left, top = max(0.0, self.left / width), max(0.0, self.top / height)
        right = min(1.0, self.right / width)
        bottom = min(1.0, (self.top + self.height) / height)
        box = Box(*(round(value, 4) for value in (left, top, right - left, bottom - top)))
        return TextLine(self.text, round(float(np.mean(self.scores)), 4), box)


_SAME_LINE_SHIFT, _SAME_LINE_GAP, _SAME_LINE_SIZES = 0.35, 1.0, 0.7
"""Of the height: how far two pieces of a line may be apart downwards and sideways; and the least
height of the one over that of the other."""


def _joined(pieces: Sequence[_Piece]) -> list[_Piece]:
    """Pieces that stand side by side, as of a spaced-out title, made one line."""
    lines: list[_Piece] = []
    for piece in sorted(pieces, key=lambda each: each.left):
        place = next((at for at, line in enumerate(lines) if _continues(line, piece)), None)
        if place is None:
            lines.append(piece)
        else:
            line = lines[place]
            lines[place] = _Piece(
                f"{line.text} {piece.text}",
                [*line.scores, *piece.scores],
                cv2.boxPoints(cv2.minAreaRect(np.concatenate([line.quad, piece.quad]))),
            )
    return sorted(lines, key=lambda line: (line.top, line.left))


def _continues(line: _Piece, piece: _Piece) -> bool:
    height = max(line.height, piece.height)
    level = abs((line.top + line.height / 2) - (piece.top + piece.height / 2))
    return (
        level <= _SAME_LINE_SHIFT * height
        and -0.5 * height <= piece.left - line.right <= _SAME_LINE_GAP * height
        and min(line.height, piece.height) >= _SAME_LINE_SIZES * height
    )


def _to_stride(length: float) -> int:
    return max(_STRIDE, round(length / _STRIDE) * _STRIDE)


def _normalised(picture: npt.NDArray[np.uint8] | cv2.typing.MatLike) -> Tensor:
    """Levels as -1 to 1, colours first."""
    scaled = np.asarray(picture, np.float32) * np.float32(2 / 255) - np.float32(1)
    return np.ascontiguousarray(scaled.transpose(2, 0, 1))


def _mean_inside(probability: Tensor, corners: cv2.typing.MatLike) -> float:
    rows, columns = probability.shape
    left, top = np.clip(np.floor(corners.min(axis=0)), 0, (columns - 1, rows - 1)).astype(int)
    right, bottom = np.clip(np.ceil(corners.max(axis=0)), 0, (columns - 1, rows - 1)).astype(int)
    mask = np.zeros((bottom - top + 1, right - left + 1), np.uint8)
    cv2.fillPoly(mask, [(corners - (left, top)).astype(np.int32)], (1,))
    return float(cv2.mean(probability[top : bottom + 1, left : right + 1], mask)[0])


def _straightened(picture: cv2.typing.MatLike, quad: Quad) -> Picture:
    """The region as a picture of its own, upright."""
    across = np.linalg.norm(quad[1] - quad[0]), np.linalg.norm(quad[2] - quad[3])
    down = np.linalg.norm(quad[3] - quad[0]), np.linalg.norm(quad[2] - quad[1])
    width, height = max(1, int(max(across))), max(1, int(max(down)))
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    line = cv2.warpPerspective(
        picture,
        cv2.getPerspectiveTransform(quad, corners),
        (width, height),
        flags=cv2.INTER_CUBIC,
        borderMode=cv2.BORDER_REPLICATE,
    )
    return np.asarray(np.rot90(line) if height >= _UPRIGHT_ASPECT * width else line, np.uint8)
