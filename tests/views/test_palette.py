"""Colours: text can be read on them, and neighbours are told apart."""

import itertools

import numpy as np
import pytest

from distir_ext.text import palette

# Viénot, Brettel and Mollon, "Digital video colourmaps for checking the legibility of displays by
# dichromats", 1999: linear RGB as protanopes and deuteranopes see it.
SEEN = {
    "protanopia": [[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]],
    "deuteranopia": [[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]],
}


def linear(color):
    channels = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("color", palette.SERIES)
def test_text_has_the_contrast_that_wcag_asks_for(color):
    assert palette.contrast(color, palette.text_on(color)) >= 4.5


def test_contrast_is_that_of_wcag():
    assert palette.contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert palette.contrast("#777777", "#FFFFFF") == pytest.approx(4.48, abs=0.01)


@pytest.mark.parametrize("kind", SEEN)
def test_colors_differ_for_who_sees_no_red_or_green(kind):
    def seen(color):
        return np.clip(np.array(SEEN[kind]) @ linear(color), 0, 1) ** (1 / 2.4)

    for one, other in itertools.combinations(palette.SERIES, 2):
        assert np.abs(seen(one) - seen(other)).max() > 0.09
    for block in range(3):
        for row, column in np.ndindex(7, 7):
            cell = seen(palette.cell_color(row, column, block))
            for near in ((row + 1, column), (row, column + 1)):
                assert np.abs(cell - seen(palette.cell_color(*near, block))).max() > 0.22
