"""The palette: few colours, as they are seen, most of the picture first."""

from __future__ import annotations

import re

import numpy as np
import pytest

from models.contracts import Picture
from models.pictures import oklab, palette, srgb


def stripes(*parts: tuple[str, int]) -> Picture:
    """Upright stripes of colours, each as many pixels wide as its number."""
    columns = [
        np.tile(np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], np.uint8), (width, 1))
        for colour, width in parts
    ]
    return np.tile(np.concatenate(columns)[None], (54, 1, 1))


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([("#204060", 96)], ("#204060",), id="one colour"),
        pytest.param([("#c02020", 32), ("#2040c0", 64)], ("#2040c0", "#c02020"), id="by share"),
        pytest.param([("#000000", 64), ("#ffffff", 32)], ("#000000", "#ffffff"), id="extremes"),
        pytest.param(
            [("#800000", 40), ("#008000", 30), ("#000080", 20), ("#ffff00", 6)],
            ("#800000", "#008000", "#000080", "#ffff00"),
            id="four colours",
        ),
        pytest.param([("#406080", 48), ("#42627f", 48)], ("#416180",), id="shades are one colour"),
    ],
)
def test_the_palette_is_the_colours_of_the_picture(
    parts: list[tuple[str, int]], expected: tuple[str, ...]
) -> None:
    assert palette([stripes(*parts)]) == expected


def test_a_colour_on_a_scrap_of_the_picture_is_left_out() -> None:
    assert palette([stripes(("#204060", 95), ("#ff0000", 1))]) == ("#204060",)


def test_a_vivid_colour_takes_a_place_before_one_more_grey() -> None:
    greys = [(f"#{level:02x}{level:02x}{level:02x}", 17) for level in (0, 60, 120, 180, 240)]
    assert "#e02020" in palette([stripes(*greys, ("#e02020", 11))])


def test_noise_gives_at_most_five_well_formed_colours_and_always_the_same() -> None:
    random = np.random.default_rng(3)
    still = random.integers(0, 256, (90, 160, 3)).astype(np.uint8)
    first = palette([still, still[::-1].copy()])
    assert 1 <= len(first) <= 5
    assert all(re.fullmatch("#[0-9a-f]{6}", colour) for colour in first)
    assert palette([still, still[::-1].copy()]) == first


def test_all_stills_count_alike_whatever_their_size() -> None:
    small, large = stripes(("#ff0000", 96)), np.tile(stripes(("#0000ff", 96)), (4, 4, 1))
    assert set(palette([small, large])) == {"#ff0000", "#0000ff"}


def test_oklab_and_back_keeps_every_colour() -> None:
    levels = np.arange(0, 256, 15)
    cube = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(-1, 3)
    assert np.abs(srgb(oklab(cube.astype(np.uint8))).astype(int) - cube).max() <= 1
