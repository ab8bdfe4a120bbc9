"""A steering vector is the difference of two means, and adding it does what the model makes of the state plus it."""

import json

import pytest
import torch

import pellucid as pl
from pellucid.front import Model
from pellucid.inside.errors import EditError
from pellucid.inside.steering import Steering, steering
from pellucid.inside.trace import trace
from tiny import random_ids, tiny_gpt2

TEXTS = [[1, 2, 3], [4, 5, 6, 7], [8, 9]]


def both(model):
    return Model(model).trace(TEXTS), Model(model).trace(random_ids(2, 4))


@pytest.mark.parametrize("position", [-1, [0, -1]])
def test_it_is_the_difference_of_the_two_means(position):
    model = tiny_gpt2()
    towards, away = both(model)
    found = steering(towards, away, "1.stream", position)
    positions = [position] if isinstance(position, int) else position
    rows = [trace(model, torch.tensor([ids]))["1.stream"][0, at] for ids in TEXTS for at in positions]
    others = [trace(model, ids[None])["1.stream"][0, at] for ids in random_ids(2, 4) for at in positions]
    torch.testing.assert_close(found.vector, torch.stack(rows).mean(0) - torch.stack(others).mean(0))
    assert found.rows == (3, 2)
    assert found.table().rows[0][:2] == ("1.stream", pytest.approx(float(found.vector.norm())))


@pytest.mark.parametrize("site", ["0.stream", "1.stream.mid", "2.stream"])
def test_the_logits_move_as_the_state_says(site):
    model, ids = tiny_gpt2(), random_ids(1, 5, seed=4)
    found, plain = steering(*both(model), site), trace(model, ids)
    steered = Model(model).edited(found.edit(2.0)).trace(ids)
    here = model.begin(ids)
    first = ["0.stream", "0.stream.mid", "1.stream", "1.stream.mid", "2.stream"].index(site)
    expected = model.logits(model.run(plain[site] + 2.0 * found.vector, here, first=first), here)
    torch.testing.assert_close(steered["logits"], expected)
    assert not torch.allclose(expected, plain["logits"])
    narrowed = plain.edit(found.edit(2.0, position=3))
    assert torch.equal(narrowed["logits"][:, :3], plain["logits"][:, :3])
    torch.testing.assert_close(narrowed[site][:, 3], plain[site][:, 3] + 2.0 * found.vector)


def test_of_the_last_state_a_tokens_logit_moves_by_its_direction():
    """Without a norm's scale in between there is nothing but the unembedding: what is predicted is a product."""
    model, ids = tiny_gpt2(), random_ids(1, 4)
    found, plain = steering(*both(model), "2.stream"), trace(model, ids)
    frozen = plain.edit(pl.freeze("final.scale", plain), found.edit())
    moved = frozen["logits"][0, -1, 7] - plain["logits"][0, -1, 7]
    torch.testing.assert_close(moved, plain.direction(7) @ found.vector)


def test_it_holds_while_generating():
    model = Model(tiny_gpt2())
    found = steering(*both(model.transformer), "1.stream")
    steered, prompt = model.edited(found.edit(3.0)), [1, 2, 3]
    made = list(prompt)
    for _ in range(5):
        made.append(int(steered.trace(made)["logits"][0, -1].argmax()))
    assert steered.generate(prompt, max_new_tokens=5).ids == tuple(made[3:])


def test_it_comes_back_from_json():
    found = steering(*both(tiny_gpt2()), "1.stream", [0, -1])
    again = Steering.from_json(json.loads(json.dumps(found.to_json())))
    assert torch.equal(again.vector, found.vector)
    assert again.to_json() == found.to_json()
    assert again.edit(0.5, position=2).to_json() == found.edit(0.5, position=2).to_json()


@pytest.mark.parametrize(
    "change",
    [{"site": 3}, {"vector": "x"}, {"vector": [[1.0]]}, {"vector": [float("nan")]}, {"rows": [1]}, {"more": 1}],
)
def test_other_json_is_refused(change):
    data = {"site": "1.stream", "vector": [1.0], "rows": [1, 1], "positions": [-1]}
    assert Steering.from_json(data).norm == 1.0
    with pytest.raises(EditError, match="steering vector"):
        Steering.from_json(data | change)


def test_what_is_no_state_is_refused():
    towards, away = both(tiny_gpt2())
    with pytest.raises(EditError, match=r"0\.stream to 2\.stream, got '1\.ffn\.update'"):
        steering(towards, away, "1.ffn.update")
    with pytest.raises(EditError, match="at least one position"):
        steering(towards, away, "1.stream", [])
    with pytest.raises(EditError, match="widths 32 and 16"):
        steering(towards, trace(tiny_gpt2(d_model=16), random_ids(1, 4)), "1.stream")
    with pytest.raises(ValueError, match=r"row 2 has positions 0\.\.1"):
        steering(towards, away, "1.stream", 2)
