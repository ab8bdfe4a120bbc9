"""Many small pictures: each stands where its labels say, and large ones keep their largest cells."""

import numpy as np
import pytest

from pellucid.views.mosaic import mosaic

NAMES = ("layer", "head", "attention")


def test_each_picture_stands_at_its_row_and_column():
    pictures = [np.arange(12).reshape(3, 2, 2) / 20, np.arange(12, 24).reshape(3, 2, 2) / 24]
    axes, bar = mosaic(pictures, ["0", "1"], ["a", "b", "c"], "$t$", NAMES).figure.axes
    whole = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert whole.shape == (5, 8)
    for row in range(2):
        for column in range(3):
            cut = whole[row * 3 : row * 3 + 2, column * 3 : column * 3 + 2]
            assert np.array_equal(cut, pictures[row][column])
            assert axes.get_xticks()[column] == column * 3 + 0.5
    assert np.isnan(whole[2]).all()
    assert (axes.get_ylabel(), axes.get_xlabel(), bar.get_ylabel()) == NAMES
    assert axes.get_title(loc="left") == r"\$t\$"


def test_of_large_pictures_the_largest_cells_are_kept():
    picture = np.zeros((1, 200, 100))
    picture[0, 199, 99], picture[0, 5, 7] = 1.0, 0.5
    (image,) = mosaic([picture], ["0"], ["0"], "", NAMES).figure.axes[0].images
    shown = np.ma.filled(image.get_array(), np.nan)
    assert shown.shape == (67, 50)
    assert (shown[66, 49], shown[1, 3], shown.sum()) == (1.0, 0.5, 1.5)


def test_pictures_and_labels_that_differ_in_number_are_refused():
    with pytest.raises(ValueError, match=r"1 x 2 labels need as many pictures, got \[1\]"):
        mosaic([np.zeros((1, 2, 2))], ["0"], ["a", "b"], "", NAMES)
