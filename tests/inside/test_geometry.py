"""The stream as a path, against plain numpy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from pellucid.inside.edits import zero
from pellucid.inside.geometry import angles, kept, step_lengths, trajectory, write_cosines, write_norms
from pellucid.model.config import PostNorm
from tiny import build, configs, random_ids, tiny_gpt2, traced

MASK = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])


def paths_of(trace):
    return np.stack([state[1, 2:].numpy() for state in trace.states])


def lengths(vectors):
    return np.sqrt((vectors**2).sum(-1))


@settings(max_examples=8)
@given(configs())
def test_steps_are_their_formulas_padding_left_out(config):
    found = traced(build(config), random_ids(2, 6), MASK)
    states = paths_of(found)
    steps = states[1:] - states[:-1]
    near = {"rtol": 1e-9, "atol": 1e-12}
    np.testing.assert_allclose(step_lengths(found, row=1).values, lengths(steps), **near)
    relative = step_lengths(found, row=1, relative=True)
    np.testing.assert_allclose(relative.values, lengths(steps) / lengths(states[:-1]), **near)
    assert relative.columns == tuple(f"{at} {token}" for at, token in enumerate(found.tokens(1)))
    assert relative.rows[-1] == f"{found.transformer.prefix}{config.n_layers}.stream"
    if len(steps) > 1:
        cosines = (steps[1:] * steps[:-1]).sum(-1) / lengths(steps[1:]) / lengths(steps[:-1])
        turned = np.cos(np.deg2rad(angles(found, row=1).values.numpy()))
        np.testing.assert_allclose(turned, cosines, atol=1e-9)


def test_an_angle_needs_two_steps():
    from pellucid.model.config import Parallel

    with pytest.raises(ValueError, match="an angle needs two steps"):
        angles(traced(tiny_gpt2(n_layers=1, block=Parallel(1)), random_ids(1, 3)))


def test_a_path_lies_along_the_axes_in_which_states_differ_most():
    found = traced(tiny_gpt2(), random_ids(2, 6), MASK)
    path, states = trajectory(found, row=1, k=3), paths_of(found)
    flat = states.reshape(-1, states.shape[-1])
    values, vectors = np.linalg.eigh(np.cov(flat.T, bias=True))
    np.testing.assert_allclose(path.explained, values[::-1][:3] / values.sum(), rtol=1e-9)
    for axis in range(3):
        vector = vectors[:, ::-1][:, axis]
        vector = vector * np.sign(vector[np.abs(vector).argmax()])
        np.testing.assert_allclose(path.axes[axis], vector, atol=1e-9)
        np.testing.assert_allclose(path.points[..., axis], (states - flat.mean(0)) @ vector, atol=1e-9)
    rows = path.table().rows
    assert len(rows) == 5 * 4
    assert rows[0] == (f"0 {found.tokens(1)[0]}", "0.stream", *path.points[0, 0].tolist())
    assert rows[-1] == (f"3 {found.tokens(1)[3]}", "2.stream", *path.points[-1, -1].tolist())
    assert path.top(2).rows == rows[:2]
    assert path.to_json()["points"] == path.points.tolist()
    with pytest.raises(ValueError, match=r"k must lie in 1\.\.20, got 21"):
        trajectory(found, row=1, k=21)
    later = trajectory(found, row=1, k=3, first=2)
    flat = states[:, 2:].reshape(-1, states.shape[-1])
    np.testing.assert_allclose(
        later.explained, np.linalg.eigvalsh(np.cov(flat.T, bias=True))[::-1][:3] / flat.var(0).sum()
    )
    assert later.tokens == path.tokens[2:]
    with pytest.raises(ValueError, match=r"positions 0\.\.3, got first=4"):
        trajectory(found, row=1, first=4)


def test_a_path_is_drawn_token_by_token():
    path = trajectory(traced(tiny_gpt2(), random_ids(1, 4)))
    (axes,) = path.plot().figure.axes
    drawn = axes.lines[0].get_xydata()
    np.testing.assert_array_equal(drawn, path.points[:, 0].numpy())
    assert len(axes.lines) == 2 * 4
    with pytest.raises(ValueError, match="needs two axes"):
        trajectory(traced(tiny_gpt2(), random_ids(1, 4)), k=1).plot()


@settings(max_examples=8)
@given(configs())
def test_writes_are_their_formulas(config):
    model = build(config)
    found, prefix = traced(model, random_ids(2, 6), MASK), model.prefix
    parts = [part.name for step in model.steps for part in step.parts]
    read = {part.name: step.state for step in model.steps for part in step.parts}
    assert write_norms(found).rows == tuple(parts)
    for at, name in enumerate(parts):
        update, state = found[f"{name}.update"][1, 2:].numpy(), found[read[name]][1, 2:].numpy()
        norms = write_norms(found, row=1).values[at]
        np.testing.assert_allclose(norms, lengths(update) / lengths(state), rtol=1e-9)
        plain = write_norms(found, row=1, relative=False).values[at]
        np.testing.assert_allclose(plain, lengths(update), rtol=1e-9)
    first = found[f"{prefix}0.stream"][1, 2:].numpy()
    writes = np.stack([first, *(found[f"{name}.update"][1, 2:].numpy() for name in parts)])
    cosines = write_cosines(found, row=1)
    assert cosines.columns == (f"{prefix}embed", *parts[:-1])
    for later, earlier in np.ndindex(tuple(cosines.values.shape)):
        value, (a, b) = cosines[later, earlier], (writes[later + 1], writes[earlier])
        if earlier > later:
            assert np.isnan(value)
        else:
            assert value == pytest.approx(((a * b).sum(-1) / lengths(a) / lengths(b)).mean(), abs=1e-9)
    if isinstance(config.block, PostNorm):
        with pytest.raises(ValueError, match="post-norm"):
            kept(found)
        return
    last = found[f"{prefix}{config.n_layers}.stream"][1, 2:].numpy()
    before = np.cumsum(writes, 0) - writes
    share = ((last - before) * writes).sum(-1) / (writes**2).sum(-1)
    np.testing.assert_allclose(kept(found, row=1).values, share, rtol=1e-7, atol=1e-9)


def test_what_nothing_later_is_written_over_is_kept_whole():
    model = tiny_gpt2()
    found = traced(model, random_ids(1, 4)).edit(zero("1.attention.update"), zero("1.ffn.update"))
    rows = dict(zip(kept(found).rows, kept(found).values.tolist(), strict=True))
    assert rows["0.ffn"] == [1.0] * 4
    assert rows["embed"] != [1.0] * 4
