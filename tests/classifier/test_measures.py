import numpy as np
import pytest
import torch

from protograph.classifier.measures import count_examples, measure_answers


def test_measures_are_those_of_a_small_table() -> None:
    labels = ["a", "a", "a", "b", "b", "c"]
    answers = ["a", "b", "b", "b", "unknown", "a"]
    probabilities = np.array(
        [[0.9, 0.1, 0], [0.3, 0.7, 0], [0.4, 0.55, 0.05], [0.05, 0.95, 0], [0.3, 0.4, 0.3], [0.95, 0, 0.05]]
    )
    measures = measure_answers(labels, answers, probabilities, ["a", "b", "c"], "unknown", most=1)
    assert measures.images == 6
    assert measures.by_class == {"a": (3, pytest.approx(1 / 3)), "b": (2, 0.5), "c": (1, 0.0)}
    assert measures.joint == pytest.approx((1 / 3 + 1 / 2) / 3)
    assert measures.confusions == [("a", "b", 2)]
    assert measures.unknown == pytest.approx(1 / 6)
    # By the most probable class: right 1, 0, 0, 1, 1, 0 with confidence 0.9, 0.7, 0.55, 0.95, 0.4, 0.95.
    bins = {(0.9, 0.95, 0.95): (1, 1, 0), (0.7,): (0,), (0.55,): (0,), (0.4,): (1,)}
    error = sum(len(right) * abs(np.mean(confidence) - np.mean(right)) for confidence, right in bins.items()) / 6
    assert measures.calibration_error == pytest.approx(error)
    assert [part.images for part in measures.reliability] == [1, 1, 1, 3]
    assert measures.reliability[-1].accuracy == pytest.approx(2 / 3)


def test_examples_are_found_again_by_their_features() -> None:
    generator = torch.Generator().manual_seed(0)
    taught, other = torch.randn(2, 5, 8, generator=generator)
    asked = torch.cat([taught[:3] * (1 + 1e-5), other[:2], taught[3:]])
    names = ["owl"] * 5 + ["cat"] * 2
    assert count_examples(asked, names, {"owl": taught, "empty": taught[:0]}) == 3, "the last are of another class"
    assert count_examples(asked, names, {"owl": taught, "cat": taught}) == 5
    assert count_examples(asked, names, {"owl": taught[:0]}) == 0
    assert count_examples(asked[:0], [], {"owl": taught}) == 0
